"""The report of `gmlp reproduce alternatives`: every column that is there, and what it says of the
papers' claims."""

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax.analysis import looks as looks_lib
from gmlp_flax.analysis.charts import Chart, Panel, Scale
from gmlp_flax.models import parameters
from gmlp_flax.paper.alternatives import (
    COLUMNS,
    COSTS,
    FASTER,
    GROWS,
    NOTHING,
    ROWS,
    STATEMENTS,
    Column,
    Statement,
)
from gmlp_flax.paper.tables import ALTERNATIVES, TABLES
from gmlp_flax.planning import dry_run
from gmlp_flax.reports import claims as verdicts
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.claims import EARLY, HOLDS, OPEN, REVERSED, Claim
from gmlp_flax.reports.costs import (
    Costs,
    cost_cells,
    cost_chart,
    cost_notes,
    growth,
    nearest,
    read_costs,
)
from gmlp_flax.reports.language_models import trained_rows
from gmlp_flax.reports.report import Report, family, over_seeds
from gmlp_flax.reports.runs import Run, bare_task
from gmlp_flax.reports.scaling import PowerLaw
from gmlp_flax.reports.scores import score
from gmlp_flax.reports.table import Cells, Spread, Table, printed, shown

RANDOM = " from random"  # behind the name of a finetuned column: from random parameters
SPEED_AT = 512  # tokens, where FNet's paper gives its speeds
# between two processes that time the same small step on shared cores; repeats within one do not
# show it
NOISE = 1.7
LINEAR = 1.2  # a power of n up to which time counts as linear
# of the best row's gain over a trivial model: a row that gained less has hardly begun
BEGUN = 1 / 3

Scores = Mapping[str, Mapping[str, Spread]]  # column -> row -> its score over seeds, as shown
Baselines = Mapping[str, Mapping[str, float]]  # column -> trivial model -> its score, as shown


def of_folder(
    folder: str,
    scale: str,
    changes: Mapping[str, Any] = NOTHING,
) -> Report:
    """The report of all columns that a folder has.

    Args:
        folder: of `gmlp reproduce alternatives`: runs of masked LM, and a folder for each other
            column.
        scale: at which the runs were trained.
        changes: keys that a command line changed in every run that was not finetuned and has such a
            key.

    Raises:
        NoRuns: there is nothing of any column.
        DataError, RunError: runs of a column cannot stand in it, or a file of measurements is
            damaged.
    """
    table = TABLES[ALTERNATIVES]
    runs = find_runs(folder, scale, changes)
    scores = _scores(runs)
    costs = read_costs(folder, ROWS)
    rows = _measured_rows(scores, costs)
    if not rows:
        raise run_finder.NoRuns(
            f"{folder} holds no run and no measurement of {ALTERNATIVES}: make some columns first"
        )
    configs = {row: table.config(row, scale) for row in rows}
    baselines = _baselines(runs)
    masked_lm = runs["mlm"]
    notes = [
        *_notes_on_runs(runs),
        *_notes_on_baselines(baselines),
        _note_on_sizes(scale, configs),
        *cost_notes(costs),
        *_notes_on_absent(scores, costs),
    ]
    return Report(
        table.title,
        _score_table(scores, masked_lm, configs),
        claims(scores, costs, _best(baselines), _examples(runs)),
        setting=run_finder.setting(table, masked_lm, scale) if masked_lm else "",
        notes=list(dict.fromkeys(notes)),
        figures=_charts(runs, scores, costs),
        more_tables={"costs": _cost_table(costs, configs)},
    )


def _measured_rows(scores: Scores, costs: Costs) -> list[str]:
    """The rows of which there is something in any column."""
    measured = set(costs)
    for by_row in scores.values():
        measured |= by_row.keys()
    return [row for row in ROWS if row in measured]


# What the folder has.


def folder_of(folder: str, column: str) -> str:
    """The runs of a trained column: masked LM's in the folder itself, where other tables look for
    them as well."""
    return folder if column == "mlm" else os.path.join(folder, column)


def find_runs(
    folder: str,
    scale: str,
    changes: Mapping[str, Any],
) -> dict[str, list[Run]]:
    """The runs of each column; none of a column that has no such scale."""
    pretrained = COLUMNS["mlm"].configs(scale, ROWS, changes)
    tuned: list[Run] = []
    for row_runs in run_finder.find_finetuned(folder, pretrained).values():
        tuned += row_runs
    runs: dict[str, list[Run]] = {name: [] for name in COLUMNS}
    for name, column in COLUMNS.items():
        if column.starts:
            runs[name] = _of_task(tuned, column.task)
        elif scale in column.scales:
            configs = column.configs(scale, ROWS, changes)
            with contextlib.suppress(run_finder.NoRuns):
                runs[name] = run_finder.find(folder_of(folder, name), configs)
    return runs


def _of_task(runs: Sequence[Run], task: str) -> list[Run]:
    """The finetuned runs of a task."""
    return [run for run in runs if run_finder.task_of(run.config) == task]


def _scores(runs: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, Spread]]:
    """Column -> row -> its score; of a finetuned column also from random parameters, under its name
    and RANDOM. Columns without a score are left out."""
    scores: dict[str, dict[str, Spread]] = {}
    for name, column in COLUMNS.items():
        column_runs = runs[name]
        if column.starts:
            pretrained = _finetuned_scores(column_runs, column, pretrained=True)
            random = _finetuned_scores(column_runs, column, pretrained=False)
            scores[name] = pretrained
            scores[name + RANDOM] = random
        elif name == "mlm":
            scores[name] = _perplexities(column_runs)
        else:
            scores[name] = _last_scores(column_runs, column)
    return {name: by_row for name, by_row in scores.items() if by_row}


def _finetuned_scores(
    runs: Sequence[Run],
    column: Column,
    pretrained: bool,
) -> dict[str, Spread]:
    """Row -> its score, finetuned from pretrained or from random parameters."""
    scores = {}
    for row in ROWS:
        row_runs = [run for run in runs if run.row == row]
        best = score(row_runs, column, pretrained)
        if best is not None:
            scores[row] = best.spread
    return scores


def _perplexities(runs: Sequence[Run]) -> dict[str, Spread]:
    """Row -> its perplexity, of the rows that came as far as the others."""
    perplexities = {}
    for name, row in trained_rows(ROWS, runs).items():
        if row.compared:
            perplexities[name] = row.last
    return perplexities


def _last_scores(runs: Sequence[Run], column: Column) -> dict[str, Spread]:
    """Row -> the score at the end of its finished runs."""
    scores = {}
    for row in ROWS:
        values = []
        for run in runs:
            curve = run.curve(column.metric)
            if run.row == row and run.finished and curve:
                _, last = curve[-1]
                values.append(column.percent * last)
        if values:
            scores[row] = Spread.mean(values)
    return scores


def _baselines(runs: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, float]]:
    """Column -> trivial model -> its score."""
    baselines: dict[str, dict[str, float]] = {}
    for name, column in COLUMNS.items():
        scores = run_finder.baselines(runs[name], column.metric)
        percents = {}
        for model, value in scores.items():
            percents[model] = column.percent * value
        baselines[name] = percents
    return baselines


def _best(baselines: Baselines) -> dict[str, float]:
    """Column -> the score of its best trivial model, of the columns that have one."""
    best = {}
    for name, scores in baselines.items():
        if scores:
            choose = min if COLUMNS[name].lower else max
            best[name] = choose(scores.values())
    return best


def _examples(runs: Mapping[str, Sequence[Run]]) -> dict[str, int]:
    """Column -> its held-out examples; 0 if its runs do not say."""
    examples = dict.fromkeys(runs, 0)
    for name, column_runs in runs.items():
        for run in column_runs:
            for line in run.lines:
                evaluation = line.get("eval", {})
                count = evaluation.get("examples", 0)
                examples[name] = max(examples[name], count)
    return examples


# Claims.


def claims(
    scores: Scores,
    costs: Costs,
    baselines: Mapping[str, float] = NOTHING,
    examples: Mapping[str, int] = NOTHING,
) -> list[Claim]:
    """Every statement of the papers for which both rows are there, with our numbers.

    Args:
        scores: column -> row -> its score over seeds.
        costs: row -> tokens -> a measured step. Speeds within a factor NOISE count as equal.
        baselines: column -> the score of the best trivial model. Claims on a row that is hardly
            better are not judged: its score says how fast that row starts, not what it is worth.
        examples: column -> its held-out examples. Accuracies within two standard errors of each
            other decide nothing.
    """
    late = {}
    for name, baseline in baselines.items():
        by_row = scores.get(name, {})
        late[name] = late_starters(by_row, baseline, COLUMNS[name].lower)
    judged = []
    for statement in STATEMENTS:
        for name in statement.columns:
            by_row = scores.get(name, {})
            if statement.better in by_row and statement.worse in by_row:
                claim = _claim(
                    statement,
                    COLUMNS[name],
                    by_row,
                    examples.get(name, 0),
                )
                claim = _unless_late(claim, statement, late.get(name, {}))
                judged.append(claim)
    return [
        *judged,
        *_speed_claims(costs),
        *_growth_claims(costs),
    ]


def _claim(
    statement: Statement,
    column: Column,
    scores: Mapping[str, Spread],
    examples: int,
) -> Claim:
    """A statement on two rows in a column, with our verdict."""
    better = scores[statement.better]
    worse = scores[statement.worse]
    bound = statement.worse
    if statement.share != 1:
        bound = f"{statement.share:g} of {statement.worse}"
    sign = "<" if column.lower else ">"
    error = 0.0 if column.lower else _standard_error(better, worse, examples)
    detail = f"{shown(better)} and {shown(worse)}"
    if error > 0:
        detail += f", standard error of the difference {error:.1f}"
    bounds = [statement.share * value for value in worse.values]
    verdict = verdicts.verdict(
        better.values,
        bounds,
        column.lower,
        noise=2 * error,
    )
    ordering = f"{statement.better} {sign} {bound}"
    return Claim(
        f"{statement.source}. {column.title}: {ordering}",
        verdict,
        detail,
    )


def _standard_error(
    first: Spread,
    second: Spread,
    examples: int,
) -> float:
    """The standard error, in points, of the difference of two accuracies in percent on so many
    examples; 0 for none."""
    if not examples:
        return 0.0
    variance = 0.0
    for spread in (first, second):
        percent = spread.centre
        variance += percent * (100 - percent) / examples
    return math.sqrt(variance)


def late_starters(
    scores: Mapping[str, Spread],
    baseline: float,
    lower: bool,
) -> dict[str, str]:
    """Rows whose scores say nothing of their worth yet, and why: no better than the best trivial
    model (of masked language models, one that sees no context), or by `BEGUN`. Perplexities
    (`lower`) count by their logarithm."""
    gains = {}
    for row, spread in scores.items():
        if lower:
            gains[row] = _log(baseline) - _log(spread.centre)
        else:
            gains[row] = spread.centre - baseline
    least = BEGUN * max(gains.values(), default=0)
    late = {}
    for row, gain in gains.items():
        if gain <= 0:
            late[row] = "is no better than a trivial model"
        elif gain < least:
            late[row] = "has hardly begun"
    return late


def _log(perplexity: float) -> float:
    """The logarithm of a perplexity, which is at least 1."""
    return math.log(max(perplexity, 1))


def _unless_late(
    claim: Claim,
    statement: Statement,
    late: Mapping[str, str],
) -> Claim:
    """A claim, or EARLY in place of its verdict if one of its rows is late, with the reason."""
    for row, reason in late.items():
        if row in (statement.better, statement.worse):
            detail = f"{claim.detail}; {row} {reason}"
            claim = claim._replace(verdict=EARLY, detail=detail)
    return claim


def _speed_claims(costs: Costs) -> Iterator[Claim]:
    """What the papers say of speed."""
    for source, faster, slower in FASTER:
        steps = nearest(costs, (faster, slower), SPEED_AT)
        if len(steps) < 2:
            continue
        ratio = steps[faster].speed / steps[slower].speed
        tokens = steps[faster].tokens
        step = f"A training step of {tokens:,} tokens"
        yield Claim(
            f"{source}. {step}: {faster} takes less time than {slower}",
            _speed_verdict(ratio),
            f"{ratio:.2f} times its speed here, where a factor of {NOISE} may be noise",
        )


def _speed_verdict(ratio: float) -> str:
    """Whether a row is faster, by the ratio of its speed to the other's."""
    if 1 / NOISE < ratio < NOISE:
        return OPEN
    return HOLDS if ratio > 1 else REVERSED


def _growth_claims(costs: Costs) -> Iterator[Claim]:
    """What the papers say of how time grows."""
    for source, row in GROWS:
        law = growth(costs.get(row, {}))
        if law is not None:
            yield Claim(
                f"{source}. Time grows by less than n^{LINEAR}: {row}",
                _growth_verdict(law),
                f"n^{law.exponent:.2f}, 95 % interval: {law.interval()}",
            )


def _growth_verdict(law: PowerLaw) -> str:
    """Whether time grows about as the number of tokens."""
    if law.high < LINEAR:
        return HOLDS
    if law.low > LINEAR:
        return REVERSED
    return OPEN


# Tables.


def _score_table(
    scores: Scores,
    runs: Sequence[Run],
    configs: Mapping[str, ConfigDict],
) -> Table:
    """The table of scores. `runs` are those of masked LM."""
    rates = {run.row: run.config.optimizer.learning_rate for run in runs}
    models: dict[str, Cells] = {}
    for row, config in configs.items():
        cells: Cells = {
            "layers": config.model.layers,
            "M parameters": _encoder_size(config),
        }
        for name, column in COLUMNS.items():
            pretrained = scores.get(name, {})
            random = scores.get(name + RANDOM, {})
            cells[column.title] = pretrained.get(row)
            cells[f"{column.title}, from random parameters"] = random.get(row)
        cells["rate"] = printed(rates.get(row))
        models[row] = cells
    return Table.of_models(models)


def _encoder_size(config: ConfigDict) -> float:
    """Millions of parameters without embeddings and positions."""
    return parameters.count(bare_task(config).shapes()["encoder"]) / 1e6


def _cost_table(costs: Costs, configs: Mapping[str, ConfigDict]) -> Table:
    """The table of what a training step costs."""
    measured = cost_cells(costs)
    models: dict[str, Cells] = {}
    for row, config in configs.items():
        task = bare_task(config)
        flops = dry_run.forward_flops(task)
        cells = measured.get(row, {})
        models[row] = {"GFLOPs": flops / 1e9, **cells}
    return Table.of_models(models, over="repeats")


# Notes.


def _notes_on_runs(runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Which runs are not finished, and which of masked LM are behind the others."""
    for name, column in COLUMNS.items():
        if column.starts:
            continue
        for note in run_finder.unfinished(runs[name]):
            yield f"{column.title}: {note}"
    for name, row in trained_rows(ROWS, runs["mlm"]).items():
        if row.note:
            yield f"{name}: {row.note}."


def _notes_on_baselines(baselines: Baselines) -> Iterator[str]:
    """What trivial models score."""
    for name, scores in baselines.items():
        title = COLUMNS[name].title
        for model, value in scores.items():
            text = shown(value)
            yield f"{title}, to compare: {model}: {text}."


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
        excess = 100 * (largest / smallest - 1)
        same = f"the same up to {excess:.1f} %"
    layers = ", ".join(map(str, sorted(depths)))
    return (
        f"One frame: {smallest:.3f} to {largest:.3f} M parameters in the encoder ({same}), "
        f"{layers} layers, the same text, steps, batches and masks. "
        "GFLOPs are the products of one sequence's forward pass with its loss."
    )


def _notes_on_absent(scores: Scores, costs: Costs) -> list[str]:
    """Which columns have nothing; none if all have something."""
    absent = [name for name in COLUMNS if name not in scores]
    if not costs:
        absent.append(COSTS)
    return [f"Columns without anything: {', '.join(absent)}."] if absent else []


# Charts.


def _charts(
    runs: Mapping[str, Sequence[Run]],
    scores: Scores,
    costs: Costs,
) -> dict[str, Chart]:
    """Each column's scores over speed, and the costs."""
    charts = {}
    for name, column_runs in runs.items():
        if name in scores:
            task = bare_task(column_runs[0].config)
            charts[f"speed_{name}"] = over_speed(
                COLUMNS[name],
                scores[name],
                costs,
                task.length,
            )
    charts["costs"] = cost_chart(costs, ROWS)
    return {name: chart for name, chart in charts.items() if chart}


def over_speed(
    column: Column,
    scores: Mapping[str, Spread],
    costs: Costs,
    tokens: int,
) -> Chart | None:
    """A column's scores over the speed of a training step at the measured length nearest to the
    column's own; None without two rows that have one."""
    steps = nearest(costs, scores, tokens)
    if len(steps) < 2:
        return None
    families = _by_family(steps)
    look_of = looks_lib.looks(list(families))
    series = []
    several = False
    for look, (name, rows) in zip(look_of, families.items(), strict=True):
        speeds = [steps[row].speed for row in rows]
        values = [scores[row] for row in rows]
        line = over_seeds(
            name,
            look,
            speeds,
            values,
            labels=rows,
            joined=False,
        )
        series.append(line)
        several |= bool(line.low)
    n, *_ = {step.tokens for step in steps.values()}  # the same of all
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
        members = families.setdefault(family(row), [])
        members.append(row)
    return families
