"""The report of `gmlp reproduce alternatives`: every column that the folder has, and the verdicts on
the papers' claims."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax.analysis import looks as looks_lib
from gmlp_flax.analysis.charts import Chart, Panel, Scale
from gmlp_flax.models import parameters
from gmlp_flax.paper.alternatives import COLUMNS, COSTS, NOTHING, ROWS, Column
from gmlp_flax.paper.tables import ALTERNATIVES, TABLES
from gmlp_flax.planning import dry_run
from gmlp_flax.reports import recall_slices
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.alternatives import submitted_rows
from gmlp_flax.reports.alternatives.claims import claims
from gmlp_flax.reports.alternatives.scores import (
    RANDOM,
    Baselines,
    Scores,
    baselines_of,
    best_baselines,
    best_rate,
    find_runs,
    heldout_examples,
    scores_of,
    search_folder,
    searched,
)
from gmlp_flax.reports.alternatives.submissions import Submission
from gmlp_flax.reports.alternatives.submitting import setting_hash
from gmlp_flax.reports.costs import Costs, cost_cells, cost_chart, cost_notes, nearest, read_costs
from gmlp_flax.reports.language_models import slices_of_rows, trained_rows
from gmlp_flax.reports.report import Report, family, over_seeds, row_label
from gmlp_flax.reports.runs import Run, bare_task
from gmlp_flax.reports.table import Cells, Spread, Table, printed, shown


def of_folder(
    folder: str,
    scale: str,
    changes: Mapping[str, Any] = NOTHING,
    submissions: Sequence[Submission] = (),
    classes: Sequence[str] = (),
) -> Report:
    """The report of all columns that a folder has.

    Args:
        folder: the folder of `gmlp reproduce alternatives`: runs of masked LM, and a folder for
            each other column.
        scale: the scale at which the runs were trained.
        changes: keys that a command line changed in every run that was not finetuned and has such a
            key.
        submissions: rows that others have trained, shown beside ours.
        classes: rows of the folder besides the published ones, named by their class.

    Raises:
        NoRuns: the folder has nothing of any column.
        DataError, RunError: runs of a column do not compare, or a file of measurements is damaged.
    """
    table = TABLES[ALTERNATIVES]
    known_rows = (*ROWS, *classes)
    runs = find_runs(folder, scale, changes, known_rows)
    scores = scores_of(runs, known_rows)
    costs = read_costs(folder, known_rows)
    rows = _measured_rows(known_rows, scores, costs)
    if not rows:
        raise run_finder.NoRuns(
            f"{folder} holds no run and no measurement of {ALTERNATIVES}: make some columns first"
        )
    configs = {row: table.config(row, scale) for row in rows}
    baselines = baselines_of(runs)
    best = best_baselines(baselines)
    examples = heldout_examples(runs)
    masked_lm = runs["mlm"]
    masked_lm_rows = trained_rows(known_rows, masked_lm)
    sliced = slices_of_rows(masked_lm_rows, table)
    setting = ""
    submission_hash = ""
    if masked_lm:
        setting = run_finder.setting(table, masked_lm, scale)
        submission_hash = setting_hash(masked_lm[0])
    submitted = submitted_rows.comparable(submissions, scale, submission_hash)
    notes = [
        *_notes_on_runs(known_rows, runs),
        *_notes_on_baselines(baselines),
        _note_on_sizes(scale, configs),
        *cost_notes(costs),
        *recall_slices.notes(sliced, masked_lm),
        *_notes_on_absent(scores, costs),
        *submitted_rows.notes(submissions, submitted),
    ]
    different_notes = dict.fromkeys(notes)
    return Report(
        table.title,
        _score_table(scores, masked_lm, configs, submitted),
        claims(scores, costs, best, examples),
        setting=setting,
        notes=list(different_notes),
        figures=_charts(runs, scores, costs, submitted),
        more_tables={
            "costs": _cost_table(costs, configs),
            **_rate_tables(known_rows, folder, scale),
            **sliced,
        },
    )


def _measured_rows(known_rows: Sequence[str], scores: Scores, costs: Costs) -> list[str]:
    """The rows that have something in any column."""
    measured = set(costs)
    for by_row in scores.values():
        measured.update(by_row)
    return [row for row in known_rows if row in measured]


# Tables.


def _score_table(
    scores: Scores,
    runs: Sequence[Run],
    configs: Mapping[str, ConfigDict],
    submitted: Sequence[Submission],
) -> Table:
    """The table of scores. `runs` are those of masked LM; `submitted`, the rows of others."""
    rates: dict[str, float] = {}
    for run in runs:
        optimizer = run.config.optimizer
        rates[run.row] = optimizer.learning_rate
    models: dict[str, Cells] = {}
    for row, config in configs.items():
        cells: Cells = {
            "layers": config.model.layers,
            "M parameters": _encoder_size(config),
        }
        for name, column in COLUMNS.items():
            title = column.title
            from_random = f"{name}{RANDOM}"
            pretrained = scores.get(name, {})
            random = scores.get(from_random, {})
            cells[title] = pretrained.get(row)
            cells[f"{title}, from random parameters"] = random.get(row)
        rate = rates.get(row)
        cells["rate"] = printed(rate)
        models[row] = cells
    models |= submitted_rows.cells_of(submitted)
    return Table.of_models(models)


def _encoder_size(config: ConfigDict) -> float:
    """Millions of parameters without embeddings and positions."""
    task = bare_task(config)
    shapes = task.shapes()
    count = parameters.count(shapes["encoder"])
    return count / 1e6


def _cost_table(costs: Costs, configs: Mapping[str, ConfigDict]) -> Table:
    """The table of what a training step costs."""
    measured = cost_cells(costs)
    models: dict[str, Cells] = {}
    for row, config in configs.items():
        task = bare_task(config)
        flops = dry_run.forward_flops(task)
        cells: Cells = {"GFLOPs": flops / 1e9}
        cells |= measured.get(row, {})
        models[row] = cells
    return Table.of_models(models, over="repeats")


def _rate_tables(rows: Sequence[str], folder: str, scale: str) -> dict[str, Table]:
    """What each search of rates has found: for each column with a search, a line for each row with
    the metric at each rate, and the best rate."""
    tables = {}
    for name, column in COLUMNS.items():
        if scale not in column.scales or column.starts:
            continue
        models: dict[str, Cells] = {}
        folder_of_search = search_folder(folder, name)
        configs = column.configs(scale, rows)
        for row in configs:
            scores = searched(folder_of_search, column, scale, row)
            if scores:
                models[row] = _rate_cells(column, scale, row, scores)
        if models:
            tables[f"rates-{name}"] = Table.of_models(models)
    return tables


def _rate_cells(
    column: Column,
    scale: str,
    row: str,
    scores: Mapping[float, float],
) -> Cells:
    """The scores that the search of a row's rate found, and the best rate."""
    cells: Cells = {}
    for rate in column.rates_of(row, scale):
        title = f"{rate:g}"
        cells[title] = scores.get(rate)
    best = best_rate(scores, column)
    cells["best"] = printed(best)
    return cells


# Notes.


def _notes_on_runs(rows: Sequence[str], runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Which runs are not finished, and which runs of masked LM are behind the others."""
    for name, column in COLUMNS.items():
        if column.starts:
            continue
        column_runs = runs[name]
        for note in run_finder.unfinished(column_runs):
            yield f"{column.title}: {note}"
    masked_lm_rows = trained_rows(rows, runs["mlm"])
    for name, row in masked_lm_rows.items():
        if row.note:
            yield f"{name}: {row.note}."


def _notes_on_baselines(baselines: Baselines) -> Iterator[str]:
    """What trivial models score."""
    for name, scores in baselines.items():
        column = COLUMNS[name]
        for model, value in scores.items():
            text = shown(value)
            yield f"{column.title}, to compare: {model}: {text}."


def _note_on_sizes(scale: str, configs: Mapping[str, ConfigDict]) -> str:
    """What the rows have in common, counted."""
    sizes = []
    depths = set()
    for config in configs.values():
        size = _encoder_size(config)
        sizes.append(size)
        depths.add(config.model.layers)
    smallest = min(sizes)
    largest = max(sizes)
    same = "by BERT's depth and widths"
    if scale != "paper":
        ratio = largest / smallest
        excess = 100 * (ratio - 1)
        same = f"the same up to {excess:.1f} %"
    layers = ", ".join(str(depth) for depth in sorted(depths))
    return (
        f"All rows have {smallest:.3f} to {largest:.3f} M parameters in the encoder ({same}), "
        f"{layers} layers, and the same text, steps, batches and masks. "
        "GFLOPs are the products of one sequence's forward pass with its loss."
    )


def _notes_on_absent(scores: Scores, costs: Costs) -> list[str]:
    """Which columns have no results; none if all have some."""
    absent = [name for name in COLUMNS if name not in scores]
    if not costs:
        absent.append(f"{COSTS} (seconds and bytes)")
    if not absent:
        return []
    names = ", ".join(absent)
    return [f"Columns without results: {names}."]


# Charts.


def _charts(
    runs: Mapping[str, Sequence[Run]],
    scores: Scores,
    costs: Costs,
    submitted: Sequence[Submission],
) -> dict[str, Chart]:
    """Each column's scores over speed, the costs, and the rows of others."""
    charts = {}
    for name, column_runs in runs.items():
        if name in scores:
            first_run = column_runs[0]
            task = bare_task(first_run.config)
            chart = over_speed(COLUMNS[name], scores[name], costs, task.length)
            charts[f"speed_{name}"] = chart
    perplexities = scores.get("mlm", {})
    charts["costs"] = cost_chart(costs, list(costs))
    charts["submitted"] = submitted_rows.chart(perplexities, submitted)
    return {name: chart for name, chart in charts.items() if chart}


def over_speed(
    column: Column,
    scores: Mapping[str, Spread],
    costs: Costs,
    tokens: int,
) -> Chart | None:
    """A column's scores over the speed of a training step at the measured length that is nearest to
    the column's own; None without two rows that have a speed."""
    steps = nearest(costs, scores, tokens)
    if len(steps) < 2:
        return None
    families = _by_family(steps)
    look_of = looks_lib.looks(list(families))
    series = []
    several = False
    for name, look in zip(families, look_of, strict=True):
        rows = families[name]
        speeds = [steps[row].speed for row in rows]
        values = [scores[row] for row in rows]
        labels = [row_label(row) for row in rows]
        line = over_seeds(name, look, speeds, values, labels=labels, joined=False)
        series.append(line)
        several |= bool(line.low)
    first_step, *_ = steps.values()
    n = first_step.tokens  # the same for all
    panel = Panel(
        f"{column.title} over speed",
        Scale(f"tokens per second in training, n = {n:,}", log=True),
        Scale(column.title, log=column.lower),
        series,
    )
    caption = "Bars go from the lowest to the highest seed." if several else "One seed each."
    return Chart([panel], caption)


def _by_family(rows: Iterable[str]) -> dict[str, list[str]]:
    """Family -> its rows."""
    families: dict[str, list[str]] = {}
    for row in rows:
        name = family(row)
        members = families.setdefault(name, [])
        members.append(row)
    return families
