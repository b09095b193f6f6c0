"""A report of a table or figure of the paper: a table, claims, notes, charts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gmlp_flax.analysis import looks as looks_lib
from gmlp_flax.analysis.charts import Chart, Series
from gmlp_flax.analysis.looks import FAMILIES, Look
from gmlp_flax.models import blocks
from gmlp_flax.paper import custom_rows
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.reports.claims import Claim, tally
from gmlp_flax.reports.table import Spread, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Report:
    """A report of a table or figure of the paper.

    Attributes:
        title: the heading.
        table: its numbers.
        claims: claims of the paper, unless they say otherwise, and whether the runs support them.
        setting: what was scaled down; empty if nothing was trained.
        notes: sentences below the table.
        figures: by name: charts, whose numbers are files as well, and figures that are images.
        more_tables: the tables below the first one, by heading in small letters.
    """

    title: str
    table: Table
    claims: Sequence[Claim] = ()
    setting: str = ""
    notes: Sequence[str] = ()
    figures: Mapping[str, Chart | Figure] = dataclasses.field(default_factory=dict)
    more_tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)

    @property
    def tables(self) -> dict[str, Table]:
        """All tables by the names of their files."""
        tables = {"table": self.table}
        for heading, table in self.more_tables.items():
            name = heading.replace(" ", "-")
            tables[f"table-{name}"] = table
        return tables

    @property
    def charts(self) -> dict[str, Chart]:
        """The figures that are charts."""
        charts = {}
        for name, figure in self.figures.items():
            if isinstance(figure, Chart):
                charts[name] = figure
        return charts

    def markdown(self) -> str:
        """The title, the tables and the claims."""
        table = self.table.markdown()
        parts = [f"# {self.title}\n\n{table}"]
        for heading, more_table in self.more_tables.items():
            title = heading.capitalize()
            text = more_table.markdown()
            parts.append(f"\n## {title}\n\n{text}")
        if self.claims:
            columns = ("claim", "here", "verdict")
            rows = [(claim.text, claim.detail, claim.verdict) for claim in self.claims]
            claims = Table(columns, rows)
            text = claims.markdown()
            parts.append(f"\n## Claims\n\n{text}")
        return "".join(parts)

    def sentences(self) -> list[str]:
        """All sentences besides the tables."""
        sentences = []
        if self.claims:
            sentences.append(tally(self.claims))
        sentences.append(self.setting)
        sentences.extend(self.notes)
        captions: dict[str, None] = {}  # each once
        for chart in self.charts.values():
            captions[chart.caption] = None
            captions[chart.missing()] = None
        sentences.extend(captions)
        return [sentence for sentence in sentences if sentence]


def _family_names() -> dict[str, str]:
    """Block -> the name of its family in FAMILIES; a block without one is drawn in grey."""
    names = {"long_conv": "long convolution", "delta": "delta rule"}
    for name in FAMILIES:
        if name not in names.values():
            lower_case = name.lower()
            block = re.sub("[- ]", "_", lower_case)
            names[block] = name
    names["fnet_hybrid"] = "FNet"
    return names


FAMILY_NAMES = _family_names()


def row_label(row: str) -> str:
    """What a figure calls a row."""
    if custom_rows.is_custom(row):
        return custom_rows.label(row)
    return row


def family(row: str) -> str:
    """The family of a row of `PUBLISHED`, or of such a row on more data. A class of the user's own
    is a family by itself."""
    if custom_rows.is_custom(row):
        return row_label(row)
    published_row, _, _ = row.partition(",")
    published = PUBLISHED[published_row]
    model = blocks.settings(published.spec)
    block: str = model["block"]
    name = FAMILY_NAMES.get(block, block)
    if name == "gMLP" and model.get("d_attn"):
        return "aMLP"
    return name


def looks(rows: Sequence[str]) -> dict[str, Look]:
    """Row -> how it is drawn."""
    families = [family(row) for row in rows]
    chosen = looks_lib.looks(families)
    named = zip(rows, chosen, strict=True)
    return dict(named)


def over_seeds(
    name: str,
    look: Look,
    x: Sequence[float],
    y: Sequence[Spread],
    **options: Any,
) -> Series:
    """A series of numbers over seeds: their centres, and the ranges from the lowest to the highest
    seed if any has several.

    Args:
        name, look, x: of the series.
        y: a number at each x.
        options: further fields of the series.
    """
    centres = []
    low = []
    high = []
    several = False
    for spread in y:
        values = spread.values
        centres.append(spread.centre)
        low.append(min(values))
        high.append(max(values))
        several |= len(values) > 1
    if several:
        options |= {"low": low, "high": high}
    return Series(name, look, x, centres, **options)
