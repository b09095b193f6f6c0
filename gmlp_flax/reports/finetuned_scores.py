"""The right half of the paper's Tables 4 and 6: the scores of pretrained models after finetuning."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gmlp_flax.paper.quoted import SCORE_COLUMNS, Quoted, ScoreColumn, printed_score
from gmlp_flax.paper.tables import Transfer
from gmlp_flax.reports import claims
from gmlp_flax.reports.runs import Run, task_of
from gmlp_flax.reports.table import Cell, Spread, printed

OURS = " (our claim, not the paper's)"


class Score(NamedTuple):
    """A row's score in one column, in percent: the median over runs with one peak rate and batch size."""

    spread: Spread
    rate: float
    batch: int

    def words(self) -> str:
        """The range of its runs, and what was chosen."""
        values = self.spread.values
        chosen = f"{len(values)} runs, rate {self.rate:g}, batch {self.batch}"
        return f"{min(values):.1f} to {max(values):.1f} ({chosen})"


def score(runs: Sequence[Run], column: ScoreColumn, pretrained: bool = True) -> Score | None:
    """A row's score: the best median over finished runs with the same rate and batch size; None without such runs.

    Counts the runs that started from pretrained parameters, or those that started from random ones.
    """
    by_choice: dict[tuple[float, int], list[float]] = {}
    for run in runs:
        curve = run.curve(column.metric)
        counts = run.finished and bool(run.config.init_parameters) == pretrained
        if counts and curve and task_of(run.config) == column.task:
            choice = run.config.optimizer.learning_rate, run.config.batch_size
            by_choice.setdefault(choice, []).append(column.percent * curve[-1][1])
    scores = (Score(Spread(statistics.median(values), tuple(values)), *choice) for choice, values in by_choice.items())
    # A choice of one seed would win by its luck over one that a sweep gave all of them.
    return max(scores, key=lambda one: (len(one.spread.values), one.spread.centre), default=None)


def _higher(text: str, better: Spread, worse: Spread) -> claims.Claim:
    """The claim that the first scores are higher than the second."""
    verdict = claims.verdict([-value for value in better.values], [-value for value in worse.values])
    return claims.Claim(text, verdict, f"medians {better.centre:.1f} and {worse.centre:.1f}")


class Scores:
    """The scores of some rows in the columns of some tasks, for a report."""

    def __init__(self, tasks: Sequence[str], runs: Mapping[str, Sequence[Run]], transfers: Sequence[Transfer] = ()):
        """Takes tasks of `recipes.FINETUNED`, each row's finetuned runs, and what the paper says of their order.

        A column is left out if neither these runs nor the paper have a score in it.
        """
        self.columns = [
            column
            for column in SCORE_COLUMNS
            if column.task in tasks
            and any(printed_score(row, column) is not None or score(of_row, column) for row, of_row in runs.items())
        ]
        every_run = [run for of_row in runs.values() for run in of_row]
        self.baselines = {
            column.title: trivial
            for column in self.columns
            for run in every_run
            if task_of(run.config) == column.task and (trivial := run.baseline(column.metric))
        }
        self.by_row = {row: [score(of_row, column) for column in self.columns] for row, of_row in runs.items()}
        self.random = {row: [score(of_row, column, False) for column in self.columns] for row, of_row in runs.items()}
        self.transfers = transfers

    @property
    def titles(self) -> list[str]:
        """Two columns of a table per score: ours and the paper's."""
        return [title for column in self.columns for title in (column.title, f"paper's {column.title}")]

    def cells(self, row: str) -> list[Cell]:
        """A row's cells in the columns of `titles`."""
        ours = self.of(row)
        pairs = ((ours.get(column.title), printed(printed_score(row, column))) for column in self.columns)
        return [cell for pair in pairs for cell in pair]

    def quoted_cells(self, row: Quoted) -> list[Cell]:
        """The cells of a row that only the paper has."""
        return [cell for column in self.columns for cell in (None, printed(row.score(column)))]

    def of(self, row: str) -> dict[str, Spread]:
        """Title of a column -> a row's median over seeds."""
        pairs = zip(self.columns, self.by_row.get(row, ()), strict=False)
        return {column.title: score.spread for column, score in pairs if score}

    def claims(self) -> list[claims.Claim]:
        """Whether pretraining helps each row, and whether the paper's orderings of finetuned models hold: in both for
        every pair of runs, for none, or for some."""
        return [
            claim
            for index, column in enumerate(self.columns)
            for claim in (*self._gains(index, column), *self._orderings(column))
        ]

    def _gains(self, index: int, column: ScoreColumn) -> Iterator[claims.Claim]:
        for row, scores in self.by_row.items():
            pretrained, random = scores[index], self.random[row][index]
            if pretrained and random:
                yield _higher(f"{column.title}: pretraining helps {row}{OURS}", pretrained.spread, random.spread)

    def _orderings(self, column: ScoreColumn) -> Iterator[claims.Claim]:
        for better, worse, tasks in self.transfers:
            high, low = (self.of(row).get(column.title) for row in (better, worse))
            if column.task in tasks and high and low:
                ours = OURS if column.task == "rte" else ""
                yield _higher(f"{column.title}: {better} > {worse}{ours}", high, low)

    def notes(self) -> list[str]:
        """Per column: the spread of each score with its chosen rate, and the rank correlation with the paper."""
        lines = []
        for index, column in enumerate(self.columns):
            tuned = {row: score for row, scores in self.by_row.items() if (score := scores[index])}
            spread = (f"{row} {score.words()}" for row, score in tuned.items())
            if tuned:
                lines.append(f"{column.title} is the median of runs; lowest to highest: {', '.join(spread)}.")
            random = {row: score for row, scores in self.random.items() if (score := scores[index])}
            if random:
                beside = (f"{row} {score.words()}" for row, score in random.items())
                lines.append(f"{column.title} from random parameters: {', '.join(beside)}.")
            if trivial := self.baselines.get(column.title):
                lines.append(f"{column.title}, to compare: {trivial[0]}: {column.percent * trivial[1]:.1f}.")
            papers = {row: paper for row in tuned if (paper := printed_score(row, column)) is not None}
            if len(papers) > 1:
                rank = claims.spearman([tuned[row].spread.centre for row in papers], list(papers.values()))
                over = f"over {len(papers)} models"
                lines.append(f"{column.title}: rank correlation with the paper's column {rank:.2f} {over}.")
        return lines
