"""The report of `gmlp reproduce alternatives`: every column that is there, and what it says of the
papers' claims."""

import contextlib
import itertools
import math
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.drawing import Chart, Panel, Scale
from gmlp_flax.errors import RunError, decode_errors
from gmlp_flax.io import files, json_files
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
)
from gmlp_flax.paper.tables import ALTERNATIVES, TABLES
from gmlp_flax.planning import dry_run
from gmlp_flax.reports import claims as verdicts
from gmlp_flax.reports import language_models
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.claims import EARLY, HOLDS, OPEN, REVERSED, Claim
from gmlp_flax.reports.language_models import PowerLaw, power_law
from gmlp_flax.reports.report import Report, family, looks, over_seeds
from gmlp_flax.reports.runs import Run, bare_task
from gmlp_flax.reports.table import Columns, Printed, Spread, Table, shown

RANDOM = " from random"  # behind the name of a finetuned column: from random parameters
SPEED_AT = 512  # tokens, where FNet's paper gives its speeds
# between two processes that time the same small step on shared cores; repeats within one do not
# show it
NOISE = 1.7
LINEAR = 1.2  # a power of n up to which time counts as linear
# of the best row's gain over a trivial model: a row that gained less has hardly begun
BEGUN = 1 / 3

Scores = Mapping[str, Mapping[str, Spread]]  # column -> row -> its score over seeds, as shown


FITTED_FROM = 1024  # tokens: below, what does not grow with n takes most of a step


class Cost(NamedTuple):
    """A training step of a row.

    Attributes:
        tokens: in a sequence.
        batch: sequences in a step.
        seconds: of each repeat; empty if the step was compiled only.
        size: bytes of its program: arguments and temporaries.
    """

    tokens: int
    batch: int
    seconds: tuple[float, ...]
    size: float

    @property
    def per_thousand(self) -> Spread | None:
        """Milliseconds for 1,000 tokens, over repeats."""
        tokens = self.batch * self.tokens
        return (
            Spread.median(1e6 * seconds / tokens for seconds in self.seconds)
            if self.seconds
            else None
        )

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.batch * self.tokens / statistics.median(self.seconds)


Costs = Mapping[str, Mapping[int, Cost]]  # row -> tokens -> step


def folder_of(folder: str, column: str) -> str:
    """The runs of a trained column: masked LM's in the folder itself, where other tables look for
    them as well."""
    return folder if column == "mlm" else os.path.join(folder, column)


def cost_path(folder: str, row: str, tokens: int) -> str:
    """The file of a row at a number of tokens."""
    return os.path.join(folder, "costs", f"{row}-{tokens}.json")


def read_costs(folder: str, rows: Sequence[str]) -> dict[str, dict[int, Cost]]:
    """What `gmlp benchmark mixers` measured. Raises DataError, RunError: a file is damaged."""
    by_row: dict[str, dict[int, Cost]] = {}
    for name in files.listdir(os.path.join(folder, "costs")):
        if (match := re.fullmatch(r"(\w+)-(\d+)\.json", name)) and match[1] in rows:
            path = os.path.join(folder, "costs", name)
            with decode_errors(
                f"{path} is damaged", "remove it, and the same command measures it again", RunError
            ):
                figures: Any = {entry["figure"]: entry for entry in json_files.read(path, list)}
                size, timed = figures["bytes"], figures.get("seconds", {"values": ()})
                cost = Cost(size["tokens"], size["batch"], tuple(timed["values"]), size["median"])
                by_row.setdefault(match[1], {})[int(match[2])] = cost
    return {row: dict(sorted(by_row[row].items())) for row in rows if row in by_row}


def growth(by_length: Mapping[int, Cost], memory: bool = False) -> PowerLaw | None:
    """The power of n with which a sequence's time, or its memory, grows, fitted to all lengths from
    FITTED_FROM on; None for fewer than two."""
    points = [
        (
            cost.tokens,
            cost.size / cost.batch if memory else statistics.median(cost.seconds) / cost.batch,
        )
        for cost in by_length.values()
        if cost.tokens >= FITTED_FROM and (memory or cost.seconds)
    ]
    return power_law(*zip(*points, strict=True)) if len(points) > 1 else None


def nearest(costs: Costs, rows: Iterable[str], tokens: int) -> dict[str, Cost]:
    """The timed step of each row whose length is nearest to a number of tokens, by their ratio, and
    at most a factor of two away. Speeds of one length compare: if rows differ in it, those at the
    shortest."""
    steps = {}
    for row in rows:
        away = [
            (abs(math.log2(n / tokens)), n)
            for n, cost in costs.get(row, {}).items()
            if cost.seconds
        ]
        if away and min(away)[0] <= 1:
            steps[row] = costs[row][min(away)[1]]
    n = min((step.tokens for step in steps.values()), default=0)
    return {row: step for row, step in steps.items() if step.tokens == n}


def cost_columns(costs: Costs) -> Columns:
    """Time and memory at the shortest and at the longest length that was measured, and how they
    grow."""
    columns: Columns = {}
    steps = [cost for by_length in costs.values() for cost in by_length.values()]
    for n in _ends([cost.tokens for cost in steps if cost.seconds]):
        columns[f"ms per 1,000 tokens, n = {n:,}"] = {
            row: of[n].per_thousand for row, of in costs.items() if n in of
        }
    for n in _ends([cost.tokens for cost in steps]):
        columns[f"MB of a step, n = {n:,}"] = {
            row: of[n].size / 1e6 for row, of in costs.items() if n in of
        }
    times = {row: law for row, of in costs.items() if (law := growth(of))}
    columns["time grows as n^"] = {row: law.exponent for row, law in times.items()}
    columns["95 % interval"] = {row: law.interval() for row, law in times.items()}
    memory = {row: law for row, of in costs.items() if (law := growth(of, memory=True))}
    return columns | {"memory grows as n^": {row: law.exponent for row, law in memory.items()}}


def _ends(values: Sequence[int]) -> list[int]:
    """The smallest and the largest, which may be one."""
    return sorted({min(values), max(values)}) if values else []


def cost_notes(costs: Costs) -> Iterator[str]:
    """What the costs are, and which steps were not run."""
    if costs:
        yield "Costs: a training step of the small shapes, of 2,048 tokens or two sequences; on a CPU, processor time."
    if any(map(growth, costs.values())):
        yield f"Powers of n are those of a sequence's time and memory, fitted from {FITTED_FROM:,} tokens on."
    steps = [(row, cost) for row, by_length in costs.items() for cost in by_length.values()]
    if untimed := sorted({f"{row} at {cost.tokens:,}" for row, cost in steps if not cost.seconds}):
        yield f"Compiled but not run, for want of memory: {', '.join(untimed)}."


def cost_chart(costs: Costs, rows: Sequence[str]) -> Chart | None:
    """The time of a sequence over n, with the fitted powers; None for one length. `rows` choose the
    looks."""
    timed = {
        row: {n: cost for n, cost in steps.items() if cost.seconds} for row, steps in costs.items()
    }
    if len({n for steps in timed.values() for n in steps}) < 2:
        return None
    look_of, series = looks(rows), []
    for row, steps in timed.items():
        times = [
            Spread.median(1e3 * seconds / cost.batch for seconds in cost.seconds)
            for cost in steps.values()
        ]
        fit = [1e3 * law(n) for n in steps] if (law := growth(steps)) else ()
        series.append(over_seeds(row, look_of[row], list(steps), times, fit=fit))
    panel = Panel(
        "Time over n", Scale("n", log=True), Scale("ms of a sequence in training", log=True), series
    )
    return Chart([panel], f"Dashed: powers of n fitted from {FITTED_FROM:,} tokens on.")


def of_folder(folder: str, scale: str, changes: Mapping[str, Any] = NOTHING) -> Report:
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
    runs = find_runs(folder, scale, changes)
    scores, costs, table = _scores(runs), read_costs(folder, ROWS), TABLES[ALTERNATIVES]
    columns: dict[str, Mapping[str, Any]] = {**scores, COSTS: costs}
    configs = {
        row: table.config(row, scale) for row in ROWS if any(row in has for has in columns.values())
    }
    if not configs:
        raise run_finder.NoRuns(
            f"{folder} holds no run and no measurement of {ALTERNATIVES}: make some columns first"
        )
    baselines = {
        name: {
            model: column.percent * score
            for model, score in run_finder.baselines(of, column.metric).items()
        }
        for (name, column), of in zip(COLUMNS.items(), runs.values(), strict=True)
    }
    floors = {
        name: (min if COLUMNS[name].lower else max)(models.values())
        for name, models in baselines.items()
        if models
    }
    notes = [*_notes(scale, configs, runs, baselines), *cost_notes(costs)]
    if absent := [name for name in (*COLUMNS, COSTS) if not columns.get(name)]:
        notes.append(f"Columns without anything: {', '.join(absent)}.")
    flops: Columns = {
        "GFLOPs": {row: dry_run.forward_flops(bare_task(c)) / 1e9 for row, c in configs.items()}
    }
    charts = {
        f"speed_{name}": over_speed(
            COLUMNS[name], scores[name], costs, bare_task(of[0].config).length
        )
        for name, of in runs.items()
        if name in scores
    }
    charts["costs"] = cost_chart(costs, ROWS)
    return Report(
        table.title,
        Table.of_columns(configs, _columns(scores, runs["mlm"], configs)),
        claims(scores, costs, floors, {name: _examples(runs[name]) for name in COLUMNS}),
        setting=run_finder.setting(table, runs["mlm"], scale) if runs["mlm"] else "",
        notes=list(dict.fromkeys(notes)),
        figures={name: chart for name, chart in charts.items() if chart},
        more_tables={
            "costs": Table.of_columns(configs, flops | cost_columns(costs), over="repeats")
        },
    )


# What the folder has.


def find_runs(folder: str, scale: str, changes: Mapping[str, Any]) -> dict[str, list[Run]]:
    """The runs of each column; none of a column that has no such scale."""
    tuned = run_finder.find_finetuned(folder, COLUMNS["mlm"].configs(scale, ROWS, changes))
    runs: dict[str, list[Run]] = {name: [] for name in COLUMNS}
    for name, column in COLUMNS.items():
        if column.starts:
            of_rows = itertools.chain(*tuned.values())
            runs[name] = [run for run in of_rows if run_finder.task_of(run.config) == column.task]
        elif scale in column.scales:
            with contextlib.suppress(run_finder.NoRuns):
                runs[name] = run_finder.find(
                    folder_of(folder, name), column.configs(scale, ROWS, changes)
                )
    return runs


def _scores(runs: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, Spread]]:
    """Column -> row -> its score; of a finetuned column also from random parameters, under its name
    and RANDOM."""
    scores: dict[str, dict[str, Spread]] = {}
    for name, column in COLUMNS.items():
        by_row = {row: [run for run in runs[name] if run.row == row] for row in ROWS}
        if column.starts:
            for behind, pretrained in (("", True), (RANDOM, False)):
                found = {
                    row: language_models.score(own, column, pretrained)
                    for row, own in by_row.items()
                }
                scores[name + behind] = {row: score.spread for row, score in found.items() if score}
        elif name == "mlm":
            trained = language_models.trained_rows(ROWS, runs[name])
            scores[name] = {row: trained[row].last for row in trained if trained[row].compared}
        else:
            for row, own in by_row.items():
                curves = [run.curve(column.metric) for run in own if run.finished]
                if values := [column.percent * curve[-1][1] for curve in curves if curve]:
                    scores.setdefault(name, {})[row] = Spread.mean(values)
    return {name: of_row for name, of_row in scores.items() if of_row}


def _examples(runs: Sequence[Run]) -> int:
    """The held-out examples of a column; 0 if its runs do not say."""
    return max(
        (line["eval"].get("examples", 0) for run in runs for line in run.lines if "eval" in line),
        default=0,
    )


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
    late = {
        name: late_starters(scores[name], baselines[name], COLUMNS[name].lower)
        for name in baselines
    }
    found = []
    for source, better, worse, columns, share in STATEMENTS:
        for name in columns:
            of_row, column = scores.get(name, {}), COLUMNS[name]
            if better in of_row and worse in of_row:
                bounds = [share * value for value in of_row[worse].values]
                slow = {
                    row: why for row, why in late.get(name, {}).items() if row in (better, worse)
                }
                bound = f"{share:g} of {worse}" if share != 1 else worse
                text = f"{source}. {column.title}: {better} {'<' if column.lower else '>'} {bound}"
                detail = f"{shown(of_row[better])} and {shown(of_row[worse])}"
                error = (
                    0.0
                    if column.lower
                    else _error(of_row[better], of_row[worse], examples.get(name, 0))
                )
                detail += f", standard error of the difference {error:.1f}" * (error > 0)
                verdict = verdicts.verdict(of_row[better].values, bounds, column.lower, 2 * error)
                detail += "".join(f"; {row} {why}" for row, why in slow.items())
                found.append(Claim(text, EARLY if slow else verdict, detail))
    return [*found, *_cost_claims(costs)]


def _error(one: Spread, other: Spread, examples: int) -> float:
    """The standard error, in points, of the difference of two accuracies in percent on so many
    examples; 0 for none."""
    return (
        math.sqrt(sum(score.centre * (100 - score.centre) for score in (one, other)) / examples)
        if examples
        else 0.0
    )


def late_starters(scores: Mapping[str, Spread], baseline: float, lower: bool) -> dict[str, str]:
    """Rows whose scores say nothing of their worth yet, and why: no better than the best trivial
    model (of masked language models, one that sees no context), or by `BEGUN`. Perplexities
    (`lower`) count by their logarithm."""

    def gain(score: float) -> float:
        return math.log(max(baseline, 1)) - math.log(max(score, 1)) if lower else score - baseline

    gains = {row: gain(score.centre) for row, score in scores.items()}
    least, nothing = BEGUN * max(gains.values(), default=0), "is no better than a trivial model"
    late = {row: gain for row, gain in gains.items() if gain <= 0 or gain < least}
    return {row: nothing if gain <= 0 else "has hardly begun" for row, gain in late.items()}


def _cost_claims(costs: Costs) -> Iterator[Claim]:
    for source, faster, slower in FASTER:
        steps = nearest(costs, (faster, slower), SPEED_AT)
        if len(steps) == 2:
            ratio = steps[faster].speed / steps[slower].speed
            verdict = OPEN if 1 / NOISE < ratio < NOISE else HOLDS if ratio > 1 else REVERSED
            text = f"{source}. A training step of {steps[faster].tokens:,} tokens: {faster} takes less time than {slower}"
            yield Claim(
                text,
                verdict,
                f"{ratio:.2f} times its speed here, where a factor of {NOISE} may be noise",
            )
    for source, row in GROWS:
        if law := growth(costs.get(row, {})):
            verdict = HOLDS if law.high < LINEAR else REVERSED if law.low > LINEAR else OPEN
            detail = f"n^{law.exponent:.2f}, 95 % interval: {law.interval()}"
            yield Claim(f"{source}. Time grows by less than n^{LINEAR}: {row}", verdict, detail)


# Tables.


def _columns(scores: Scores, runs: Sequence[Run], configs: Mapping[str, ConfigDict]) -> Columns:
    columns: Columns = {
        "layers": {row: config.model.layers for row, config in configs.items()},
        "M parameters": {row: _encoder_size(config) for row, config in configs.items()},
    }
    for name, column in COLUMNS.items():
        columns[column.title] = scores.get(name, {})
        columns[f"{column.title}, from random parameters"] = scores.get(name + RANDOM, {})
    return columns | {
        "rate": {run.row: Printed(run.config.optimizer.learning_rate) for run in runs}
    }


def _encoder_size(config: ConfigDict) -> float:
    """Millions of parameters without embeddings and positions."""
    return parameters.count(bare_task(config).shapes()["encoder"]) / 1e6


# Notes.


def _notes(
    scale: str,
    configs: Mapping[str, ConfigDict],
    runs: Mapping[str, Sequence[Run]],
    baselines: Mapping[str, Mapping[str, float]],
) -> Iterator[str]:
    """Which runs are not finished, and which of masked LM are behind the others; what trivial
    models score; what the rows have in common, counted."""
    for name, column in COLUMNS.items():
        if not column.starts:
            yield from (f"{column.title}: {note}" for note in run_finder.unfinished(runs[name]))
    for row, of_row in language_models.trained_rows(ROWS, runs["mlm"]).items():
        if of_row.note:
            yield f"{row}: {of_row.note}."
    for name, models in baselines.items():
        yield from (
            f"{COLUMNS[name].title}, to compare: {model}: {shown(value)}."
            for model, value in models.items()
        )
    sizes = [_encoder_size(config) for config in configs.values()]
    same = "by BERT's depth and widths"
    if scale != "paper":
        same = f"the same up to {100 * (max(sizes) / min(sizes) - 1):.1f} %"
    layers = ", ".join(map(str, sorted({config.model.layers for config in configs.values()})))
    yield (
        f"One frame: {min(sizes):.3f} to {max(sizes):.3f} M parameters in the encoder ({same}), {layers} layers, the "
        "same text, steps, batches and masks. GFLOPs are the products of one sequence's forward pass with its loss."
    )


# Charts.


def over_speed(
    column: Column, scores: Mapping[str, Spread], costs: Costs, tokens: int
) -> Chart | None:
    """A column's scores over the speed of a training step at the measured length nearest to the
    column's own; None without two rows that have one."""
    steps = nearest(costs, scores, tokens)
    if len(steps) < 2:
        return None
    families = {name: [row for row in steps if family(row) == name] for name in map(family, steps)}
    series = []
    for (name, rows), look in zip(families.items(), drawing.looks(list(families)), strict=True):
        x, y = [steps[row].speed for row in rows], [scores[row] for row in rows]
        series.append(over_seeds(name, look, x, y, labels=rows, joined=False))
    speed = Scale(
        f"tokens per second in training, n = {next(iter(steps.values())).tokens:,}", log=True
    )
    several = any(len(scores[row].values) > 1 for row in steps)
    caption = "Bars go from the lowest to the highest seed." if several else "One seed each."
    return Chart(
        [Panel(f"{column.title} over speed", speed, Scale(column.title, log=column.lower), series)],
        caption,
    )
