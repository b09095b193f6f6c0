"""Curves over the steps: the loss of a run, and the report of a sweep, with each point's held-out
metric."""

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from gmlp_flax import config as config_lib
from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.looks import FAMILIES, GREY, Look, looks
from gmlp_flax.checkpoints import CONFIG_FILE, METRICS_FILE
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.errors import RunError
from gmlp_flax.io import files, json_files
from gmlp_flax.reports.report import Report, over_seeds
from gmlp_flax.reports.table import Cell, Spread, Table, shown
from gmlp_flax.sweeps import points
from gmlp_flax.sweeps.summary import STATISTICS


def of_sweep(out: str) -> Report:
    """A row and a curve for each point of the sweep in a folder.

    Raises:
        RunError: a run's metrics.jsonl is damaged.
    """
    path = files.join(out, "sweep.json")
    sweep = json_files.read(path, dict)
    metric = sweep["metric"]
    named = {}
    for point in sweep["points"]:
        keys = point["point"]
        name = points.name(keys) or "the config as it is"
        named[name] = point
    rows = []
    for name, point in named.items():
        row = _sweep_row(name, point, metric)
        rows.append(row)
    columns = ("", "seeds", *STATISTICS, f"{metric} of each seed")
    series = _sweep_curves(out, named, metric)
    figures = {}
    if any(line.x for line in series):
        panel = Panel(
            f"Held-out {metric} over steps",
            Scale("step", whole=True),
            Scale(metric, log=metric == "perplexity"),
            series,
        )
        caption = "Lines are means over seeds, bars go from the lowest to the highest."
        figures["curves"] = Chart([panel], caption)
    config = os.path.basename(sweep["config"])
    return Report(
        f"Sweep of {config}",
        Table(columns, rows),
        notes=_notes_on_choice(sweep, list(named)),
        figures=figures,
    )


def _sweep_row(
    name: str,
    point: Mapping[str, Any],
    metric: str,
) -> tuple[Cell, ...]:
    """A point of a sweep as a row: name, number of seeds, statistics over them, each value."""
    values = []
    for run in point["runs"]:
        metrics = run["eval"]
        values.append(metrics[metric])
    statistics: list[Cell] = []
    for statistic in STATISTICS.values():
        cell = statistic(values) if values else None
        statistics.append(cell)
    value_of_each = " ".join(shown(value) for value in values)
    return (name, len(values), *statistics, value_of_each)


def _sweep_curves(
    out: str,
    named: Mapping[str, Mapping[str, Any]],
    metric: str,
) -> list[Series]:
    """The held-out metric of each point of a sweep over the steps."""
    endless_families = itertools.cycle(FAMILIES)
    families = itertools.islice(endless_families, len(named))
    look_of = looks(list(families))
    series = []
    for name, look in zip(named, look_of, strict=True):
        point = named[name]
        curves = []
        for run in point["runs"]:
            folder = os.path.join(out, run["workdir"])
            curve = _curve(folder, metric)
            curves.append(curve)
        line = _mean_curve(name, look, curves)
        series.append(line)
    return series


def _curve(folder: str, metric: str) -> dict[int, float]:
    """Step -> the held-out metric of a run."""
    path = os.path.join(folder, METRICS_FILE)
    curve = {}
    for line in MetricsFile.read(path):
        scores = line.get("eval", {})
        if metric in scores:
            step = line["step"]
            curve[step] = scores[metric]
    return curve


def _mean_curve(
    name: str,
    look: Look,
    curves: Sequence[Mapping[int, float]],
) -> Series:
    """The curves of several seeds at the steps that all of them have."""
    steps: list[int] = []
    if curves:
        steps_of_curves = [set(curve) for curve in curves]
        steps = sorted(set.intersection(*steps_of_curves))
    spreads = []
    for step in steps:
        spread = Spread.mean(curve[step] for curve in curves)
        spreads.append(spread)
    return over_seeds(name, look, steps, spreads)


def _notes_on_choice(sweep: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Which point was chosen, and why; none if no point was."""
    chosen = sweep["chosen"]
    if chosen is None:
        return []
    name = names[chosen]
    metric = sweep["metric"]
    first_point = sweep["points"][0]
    first_run = first_point["runs"][0]
    seed = first_run["seed"]
    why = f"for its {metric} with seed {seed} on data held out for that"
    flag = "--choose=best; the paper does not say how it chose"
    return [f"chosen: {name}, {why} ({flag})"]


def of_run(workdir: str) -> Chart:
    """The loss of a run over its steps, in training and held out, from its metrics.jsonl.

    Raises:
        RunError: metrics.jsonl is missing or has no loss, or it or config.json is damaged.
    """
    training: dict[int, float] = {}  # step -> loss
    heldout: dict[int, float] = {}
    path = os.path.join(workdir, METRICS_FILE)
    for line in MetricsFile.read(path):
        step = line["step"]
        scores = line.get("eval", {})
        if "loss" in line:
            training[step] = line["loss"]
        if "loss" in scores:
            heldout[step] = scores["loss"]
    if not training and not heldout:
        raise RunError(f"there is no loss in {path}: give the folder of a run that took a step")
    series = []
    if training:
        name = "training"
        config_path = os.path.join(workdir, CONFIG_FILE)
        if _softens_targets(config_path):
            name = "training, of softened targets"
        look = Look(GREY, ".")
        training_line = _loss(name, look, training)
        series.append(training_line)
    title = "training loss"
    if heldout:
        look = Look(FAMILIES["gMLP"])
        heldout_line = _loss("held out", look, heldout)
        series.append(heldout_line)
        *_, step = heldout
        loss = heldout[step]
        title = f"held-out loss {loss:.3g} after {step:,} steps"
    panel = Panel(
        title,
        Scale("step", whole=True),
        Scale("loss (nats)"),
        series,
    )
    return Chart([panel])


def _loss(
    name: str,
    look: Look,
    losses: Mapping[int, float],
) -> Series:
    """Losses over the steps."""
    steps = list(losses)
    values = list(losses.values())
    return Series(name, look, steps, values)


def _softens_targets(path: str) -> bool:
    """Whether the config in a file, if it is there, softens the targets of training."""
    if not files.exists(path):
        return False
    config = config_lib.load(path)
    options = config_lib.keys(config)
    softening = [config[name] for name, option in options.items() if option.softens_targets]
    return any(softening)
