"""The files of reports: Markdown, CSV, figures and web pages.

Pages open from disk without a network: styles and scripts are in the page, and the charts' library
(Plotly) is one file beside it. Without that file, or on paper, a page shows each chart as an image.
"""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from gmlp_flax.analysis.drawing import FORMATS, GREY, PLACE, Chart, Panel, Series, contents
from gmlp_flax.io import files
from gmlp_flax.reports.claims import EARLY, HOLDS, ONE_HOLDS, ONE_REVERSED, OPEN, REVERSED, tally
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.table import Cell, Spread, Table, shown, sort_key

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIBRARY = "plotly.min.js"
PIXELS = 140  # of a figure's inch
# Of a verdict: its style and its sign.
MARKS = {
    HOLDS: ("holds", "\u2713"),
    REVERSED: ("reversed", "\u2717"),
    ONE_HOLDS: ("open", "\u2713"),
}
MARKS |= {ONE_REVERSED: ("open", "\u2717"), OPEN: ("open", "~"), EARLY: ("open", "?")}
# Plotly's names of matplotlib's markers.
SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
}
SYMBOLS |= {".": "circle", "X": "x", "*": "star"}
HEIGHT = 430  # pixels of a panel
CLEAR = "rgba(0, 0, 0, 0)"


def write(report: Report, folder: str) -> str:
    """Writes table.md, index.html, each table and each chart's numbers as CSV, each figure as PNG,
    SVG and PDF, and the charts' JavaScript (4.8 MB); returns the path of index.html."""
    sentences = "".join(f"- {sentence}\n" for sentence in report.sentences())
    texts = {
        "table.md": f"{report.markdown()}\n{sentences}".rstrip() + "\n",
        "index.html": of_report(report),
        **{
            f"{name}.csv": content.csv()
            for name, content in (report.tables | report.charts).items()
        },
    }
    content = {name: text.encode() for name, text in texts.items()}
    for name, data in (content | contents(report.figures)).items():
        files.write(os.path.join(folder, name), data)
    if report.charts:  # the JavaScript that the Python package of the same name brings
        source = importlib.resources.files("plotly") / "package_data" / LIBRARY
        files.write(os.path.join(folder, LIBRARY), source.read_bytes())
    return os.path.join(folder, "index.html")


def of_report(report: Report) -> str:
    """A report's page."""
    headings = ["", *(f"<h2>{escape(heading.capitalize())}</h2>" for heading in report.more_tables)]
    tables = zip(headings, report.tables.items(), strict=True)
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    parts = [
        f"<h1>{escape(report.title)}</h1>",
        _claims(report),
        f"<p>{escape(report.setting)}</p>" if report.setting else "",
        *(heading + _table(name, table) for heading, (name, table) in tables),
        *(_figure(name, figure) for name, figure in report.figures.items()),
        f'<h2>Notes</h2><ul class="notes">{notes}</ul>' if notes else "",
    ]
    style, script = (
        (importlib.resources.files("gmlp_flax.reports") / f"page.{kind}").read_text()
        for kind in ("css", "js")
    )
    loaded = f'<script src="{LIBRARY}"></script>\n' if report.charts else ""
    mark = (
        '<script>if (window.Plotly) document.documentElement.className = "interactive";</script>\n'
    )
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(report.title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<style>\n{style}</style>\n{loaded}{mark}</head>\n<body><main>\n{body}\n</main>\n"
        f"<script>\n{script}</script></body></html>\n"
    )


def _claims(report: Report) -> str:
    """The claims with their verdicts."""
    items = []
    for claim in report.claims:
        style, sign = MARKS[claim.verdict]
        detail = f"<small>{escape(claim.detail)}</small>" if claim.detail else ""
        items.append(
            f'<li class="{style}">{escape(claim.text)} <b>{sign} {claim.verdict}</b>{detail}</li>'
        )
    counts = f'<p>{escape(tally(report.claims))}</p><ul class="claims">{"".join(items)}</ul>'
    return f'<section aria-label="claims">{counts}</section>' if items else ""


def _table(name: str, table: Table) -> str:
    """With three digits; columns sort by all of them."""
    words = [
        any(isinstance(row[index], str) for row in table.rows)
        for index in range(len(table.columns))
    ]
    kinds = [' class="words"' if column else "" for column in words]
    head = "".join(
        f'<th scope="col"{kind}><button type="button">{escape(column)}</button></th>'
        for column, kind in zip(table.columns, kinds, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(map(_cell, row, kinds, [table.over] * len(row)))}</tr>" for row in table.rows
    )
    legend = f" {escape(table.legend())}" if table.legend() else ""
    return (
        f'<section class="table"><div class="wide"><table class="sortable"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
        f'<p><small><a href="{escape(name)}.csv" download>CSV</a>{legend}</small></p></section>'
    )


def _cell(cell: Cell, kind: str, over: str) -> str:
    seeds = ""
    if isinstance(cell, Spread) and len(cell.values) > 1:
        seeds = f' title="{over}: {", ".join(shown(float(value)) for value in cell.values)}"'
    return f'<td{kind} data-key="{escape(sort_key(cell))}"{seeds}>{escape(shown(cell))}</td>'


def _figure(name: str, figure: Chart | Figure) -> str:
    """A chart that Plotly draws, and as an image; or an image alone."""
    kinds = (*FORMATS, "csv") if isinstance(figure, Chart) else FORMATS
    links = ", ".join(f'<a href="{name}.{kind}">{kind.upper()}</a>' for kind in kinds)
    print_links = f'<span class="files">For print: {links}</span>'

    def image(alt: str, inches: float) -> str:
        return f'<img src="{name}.svg" alt="{escape(alt)}" width="{round(PIXELS * inches)}">'

    if not isinstance(figure, Chart):
        return f"<figure>{image(name, figure.get_figwidth())}<figcaption>{print_links}</figcaption></figure>"
    text = escape(" ".join(filter(None, (figure.caption, figure.missing()))))
    plots = "".join(
        _panel(panel, f"{name}-{number}") for number, panel in enumerate(figure.panels, start=1)
    )
    parts = f'{image(figure.panels[0].title, figure.width)}<div class="panels">{plots}</div>'
    return f'<figure class="chart">{parts}<figcaption>{text} {print_links}</figcaption></figure>'


def _panel(panel: Panel, name: str) -> str:
    """A panel as an element of a page that has loaded Plotly; `name` names the element and its file
    as PNG."""
    from plotly import io

    buttons = [["toImage", "resetScale2d"]]  # none that sends data to a host
    config = {"displaylogo": False, "modeBarButtons": buttons}
    config["toImageButtonOptions"] = {"filename": name, "scale": 2}
    options: dict[str, Any] = {"full_html": False, "include_plotlyjs": False, "div_id": name}
    plot = io.to_html(plotly_figure(panel), config=config, **options)
    return f'<div class="panel"><h3>{escape(panel.title)}</h3>{plot}</div>'


def plotly_figure(panel: Panel) -> Any:
    """A panel as a figure of Plotly, in its own white style; ranges over seeds are bars."""
    from plotly import graph_objects

    lines = [line for line in map(panel.drawable, panel.series) if len(line.x)]
    figure = graph_objects.Figure([trace for series in lines for trace in _traces(series)])
    x = [value for series in lines for value in series.x]
    for name, y in panel.references if x else ():
        line = {"color": GREY, "width": 1.2, "dash": "dot"}
        figure.add_scatter(x=[min(x), max(x)], y=[y, y], mode="lines", name=name, line=line)
    figure.update_layout(
        template="plotly_white",
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        modebar={"bgcolor": CLEAR, "color": GREY},
        height=HEIGHT,
        margin={"l": 62, "r": 12, "t": 30, "b": 46},
        hovermode="closest",
        legend={"orientation": "h", "y": -0.16},
        showlegend=len(lines) + len(panel.references) > 1,
    )
    for scale, update in ((panel.x, figure.update_xaxes), (panel.y, figure.update_yaxes)):
        backwards = "reversed" if scale.backwards else True
        whole: dict[str, Any] = {"dtick": 1} if scale.label == PLACE else {}
        update(
            title=scale.label, type="log" if scale.log else "linear", autorange=backwards, **whole
        )
    return figure


def _traces(series: Series) -> Iterator[dict[str, Any]]:
    """The fitted curve, if there is one, and the points, which are hidden and shown together."""
    colour, symbol, dashes = series.look
    x, y = list(map(float, series.x)), list(map(float, series.y))
    together = {"x": x, "name": series.name, "legendgroup": series.name}
    if series.fit:
        curve = {
            "y": list(map(float, series.fit)),
            "mode": "lines",
            "line": {"color": colour, "dash": "dash"},
        }
        yield together | curve | {"showlegend": False, "hoverinfo": "skip"}
    points = {
        "y": y,
        "mode": ("lines+" if series.joined else "")
        + "markers"
        + ("+text" if series.labels else ""),
        "line": {
            "color": colour,
            "dash": ",".join(f"{2 * length}px" for length in dashes) or "solid",
        },
        "marker": {"color": colour, "size": 7, "symbol": SYMBOLS[symbol]},
        "text": list(series.labels),
        "textposition": "top center",
    }
    if series.low:
        up, down = (
            [abs(one - two) for one, two in zip(side, y, strict=True)]
            for side in (series.high, series.low)
        )
        points["error_y"] = {
            "symmetric": False,
            "array": up,
            "arrayminus": down,
            "thickness": 1,
            "width": 0,
        }
    yield together | points
