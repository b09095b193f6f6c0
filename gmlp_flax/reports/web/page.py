"""The files of reports: Markdown, CSV, figures and web pages.

A page is one file that opens from disk without a network: it contains its styles, the script that
sorts tables and the figures as SVG.
"""

from __future__ import annotations

import importlib.resources
import os
import string
import sys
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from gmlp_flax.analysis import figure_files
from gmlp_flax.analysis.charts import Chart
from gmlp_flax.errors import RunError
from gmlp_flax.io import files
from gmlp_flax.reports import claims
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.table import Cell, Spread, Table, shown, sort_key
from gmlp_flax.reports.web import inline_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Verdict -> the style and the sign of its claims.
MARKS = {
    claims.HOLDS: ("holds", "\u2713"),
    claims.REVERSED: ("reversed", "\u2717"),
    claims.ONE_HOLDS: ("open", "\u2713"),
    claims.ONE_REVERSED: ("open", "\u2717"),
    claims.OPEN: ("open", "~"),
    claims.EARLY: ("open", "?"),
}


def write(report: Report, folder: str) -> str:
    """Writes table.md, index.html, each table and each chart's numbers as CSV, and each figure as
    PNG, SVG and PDF; returns the path of index.html.

    A figure that cannot be drawn is a line on standard error; nothing else is lost.
    """
    text = markdown(report)
    _write_text(folder, "table.md", text)
    for name, table in report.tables.items():
        rows = table.csv()
        _write_text(folder, f"{name}.csv", rows)
    for name, chart in report.charts.items():
        numbers = chart.csv()
        _write_text(folder, f"{name}.csv", numbers)
    for name, figure in report.figures.items():
        _write_figure(name, figure, folder)
    page = html(report)
    return _write_text(folder, "index.html", page)


def markdown(report: Report) -> str:
    """A report's tables and claims, and below them everything else that it says."""
    lines = [report.markdown()]
    for sentence in report.sentences():
        lines.append(f"- {sentence}")
    text = "\n".join(lines)
    return f"{text.rstrip()}\n"


def _write_text(
    folder: str,
    name: str,
    text: str,
) -> str:
    """Writes a text file; returns its path."""
    path = os.path.join(folder, name)
    files.write(path, text.encode())
    return path


def _write_figure(
    name: str,
    figure: Chart | Figure,
    folder: str,
) -> None:
    """Writes a figure in each format, or prints a line on standard error if it cannot be drawn."""
    try:
        figure_files.write(name, figure, folder)
    except RunError as error:
        print(error, file=sys.stderr)


def html(report: Report) -> str:
    """A report's page."""
    parts = [_claims(report.claims)]
    if report.setting:
        setting = escape(report.setting)
        parts.append(f"<p>{setting}</p>")
    parts.append(_table("table", report.table))
    _, *more_tables = report.tables.items()
    for heading, (name, table) in zip(report.more_tables, more_tables, strict=True):
        title = escape(heading.capitalize())
        parts.append(f"<h2>{title}</h2>")
        parts.append(_table(name, table))
    if report.figures:
        parts.append('<div class="figures">')
        for name, figure in report.figures.items():
            parts.append(_figure(name, figure))
        parts.append("</div>")
    parts.append(_notes(report.notes))
    content = "\n".join(parts)
    template = _resource("page.html")
    page = string.Template(template)
    return page.substitute(
        title=escape(report.title),
        style=_resource("page.css"),
        dark_colours=inline_svg.dark_colours(content),
        content=content,
        script=_resource("page.js"),
    )


def _resource(name: str) -> str:
    """The text of a file next to this one."""
    folder = importlib.resources.files("gmlp_flax.reports.web")
    path = folder / name
    text = path.read_text()
    return text.rstrip()


def _claims(judged: Sequence[claims.Claim]) -> str:
    """The claims with their verdicts; empty if there are none."""
    if not judged:
        return ""
    tally = escape(claims.tally(judged))
    lines = [
        '<section aria-label="claims">',
        f"<p>{tally}</p>",
        '<ul class="claims">',
    ]
    for claim in judged:
        style, sign = MARKS[claim.verdict]
        text = escape(claim.text)
        verdict = f"<b>{sign} {claim.verdict}</b>"
        detail = ""
        if claim.detail:
            detail = f"<small>{escape(claim.detail)}</small>"
        lines.append(f'<li class="{style}">{text} {verdict}{detail}</li>')
    lines.append("</ul></section>")
    return "\n".join(lines)


def _notes(notes: Sequence[str]) -> str:
    """A list of sentences; empty if there are none."""
    if not notes:
        return ""
    lines = ["<h2>Notes</h2>", '<ul class="notes">']
    for note in notes:
        lines.append(f"<li>{escape(note)}</li>")
    lines.append("</ul>")
    return "\n".join(lines)


# Tables.


def _table(name: str, table: Table) -> str:
    """A table with three digits, whose columns sort by all digits."""
    kinds = []
    lines = [
        '<section class="table"><div class="wide"><table class="sortable">',
        "<thead><tr>",
    ]
    for index, column in enumerate(table.columns):
        has_words = any(isinstance(cell, str) for cell in table.column(index))
        kind = ' class="words"' if has_words else ""
        title = escape(column)
        button = f'<button type="button">{title}</button>'
        lines.append(f'<th scope="col"{kind}>{button}</th>')
        kinds.append(kind)
    lines.append("</tr></thead>")
    lines.append("<tbody>")
    for row in table.rows:
        lines.append("<tr>")
        for cell, kind in zip(row, kinds, strict=True):
            lines.append(_cell(cell, kind, table.over))
        lines.append("</tr>")
    file_stem = escape(name)
    link = f'<a href="{file_stem}.csv" download>CSV</a>'
    legend = escape(table.legend())
    lines += [
        "</tbody></table></div>",
        f"<p><small>{link} {legend}</small></p>",
        "</section>",
    ]
    return "\n".join(lines)


def _cell(
    cell: Cell,
    kind: str,
    over: str,
) -> str:
    """A cell; the pointer shows the numbers of a Spread."""
    tip = ""
    if isinstance(cell, Spread) and len(cell.values) > 1:
        values = ", ".join(shown(float(value)) for value in cell.values)
        tip = f' title="{over}: {values}"'
    key = escape(sort_key(cell))
    text = escape(shown(cell))
    return f'<td{kind} data-key="{key}"{tip}>{text}</td>'


# Figures.


def _figure(name: str, figure: Chart | Figure) -> str:
    """A figure with links to its files; or, if it cannot be drawn, the reason."""
    try:
        if isinstance(figure, Chart):
            return _chart(name, figure)
        return _image(name, figure)
    except RunError as error:
        reason = escape(str(error))
        return f"<p>{reason}</p>"


def _image(name: str, figure: Figure) -> str:
    """A figure that is not a chart."""
    links = _links(name, figure)
    lines = [
        '<figure class="whole-row">',
        inline_svg.figure_svg(figure, name),
        f"<figcaption>{links}</figcaption>",
        "</figure>",
    ]
    return "\n".join(lines)


def _chart(name: str, chart: Chart) -> str:
    """The panels of a chart side by side, or one below the other on a narrow screen."""
    style = ' class="whole-row"' if len(chart.panels) > 1 else ""
    lines = [f'<figure{style}><div class="panels">']
    for number, panel in enumerate(chart.panels, start=1):
        title = escape(panel.title)
        drawing = inline_svg.panel_svg(panel, f"{name}-{number}")
        lines += [
            '<div class="panel">',
            f"<h3>{title}</h3>",
            drawing,
            "</div>",
        ]
    sentences = f"{chart.caption} {chart.missing()}"
    caption = escape(sentences.strip())
    links = _links(name, chart)
    lines += [
        "</div>",
        f"<figcaption>{caption} {links}</figcaption>",
        "</figure>",
    ]
    return "\n".join(lines)


def _links(name: str, figure: Chart | Figure) -> str:
    """Links to the files of a figure."""
    kinds = figure_files.FORMATS
    if isinstance(figure, Chart):
        kinds = (*kinds, "csv")
    links = []
    for kind in kinds:
        word = kind.upper()
        links.append(f'<a href="{name}.{kind}">{word}</a>')
    all_links = ", ".join(links)
    return f'<span class="files">For print: {all_links}</span>'
