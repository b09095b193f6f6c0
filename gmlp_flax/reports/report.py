"""A report of a table or figure of the paper, and its files: Markdown, CSV, figures, and a web page."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gmlp_flax.analysis import charts, drawing
from gmlp_flax.analysis.charts import Chart
from gmlp_flax.reports.claims import Claim, tally
from gmlp_flax.reports.runs import Setting
from gmlp_flax.reports.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Report:
    """What a table or figure of the paper becomes.

    Attributes:
        title: the heading.
        table: its numbers.
        claims: of the paper, and whether the runs support them.
        more_claims: further claims, which a page folds away.
        setting: what was scaled down; None if nothing was trained.
        notes: sentences below the table.
        figures: by name: charts, which a page shows interactively, and figures that are images.
    """

    title: str
    table: Table
    claims: Sequence[Claim] = ()
    more_claims: Sequence[Claim] = ()
    setting: Setting | None = None
    notes: Sequence[str] = ()
    figures: Mapping[str, Chart | Figure] = dataclasses.field(default_factory=dict)

    @property
    def every_claim(self) -> list[Claim]:
        """Shown and folded."""
        return [*self.claims, *self.more_claims]

    @property
    def interactive(self) -> bool:
        """Whether it has charts."""
        return any(isinstance(figure, Chart) for figure in self.figures.values())

    def sentences(self) -> list[str]:
        """All that is said beside the table."""
        said = [tally(self.every_claim)] if self.every_claim else []
        said += [claim.sentence() for claim in self.every_claim]
        said += [self.setting.sentence()] if self.setting else []
        captions = (
            sentence for chart in self.figures.values() if isinstance(chart, Chart)
            for sentence in (chart.caption, chart.missing()) if sentence
        )
        return [*said, *self.notes, *dict.fromkeys(captions)]

    def write(self, folder: str, library: str = "") -> str:
        """Writes table.md, table.csv, index.html, each figure as PNG, SVG and PDF, and each chart's numbers as CSV.

        Args:
            folder: of the files.
            library: the path, from the folder, of the charts' JavaScript; by default it is written into the folder,
                if there are charts.

        Returns:
            The path of index.html.
        """
        from gmlp_flax.reports import page

        os.makedirs(folder, exist_ok=True)
        text = "".join(f"- {sentence}\n" for sentence in self.sentences())
        files: dict[str, str | bytes] = {
            "table.md": f"# {self.title}\n\n{self.table.markdown()}\n{text}".rstrip() + "\n",
            "table.csv": self.table.csv(),
            "index.html": page.of_report(self, library or page.LIBRARY),
        }
        for name, shown in self.figures.items():
            figure = charts.draw(shown) if isinstance(shown, Chart) else shown
            files |= {f"{name}.{kind}": drawing.content(figure, kind) for kind in drawing.FORMATS}
            if isinstance(shown, Chart):
                files[f"{name}.csv"] = shown.csv()
        for name, content in files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
        if self.interactive and not library:
            page.write_library(folder)
        return os.path.join(folder, "index.html")
