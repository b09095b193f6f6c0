"""Submitted rows in the report of `gmlp reproduce alternatives`: lines of its table, notes, and a
figure of the perplexities of all rows."""

from collections.abc import Iterator, Mapping, Sequence

from gmlp_flax.analysis import looks as looks_lib
from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.looks import BLACK, MARKERS, Look
from gmlp_flax.paper.alternatives import COLUMNS
from gmlp_flax.reports.alternatives.submissions import Submission
from gmlp_flax.reports.report import family, over_seeds
from gmlp_flax.reports.table import Cells, Spread, printed

COLUMN = COLUMNS["mlm"]
MARK = "submitted"
LENGTH_OF_COMMIT = 8
LOOK = Look(BLACK, MARKERS[-1])


def cells_of(submissions: Sequence[Submission]) -> dict[str, Cells]:
    """The lines of submitted rows in the table of scores."""
    models: dict[str, Cells] = {}
    for submission in submissions:
        name = f"{submission.row} ({MARK})"
        models[name] = {
            "M parameters": submission.parameters / 1e6,
            COLUMN.title: Spread.mean(submission.perplexities),
            "rate": printed(submission.rate),
            MARK: _source(submission),
        }
    return models


def _source(submission: Submission) -> str:
    """Where a row comes from, and what it cost to tune."""
    commit = submission.commit[:LENGTH_OF_COMMIT]
    if submission.commit.endswith("-changed"):
        commit += " with changes"
    rates = len(submission.rates)
    return (
        f"version {submission.version}, commit {commit}, config {submission.config}, rates "
        f"tried: {rates}, median {submission.median:.4g}"
    )


def comparable(submissions: Sequence[Submission], scale: str, setting: str) -> list[Submission]:
    """The submitted rows of a scale and of a setting, see `submitting.setting_hash`."""
    same = []
    for submission in submissions:
        same_scale = submission.scale == scale
        same_setting = submission.setting == setting
        if same_scale and same_setting:
            same.append(submission)
    return same


def notes(submissions: Sequence[Submission], compared: Sequence[Submission]) -> Iterator[str]:
    """What submitted rows are, and which ones do not compare."""
    if submissions:
        yield "Submitted rows were trained by others and are shown as submitted, not checked here."
    left_out = [submission.row for submission in submissions if submission not in compared]
    if left_out:
        names = ", ".join(left_out)
        yield (
            "Submitted rows that do not compare, as their scale, text, tokenizer or steps are not "
            f"those of the rows here: {names}."
        )


def chart(scores: Mapping[str, Spread], submissions: Sequence[Submission]) -> Chart | None:
    """The perplexities of all rows in the order of their places, submitted rows among them; None
    without submitted rows.

    Args:
        scores: row -> its perplexity.
        submissions: the rows that compare.
    """
    if not submissions:
        return None
    everything = dict(scores)
    for submission in submissions:
        everything[submission.row] = Spread.mean(submission.perplexities)
    in_order = sorted(everything, key=lambda row: everything[row].centre)
    places = {row: place for place, row in enumerate(in_order, start=1)}
    families: dict[str, list[str]] = {}
    for row in scores:
        name = family(row)
        members = families.setdefault(name, [])
        members.append(row)
    look_of = looks_lib.looks(list(families))
    series = []
    for name, look in zip(families, look_of, strict=True):
        points = _points(name, look, families[name], places, everything)
        series.append(points)
    submitted = [submission.row for submission in submissions]
    submitted_points = _points(MARK, LOOK, submitted, places, everything)
    series.append(submitted_points)
    panel = Panel(
        "Perplexities with submitted rows",
        Scale("place", whole=True),
        Scale(COLUMN.title, log=True),
        series,
    )
    return Chart([panel], "Stars: submitted rows, trained by others.")


def _points(
    name: str,
    look: Look,
    rows: Sequence[str],
    places: Mapping[str, int],
    scores: Mapping[str, Spread],
) -> Series:
    """The points of some rows."""
    x = [places[row] for row in rows]
    y = [scores[row] for row in rows]
    return over_seeds(name, look, x, y, labels=rows, joined=False)
