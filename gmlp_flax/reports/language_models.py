"""The report of masked language models: Tables 3, 4, 6 and 10, and Figures 5, 7 and 8."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import scipy  # its parts are imported when they are used

from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.paper.published import PUBLISHED, Quoted
from gmlp_flax.paper.tables import PaperTable
from gmlp_flax.reports import claims, recall_slices
from gmlp_flax.reports.report import Report, looks, over_seeds
from gmlp_flax.reports.runs import Run, baselines, setting, unfinished
from gmlp_flax.reports.scaling import METRIC, Lines, Point, papers_laws, scaling, transfer
from gmlp_flax.reports.scores import Scores
from gmlp_flax.reports.table import Cells, Printed, Spread, Table, difference, printed, shown


class Row(NamedTuple):
    """A row that was trained.

    Attributes:
        name: the name of the row.
        runs: the runs that count: all that came as far as the furthest run that trains for as many
            steps; if none of the row did, all of the row.
        behind: the runs that did not come that far.
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
        first = self.runs[0]
        return first.param_count / 1e6

    @property
    def curves(self) -> list[claims.Curve]:
        """The perplexity of the runs that count, over tokens."""
        return [run.curve(METRIC) for run in self.runs]

    @property
    def last(self) -> Spread:
        """The newest perplexity of the runs that count."""
        values = []
        for curve in self.curves:
            _, value = curve[-1]
            values.append(value)
        return Spread.mean(values)

    @property
    def rate(self) -> float:
        """The peak learning rate."""
        first = self.runs[0]
        return first.config.optimizer.learning_rate

    @property
    def paper(self) -> float | None:
        """The paper's perplexity, if it prints one."""
        return _paper(self.name)

    @property
    def note(self) -> str | None:
        """Which of its runs are behind the others, and whether they count; None if none is."""
        if not self.behind:
            return None
        so_far = []
        for run in self.behind:
            tokens = _tokens(run)
            seed = run.config.seed
            so_far.append(f"seed {seed} at {tokens:,} tokens")
        runs = ", ".join(so_far)
        use = "not counted" if self.compared else "shown, but compared with no other row"
        return f"{runs}: behind the other runs, {use}"


def _paper(row: str) -> float | None:
    """The paper's perplexity of a row, if it prints one."""
    if row not in PUBLISHED:
        return None
    published = PUBLISHED[row]
    return published.perplexity


def _tokens(run: Run) -> int:
    """The tokens after which a run was last evaluated."""
    tokens, _ = run.curve(METRIC)[-1]
    return tokens


def trained_rows(names: Sequence[str], runs: Sequence[Run]) -> dict[str, Row]:
    """The rows that have an evaluated run, in the order of `names`."""
    evaluated = [run for run in runs if run.curve(METRIC)]
    furthest: dict[int, int] = {}  # steps of a run -> tokens
    for run in evaluated:
        steps = run.config.steps
        tokens = _tokens(run)
        furthest_so_far = furthest.get(steps, 0)
        furthest[steps] = max(furthest_so_far, tokens)
    rows = {}
    for name in names:
        in_front = []
        behind = []
        for run in evaluated:
            if run.row != name:
                continue
            steps = run.config.steps
            if _tokens(run) < furthest[steps]:
                behind.append(run)
            else:
                in_front.append(run)
        if in_front or behind:
            rows[name] = Row(name, in_front or behind, behind)
    return rows


def perplexities(
    table: PaperTable,
    runs: Sequence[Run],
    scale: str,
    tuned: Mapping[str, Sequence[Run]],
) -> Report:
    """Held-out perplexities, and finetuned scores if there are any.

    Args:
        table: the table of the paper.
        runs: from `runs.find`, at least one, finished or not.
        scale: the scale at which they were trained.
        tuned: row -> its finetuned runs, from `runs.find_finetuned`.
    """
    rows = trained_rows(table.rows, runs)
    tuned_of_rows = {name: tuned.get(name, ()) for name in rows}
    scores = Scores(table.tasks, tuned_of_rows, table.transfers)
    compared = {name: row for name, row in rows.items() if row.compared}
    papers = {}
    last = {}
    curves = {}
    for name, row in compared.items():
        if row.paper is not None:
            papers[name] = row.paper
            last[name] = row.last.values
            curves[name] = row.curves
    ranks = claims.rank_curve(curves, papers) if len(papers) > 1 else []
    sliced = slices_of_rows(rows, table)
    notes = [
        *unfinished(runs),
        *_notes_on_absent(table.rows, rows),
        *_notes_on_baselines(runs),
        *recall_slices.notes(sliced, runs),
        *_notes_on_ranks(ranks, papers),
        *scores.notes(),
    ]
    orderings = claims.orderings(papers, last)
    charts = {
        "curves": curves_chart(rows, table.rows),
        "places": places_chart(ranks, papers),
    }
    if table.series:
        points = _points(compared, scores)
        by_depth = _lines(table.series, points)
        by_data = _lines(table.longer, points)
        scaling_chart, laws = scaling(by_depth)
        charts["scaling"] = scaling_chart
        charts["transfer"] = transfer({**by_depth, **by_data})
        notes += laws
        notes += papers_laws(table.series)
    return Report(
        table.title,
        _table(table, rows, scores),
        [*orderings, *scores.claims()],
        setting(table, runs, scale),
        notes,
        {name: chart for name, chart in charts.items() if chart},
        sliced,
    )


def slices_of_rows(rows: Mapping[str, Row], table: PaperTable) -> dict[str, Table]:
    """The table of `recall_slices` for the rows that compare; {} if no run was scored."""
    runs = {}
    for name, row in rows.items():
        if row.compared:
            runs[name] = row.runs
    return recall_slices.tables(runs, table.recall_reference)


def _points(rows: Mapping[str, Row], scores: Scores) -> dict[str, Point]:
    """Row -> its point in the figures of scaling."""
    points = {}
    for name, row in rows.items():
        points[name] = Point(
            row=name,
            params=row.params,
            perplexity=row.last,
            scores=scores.medians(name),
        )
    return points


def _lines(series: Mapping[str, Sequence[str]], points: Mapping[str, Point]) -> Lines:
    """The points of each series of a table, for the rows that have one."""
    lines = {}
    for name, rows in series.items():
        line = []
        for row in rows:
            if row in points:
                line.append(points[row])
        lines[name] = line
    return lines


def _table(
    table: PaperTable,
    rows: Mapping[str, Row],
    scores: Scores,
) -> Table:
    """A line per row that was trained, then those that only the paper has."""
    models: dict[str, Cells] = {}
    for name, row in rows.items():
        models[name] = {
            "M parameters": row.params,
            METRIC: row.last,
            "seeds": len(row.runs),
            "paper": printed(row.paper),
            "difference": difference(row.last.centre, row.paper),
            "rate": Printed(row.rate),
            **scores.cells(name),
            "note": row.note,
        }
    for row in table.quoted:
        models[row.name] = {
            "M parameters": printed(row.params_m),
            **scores.cells(row.name),
            "note": _quoted_note(row),
        }
    return Table.of_models(models)


def _quoted_note(row: Quoted) -> str:
    """The note on a row that only the paper has."""
    notes = ["the paper's row, not trained here"]
    if row.note:
        notes.append(row.note)
    return "; ".join(notes)


# Notes.


def _notes_on_absent(names: Sequence[str], rows: Mapping[str, Row]) -> list[str]:
    """Which rows have no run, with the paper's numbers; none if all have one."""
    absent = []
    for name in names:
        if name in rows:
            continue
        paper = _paper(name)
        if paper is None:
            absent.append(name)
        else:
            absent.append(f"{name} (paper: {paper})")
    if not absent:
        return []
    rows_without_run = ", ".join(absent)
    return [f"Without a run, and so not in the table and the figures: {rows_without_run}."]


def _notes_on_baselines(runs: Sequence[Run]) -> list[str]:
    """The scores of models without any context."""
    notes = []
    scores = baselines(runs, METRIC)
    for name, value in scores.items():
        text = shown(value)
        notes.append(f"To compare: {name}: {METRIC} {text}.")
    return notes


def _notes_on_ranks(ranks: Sequence[claims.RankPoint], papers: Mapping[str, float]) -> list[str]:
    """How the rows rank at the end, next to the paper's ranks; none without ranks."""
    if not ranks:
        return []
    last = ranks[-1]
    column = list(papers.values())
    p = claims.chance(last.places, column)
    over = f"over {len(papers)} models, after {last.tokens:,} tokens"
    note = (
        f"Spearman's rank correlation with the paper's column: {last.correlation:.2f} {over}; "
        f"one-sided permutation p = {p:.2g}."
    )
    return [note]


# Charts.


def curves_chart(rows: Mapping[str, Row], names: Sequence[str]) -> Chart | None:
    """Held-out perplexity over tokens: the mean of a row's seeds, and bars from the lowest to the
    highest. None if no row has two points."""
    look_of = looks(names)
    series = []
    several = False
    for name, row in rows.items():
        curves = row.curves
        tokens = claims.shared_tokens(curves)
        spreads = [claims.spread_at(curves, count) for count in tokens]
        line = over_seeds(name, look_of[name], tokens, spreads)
        series.append(line)
        several |= len(row.runs) > 1
    if not any(len(line.x) > 1 for line in series):
        return None
    caption = "One seed each."
    if several:
        caption = "Lines are means over seeds, bars go from the lowest to the highest."
    if any(row.behind for row in rows.values()):
        caption += " Runs that are behind the others of their row are not drawn."
    panel = Panel(
        "Perplexity over tokens",
        Scale("tokens"),
        Scale(f"held-out {METRIC}", log=True),
        series,
    )
    return Chart([panel], caption)


def places_chart(
    ranks: Sequence[claims.RankPoint],
    papers: Mapping[str, float],
) -> Chart | None:
    """Each row's rank by perplexity over tokens, next to the paper's; None without three models or
    two points."""
    if len(papers) < 3 or len(ranks) < 2:
        return None
    rows = list(papers)
    column = list(papers.values())
    papers_places = scipy.stats.rankdata(column, "min")
    look_of = looks(rows)
    tokens = [at.tokens for at in ranks]
    series = []
    for index, row in enumerate(rows):
        papers_place = papers_places[index]
        name = f"{row} (paper: {papers_place:.0f})"
        places = [at.places[index] for at in ranks]
        line = Series(name, look_of[row], tokens, places)
        series.append(line)
    last = ranks[-1]
    correlation = last.correlation
    panel = Panel(
        f"Places of {len(rows)} models: rho = {correlation:.2f} with the paper's at the end",
        Scale("tokens"),
        Scale("place by perplexity", backwards=True, whole=True),
        series,
    )
    return Chart([panel])
