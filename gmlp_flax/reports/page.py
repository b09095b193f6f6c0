"""The web pages of reports. They open from disk without a network: styles and scripts are in the page, and the charts'
library (Plotly) is one file beside it. Without that file, or on paper, a page shows each chart as an image."""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from gmlp_flax.analysis.charts import Chart
from gmlp_flax.analysis.drawing import FORMATS
from gmlp_flax.io import files
from gmlp_flax.reports import plotly_charts
from gmlp_flax.reports.claims import EARLY, HOLDS, ONE_HOLDS, ONE_REVERSED, OPEN, REVERSED, Claim, tally
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.table import Cell, Spread, Table, shown, sort_key

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIBRARY = "plotly.min.js"
PIXELS = 140  # of a figure's inch
STYLES = {HOLDS: "holds", REVERSED: "reversed", **dict.fromkeys((ONE_HOLDS, ONE_REVERSED, OPEN, EARLY), "open")}
SIGNS = {HOLDS: "\u2713", REVERSED: "\u2717", ONE_HOLDS: "\u2713", ONE_REVERSED: "\u2717", OPEN: "~", EARLY: "?"}


class Entry(NamedTuple):
    """A report in the index of a site: its folder, its title, its claims, and its first figure, empty for none."""

    folder: str
    title: str
    claims: Sequence[Claim]
    figure: str


def write_library(folder: str) -> None:
    """Writes the charts' JavaScript, as the Python package of the same name brings it (4.8 MB)."""
    source = importlib.resources.files("plotly") / "package_data" / LIBRARY
    files.write(os.path.join(folder, LIBRARY), source.read_bytes())


def of_report(report: Report, library: str) -> str:
    """A report's page; `library` is the path to the charts' JavaScript."""
    folder = os.path.dirname(library)
    headings = ["", *(f"<h2>{escape(heading.capitalize())}</h2>" for heading in report.more_tables)]
    tables = zip(headings, report.tables.items(), strict=True)
    parts = [
        f'<a href="{escape(folder)}/index.html">All reports</a>' if folder else "",
        f"<h1>{escape(report.title)}</h1>",
        _claims(report),
        f"<p>{escape(report.setting.sentence())}</p>" if report.setting else "",
        *(heading + _table(name, table) for heading, (name, table) in tables),
        *(_figure(name, figure) for name, figure in report.figures.items()),
        f"<h2>Notes</h2>{_list('notes', map(escape, report.notes))}" if report.notes else "",
    ]
    return _page(report.title, parts, library if report.interactive else "")


def of_site(title: str, entries: Sequence[Entry], absent: Mapping[str, str]) -> str:
    """The index of a site; `absent` says why a report was not made."""
    reasons = (f"<b>{escape(name)}</b>: {escape(why)}" for name, why in absent.items())
    parts = [
        f"<h1>{escape(title)}</h1>",
        _list("cards", map(_card, entries)),
        f"<h2>Not made</h2>{_list('notes', reasons)}" if absent else "",
    ]
    return _page(title, parts, "")


def _page(title: str, parts: Sequence[str], library: str) -> str:
    style, script = (
        (importlib.resources.files("gmlp_flax.reports") / f"page.{kind}").read_text() for kind in ("css", "js")
    )
    loaded = f'<script src="{escape(library)}"></script>\n' if library else ""
    mark = '<script>if (window.Plotly) document.documentElement.className = "interactive";</script>\n'
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<style>\n{style}</style>\n{loaded}{mark}</head>\n<body><main>\n{body}\n</main>\n"
        f"<script>\n{script}</script></body></html>\n"
    )


def _list(kind: str, items: Sequence[str] | map) -> str:
    return f'<ul class="{kind}">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def _claims(report: Report) -> str:
    if not report.every_claim:
        return ""
    more = ""
    if report.more_claims:
        summary = f"The other {len(report.more_claims)} orderings"
        more = f"<details><summary>{summary}</summary>{_claim_list(report.more_claims)}</details>"
    counts = f"<p>{escape(tally(report.every_claim))}</p>"
    return f'<section aria-label="claims">{counts}{_claim_list(report.claims)}{more}</section>'


def _claim_list(claims: Sequence[Claim]) -> str:
    items = (
        f'<li class="{STYLES[claim.verdict]}">{escape(claim.text)} <b>{SIGNS[claim.verdict]} {claim.verdict}</b>'
        f"{f'<small>{escape(claim.detail)}</small>' if claim.detail else ''}</li>"
        for claim in claims
    )
    return f'<ul class="claims">{"".join(items)}</ul>'


def _table(name: str, table: Table) -> str:
    """With three digits; columns sort by all of them."""
    numbers, footnotes = table.numbered()
    head = "".join(f'<th scope="col"><button type="button">{escape(column)}</button></th>' for column in table.columns)
    rows = "\n".join(
        "<tr>"
        + _cell(row[0], table.over, numbers[str(row[0])])
        + "".join(_cell(cell, table.over) for cell in row[1:])
        + "</tr>"
        for row in table.rows
    )
    notes = "".join(f'<li id="note-{number}">{escape(note)}</li>' for number, note in enumerate(footnotes, start=1))
    legend = f" {escape(table.legend())}" if table.legend() else ""
    return (
        f'<section class="table"><div class="wide"><table class="sortable"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>"
        f'<p><small><a href="{escape(name)}.csv" download>CSV</a>{legend}</small></p>'
        f"{f'<ol class=footnotes>{notes}</ol>' if notes else ''}</section>"
    )


def _cell(cell: Cell, over: str, footnotes: Sequence[int] = ()) -> str:
    marks = "".join(f'<sup><a href="#note-{number}">{number}</a></sup>' for number in footnotes)
    seeds = ""
    if isinstance(cell, Spread) and len(cell.values) > 1:
        seeds = f' title="{over}: {", ".join(shown(float(value)) for value in cell.values)}"'
    return f'<td data-key="{escape(sort_key(cell))}"{seeds}>{escape(shown(cell))}{marks}</td>'


def _figure(name: str, figure: Chart | Figure) -> str:
    """A chart that Plotly draws, and as an image; or an image alone."""
    chart = figure if isinstance(figure, Chart) else None
    links = ", ".join(f'<a href="{name}.{kind}">{kind.upper()}</a>' for kind in (*FORMATS, *(["csv"] if chart else [])))
    files = f'<span class="files">For print: {links}</span>'
    if chart is None:
        return f"<figure>{_image(name, name, figure.get_figwidth())}<figcaption>{files}</figcaption></figure>"
    text = escape(" ".join(filter(None, (chart.caption, chart.missing()))))
    plots = "".join(plotly_charts.html(panel, f"{name}-{number}") for number, panel in enumerate(chart.panels, start=1))
    image = _image(name, chart.panels[0].title, chart.width)
    return (
        f'<figure class="chart">{image}<div class="panels">{plots}</div>'
        f"<figcaption>{text} {files}</figcaption></figure>"
    )


def _image(name: str, alt: str, inches: float) -> str:
    return f'<img src="{name}.svg" alt="{escape(alt)}" width="{round(PIXELS * inches)}">'


def _card(entry: Entry) -> str:
    folder = escape(entry.folder)
    claims = f"<p>{escape(tally(entry.claims))}</p>" if entry.claims else ""
    image = f'<img loading="lazy" src="{folder}/{escape(entry.figure)}.svg" alt="">' if entry.figure else ""
    return f'<small>{folder}</small><a href="{folder}/index.html">{escape(entry.title)}</a>{claims}{image}'
