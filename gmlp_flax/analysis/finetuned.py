"""The right half of the paper's Tables 4 and 6: what pretrained models score once they are finetuned."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gmlp_flax.analysis import claims
from gmlp_flax.analysis.gathering import Run, task_of


class Column(NamedTuple):
    """A column of accuracies.

    Attributes:
        title: of the column.
        task: of `recipes.FINETUNED`.
        metric: of an evaluation.
        percent: what makes it percent.
    """

    title: str
    task: str
    metric: str
    percent: int = 100


COLUMNS = (
    Column("SST-2", "sst2", "accuracy"),
    Column("MNLI-m", "mnli", "accuracy"),
    Column("MNLI-mm", "mnli", "accuracy_mm"),
    Column("SQuAD v1.1 F1", "squad_v1.1", "f1", 1),
    Column("SQuAD v2.0 F1", "squad_v2.0", "f1", 1),
)

# The paper's, in the order of COLUMNS: Table 4 has the first two, Table 6 all.
PAPERS: Mapping[str, tuple[float, ...]] = {
    "transformer_6": (90.4, 81.5),
    "gmlp_18": (91.2, 77.7),
    "transformer_12": (91.3, 83.3),
    "gmlp_36": (92.3, 80.9),
    "transformer_24": (92.1, 85.2),
    "gmlp_72": (93.5, 82.8),
    "transformer_48": (92.8, 86.3),
    "gmlp_144": (95.1, 84.6),
    "bert_base": (93.8, 85.6, 85.7, 90.2, 78.6),
    "gmlp_base": (94.2, 83.7, 84.1, 86.7, 70.1),
    "amlp_base": (93.4, 85.9, 85.8, 90.7, 80.9),
    "bert_large": (94.3, 87.0, 87.4, 92.0, 81.0),
    "gmlp_large": (94.8, 86.2, 86.5, 89.5, 78.3),
    "amlp_large": (94.8, 88.4, 88.4, 92.2, 85.4),
    "gmlp_xlarge": (95.6, 87.7, 87.7, 90.9, 82.1),
}


class Score(NamedTuple):
    """Of one row in one column, in percent: the median over runs, as the paper's, and what it was taken of."""

    median: float
    lowest: float
    highest: float
    runs: int
    rate: float
    batch: int


def papers(row: str, column: Column) -> float | None:
    """The paper's percentage, where it prints one."""
    found = PAPERS.get(row, ())
    place = COLUMNS.index(column)
    return found[place] if place < len(found) else None


def score(runs: Sequence[Run], column: Column) -> Score | None:
    """A row's score: of its finished runs with the rate and batch whose median is best; None where there are none."""
    by_choice: dict[tuple[float, int], list[float]] = {}
    for run in runs:
        curve = run.curve(column.metric)
        if run.finished and curve and task_of(run.config) == column.task:
            choice = run.config.optimizer.learning_rate, run.config.batch_size
            by_choice.setdefault(choice, []).append(column.percent * curve[-1][1])
    scores = (
        Score(statistics.median(values), min(values), max(values), len(values), *choice)
        for choice, values in by_choice.items()
    )
    return max(scores, key=lambda each: each.median, default=None)


class Scores:
    """What rows score in the columns of some tasks, for a report."""

    def __init__(self, tasks: Sequence[str], runs: Mapping[str, Sequence[Run]]):
        """Takes tasks of `recipes.FINETUNED`, and each row's finetuned runs, none if it has none.

        What neither these nor the paper score is left out.
        """
        self.columns = [
            column for column in COLUMNS if column.task in tasks
            and any(papers(row, column) is not None or score(each, column) for row, each in runs.items())
        ]
        self.by_row = {row: [score(each, column) for column in self.columns] for row, each in runs.items()}

    @property
    def titles(self) -> list[str]:
        """Two columns of a table a score: ours and the paper's."""
        return [title for column in self.columns for title in (column.title, f"paper's {column.title}")]

    def cells(self, row: str) -> list[float | None]:
        """A row's cells in the columns of `titles`."""
        ours = self.of(row)
        return [cell for column in self.columns for cell in (ours.get(column.title), papers(row, column))]

    def of(self, row: str) -> dict[str, float]:
        """A row's medians by their columns' titles."""
        pairs = zip(self.columns, self.by_row.get(row, ()), strict=False)
        return {column.title: found.median for column, found in pairs if found}

    def notes(self) -> list[str]:
        """How far the runs of each score spread, how they were chosen, and how ranks correlate with the paper's."""
        lines = []
        for place, column in enumerate(self.columns):
            found = {row: each[place] for row, each in self.by_row.items() if each[place]}
            spread = (
                f"{row} {of.lowest:.1f} to {of.highest:.1f} ({of.runs} runs, rate {of.rate:g}, batch {of.batch})"
                for row, of in found.items()
            )
            if found:
                lines.append(f"{column.title}, median of runs; lowest to highest: {', '.join(spread)}.")
            ranked = {row: papers(row, column) for row in found if papers(row, column) is not None}
            if len(ranked) > 1:
                rank = claims.spearman([found[row].median for row in ranked], list(ranked.values()))
                over = f"over {len(ranked)} models"
                lines.append(f"{column.title}: rank correlation with the paper's column {rank:.2f} {over}.")
        return lines
