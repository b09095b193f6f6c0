"""The report of `gmlp reproduce alternatives`: every column that is there, and what it says of the papers' claims."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.config import overrides
from gmlp_flax.errors import ConfigError
from gmlp_flax.models import parameters
from gmlp_flax.paper import alternatives
from gmlp_flax.paper.alternatives import COLUMNS, FINETUNED, ROWS, TRAINED, Column
from gmlp_flax.paper.quoted import ScoreColumn
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.planning import workload
from gmlp_flax.reports import finetuned_scores, language_models
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.alternatives import charts, claims, measured
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.runs import Run
from gmlp_flax.reports.table import Cell, Printed, Spread, Table, shown

NAME = "alternatives"


class Found(NamedTuple):
    """What a folder has.

    Attributes:
        scores: column -> row -> its score over seeds, as shown; finetuned ones start from pretrained parameters.
        random: the same, from random parameters.
        costs, compiled, lengths: as `measured` reads them.
        rates: row -> the rate of masked LM.
        baselines: column -> the score of a trivial model, as shown, if that is known.
        notes: unfinished runs, baselines, rows without a run.
        setting: what was scaled down; None without a run of masked LM.
    """

    scores: Mapping[str, Mapping[str, Spread]]
    random: Mapping[str, Mapping[str, Spread]]
    costs: measured.Costs
    compiled: Mapping[str, Mapping[int, measured.Compiled]]
    lengths: Mapping[str, Mapping[str, Any]]
    rates: Mapping[str, float]
    baselines: Mapping[str, float]
    notes: Sequence[str]
    setting: run_finder.Setting | None


def of_folder(folder: str, scale: str, flags: Sequence[str] = (), rows: Sequence[str] = ROWS) -> Report:
    """The report of all columns that a folder has.

    Args:
        folder: of `gmlp reproduce alternatives`: runs of masked LM, and a folder for each other column.
        scale: at which the runs were trained.
        flags: words of a command line that changed every run that was not finetuned and has such a key.
        rows: names in ROWS.

    Raises:
        NoRuns: there is nothing of any column.
        RunError: runs of a column cannot stand in it, or a file of measurements is damaged.
    """
    found = _find(folder, scale, flags, rows)
    if not (found.scores or found.costs or found.compiled or found.lengths):
        raise run_finder.NoRuns(f"{folder} holds no run and no measurement of {NAME}: make some of its columns first")
    columns = (*found.scores.values(), *found.random.values(), found.costs, found.compiled, found.lengths)
    configs = {row: TABLES[NAME].config(row, scale) for row in rows if any(row in column for column in columns)}
    notes = [*found.notes, *_frame(scale, configs), *_growth_notes(found.costs), *_length_notes(found.lengths)]
    for what, absent in {
        "Rows": [row for row in rows if row not in configs],
        "Columns": [name for name in COLUMNS if not _has(found, name)],
    }.items():
        notes += [f"{what} without anything: {', '.join(absent)}."] if absent else []
    more = {"costs": _table(configs, _cost_columns(found, configs), over="repeats")}
    if found.lengths:
        more["other lengths"] = _table(configs, _length_columns(found.lengths))
    verdicts = claims.claims(found.scores, found.costs, found.baselines)
    figures = charts.charts(found.scores, found.costs, scale)
    return Report(
        TABLES[NAME].title,
        _table(configs, _score_columns(found, configs)),
        verdicts,
        setting=found.setting,
        notes=notes,
        figures=figures,
        more_tables=more,
    )


def _find(folder: str, scale: str, flags: Sequence[str], rows: Sequence[str]) -> Found:
    scores, random, notes, rates, baselines, setting = {}, {}, [], {}, {}, None
    given = overrides.named_overrides(flags)
    for name, column in COLUMNS.items():
        if column.kind != TRAINED:
            continue
        runs = _runs(folder if name == "mlm" else f"{folder}/{name}", column, scale, given, rows)
        notes += [note if name == "mlm" else f"{column.title}: {note}" for note in run_finder.unfinished(runs)]
        baselines[name] = _baselines(column, runs)
        if name == "mlm" and runs:
            trained = language_models.trained_rows(rows, runs)
            scores[name] = {row: each.last for row, each in trained.items() if each.compared}
            notes += [f"{row}: {note}." for row, each in trained.items() for note in each.footnotes()]
            rates = {run.row: run.config.optimizer.learning_rate for run in runs}
            setting = run_finder.setting(TABLES[NAME], runs, scale)
        elif runs:
            scores[name] = _scores(column, runs)
    pretrained = {row: TABLES[NAME].config(row, scale) for row in rows}
    tuned = run_finder.find_finetuned(folder, _changed(pretrained, given))
    for name, column in COLUMNS.items():
        if column.kind == FINETUNED:
            scores[name], random[name] = (_finetuned(column, tuned, start) for start in (True, False))
            every = (run for runs in tuned.values() for run in runs)
            baselines[name] = _baselines(
                column, [run for run in every if run_finder.task_of(run.config) == _task(column)]
            )
    notes += [
        f"{COLUMNS[name].title}, to compare: {model}: {shown(value)}."
        for name, found in baselines.items()
        for model, value in found.items()
    ]
    return Found(
        {name: of_row for name, of_row in scores.items() if of_row},
        {name: of_row for name, of_row in random.items() if of_row},
        measured.costs(folder, rows),
        measured.compiled(folder, rows),
        measured.lengths(folder, rows),
        rates,
        {name: max(found.values()) for name, found in baselines.items() if found},
        list(dict.fromkeys(notes)),
        setting,
    )


def _runs(folder: str, column: Column, scale: str, given: Mapping[str, Any], rows: Sequence[str]) -> list[Run]:
    """The runs of a column that is trained; none if there is none, or if there is no such config."""
    try:
        configs = column.configs(scale, rows)
    except ConfigError:
        return []
    try:
        return run_finder.find(folder, _changed(configs, given))
    except run_finder.NoRuns:
        return []


def _changed(configs: Mapping[str, ConfigDict], given: Mapping[str, Any]) -> dict[str, ConfigDict]:
    """Configs with the overrides whose keys they have."""
    return {row: overrides.overridden(each, overrides.applying(each, given)) for row, each in configs.items()}


def _scores(column: Column, runs: Sequence[Run]) -> dict[str, Spread]:
    """Row -> the last score of its finished runs."""
    values: dict[str, list[float]] = {}
    for run in runs:
        if run.finished and (curve := run.curve(column.metric)):
            values.setdefault(run.row, []).append(column.percent * curve[-1][1])
    return {row: Spread(statistics.mean(each), tuple(each)) for row, each in values.items()}


def _finetuned(column: Column, tuned: Mapping[str, Sequence[Run]], pretrained: bool) -> dict[str, Spread]:
    """Row -> the median of its best rate."""
    wanted = ScoreColumn(column.title, _task(column), column.metric)
    scores = {row: finetuned_scores.score(runs, wanted, pretrained) for row, runs in tuned.items()}
    return {row: score.spread for row, score in scores.items() if score}


def _task(column: Column) -> str:
    """What the config of a finetuned column calls its task: finetune_glue:TASK."""
    return column.config.partition(":")[2]


def _baselines(column: Column, runs: Sequence[Run]) -> dict[str, float]:
    """What trivial models score in a column, by their names."""
    found = (each for run in runs if (each := run.baseline(column.metric)))
    return {name: column.percent * value for name, value in found}


def _has(found: Found, name: str) -> bool:
    measurements = {"costs": found.costs, "tpu": found.compiled, "lengths": found.lengths}
    return bool(measurements[name] if name in measurements else found.scores.get(name))


def _frame(scale: str, configs: Mapping[str, ConfigDict]) -> list[str]:
    """What the rows have in common, counted."""
    sizes = [_encoder_size(config) for config in configs.values()]
    low, high, depths = min(sizes), max(sizes), sorted({config.model.layers for config in configs.values()})
    same = f"the same up to {100 * (high / low - 1):.1f} %" if scale != "paper" else "by BERT's depth and widths"
    layers = ", ".join(map(str, depths))
    return [
        f"One frame: {low:.3f} to {high:.3f} M parameters in the encoder ({same}), {layers} layers, the same text, "
        "steps, batches and masks. GFLOPs are the products of one sequence's forward pass with its loss."
    ]


def _encoder_size(config: ConfigDict) -> float:
    """Millions of parameters without embeddings and positions."""
    return parameters.count(tasks.find(config.task).without_data(config).shapes()["encoder"]) / 1e6


def _growth_notes(costs: measured.Costs) -> list[str]:
    """What the costs are, and the fitted powers with their intervals."""
    if not costs:
        return []
    laws = [(row, *(measured.growth(steps, memory) for memory in (False, True))) for row, steps in costs.items()]
    fits = [
        f"{row} {time.exponent:.2f} ({measured.interval(time)}) and {size.exponent:.2f}"
        for row, time, size in laws
        if time and size
    ]
    untimed = sorted(
        {f"{row} at {cost.tokens:,}" for row, steps in costs.items() for cost in steps.values() if not cost.seconds}
    )
    said = [
        "Costs: a whole training step of the small shapes, of 2,048 tokens or two sequences; on a CPU, processor time."
    ]
    if fits:
        fitted = f"fitted from {measured.FITTED_FROM:,} tokens on, 95 % interval"
        said.append(f"Time and memory of a sequence grow as n to a power ({fitted}): {'; '.join(fits)}.")
    if untimed:
        said.append(f"Compiled but not run, for want of memory: {', '.join(untimed)}.")
    return said


def _table(rows: Iterable[str], columns: Mapping[str, Mapping[str, Cell]], over: str = "seeds") -> Table:
    """A line per row; columns that nothing has are left out."""
    lines: list[list[Cell]] = [[row, *(cells.get(row) for cells in columns.values())] for row in rows]
    return Table(("model", *columns), lines, over=over).full()


def _flops(config: ConfigDict) -> float:
    return workload.forward_flops(tasks.find(config.task).without_data(config)) / 1e9


def _score_columns(found: Found, configs: Mapping[str, ConfigDict]) -> dict[str, dict[str, Cell]]:
    columns: dict[str, dict[str, Cell]] = {
        "layers": {row: config.model.layers for row, config in configs.items()},
        "M parameters": {row: _encoder_size(config) for row, config in configs.items()},
    }
    for name, column in COLUMNS.items():
        columns[column.title] = dict(found.scores.get(name, {}))
        columns[f"{column.title}, from random parameters"] = dict(found.random.get(name, {}))
    columns["rate"] = {row: Printed(rate) for row, rate in found.rates.items()}
    return columns


def _cost_columns(found: Found, configs: Mapping[str, ConfigDict]) -> dict[str, dict[str, Cell]]:
    """Time and memory at the shortest and at the longest length that was measured, how they grow, and a TPU's."""
    columns: dict[str, dict[str, Cell]] = {"GFLOPs": {row: _flops(config) for row, config in configs.items()}}
    costs = found.costs
    for tokens in _ends(cost.tokens for by_length in costs.values() for cost in by_length.values() if cost.seconds):
        at = {row: by_length[tokens].per_thousand for row, by_length in costs.items() if tokens in by_length}
        columns[f"ms per 1,000 tokens, n = {tokens:,}"] = {
            row: Spread(statistics.median(values), values) for row, values in at.items() if values
        }
    for tokens in _ends(tokens for by_length in costs.values() for tokens in by_length):
        columns[f"MB of a step, n = {tokens:,}"] = {
            row: by_length[tokens].size / 1e6 for row, by_length in costs.items() if tokens in by_length
        }
    for title, memory in (("time grows as n^", False), ("memory grows as n^", True)):
        laws = {row: measured.growth(by_length, memory) for row, by_length in costs.items()}
        columns[title] = {row: law.exponent for row, law in laws.items() if law}
    return columns | _compiled_columns(found.compiled)


def _ends(values: Iterable[int]) -> list[int]:
    """The smallest and the largest, which may be one."""
    every = sorted(set(values))
    return list(dict.fromkeys(every[:1] + every[-1:]))


def _compiled_columns(compiled: Mapping[str, Mapping[int, measured.Compiled]]) -> dict[str, dict[str, Cell]]:
    """Paper's shapes on one v5e chip. What does not fit has no time: only its products are known."""
    columns: dict[str, dict[str, Cell]] = {}
    for tokens in sorted({tokens for by_length in compiled.values() for tokens in by_length}):
        at = {row: by_length[tokens] for row, by_length in compiled.items() if tokens in by_length}
        columns[f"v5e: GB, n = {tokens:,}"] = {
            row: each.peak / 1e9 if each.fits else f"{shown(each.peak / 1e9)}, does not fit" for row, each in at.items()
        }
        columns[f"v5e: ms per 1,000 tokens at least, n = {tokens:,}"] = {
            row: 1e6 * each.seconds / each.tokens for row, each in at.items() if each.fits
        }
    return columns


def _length_columns(lengths: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Cell]]:
    """The perplexity at another length over that at its own; without one, whether the model takes that length."""
    columns: dict[str, dict[str, Cell]] = {}
    for tokens in map(str, alternatives.OTHER_LENGTHS):
        columns[f"perplexity at {tokens} / at its own"] = {
            row: value / found["perplexity"][str(found["length"])]
            if (value := found["perplexity"].get(tokens))
            else "yes"
            if found["takes"].get(tokens)
            else "no"
            for row, found in lengths.items()
        }
    return columns


def _length_notes(lengths: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Which models were fitted to another length than they take."""
    notes = []
    for tokens in map(str, alternatives.OTHER_LENGTHS):
        fitted = [
            row for row, found in lengths.items() if found["perplexity"].get(tokens) and not found["takes"].get(tokens)
        ]
        notes += [f"Parameters were extended or cut for {tokens} tokens: {', '.join(fitted)}."] if fitted else []
    return notes
