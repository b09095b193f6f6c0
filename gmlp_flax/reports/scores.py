"""Scores of finetuned models: medians over runs, beside the paper's."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gmlp_flax.paper.alternatives import Column, Statement
from gmlp_flax.paper.tables import SCORE_COLUMNS, printed_score
from gmlp_flax.reports import claims
from gmlp_flax.reports.claims import Claim
from gmlp_flax.reports.runs import Run, baselines, task_of
from gmlp_flax.reports.table import Cells, Spread, printed

OURS = " (our claim, not the paper's)"
OUR_TASK = "rte"  # on which the paper claims nothing


class Score(NamedTuple):
    """A row's score in one column, in percent: the median over runs with the same peak rate and
    batch size."""

    spread: Spread
    rate: float
    batch: int

    def words(self) -> str:
        """The range of its runs, and the chosen setting."""
        values = self.spread.values
        lowest = min(values)
        highest = max(values)
        count = len(values)
        chosen = f"{count} runs, rate {self.rate:g}, batch {self.batch}"
        return f"{lowest:.1f} to {highest:.1f} ({chosen})"


def score(
    runs: Sequence[Run],
    column: Column,
    pretrained: bool = True,
) -> Score | None:
    """A row's score: the best median over finished runs with the same rate and batch size; None
    without such runs.

    Counts the runs that started from pretrained parameters, or those that started from random ones.
    """
    by_choice: dict[tuple[float, int], list[float]] = {}
    for run in runs:
        if not _counts(run, column, pretrained):
            continue
        last = run.last_score(column.metric)
        if last is None:
            continue
        config = run.config
        rate = config.optimizer.learning_rate
        choice = (rate, config.batch_size)
        percents = by_choice.setdefault(choice, [])
        percents.append(column.percent * last)
    scores = []
    for (rate, batch), values in by_choice.items():
        spread = Spread.median(values)
        scores.append(Score(spread, rate, batch))
    return max(scores, key=_preference, default=None)


def _counts(
    run: Run,
    column: Column,
    pretrained: bool,
) -> bool:
    """Whether a run is finished, is of a column's task, and started from parameters of this
    kind."""
    if not run.finished:
        return False
    config = run.config
    if task_of(config) != column.task:
        return False
    started_pretrained = bool(config.init_parameters)
    return started_pretrained == pretrained


def _preference(score: Score) -> tuple[int, float]:
    """Prefers many seeds, then a high median: a setting with one lucky seed would win over one that
    a sweep trained with all seeds."""
    spread = score.spread
    seeds = len(spread.values)
    return seeds, spread.centre


class Scores:
    """The scores of some rows in the columns of some tasks, for a report.

    Attributes:
        runs: row -> its finetuned runs.
        transfers: the paper's claims about the order of the rows.
        by_title: title of a column -> row -> its score, from pretrained parameters.
        columns: without those in which neither the runs nor the paper have a score.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        runs: Mapping[str, Sequence[Run]],
        transfers: Sequence[Statement] = (),
    ):
        """Takes tasks of `tables.TUNED`, each row's finetuned runs, and the paper's claims about
        their order."""
        self.runs = runs
        self.transfers = transfers
        self.by_title: dict[str, dict[str, Score]] = {}
        self.columns: list[Column] = []
        for column in SCORE_COLUMNS:
            if column.task not in tasks:
                continue
            scores = _scores(runs, column)
            papers = _papers(column, runs)
            self.by_title[column.title] = scores
            if scores or papers:
                self.columns.append(column)

    def cells(self, row: str) -> Cells:
        """A row's cells in a table, two for each column: our score and the paper's."""
        medians = self.medians(row)
        cells: Cells = {}
        for column in self.columns:
            title = column.title
            paper = printed_score(row, column)
            cells[title] = medians.get(title)
            cells[f"paper's {title}"] = printed(paper)
        return cells

    def medians(self, row: str) -> dict[str, Spread]:
        """Title of a column -> a row's median over seeds."""
        medians = {}
        for title, scores in self.by_title.items():
            if row in scores:
                row_score = scores[row]
                medians[title] = row_score.spread
        return medians

    def claims(self) -> Iterator[Claim]:
        """Whether the paper's orderings of finetuned models hold: for every pair of runs, for none,
        or for some."""
        for column in self.columns:
            scores = self.by_title[column.title]
            for statement in self.transfers:
                if column.task not in statement.columns:
                    continue
                rows = {statement.better, statement.worse}
                if rows <= scores.keys():
                    yield _claim(statement, column, scores)

    def notes(self) -> Iterator[str]:
        """For each column: the spread of each score with its chosen rate, the scores of trivial
        models, and the rank correlation with the paper."""
        for column in self.columns:
            title = column.title
            scores = self.by_title[title]
            if scores:
                ranges = _ranges(scores)
                yield f"{title} is the median of runs; lowest to highest: {ranges}."
            runs = self._runs_of(column)
            trivial = baselines(runs, column.metric)
            for name, value in trivial.items():
                percent = column.percent * value
                yield f"{title}, to compare: {name}: {percent:.1f}."
            papers = _papers(column, scores)
            if len(papers) > 1:
                correlation = _correlation(scores, papers)
                yield f"{title}: {correlation}"

    def _runs_of(self, column: Column) -> list[Run]:
        """The runs of all rows on a column's task."""
        runs = []
        for row_runs in self.runs.values():
            for run in row_runs:
                if task_of(run.config) == column.task:
                    runs.append(run)
        return runs


def _scores(runs: Mapping[str, Sequence[Run]], column: Column) -> dict[str, Score]:
    """Row -> its score in a column, from pretrained parameters."""
    scores = {}
    for row, row_runs in runs.items():
        row_score = score(row_runs, column)
        if row_score is not None:
            scores[row] = row_score
    return scores


def _papers(column: Column, rows: Iterable[str]) -> dict[str, float]:
    """Row -> the paper's score in a column, of the rows for which it prints one."""
    papers = {}
    for row in rows:
        paper = printed_score(row, column)
        if paper is not None:
            papers[row] = paper
    return papers


def _claim(
    statement: Statement,
    column: Column,
    scores: Mapping[str, Score],
) -> Claim:
    """A statement on two rows in a column, with our verdict."""
    better = scores[statement.better].spread
    worse = scores[statement.worse].spread
    source = OURS if column.task == OUR_TASK else ""
    text = f"{column.title}: {statement.better} > {statement.worse}{source}"
    verdict = claims.verdict(better.values, worse.values, lower=False)
    detail = f"medians {better.centre:.1f} and {worse.centre:.1f}"
    return Claim(text, verdict, detail)


def _ranges(scores: Mapping[str, Score]) -> str:
    """The range and the chosen setting of each row's score, in words."""
    ranges = []
    for row, row_score in scores.items():
        words = row_score.words()
        ranges.append(f"{row} {words}")
    return ", ".join(ranges)


def _correlation(scores: Mapping[str, Score], papers: Mapping[str, float]) -> str:
    """The rank correlation of our scores with the paper's, in words."""
    ours = []
    for row in papers:
        spread = scores[row].spread
        ours.append(spread.centre)
    column = list(papers.values())
    correlation = claims.spearman(ours, column)
    rank = float(correlation)
    p = claims.chance(ours, column)
    count = len(papers)
    over = f"over {count} models; one-sided permutation p = {p:.2g}"
    return f"rank correlation with the paper's column {rank:.2f} {over}."
