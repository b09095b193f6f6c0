"""What a table or figure of the paper becomes: a table, claims, notes, charts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.drawing import Chart, Series
from gmlp_flax.models import blocks
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.reports.claims import Claim, tally
from gmlp_flax.reports.table import Spread, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Report:
    """What a table or figure of the paper becomes.

    Attributes:
        title: the heading.
        table: its numbers.
        claims: of the paper, unless they say otherwise, and whether the runs support them.
        setting: what was scaled down; empty if nothing was trained.
        notes: sentences below the table.
        figures: by name: charts, which a page shows interactively, and figures that are images.
        more_tables: by heading, in small letters, tables that stand below the first.
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
        more = {
            f"table-{name.replace(' ', '-')}": table for name, table in self.more_tables.items()
        }
        return {"table": self.table, **more}

    @property
    def charts(self) -> dict[str, Chart]:
        """The figures that a page shows interactively."""
        return {name: figure for name, figure in self.figures.items() if isinstance(figure, Chart)}

    def markdown(self) -> str:
        """The title, the tables and the claims."""
        more = "".join(
            f"\n## {name.capitalize()}\n\n{table.markdown()}"
            for name, table in self.more_tables.items()
        )
        claims = Table(
            ("claim", "here", "verdict"),
            [(one.text, one.detail, one.verdict) for one in self.claims],
        )
        said = f"\n## Claims\n\n{claims.markdown()}" if self.claims else ""
        return f"# {self.title}\n\n{self.table.markdown()}{more}{said}"

    def sentences(self) -> list[str]:
        """All that is said beside the tables."""
        sentences = [tally(self.claims)] if self.claims else []
        captions = [
            sentence
            for chart in self.charts.values()
            for sentence in (chart.caption, chart.missing())
        ]
        return [*filter(None, [*sentences, self.setting, *self.notes, *dict.fromkeys(captions)])]


# Block -> the name of its family in drawing.FAMILIES; a block without one is drawn in grey.
NAMES = {name.lower().replace("-", "_").replace(" ", "_"): name for name in drawing.FAMILIES}
NAMES["fnet_hybrid"] = "FNet"


def family(row: str) -> str:
    """The family of a row of `PUBLISHED`, or of one on more data."""
    model = blocks.settings(PUBLISHED[row.partition(",")[0]].spec)
    block: str = model["block"]
    name = NAMES.get(block, block)
    return "aMLP" if name == "gMLP" and model.get("d_attn") else name


def looks(rows: Sequence[str]) -> dict[str, drawing.Look]:
    """Row -> how it is drawn."""
    return dict(zip(rows, drawing.looks([family(row) for row in rows]), strict=True))


def over_seeds(
    name: str, look: drawing.Look, x: Sequence[float], y: Sequence[Spread], **options
) -> Series:
    """A series of numbers over seeds: their centres, and the ranges from the lowest to the highest
    seed if there are several of any.

    Args:
        name, look, x: of the series.
        y: a number at each x.
        options: further fields of the series.
    """
    several = [spread.values for spread in y] if any(len(spread.values) > 1 for spread in y) else []
    low, high = list(map(min, several)), list(map(max, several))
    return Series(name, look, x, [spread.centre for spread in y], low, high, **options)
