"""The right half of the paper's Tables 4 and 6: the scores of pretrained models after finetuning."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gmlp_flax.paper.quoted import SCORE_COLUMNS, Quoted, ScoreColumn, Statement, printed_score
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
    scores = (Score(Spread.median(values), *choice) for choice, values in by_choice.items())
    # A choice of one seed would win by its luck over one that a sweep gave all of them.
    return max(scores, key=lambda score: (len(score.spread.values), score.spread.centre), default=None)


class Scores:
    """The scores of some rows in the columns of some tasks, for a report.

    Attributes:
        columns: without those in which neither the runs nor the paper have a score.
        by_column: column -> row -> its score, from pretrained parameters.
    """

    def __init__(self, tasks: Sequence[str], runs: Mapping[str, Sequence[Run]], transfers: Sequence[Statement] = ()):
        """Takes tasks of `recipes.FINETUNED`, each row's finetuned runs, and what the paper says of their order."""
        self.runs, self.transfers = runs, transfers
        self.by_column = {
            column: {row: found for row in runs if (found := score(runs[row], column))}
            for column in SCORE_COLUMNS
            if column.task in tasks
        }
        self.columns = [
            column
            for column, scores in self.by_column.items()
            if scores or any(printed_score(row, column) is not None for row in runs)
        ]

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
        scores = {column.title: self.by_column[column].get(row) for column in self.columns}
        return {title: score.spread for title, score in scores.items() if score}

    def claims(self) -> Iterator[claims.Claim]:
        """Whether the paper's orderings of finetuned models hold: for every pair of runs, for none, or for some."""
        for column in self.columns:
            scores = self.by_column[column]
            for _, better, worse, tasks, _ in self.transfers:
                if column.task in tasks and better in scores and worse in scores:
                    ours = OURS if column.task == "rte" else ""
                    one, other = scores[better].spread, scores[worse].spread
                    verdict = claims.verdict(one.values, other.values, lower=False)
                    medians = f"medians {one.centre:.1f} and {other.centre:.1f}"
                    yield claims.Claim(f"{column.title}: {better} > {worse}{ours}", verdict, medians)

    def notes(self) -> Iterator[str]:
        """Per column: the spread of each score with its chosen rate, and the rank correlation with the paper."""
        for column in self.columns:
            title, scores = column.title, self.by_column[column]
            if scores:
                words = ", ".join(f"{row} {score.words()}" for row, score in scores.items())
                yield f"{title} is the median of runs; lowest to highest: {words}."
            if trivial := self._baseline(column):
                yield f"{title}, to compare: {trivial[0]}: {column.percent * trivial[1]:.1f}."
            papers = {row: paper for row in scores if (paper := printed_score(row, column)) is not None}
            if len(papers) > 1:
                rank = claims.spearman([scores[row].spread.centre for row in papers], list(papers.values()))
                p = claims.chance(float(rank), list(papers.values()))
                over = f"over {len(papers)} models; one-sided permutation p = {p:.2g}"
                yield f"{title}: rank correlation with the paper's column {rank:.2f} {over}."

    def _baseline(self, column: ScoreColumn) -> tuple[str, float] | None:
        """What a trivial model scores in a column, as the last run that knows it says."""
        of_task = [run for of_row in self.runs.values() for run in of_row if task_of(run.config) == column.task]
        return next((model for run in reversed(of_task) for model in run.baselines(column.metric).items()), None)
