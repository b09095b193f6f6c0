"""The web pages of reports. They open from disk without a network: styles and scripts are in the page, and the charts'
library (Plotly) is one file beside it. Without that file, or on paper, a page shows each chart as an image."""

from __future__ import annotations

import html
import importlib.resources
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gmlp_flax.analysis.charts import Chart
from gmlp_flax.analysis.drawing import FORMATS
from gmlp_flax.io import run_files
from gmlp_flax.reports.claims import EARLY, HOLDS, ONE_HOLDS, ONE_REVERSED, OPEN, REVERSED, Claim, tally
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.runs import Setting
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
    found = importlib.resources.files("plotly") / "package_data" / LIBRARY
    run_files.write(os.path.join(folder, LIBRARY), found.read_bytes())


def of_report(report: Report, library: str) -> str:
    """A report's page; `library` is the path to the charts' JavaScript."""
    folder = os.path.dirname(library)
    parts = [
        f'<a href="{html.escape(folder)}/index.html">All reports</a>' if folder else "",
        f"<h1>{html.escape(report.title)}</h1>",
        _claims(report),
        _setting(report.setting) if report.setting else "",
        _tables(report),
        *(_figure(name, figure) for name, figure in report.figures.items()),
        _notes(report.notes),
    ]
    return _page(report.title, parts, library if report.interactive else "")


def of_site(title: str, entries: Sequence[Entry], absent: Mapping[str, str]) -> str:
    """The index of a site; `absent` says why a report was not made."""
    cards = "\n".join(map(_card, entries))
    left_out = "\n".join(f"<li><b>{html.escape(name)}</b>: {html.escape(why)}</li>" for name, why in absent.items())
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<ul class="cards">\n{cards}\n</ul>',
        f'<h2>Not made</h2><ul class="notes">{left_out}</ul>' if absent else "",
    ]
    return _page(title, parts, "")


def _page(title: str, parts: Sequence[str], library: str) -> str:
    style, script = (
        (importlib.resources.files("gmlp_flax.reports") / f"page.{kind}").read_text() for kind in ("css", "js")
    )
    loaded = f'<script src="{html.escape(library)}"></script>\n' if library else ""
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<style>\n{style}</style></head>\n<body><main>\n{body}\n</main>\n"
        f"{loaded}<script>\n{script}</script></body></html>\n"
    )


def _claims(report: Report) -> str:
    if not report.every_claim:
        return ""
    more = ""
    if report.more_claims:
        what = f"The other {len(report.more_claims)} orderings"
        more = f"<details><summary>{what}</summary>{_claim_list(report.more_claims)}</details>"
    counted = f"<p>{html.escape(tally(report.every_claim))}</p>"
    return f'<section aria-label="claims">{counted}{_claim_list(report.claims)}{more}</section>'


def _claim_list(claims: Sequence[Claim]) -> str:
    items = (
        f'<li class="{STYLES[each.verdict]}">{html.escape(each.text)} <b>{SIGNS[each.verdict]} {each.verdict}</b>'
        f"{f'<small>{html.escape(each.detail)}</small>' if each.detail else ''}</li>"
        for each in claims
    )
    return f'<ul class="claims">{"".join(items)}</ul>'


def _setting(setting: Setting) -> str:
    if not setting.scaled:
        return f"<p>{html.escape(setting.sentence())}</p>"
    rows = "".join(
        f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in change)}</tr>" for change in setting.scaled
    )
    head = f"<thead><tr><th>setting of {html.escape(setting.row)}</th><th>here</th><th>paper</th></tr></thead>"
    summary = f"Scale {setting.scale}: {len(setting.scaled)} settings are smaller than the paper's"
    return (
        f'<details class="setting"><summary>{html.escape(summary)}</summary><table>{head}<tbody>{rows}</tbody></table>'
        "</details>"
    )


def _tables(report: Report) -> str:
    headings = ["", *(f"<h2>{html.escape(heading.capitalize())}</h2>" for heading in report.more_tables)]
    return "\n".join(
        heading + _table(name, table) for heading, (name, table) in zip(headings, report.tables.items(), strict=True)
    )


def _table(name: str, table: Table) -> str:
    """With three digits; columns sort by all of them."""
    numbers, listed = table.numbered()
    head = "".join(
        f'<th scope="col"><button type="button">{html.escape(column)}</button></th>' for column in table.columns
    )
    rows = "\n".join(
        "<tr>"
        + _cell(row[0], table.over, numbers[str(row[0])])
        + "".join(_cell(cell, table.over) for cell in row[1:])
        + "</tr>"
        for row in table.rows
    )
    notes = "".join(f'<li id="note-{number}">{html.escape(note)}</li>' for number, note in enumerate(listed, start=1))
    legend = f"<p><small>{html.escape(table.legend())}</small></p>" if table.legend() else ""
    return (
        f'<section class="table" data-name="{html.escape(name)}"><div class="tools"><input type="search" '
        'aria-label="Filter rows" placeholder="Filter rows"><button type="button" class="csv">CSV</button></div>\n'
        f'<div class="wide"><table class="sortable"><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>'
        f"</div>{_embedded(table.csv())}{legend}{f'<ol class=footnotes>{notes}</ol>' if notes else ''}</section>"
    )


def _cell(cell: Cell, over: str, footnotes: Sequence[int] = ()) -> str:
    marks = "".join(f'<sup><a href="#note-{number}">{number}</a></sup>' for number in footnotes)
    seeds = ""
    if isinstance(cell, Spread) and len(cell.values) > 1:
        seeds = f' title="{over}: {", ".join(shown(float(value)) for value in cell.values)}"'
    return f'<td data-key="{html.escape(sort_key(cell))}"{seeds}>{html.escape(shown(cell))}{marks}</td>'


def _figure(name: str, figure: Chart | Figure) -> str:
    """A chart with its values, which a script draws, and as an image; or an image alone."""
    kinds = (*FORMATS, "csv") if isinstance(figure, Chart) else FORMATS
    links = ", ".join(f'<a href="{name}.{kind}">{kind.upper()}</a>' for kind in kinds)
    files = f'<span class="files">For print: {links}</span>'
    if not isinstance(figure, Chart):
        return f"<figure>{_image(name, name, figure.get_figwidth())}<figcaption>{files}</figcaption></figure>"
    said = html.escape(" ".join(filter(None, (figure.caption, figure.missing()))))
    values = _embedded([panel.values() for panel in figure.panels])
    image = _image(name, figure.panels[0].title, figure.width)
    return (
        f'<figure class="chart" data-name="{name}">{image}<div class="panels"></div>'
        f"{values}<figcaption>{said} {files}</figcaption></figure>"
    )


def _image(name: str, alt: str, inches: float) -> str:
    return f'<img src="{name}.svg" alt="{html.escape(alt)}" width="{round(PIXELS * inches)}">'


def _embedded(value: object) -> str:
    """Values for the page's script."""
    text = json.dumps(value, ensure_ascii=False, default=float).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def _notes(notes: Sequence[str]) -> str:
    listed = "\n".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return f'<h2>Notes</h2><ul class="notes">\n{listed}\n</ul>' if notes else ""


def _card(entry: Entry) -> str:
    folder = html.escape(entry.folder)
    words = {
        HOLDS: "hold",
        REVERSED: "reversed",
        ONE_HOLDS: "hold with one seed",
        ONE_REVERSED: "reversed with one seed",
        OPEN: "inside the spread",
        EARLY: "not judged",
    }
    counts = {verdict: sum(claim.verdict == verdict for claim in entry.claims) for verdict in words}
    chips = "".join(
        f'<span class="{STYLES[verdict]}">{SIGNS[verdict]} {count} {words[verdict]}</span>'
        for verdict, count in counts.items()
        if count
    )
    image = f'<img loading="lazy" src="{folder}/{html.escape(entry.figure)}.svg" alt="">' if entry.figure else ""
    return (
        f'<li><small>{folder}</small><a href="{folder}/index.html">{html.escape(entry.title)}</a>'
        f"{f'<p class=tally>{chips}</p>' if chips else ''}{image}</li>"
    )
