"""The report of masked language models: Tables 3, 4, 6 and 10, and Figures 5, 7 and 8."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scipy import stats

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.drawing import DASHES, PLACE, Chart, Panel, Scale, Series
from gmlp_flax.paper.alternatives import Column, Statement
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.paper.tables import SCORE_COLUMNS, PaperTable, printed_score
from gmlp_flax.reports import claims
from gmlp_flax.reports.report import Report, family, looks, over_seeds
from gmlp_flax.reports.runs import Run, baselines, setting, task_of, unfinished
from gmlp_flax.reports.table import Columns, Printed, Spread, Table, difference, printed, shown

METRIC = "perplexity"
OURS = " (our claim, not the paper's)"


class Score(NamedTuple):
    """A row's score in one column, in percent: the median over runs with one peak rate and batch
    size."""

    spread: Spread
    rate: float
    batch: int

    def words(self) -> str:
        """The range of its runs, and what was chosen."""
        values = self.spread.values
        chosen = f"{len(values)} runs, rate {self.rate:g}, batch {self.batch}"
        return f"{min(values):.1f} to {max(values):.1f} ({chosen})"


def score(runs: Sequence[Run], column: Column, pretrained: bool = True) -> Score | None:
    """A row's score: the best median over finished runs with the same rate and batch size; None
    without such runs.

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
    return max(
        scores, key=lambda score: (len(score.spread.values), score.spread.centre), default=None
    )


class Scores:
    """The scores of some rows in the columns of some tasks, for a report.

    Attributes:
        columns: without those in which neither the runs nor the paper have a score.
        by_title: title of a column -> row -> its score, from pretrained parameters.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        runs: Mapping[str, Sequence[Run]],
        transfers: Sequence[Statement] = (),
    ):
        """Takes tasks of `tables.TUNED`, each row's finetuned runs, and what the paper says of
        their order."""
        self.runs, self.transfers = runs, transfers
        columns = [column for column in SCORE_COLUMNS if column.task in tasks]
        self.by_title = {
            column.title: {row: found for row in runs if (found := score(runs[row], column))}
            for column in columns
        }
        self.columns = [
            column
            for column in columns
            if self.by_title[column.title]
            or any(printed_score(row, column) is not None for row in runs)
        ]

    def cells(self, rows: Sequence[str]) -> Columns:
        """Two columns of a table per score: ours and the paper's."""
        columns: Columns = {}
        for column in self.columns:
            columns[column.title] = {
                row: score.spread for row, score in self.by_title[column.title].items()
            }
            columns[f"paper's {column.title}"] = {
                row: printed(printed_score(row, column)) for row in rows
            }
        return columns

    def of(self, row: str) -> dict[str, Spread]:
        """Title of a column -> a row's median over seeds."""
        return {
            title: scores[row].spread for title, scores in self.by_title.items() if row in scores
        }

    def claims(self) -> Iterator[claims.Claim]:
        """Whether the paper's orderings of finetuned models hold: for every pair of runs, for none,
        or for some."""
        for column in self.columns:
            scores = self.by_title[column.title]
            for _, better, worse, tasks, _ in self.transfers:
                if column.task in tasks and better in scores and worse in scores:
                    ours = OURS if column.task == "rte" else ""
                    one, other = scores[better].spread, scores[worse].spread
                    verdict = claims.verdict(one.values, other.values, lower=False)
                    medians = f"medians {one.centre:.1f} and {other.centre:.1f}"
                    yield claims.Claim(
                        f"{column.title}: {better} > {worse}{ours}", verdict, medians
                    )

    def notes(self) -> Iterator[str]:
        """Per column: the spread of each score with its chosen rate, and the rank correlation with
        the paper."""
        for column in self.columns:
            title, scores = column.title, self.by_title[column.title]
            if scores:
                words = ", ".join(f"{row} {score.words()}" for row, score in scores.items())
                yield f"{title} is the median of runs; lowest to highest: {words}."
            of_task = [
                run
                for of_row in self.runs.values()
                for run in of_row
                if task_of(run.config) == column.task
            ]
            for name, value in baselines(of_task, column.metric).items():
                yield f"{title}, to compare: {name}: {column.percent * value:.1f}."
            papers = {
                row: paper for row in scores if (paper := printed_score(row, column)) is not None
            }
            if len(papers) > 1:
                rank = claims.spearman(
                    [scores[row].spread.centre for row in papers], list(papers.values())
                )
                p = claims.chance(float(rank), list(papers.values()))
                over = f"over {len(papers)} models; one-sided permutation p = {p:.2g}"
                yield f"{title}: rank correlation with the paper's column {rank:.2f} {over}."


class PowerLaw(NamedTuple):
    """y = scale * x ** exponent, fitted by least squares on logarithms.

    Attributes:
        scale, exponent: of the fit.
        low, high: the exponent's 95 % confidence interval, from Student's t; infinitely wide for
            two points.
        r_squared: share of the variance of log y that the fit explains.
    """

    scale: float
    exponent: float
    low: float
    high: float
    r_squared: float

    def __call__(self, x: float) -> float:
        return self.scale * x**self.exponent

    def interval(self, digits: int = 2) -> str:
        """The exponent's interval in words."""
        return (
            "two points, no interval"
            if math.isinf(self.low)
            else f"{self.low:.{digits}f} to {self.high:.{digits}f}"
        )

    def sentence(self) -> str:
        """The law of perplexity over parameters in words."""
        interval = ("" if math.isinf(self.low) else "95 % interval ") + self.interval(3)
        fit = f"{interval}; R squared {self.r_squared:.3f}"
        return f"{METRIC} is proportional to parameters ** {self.exponent:.3f} ({fit})"


def power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw:
    """Fits a power law to at least two points with positive coordinates and different x."""
    fit: Any = stats.linregress([math.log(value) for value in x], [math.log(value) for value in y])
    margin = fit.stderr * stats.t.ppf(0.975, len(x) - 2) if len(x) > 2 else math.inf
    exponent = float(fit.slope)
    return PowerLaw(
        math.exp(fit.intercept),
        exponent,
        exponent - float(margin),
        exponent + float(margin),
        float(fit.rvalue**2),
    )


class Point(NamedTuple):
    """A model of a line.

    Attributes:
        row: its name.
        params: millions of parameters.
        perplexity: held out, over its runs.
        scores: title of a column -> percent, over finetuned runs; empty if the model was not
            finetuned.
    """

    row: str
    params: float
    perplexity: Spread
    scores: Mapping[str, Spread]


Lines = Mapping[str, Sequence[Point]]


def scaling(lines: Lines) -> tuple[Chart | None, list[str]]:
    """Figures 5 and 8. The first panel has perplexity over parameters, both logarithmic, with a
    power law through each line; each further panel has one column of scores over parameters.

    Returns:
        The chart, None if no line has two models; and one note per power law.
    """
    laws = {
        name: power_law(
            [point.params for point in points], [point.perplexity.centre for point in points]
        )
        for name, points in lines.items()
        if len(points) > 1
    }
    if not laws:
        return None, []
    title = "Perplexity over parameters"
    params, perplexity = Scale("M parameters", log=True), Scale(f"held-out {METRIC}", log=True)
    points_of = {
        name: [(p.row, p.params, p.perplexity) for p in points] for name, points in lines.items()
    }
    panels = [_panel(title, params, perplexity, points_of, laws)]
    panels += _score_panels(lines, params, lambda point: point.params)
    caption = "Points are means over seeds (scores: medians), bars go from lowest to highest; dashed: power laws."
    return Chart(panels, caption), [f"{name}: {law.sentence()}." for name, law in laws.items()]


def transfer(lines: Lines) -> Chart | None:
    """Figure 7: finetuned scores over perplexity, which falls to the right, one panel per column;
    None if no two models of a line were finetuned."""
    perplexity = Scale(f"held-out {METRIC} (better to the right)", log=True, backwards=True)
    panels = _score_panels(lines, perplexity, lambda point: point.perplexity.centre)
    caption = "Points are medians of scores over means of perplexity, bars go from the lowest to the highest score."
    return Chart(panels, caption) if panels else None


def papers_laws(series: Mapping[str, Sequence[str]]) -> list[str]:
    """One note per series: the power law through the points that the paper prints."""
    notes = []
    for name, rows in series.items():
        models = [PUBLISHED[row] for row in rows]
        printed = [
            (model.params_m, model.perplexity)
            for model in models
            if model.params_m and model.perplexity
        ]
        if len(printed) > 1:
            notes.append(
                f"{name} in the paper: {power_law(*zip(*printed, strict=True)).sentence()}."
            )
    return notes


def _score_panels(lines: Lines, x: Scale, x_of: Callable[[Point], float]) -> list[Panel]:
    """A panel for each column of scores in which some line has two models."""
    panels = []
    for title in dict.fromkeys(
        title for points in lines.values() for point in points for title in point.scores
    ):
        scored = {
            name: [
                (point.row, x_of(point), point.scores[title])
                for point in points
                if title in point.scores
            ]
            for name, points in lines.items()
        }
        if max(map(len, scored.values())) > 1:
            best, _, score = max(
                itertools.chain(*scored.values()), key=lambda point: point[2].centre
            )
            heading = f"{title}: {best} is best, {score.centre:.1f} %"
            panels.append(_panel(heading, x, Scale(f"{title} (%)"), scored, {}))
    return panels


def _panel(
    title: str,
    x: Scale,
    y: Scale,
    lines: Mapping[str, Sequence[tuple[str, float, Spread]]],
    laws: Mapping[str, PowerLaw],
) -> Panel:
    """One series per line that has points (row, x, y); `laws` are drawn dashed, and then nothing
    joins the points."""
    lines, series = (
        {
            name: sorted(points, key=lambda point: point[1])
            for name, points in lines.items()
            if points
        },
        [],
    )
    looks_of = drawing.looks([family(points[0][0]) for points in lines.values()])
    for (name, points), look in zip(lines.items(), looks_of, strict=True):
        rows, at, values = zip(*points, strict=True)
        law, look = laws.get(name), look._replace(dashes=DASHES[0])
        options = {"labels": [row.split("_", 1)[-1] for row in rows], "joined": law is None}
        series.append(
            over_seeds(
                name, look, list(at), values, fit=list(map(law, at)) if law else (), **options
            )
        )
    return Panel(title, x, y, series)


class Row(NamedTuple):
    """A row that was trained.

    Attributes:
        name: of the row.
        runs: those that count: all that came as far as the furthest run that trains as long; if
            none of the row did, all of the row.
        behind: the runs that did not come so far.
    """

    name: str
    runs: Sequence[Run]
    behind: Sequence[Run]

    @property
    def compared(self) -> bool:
        """Whether its runs came as far as the others'."""
        return self.runs != self.behind

    @property
    def params(self) -> float:
        """Millions of parameters."""
        return self.runs[0].param_count / 1e6

    @property
    def curves(self) -> list[claims.Curve]:
        """Of the runs that count."""
        return [run.curve(METRIC) for run in self.runs]

    @property
    def last(self) -> Spread:
        """The newest perplexity of the runs that count."""
        return Spread.mean(curve[-1][1] for curve in self.curves)

    @property
    def paper(self) -> float | None:
        """The paper's perplexity, if it prints one."""
        return PUBLISHED[self.name].perplexity if self.name in PUBLISHED else None

    @property
    def note(self) -> str | None:
        """Which of its runs are behind the others, and whether they count; None if none is."""
        so_far = ", ".join(
            f"seed {run.config.seed} at {run.curve(METRIC)[-1][0]:,} tokens" for run in self.behind
        )
        use = "not counted" if self.compared else "shown, but compared with no other row"
        return f"{so_far}: behind the other runs, {use}" if self.behind else None


def trained_rows(names: Sequence[str], runs: Sequence[Run]) -> dict[str, Row]:
    """The rows that have an evaluated run, in the order of `names`."""
    evaluated = [run for run in runs if run.curve(METRIC)]
    furthest: dict[int, int] = {}
    for run in evaluated:
        furthest[run.config.steps] = max(
            furthest.get(run.config.steps, 0), run.curve(METRIC)[-1][0]
        )
    rows = {}
    for name in names:
        own = [run for run in evaluated if run.row == name]
        behind = [run for run in own if run.curve(METRIC)[-1][0] < furthest[run.config.steps]]
        if own:
            rows[name] = Row(name, [run for run in own if run not in behind] or behind, behind)
    return rows


def perplexities(
    table: PaperTable, runs: Sequence[Run], scale: str, tuned: Mapping[str, Sequence[Run]]
) -> Report:
    """Held-out perplexities, and finetuned scores if there are any.

    Args:
        table: of the paper.
        runs: from `runs.find`, at least one, finished or not.
        scale: the scale at which they were trained.
        tuned: row -> its finetuned runs, from `runs.find_finetuned`.
    """
    rows = trained_rows(table.rows, runs)
    scores = Scores(table.tasks, {name: tuned.get(name, ()) for name in rows}, table.transfers)
    compared = {name: row for name, row in rows.items() if row.compared}
    papers = {name: row.paper for name, row in compared.items() if row.paper is not None}
    curves = {name: compared[name].curves for name in papers}
    orderings = claims.orderings(papers, {name: compared[name].last.values for name in papers})
    ranks = claims.rank_curve(curves, papers) if len(papers) > 1 else []
    charts = {"curves": curves_chart(rows, table.rows), "places": places_chart(ranks, papers)}
    notes = [*unfinished(runs), *_notes(table.rows, rows, runs)]
    if ranks:
        what = f"{ranks[-1].correlation:.2f} over {len(papers)} models, after {ranks[-1].tokens:,} tokens"
        p = f"one-sided permutation p = {claims.chance(ranks[-1].correlation, list(papers.values())):.2g}"
        notes.append(f"Spearman's rank correlation with the paper's column: {what}; {p}.")
    notes += scores.notes()
    if table.series:
        points = {
            name: Point(name, row.params, row.last, scores.of(name))
            for name, row in compared.items()
        }
        by_depth, by_data = (
            {name: [points[row] for row in names if row in points] for name, names in lines.items()}
            for lines in (table.series, table.longer)
        )
        charts["scaling"], laws = scaling(by_depth)
        charts["transfer"] = transfer(by_depth | by_data)
        notes += [*laws, *papers_laws(table.series)]
    return Report(
        table.title,
        _table(table, rows, scores),
        [*orderings, *scores.claims()],
        setting(table, runs, scale),
        notes,
        {name: chart for name, chart in charts.items() if chart},
    )


def _table(table: PaperTable, rows: Mapping[str, Row], scores: Scores) -> Table:
    """A line per row that was trained, then the paper's own."""
    quoted, names = (
        {row.name: row for row in table.quoted},
        [*rows, *(row.name for row in table.quoted)],
    )
    not_ours = {
        name: "; ".join(filter(None, ("the paper's row, not trained here", quoted[name].note)))
        for name in quoted
    }
    columns: Columns = {
        "M parameters": {
            **{name: row.params for name, row in rows.items()},
            **{name: printed(row.params_m) for name, row in quoted.items()},
        },
        METRIC: {name: row.last for name, row in rows.items()},
        "seeds": {name: len(row.runs) for name, row in rows.items()},
        "paper": {name: printed(row.paper) for name, row in rows.items()},
        "difference": {name: difference(row.last.centre, row.paper) for name, row in rows.items()},
        "rate": {
            name: Printed(row.runs[0].config.optimizer.learning_rate) for name, row in rows.items()
        },
        **scores.cells(names),
        "note": {name: row.note for name, row in rows.items()} | not_ours,
    }
    return Table.of_columns(names, columns)


def _notes(names: Sequence[str], rows: Mapping[str, Row], runs: Sequence[Run]) -> list[str]:
    """Which rows have no run, with the paper's numbers; and what a model without any context
    scores."""
    papers = {
        name: PUBLISHED[name].perplexity if name in PUBLISHED else None
        for name in names
        if name not in rows
    }
    absent = ", ".join(
        name if paper is None else f"{name} (paper: {paper})" for name, paper in papers.items()
    )
    return [
        *([f"Without a run, and so not in the table and the figures: {absent}."] if absent else []),
        *(
            f"To compare: {name}: {METRIC} {shown(value)}."
            for name, value in baselines(runs, METRIC).items()
        ),
    ]


def curves_chart(rows: Mapping[str, Row], names: Sequence[str]) -> Chart | None:
    """Held-out perplexity over tokens: the mean of a row's seeds, and bars from the lowest to the
    highest. None if no row has two points."""
    look_of, series = looks(names), []
    for name, row in rows.items():
        tokens = claims.shared_tokens(row.curves)
        spreads = [Spread.mean(dict(curve)[count] for curve in row.curves) for count in tokens]
        series.append(over_seeds(name, look_of[name], tokens, spreads))
    if not any(len(line.x) > 1 for line in series):
        return None
    several = any(len(row.runs) > 1 for row in rows.values())
    caption = [
        "Lines are means over seeds, bars go from the lowest to the highest."
        if several
        else "One seed each."
    ]
    if any(row.behind for row in rows.values()):
        caption.append("Runs that are behind the others of their row are not drawn.")
    panel = Panel(
        "Perplexity over tokens", Scale("tokens"), Scale(f"held-out {METRIC}", log=True), series
    )
    return Chart([panel], " ".join(caption))


def places_chart(ranks: Sequence[claims.RankPoint], papers: Mapping[str, float]) -> Chart | None:
    """Each row's place by perplexity over tokens, beside the paper's; None without three models or
    two points."""
    if len(papers) < 3 or len(ranks) < 2:
        return None
    last, tokens = stats.rankdata(list(papers.values()), "min"), [at.tokens for at in ranks]
    series = [
        Series(
            f"{row} (paper: {last[number]:.0f})", look, tokens, [at.places[number] for at in ranks]
        )
        for number, (row, look) in enumerate(looks(list(papers)).items())
    ]
    title = f"Places of {len(papers)} models: rho = {ranks[-1].correlation:.2f} with the paper's at the end"
    return Chart([Panel(title, Scale("tokens"), Scale(PLACE, backwards=True), series)])
