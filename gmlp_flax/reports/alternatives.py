"""The report of `gmlp reproduce alternatives`: every column that is there, and what it says of the papers' claims."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.config import overrides
from gmlp_flax.models import parameters
from gmlp_flax.paper import alternatives
from gmlp_flax.paper.alternatives import COLUMNS, FINETUNED, ROWS, TRAINED
from gmlp_flax.paper.quoted import ScoreColumn
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.planning import workload
from gmlp_flax.reports import claims as verdicts
from gmlp_flax.reports import finetuned_scores, language_models, measured_costs
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.claims import EARLY, HOLDS, OPEN, REVERSED, Claim
from gmlp_flax.reports.families import family, looks
from gmlp_flax.reports.measured_costs import FITTED_FROM, Costs, growth, nearest
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.runs import Run
from gmlp_flax.reports.table import Cell, Printed, Spread, Table, shown

NAME = "alternatives"
SPEED_AT = 512  # tokens, where FNet's paper gives its speeds
NOISE = 1.7  # between two processes that time the same small step on shared cores; repeats within one do not show it
LINEAR = 1.2  # a power of n up to which time counts as linear
BEGUN = 1 / 3  # of the best row's gain over a trivial model: a row that gained less has hardly begun

Scores = Mapping[str, Mapping[str, Spread]]  # column -> row -> its score over seeds, as shown
Columns = dict[str, Mapping[str, Cell]]  # title -> row -> cell


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
    changes = overrides.named_overrides(flags)
    runs = {name: _runs(folder, name, scale, changes, rows) for name in COLUMNS}
    scores, random = _scores(runs, rows, True), _scores(runs, rows, False)
    costs = measured_costs.costs(folder, rows)
    compiled = measured_costs.measurements(folder, "tpu", rows)
    lengths = {row: files[0] for row, files in measured_costs.measurements(folder, "lengths", rows).items()}
    columns = {**scores, **{f"{name} from random": of_row for name, of_row in random.items()}}
    columns |= {name: values for name, values in (("costs", costs), ("tpu", compiled), ("lengths", lengths)) if values}
    configs = {
        row: TABLES[NAME].config(row, scale) for row in rows if any(row in values for values in columns.values())
    }
    if not configs:
        raise run_finder.NoRuns(f"{folder} holds no run and no measurement of {NAME}: make some of its columns first")
    baselines = _baselines(runs)
    notes = [*_run_notes(runs, rows), *_baseline_notes(baselines), *_frame(scale, configs), *_cost_notes(costs)]
    notes += _length_notes(lengths)
    absent = {"Rows": [row for row in rows if row not in configs], "Columns": [n for n in COLUMNS if n not in columns]}
    notes += [f"{what} without anything: {', '.join(names)}." for what, names in absent.items() if names]
    more = {"costs": _table(configs, _cost_columns(costs, configs) | _compiled_columns(compiled), over="repeats")}
    if lengths:
        more["other lengths"] = _table(configs, _length_columns(lengths))
    return Report(
        TABLES[NAME].title,
        _table(configs, _score_columns(scores, random, runs["mlm"], configs)),
        claims(scores, costs, {name: max(models.values()) for name, models in baselines.items() if models}),
        setting=run_finder.setting(TABLES[NAME], runs["mlm"], scale) if runs["mlm"] else None,
        notes=list(dict.fromkeys(notes)),
        figures=charts(scores, costs, scale),
        more_tables=more,
    )


# What the folder has.


def _runs(folder: str, name: str, scale: str, changes: Mapping[str, Any], rows: Sequence[str]) -> list[Run]:
    """The runs of a column; none if there is none, or if the column has no such scale or rows."""
    column = COLUMNS[name]
    if scale not in column.scales or not any(row in (column.rows or rows) for row in rows):
        return []
    try:
        if column.kind == TRAINED:
            return run_finder.find(
                folder if name == "mlm" else f"{folder}/{name}", column.configs(scale, rows, changes)
            )
    except run_finder.NoRuns:
        return []
    if column.kind == FINETUNED:
        tuned = run_finder.find_finetuned(folder, COLUMNS["mlm"].configs(scale, rows, changes))
        return [run for of_row in tuned.values() for run in of_row if run_finder.task_of(run.config) == _task(name)]
    return []


def _task(name: str) -> str:
    """What the config of a finetuned column calls its task: finetune_glue:TASK."""
    return COLUMNS[name].config.partition(":")[2]


def _scores(runs: Mapping[str, Sequence[Run]], rows: Sequence[str], pretrained: bool) -> dict[str, dict[str, Spread]]:
    """Column -> row -> its score: of finetuned columns from pretrained or from random parameters."""
    scores: dict[str, dict[str, Spread]] = {}
    for name, column in COLUMNS.items():
        values: dict[str, Spread] = {}
        if column.kind == FINETUNED:
            wanted = ScoreColumn(column.title, _task(name), column.metric)
            for row in rows:
                own = [run for run in runs[name] if run.row == row]
                if score := finetuned_scores.score(own, wanted, pretrained):
                    values[row] = score.spread
        elif pretrained and name == "mlm":
            trained = language_models.trained_rows(rows, runs[name])
            values = {row: trained[row].last for row in trained if trained[row].compared}
        elif pretrained:
            last: dict[str, list[float]] = {}
            for run in runs[name]:
                if run.finished and (curve := run.curve(column.metric)):
                    last.setdefault(run.row, []).append(column.percent * curve[-1][1])
            values = {row: Spread(statistics.mean(of_row), tuple(of_row)) for row, of_row in last.items()}
        if values:
            scores[name] = values
    return scores


def _baselines(runs: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, float]]:
    """Column -> what trivial models score in it, by their names."""
    return {
        name: {
            model: COLUMNS[name].percent * value
            for run in of_column
            for model, value in filter(None, [run.baseline(COLUMNS[name].metric)])
        }
        for name, of_column in runs.items()
    }


# Claims.


def claims(scores: Scores, costs: Costs, baselines: Mapping[str, float] = MappingProxyType({})) -> list[Claim]:
    """Every statement of the papers for which both rows are there, with our numbers.

    Args:
        scores: column -> row -> its score over seeds.
        costs: row -> tokens -> a measured step. Speeds within a factor NOISE count as equal.
        baselines: column -> the score of a trivial model. Claims on a row that is hardly better are not judged: its
            score says how fast that row starts, not what it is worth.
    """
    late = {
        name: late_starters(scores[name], baselines[name], COLUMNS[name].lower) for name in scores if name in baselines
    }
    return [*_score_claims(scores, late), *_speed_claims(costs), *_growth_claims(costs)]


def late_starters(scores: Mapping[str, Spread], baseline: float, lower: bool) -> list[str]:
    """Rows that have hardly begun, by `BEGUN`: perplexities (`lower`) by their logarithm, accuracies as they are."""

    def gain(score: float) -> float:
        return math.log(max(baseline, 1)) - math.log(max(score, 1)) if lower else score - baseline

    gains = {row: gain(score.centre) for row, score in scores.items()}
    return [row for row, gain in gains.items() if gain <= 0 or gain < BEGUN * max(gains.values())]


def _score_claims(scores: Scores, late: Mapping[str, Sequence[str]]) -> Iterator[Claim]:
    for source, better, worse, columns, share in alternatives.STATEMENTS:
        for name in columns:
            of_row, column = scores.get(name, {}), COLUMNS[name]
            if better in of_row and worse in of_row:
                sign = 1 if column.lower else -1
                ours = [sign * value for value in of_row[better].values]
                bounds = [sign * share * value for value in of_row[worse].values]
                slow = [row for row in (better, worse) if row in late.get(name, ())]
                bound = f"{share:g} of {worse}" if share != 1 else worse
                text = f"{source}. {column.title}: {better} {'<' if column.lower else '>'} {bound}"
                detail = f"{shown(of_row[better])} and {shown(of_row[worse])}"
                detail += "".join(f"; {row} has hardly begun" for row in slow)
                yield Claim(text, EARLY if slow else verdicts.verdict(ours, bounds), detail)


def _speed_claims(costs: Costs) -> Iterator[Claim]:
    for source, faster, slower in alternatives.FASTER:
        one, other = (nearest(costs.get(row, {}), SPEED_AT) for row in (faster, slower))
        if one and other and one.tokens == other.tokens:
            ratio = one.speed / other.speed
            verdict = OPEN if 1 / NOISE < ratio < NOISE else HOLDS if ratio > 1 else REVERSED
            text = f"{source}. A training step of {one.tokens:,} tokens: {faster} takes less time than {slower}"
            yield Claim(text, verdict, f"{ratio:.2f} times its speed here, where a factor of {NOISE} may be noise")


def _growth_claims(costs: Costs) -> Iterator[Claim]:
    for source, row in alternatives.GROWS:
        if law := growth(costs.get(row, {})):
            verdict = HOLDS if law.high < LINEAR else REVERSED if law.low > LINEAR else OPEN
            detail = f"n^{law.exponent:.2f}, 95 % interval: {law.interval()}"
            yield Claim(f"{source}. Time grows by less than n^{LINEAR}: {row}", verdict, detail)


# Tables.


def _table(rows: Iterable[str], columns: Columns, over: str = "seeds") -> Table:
    """A line per row; columns that nothing has are left out."""
    lines: list[list[Cell]] = [[row, *(cells.get(row) for cells in columns.values())] for row in rows]
    return Table(("model", *columns), lines, over=over).full()


def _score_columns(scores: Scores, random: Scores, runs: Sequence[Run], configs: Mapping[str, ConfigDict]) -> Columns:
    columns: Columns = {
        "layers": {row: config.model.layers for row, config in configs.items()},
        "M parameters": {row: _encoder_size(config) for row, config in configs.items()},
    }
    for name, column in COLUMNS.items():
        columns[column.title] = scores.get(name, {})
        columns[f"{column.title}, from random parameters"] = random.get(name, {})
    return columns | {"rate": {run.row: Printed(run.config.optimizer.learning_rate) for run in runs}}


def _cost_columns(costs: Costs, configs: Mapping[str, ConfigDict]) -> Columns:
    """Operations; time and memory at the shortest and at the longest length that was measured, and how they grow."""
    flops = {row: workload.forward_flops(tasks.find(c.task).without_data(c)) / 1e9 for row, c in configs.items()}
    columns: Columns = {"GFLOPs": flops}
    for n in _ends(cost.tokens for by_length in costs.values() for cost in by_length.values() if cost.seconds):
        times = {row: by_length[n].per_thousand for row, by_length in costs.items() if n in by_length}
        columns[f"ms per 1,000 tokens, n = {n:,}"] = {
            row: Spread(statistics.median(values), tuple(values)) for row, values in times.items() if values
        }
    for n in _ends(n for by_length in costs.values() for n in by_length):
        sizes = {row: by_length[n].size / 1e6 for row, by_length in costs.items() if n in by_length}
        columns[f"MB of a step, n = {n:,}"] = sizes
    for title, memory in (("time grows as n^", False), ("memory grows as n^", True)):
        laws = {row: growth(by_length, memory) for row, by_length in costs.items()}
        columns[title] = {row: law.exponent for row, law in laws.items() if law}
    return columns


def _ends(values: Iterable[int]) -> list[int]:
    """The smallest and the largest, which may be one."""
    ordered = sorted(set(values))
    return list(dict.fromkeys(ordered[:1] + ordered[-1:]))


def _compiled_columns(compiled: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> Columns:
    """Paper's shapes on one v5e chip. What does not fit has no time: only its products are known."""
    columns: Columns = {}
    for n in sorted({n for by_length in compiled.values() for n in by_length}):
        steps = {row: by_length[n] for row, by_length in compiled.items() if n in by_length}
        peaks = {row: step["per_chip_bytes"]["peak"] / 1e9 for row, step in steps.items()}
        columns[f"v5e: GB, n = {n:,}"] = {
            row: peaks[row] if step["fits"] else f"{shown(peaks[row])}, does not fit" for row, step in steps.items()
        }
        columns[f"v5e: ms per 1,000 tokens at least, n = {n:,}"] = {
            row: 1e6 * step["step_seconds"] / step["tokens"] for row, step in steps.items() if step["fits"]
        }
    return columns


def _length_columns(lengths: Mapping[str, Mapping[str, Any]]) -> Columns:
    """The perplexity at another length over that at its own; without one, whether the model takes that length."""

    def cell(scores: Mapping[str, Any], tokens: str) -> Cell:
        if value := scores["perplexity"].get(tokens):
            return value / scores["perplexity"][str(scores["length"])]
        return "yes" if scores["takes"].get(tokens) else "no"

    return {
        f"perplexity at {tokens} / at its own": {row: cell(scores, str(tokens)) for row, scores in lengths.items()}
        for tokens in alternatives.OTHER_LENGTHS
    }


# Notes.


def _run_notes(runs: Mapping[str, Sequence[Run]], rows: Sequence[str]) -> Iterator[str]:
    """Which runs are not finished, and which of masked LM are behind the others."""
    for name, column in COLUMNS.items():
        if column.kind == TRAINED:
            yield from (f"{column.title}: {note}" for note in run_finder.unfinished(runs[name]))
    trained = language_models.trained_rows(rows, runs["mlm"])
    yield from (f"{row}: {note}." for row, of_row in trained.items() for note in of_row.footnotes())


def _baseline_notes(baselines: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    for name, models in baselines.items():
        yield from (f"{COLUMNS[name].title}, to compare: {model}: {shown(value)}." for model, value in models.items())


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


def _cost_notes(costs: Costs) -> Iterator[str]:
    """What the costs are, and the fitted powers with their intervals."""
    if costs:
        yield "Costs: a training step of the small shapes, of 2,048 tokens or two sequences; on a CPU, processor time."
    laws = {row: (growth(steps), growth(steps, memory=True)) for row, steps in costs.items()}
    fits = [
        f"{row} {time.exponent:.2f} ({time.interval()}) and {size.exponent:.2f}"
        for row, (time, size) in laws.items()
        if time and size
    ]
    if fits:
        fitted = f"fitted from {FITTED_FROM:,} tokens on, 95 % interval"
        yield f"Time and memory of a sequence grow as n to a power ({fitted}): {'; '.join(fits)}."
    steps = [(row, cost) for row, by_length in costs.items() for cost in by_length.values()]
    if untimed := sorted({f"{row} at {cost.tokens:,}" for row, cost in steps if not cost.seconds}):
        yield f"Compiled but not run, for want of memory: {', '.join(untimed)}."


def _length_notes(lengths: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Which models were resized to another length than they take."""
    for n in map(str, alternatives.OTHER_LENGTHS):
        resized = [row for row, scores in lengths.items() if scores["perplexity"].get(n) and not scores["takes"].get(n)]
        if resized:
            yield f"Parameters were extended or cut for {n} tokens: {', '.join(resized)}."


# Charts.


def charts(scores: Scores, costs: Costs, scale: str) -> dict[str, Chart]:
    """A chart for each column that has two rows whose speed was measured, and one of the costs."""
    made = {f"speed_{name}": over_speed(name, of_row, costs, scale) for name, of_row in scores.items()}
    return {name: chart for name, chart in (made | {"costs": over_tokens(costs)}).items() if chart}


def over_speed(name: str, scores: Mapping[str, Spread], costs: Costs, scale: str) -> Chart | None:
    """A column's scores over the speed of a training step at the measured length nearest to the column's own; None
    without two rows that have one."""
    column = COLUMNS[name]
    tokens = length(name, scale)
    steps = {row: step for row in scores if (step := nearest(costs.get(row, {}), tokens))}
    n = min((step.tokens for step in steps.values()), default=0)
    speeds = {row: step.speed for row, step in steps.items() if step.tokens == n}  # speeds of one length compare
    if len(speeds) < 2:
        return None
    best = (min if column.lower else max)(speeds, key=lambda row: scores[row].centre)
    fastest = max(speeds, key=lambda row: speeds[row])
    also = " and fastest" if best == fastest else f", {fastest} the fastest"
    members: dict[str, list[str]] = {}
    for row in speeds:
        members.setdefault(family(row), []).append(row)
    series = [
        Series(
            name,
            look,
            [speeds[row] for row in rows],
            [scores[row].centre for row in rows],
            [min(scores[row].values) for row in rows],
            [max(scores[row].values) for row in rows],
            labels=rows,
            joined=False,
            band=False,
        )
        for (name, rows), look in zip(members.items(), drawing.looks(list(members)), strict=True)
    ]
    title = f"{best} is best ({shown(scores[best].centre)}){also}"
    speed = Scale(f"tokens per second in training, n = {n:,}", log=True)
    several = any(len(scores[row].values) > 1 for row in speeds)
    caption = "Bars go from the lowest to the highest seed." if several else "One seed each."
    return Chart([Panel(title, speed, Scale(column.title, log=column.lower), series)], caption)


def length(name: str, scale: str) -> int:
    """Tokens of an example of the models that a scale trains for a column."""
    [config] = COLUMNS[name].configs(scale, ("sgu",)).values()
    return tasks.find(config.task).without_data(config).length


def over_tokens(costs: Costs) -> Chart | None:
    """Time and memory per 1,000 tokens over n, with the fitted powers; None for one length."""
    if len({n for by_length in costs.values() for n in by_length}) < 2:
        return None
    powers = [law.exponent for by_length in costs.values() if (law := growth(by_length))]
    title = (
        f"A sequence's time grows as n^{min(powers):.2f} to n^{max(powers):.2f}" if powers else "Time per token over n"
    )
    n = Scale("n", log=True)
    panels = [
        Panel(title, n, Scale("ms per 1,000 tokens", log=True), _cost_lines(costs, memory=False)),
        Panel("Memory of a training step", n, Scale("MB per 1,000 tokens", log=True), _cost_lines(costs, memory=True)),
    ]
    return Chart(panels, f"Dashed: powers of n fitted from {FITTED_FROM:,} tokens on." if powers else "")


def _cost_lines(costs: Costs, memory: bool) -> list[Series]:
    """A line per row; if a power was fitted, it is drawn through the lengths that it was fitted to."""
    look_of, series = looks(ROWS), []
    for row, by_length in costs.items():
        steps = [cost for cost in by_length.values() if memory or cost.seconds]
        law = growth(by_length, memory)
        values, low, high, fit = [], [], [], []
        for cost in steps:
            times = cost.per_thousand
            values.append(cost.size / (1e3 * cost.batch * cost.tokens) if memory else statistics.median(times))
            low += [] if memory else [min(times)]
            high += [] if memory else [max(times)]
            # The law is of a sequence, in bytes or in seconds: a thousand tokens are 1,000 / n of it.
            scale = (1e-3 if memory else 1e6) / cost.tokens
            fit.append(scale * law(cost.tokens) if law and cost.tokens >= FITTED_FROM else values[-1])
        if steps:
            tokens = [cost.tokens for cost in steps]
            series.append(Series(row, look_of[row], tokens, values, low, high, fit=fit if law else ()))
    return series
