"""What a table or figure of the paper becomes: a table, claims, notes, charts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gmlp_flax.analysis.charts import Chart
from gmlp_flax.reports.claims import Claim, as_table, tally
from gmlp_flax.reports.table import Table

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
        more = {f"table-{name.replace(' ', '-')}": table for name, table in self.more_tables.items()}
        return {"table": self.table, **more}

    @property
    def charts(self) -> dict[str, Chart]:
        """The figures that a page shows interactively."""
        return {name: figure for name, figure in self.figures.items() if isinstance(figure, Chart)}

    def markdown(self) -> str:
        """The title, the tables and the claims."""
        more = "".join(f"\n## {name.capitalize()}\n\n{table.markdown()}" for name, table in self.more_tables.items())
        claims = f"\n## Claims\n\n{as_table(self.claims).markdown()}" if self.claims else ""
        return f"# {self.title}\n\n{self.table.markdown()}{more}{claims}"

    def sentences(self) -> list[str]:
        """All that is said beside the tables."""
        sentences = [tally(self.claims)] if self.claims else []
        captions = [sentence for chart in self.charts.values() for sentence in (chart.caption, chart.missing())]
        return [*filter(None, [*sentences, self.setting, *self.notes, *dict.fromkeys(captions)])]
