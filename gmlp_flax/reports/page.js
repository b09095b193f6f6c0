"use strict";

// A click on a column sorts its table, a second one reverses the order; empty cells stay last.
for (const button of document.querySelectorAll(".sortable th button"))
  button.addEventListener("click", () => {
    const head = button.parentElement, column = head.cellIndex, body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => row.cells[column].dataset.key;
    const compare = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
    const rows = [...body.rows];
    rows.sort((a, b) => (key(a) === "") - (key(b) === "") || (down ? -1 : 1) * compare(key(a), key(b)));
    body.append(...rows);
  });

// A chart was drawn as wide as its panel before the panels beside it were there. In a narrow one names of points would
// cover each other: the pointer shows them.
if (window.Plotly) for (const plot of document.querySelectorAll(".plotly-graph-div")) {
  Plotly.Plots.resize(plot);
  if (plot.clientWidth < 500) Plotly.restyle(plot, { "textfont.color": "transparent" });
}
