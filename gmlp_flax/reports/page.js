"use strict";

// Tables: a click on a column sorts it, a second one reverses the order; empty cells stay last.
for (const section of document.querySelectorAll("section.table")) {
  const table = section.querySelector("table"), body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(each => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => row.cells[column].dataset.key;
    const compare = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
    const rows = [...body.rows];
    rows.sort((a, b) => (key(a) === "") - (key(b) === "") || (down ? -1 : 1) * compare(key(a), key(b)));
    body.append(...rows);
  }));
  section.querySelector("input").addEventListener("input", event => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of body.rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
  });
  const text = JSON.parse(section.querySelector("script").textContent);
  section.querySelector(".csv").addEventListener("click", () => download(`${section.dataset.name}.csv`, text));
}

function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Charts.
const SYMBOLS = { o: "circle", ".": "circle", s: "square", "^": "triangle-up", D: "diamond", v: "triangle-down", P: "cross",
                  X: "x", "*": "star" };
const LEFT = 62, TOP = 8, BOTTOM = 46, LINE = 15, GREY = "#4d4d4d";

function plain(value) {
  for (const [size, unit] of [[1e9, " B"], [1e6, " M"], [1e4, " k"]])
    if (Math.abs(value) >= size) return parseFloat((value / (unit === " k" ? 1e3 : size)).toPrecision(3)) + unit;
  return String(parseFloat(value.toPrecision(4)));
}

// Round numbers for a logarithmic axis: 50, 100, 200; see plain_ticks in analysis/drawing.py.
function plainTicks(low, high, most) {
  let ticks = [];
  for (const digits of [[1, 2, 5], [1, 3], [1]]) {
    ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const digit of digits) {
        const tick = digit * 10 ** power;
        if (low <= tick && tick <= high) ticks.push(tick);
      }
    if (ticks.length <= most) break;
  }
  if (ticks.length >= 3) return ticks;
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(digit => digit * power).find(each => each >= rough);
  ticks = [];
  for (let place = Math.ceil(low / step); place * step <= high; place++) ticks.push(place * step);
  return ticks;
}

// Moves places apart, in order, until neighbours are `least` apart; see spaced in analysis/drawing.py.
function spaced(places, least, high) {
  const groups = [];
  for (const index of places.map((_, index) => index).sort((a, b) => places[a] - places[b])) {
    let group = { members: [index], start: places[index] };
    while (groups.length && groups.at(-1).start + groups.at(-1).members.length * least > group.start) {
      const members = groups.pop().members.concat(group.members);
      const middle = members.reduce((sum, each, rank) => sum + places[each] - rank * least, 0) / members.length;
      group = { members, start: Math.max(0, Math.min(middle, high - (members.length - 1) * least)) };
    }
    groups.push(group);
  }
  const moved = [];
  for (const { members, start } of groups) members.forEach((each, rank) => { moved[each] = start + rank * least; });
  return moved;
}

function button(parent, text, act, pressed) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  if (pressed !== undefined) made.setAttribute("aria-pressed", pressed);
  made.addEventListener("click", act);
  parent.append(made);
  return made;
}

function element(parent, tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text) made.textContent = text;
  parent.append(made);
  return made;
}

class Panel {
  constructor(box, values, name) {
    this.values = values;
    this.name = name;
    this.log = { x: values.x.log, y: values.y.log };
    this.hidden = new Set();
    element(box, "h3", "", values.title);
    this.addChips(element(box, "div", "tools series"));
    this.plot = element(box, "div", "plot");
    this.addTools(element(box, "div", "tools"));
    this.traces();
    Plotly.newPlot(this.plot, this.data, this.layout(), { displayModeBar: false, doubleClick: false }).then(() => {
      this.plot.on("plotly_relayout", () => this.label());
      this.plot.on("plotly_doubleclick", () => this.redraw());
      this.label();
    });
  }

  addChips(chips) {
    this.chips = this.values.series.map((series, index) => {
      const chip = button(chips, series.name, () => this.toggle([index]), true);
      chip.classList.add("chip");
      chip.style.setProperty("--colour", series.look[0]);
      chip.title = "click: hide or show; double click: show this one alone";
      chip.addEventListener("dblclick", () => this.isolate(index));
      return chip;
    });
    if (this.chips.length > 3) button(chips, "all", () => this.toggle([...this.hidden]));
  }

  addTools(tools) {
    for (const axis of ["x", "y"]) {
      const positive = this.values.series.every(series => series[axis].every(value => value > 0));
      if (!positive) continue;
      const made = button(tools, `log ${axis}`, () => {
        this.log[axis] = !this.log[axis];
        made.setAttribute("aria-pressed", this.log[axis]);
        this.redraw();
      }, this.log[axis]);
      made.classList.add("switch");
    }
    button(tools, "whole view", () => this.redraw());
    const end = element(tools, "span", "end");
    button(end, "PNG", () => this.png());
    button(end, "CSV", () => download(`${this.name}.csv`, this.csv()));
  }

  // One to three traces per series; `owner` says whose each is, -1 for a reference.
  traces() {
    this.data = [];
    this.owner = [];
    const add = (owner, trace) => { this.owner.push(owner); this.data.push({ showlegend: false, ...trace }); };
    const all = this.values.series.flatMap(series => series.x);
    for (const [name, y] of this.values.references)
      add(-1, { x: [Math.min(...all), Math.max(...all)], y: [y, y], mode: "lines", hoverinfo: "text", hovertext: `${name}: ${plain(y)}`,
                line: { color: GREY, width: 1.2, dash: "dot" } });
    this.values.series.forEach((series, index) => {
      const [colour, symbol, dashes] = series.look;
      const ranged = series.low.length > 0;
      if (ranged && series.band)
        add(index, { x: [...series.x, ...series.x.toReversed()], y: [...series.high, ...series.low.toReversed()], mode: "lines",
                     fill: "toself", fillcolor: colour + "26", line: { width: 0 }, hoverinfo: "skip" });
      if (series.fit.length)
        add(index, { x: series.x, y: series.fit, mode: "lines", hoverinfo: "skip", line: { color: colour, width: 1.3, dash: "dash" } });
      const bars = ranged && !series.band && {
        type: "data", symmetric: false, array: series.high.map((value, i) => value - series.y[i]),
        arrayminus: series.low.map((value, i) => series.y[i] - value), thickness: 1, width: 0, color: colour };
      add(index, {
        x: series.x, y: series.y, name: series.name, mode: (series.joined ? "lines+" : "") + "markers" + (series.labels.length ? "+text" : ""),
        text: series.labels, textposition: "top center", textfont: { size: 10, color: series.ink }, cliponaxis: false,
        line: { color: colour, width: 1.8, dash: dashes.length ? dashes.map(length => `${2 * length}px`).join(",") : "solid" },
        marker: { color: colour, size: 7, symbol: SYMBOLS[symbol], line: { color: "white", width: 0.7 } },
        error_y: bars || undefined, hoverinfo: "text", hovertext: series.x.map((_, i) => this.tip(series, i)) });
    });
  }

  tip(series, i) {
    const range = series.low.length && series.low[i] !== series.high[i] ? ` (${digits(series.low[i])} to ${digits(series.high[i])})` : "";
    const label = series.labels.length ? ` ${series.labels[i]}` : "";
    return `<b>${series.name}${label}</b><br>${digits(series.y[i])}${range}<br>${plain(series.x[i])} ${this.values.x.label}`;
  }

  get roomy() { return this.plot.clientWidth >= 420; }

  axis(name) {
    const { label, backwards } = this.values[name];
    return { title: { text: label, standoff: 6, font: { size: 12 } }, type: this.log[name] ? "log" : "linear",
             range: this.range(name, backwards), tickmode: "auto", gridcolor: "#e8ebee", zeroline: false, linecolor: "#57606a", linewidth: 1,
             ticks: "outside", ticklen: 4, tickfont: { size: 11 }, tickformat: this.log[name] || Math.max(...this.values.series.flatMap(s => s[name])) < 1e4 ? "" : "~s" };
  }

  // The range of all values with a margin. Plotly's own would make room for the labels as well.
  range(name, backwards) {
    const values = this.values.series.flatMap(series => name === "x" ? series.x : [...series.y, ...series.low, ...series.high, ...series.fit]);
    if (name === "y") values.push(...this.values.references.map(([, y]) => y));
    const scaled = values.filter(value => !this.log[name] || value > 0).map(value => this.log[name] ? Math.log10(value) : value);
    const low = Math.min(...scaled), high = Math.max(...scaled), margin = 0.05 * (high - low) || 0.1 * Math.abs(high) || 1;
    return backwards ? [high + margin, low - margin] : [low - margin, high + margin];
  }

  layout() {
    const names = [...this.values.series.map(series => series.name), ...this.values.references.map(([name]) => name)];
    const right = this.roomy ? 26 + 6.3 * Math.max(...names.map(name => name.length)) : 12;
    this.size = { width: this.plot.clientWidth - LEFT - right, height: Math.max(this.roomy ? 340 : 290, names.length * LINE) };
    return { width: this.plot.clientWidth, height: this.size.height + TOP + BOTTOM, margin: { l: LEFT, r: right, t: TOP, b: BOTTOM },
             xaxis: this.axis("x"), yaxis: this.axis("y"), hovermode: "closest", font: { family: "system-ui, sans-serif", color: "#1f2328" },
             hoverlabel: { bgcolor: "white", font: { size: 12 }, align: "left" }, annotations: [],
             dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom" };
  }

  redraw() { Plotly.react(this.plot, this.data, this.layout()).then(() => this.label()); }

  // Plain numbers on logarithmic axes, and each visible series' name at the end of its line.
  label() {
    if (this.labelling) return;
    const changes = {}, place = {};
    for (const name of ["x", "y"]) {
      const range = this.plot.layout[`${name}axis`].range, log = this.log[name];
      place[name] = value => ((log ? Math.log10(value) : value) - range[0]) / (range[1] - range[0]);
      if (!log) continue;
      const [low, high] = range.map(power => 10 ** power).sort((a, b) => a - b);
      const ticks = plainTicks(low, high, name === "x" && !this.roomy ? 5 : 8);
      Object.assign(changes, { [`${name}axis.tickmode`]: "array", [`${name}axis.tickvals`]: ticks, [`${name}axis.ticktext`]: ticks.map(plain) });
    }
    changes.annotations = this.roomy ? this.endLabels(place) : [];
    this.labelling = true;
    this.placeLabels(place).then(() => Plotly.relayout(this.plot, changes)).then(() => { this.labelling = false; });
  }

  // Puts each point's label on the side where it covers least of other labels, points and lines.
  async placeLabels(place) {
    const shown = this.values.series.map((series, index) => ({ series, index })).filter(({ index }) => !this.hidden.has(index));
    if (!shown.some(({ series }) => series.labels.length)) return;
    const taken = [], pixels = ({ series }) => series.x.map((x, i) => [place.x(x) * this.size.width, (1 - place.y(series.y[i])) * this.size.height]);
    const dot = (x, y, half) => taken.push([x - half, y - half, x + half, y + half]);
    for (const each of shown) {
      const points = pixels(each);
      points.forEach(([x, y]) => dot(x, y, 5));
      const lines = each.series.joined ? points.slice(1).map((point, i) => [points[i], point]) : [];
      if (!each.series.band) each.series.low.forEach((low, i) => lines.push([low, each.series.high[i]].map(y => [points[i][0], (1 - place.y(y)) * this.size.height])));
      for (const [from, to] of lines)
        for (let part = 0; part <= 40; part++) dot(...[0, 1].map(side => from[side] + part / 40 * (to[side] - from[side])), 1.5);
    }
    const overlap = (a, b) => Math.max(0, Math.min(a[2], b[2]) - Math.max(a[0], b[0])) * Math.max(0, Math.min(a[3], b[3]) - Math.max(a[1], b[1]));
    const updates = [], traces = [];
    for (const each of shown) {
      const sides = pixels(each).map(([x, y], i) => {
        const width = 6 * each.series.labels[i].length, options = [];
        for (const [up, across] of [["top", "center"], ["bottom", "center"], ["middle", "right"], ["middle", "left"],
                                    ["top", "right"], ["top", "left"], ["bottom", "right"], ["bottom", "left"]]) {
          const left = x + { left: -width - 6, center: -width / 2, right: 6 }[across], top = y + { top: -18, middle: -6, bottom: 6 }[up];
          const box = [left, top, left + width, top + 12];
          options.push({ side: `${up} ${across}`, box, cost: taken.reduce((sum, other) => sum + overlap(box, other), 0) });
        }
        const best = options.reduce((a, b) => b.cost < a.cost - 1 ? b : a);
        taken.push(best.box);
        return best.side;
      });
      updates.push(sides);
      traces.push(this.data.findIndex((trace, index) => this.owner[index] === each.index && trace.text));
    }
    await Plotly.restyle(this.plot, { textposition: updates }, traces);
  }

  endLabels(place) {
    const { width, height } = this.size, ends = [];
    this.values.series.forEach((series, index) => {
      if (this.hidden.has(index)) return;
      const seen = series.x.map((x, i) => [place.x(x), place.y(series.y[i]), i]).filter(([x, y]) => x >= 0 && x <= 1 && y >= 0 && y <= 1);
      if (!seen.length) return;
      const [x, y, i] = seen.reduce((a, b) => a[0] > b[0] ? a : b);
      ends.push({ name: series.name, colour: series.look[0], ink: series.ink, x: series.x[i], y: series.y[i], across: x, up: y });
    });
    for (const [name, y] of this.values.references) {
      const last = Math.max(...this.values.series.flatMap(series => series.x));
      const across = place.x(last), up = place.y(y);
      if (up >= 0 && up <= 1 && across >= 0 && across <= 1) ends.push({ name, colour: GREY, ink: GREY, x: last, y, across, up });
    }
    const moved = spaced(ends.map(end => end.up * height), LINE, height);
    const raw = (value, log) => log ? Math.log10(value) : value;
    return ends.map((end, index) => ({
      x: raw(end.x, this.log.x), y: raw(end.y, this.log.y), xref: "x", yref: "y", text: end.name, showarrow: true, arrowhead: 0,
      arrowwidth: 0.8, arrowcolor: end.colour, standoff: 4, ax: (1 - end.across) * width + 16, ay: end.up * height - moved[index],
      xanchor: "left", yanchor: "middle", font: { size: 11.5, color: end.ink }, borderpad: 0 }));
  }

  toggle(indices) {
    for (const index of indices) this.hidden.has(index) ? this.hidden.delete(index) : this.hidden.add(index);
    this.show();
  }

  isolate(index) {
    this.hidden = new Set(this.chips.map((_, each) => each).filter(each => each !== index));
    this.show();
  }

  show() {
    this.chips.forEach((chip, index) => chip.setAttribute("aria-pressed", !this.hidden.has(index)));
    this.data.forEach((trace, index) => { trace.visible = !this.hidden.has(this.owner[index]); });
    Plotly.restyle(this.plot, { visible: this.data.map(trace => trace.visible) }).then(() => this.label());
  }

  png() {
    const { width, height } = this.plot.layout;
    const lines = [""];
    for (const word of this.values.title.split(" "))
      (lines.at(-1) + word).length > width / 8 ? lines.push(word) : lines[lines.length - 1] += ` ${word}`;
    const top = 22 + 18 * lines.length;
    const layout = { ...this.plot.layout, title: { text: lines.join("<br>").trim(), font: { size: 14 }, x: 0.01, xanchor: "left" },
                     margin: { ...this.plot.layout.margin, t: top }, height: height + top - TOP };
    Plotly.downloadImage({ data: this.data, layout }, { format: "png", width, height: layout.height, scale: 2, filename: this.name });
  }

  csv() {
    const quoted = text => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    const lines = [["series", "label", this.values.x.label, this.values.y.label, "lowest", "highest"].map(quoted)];
    this.values.series.forEach((series, index) => {
      if (this.hidden.has(index)) return;
      series.x.forEach((x, i) => lines.push([quoted(series.name), quoted(series.labels[i] ?? ""), x, series.y[i], series.low[i] ?? "", series.high[i] ?? ""]));
    });
    return lines.map(line => line.join(",") + "\n").join("");
  }
}

function digits(value) {
  return Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3);
}

if (window.Plotly) {
  const panels = [];
  for (const figure of document.querySelectorAll("figure.chart")) {
    figure.classList.add("drawn");
    const values = JSON.parse(figure.querySelector("script").textContent);
    // All boxes first: a panel that is alone while it is drawn would be as wide as all of them.
    const boxes = values.map(() => element(figure.querySelector(".panels"), "div", "panel"));
    values.forEach((each, index) => {
      const name = figure.dataset.name + (values.length > 1 ? `-${index + 1}` : "");
      panels.push(new Panel(boxes[index], each, name));
    });
  }
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => panels.forEach(panel => panel.redraw()), 150); });
}
