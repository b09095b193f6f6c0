"""Curves over the steps: the loss of a run, and the report of a sweep, with each point's held-out
metric."""

import itertools
import os

from gmlp_flax import config as config_lib
from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.drawing import Chart, Panel, Scale, Series
from gmlp_flax.checkpoints import CONFIG_FILE, METRICS_FILE
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.io import files, json_files
from gmlp_flax.reports.report import Report, over_seeds
from gmlp_flax.reports.table import Spread, Table, shown
from gmlp_flax.sweeps import points
from gmlp_flax.sweeps.training import STATISTICS


def of_sweep(out: str) -> Report:
    """A row and a curve for each point of the sweep in a folder.

    Raises:
        RunError: a run's metrics.jsonl is damaged.
    """
    made = json_files.read(files.join(out, "sweep.json"), dict)
    metric = made["metric"]
    named = {
        points.name(point["point"]) or "the config as it is": point for point in made["points"]
    }
    rows, series = [], []
    looks = drawing.looks([*itertools.islice(itertools.cycle(drawing.FAMILIES), len(named))])
    for look, (name, point) in zip(looks, named.items(), strict=True):
        values = [run["eval"][metric] for run in point["runs"]]
        statistics = (STATISTICS[kind](values) if values else None for kind in STATISTICS)
        rows.append((name, len(values), *statistics, " ".join(map(shown, values))))
        curves = [_curve(os.path.join(out, run["workdir"]), metric) for run in point["runs"]]
        steps = sorted(set.intersection(*map(set, curves))) if curves else []
        series.append(
            over_seeds(
                name, look, steps, [Spread.mean(curve[step] for curve in curves) for step in steps]
            )
        )
    notes = []
    if (chosen := made["chosen"]) is not None:
        why = f"for its {metric} with seed {made['points'][0]['runs'][0]['seed']} on data held out for that"
        notes = [
            f"chosen: {[*named][chosen]}, {why} (--choose=best; the paper does not say how it chose)"
        ]
    panel = Panel(
        f"Held-out {metric} over steps",
        Scale("step"),
        Scale(metric, log=metric == "perplexity"),
        series,
    )
    chart = Chart([panel], "Lines are means over seeds, bars go from the lowest to the highest.")
    figures = {"curves": chart} if any(line.x for line in series) else {}
    table = Table(("", "seeds", *STATISTICS, f"{metric} of each seed"), rows)
    return Report(
        f"Sweep of {os.path.basename(made['config'])}", table, notes=notes, figures=figures
    )


def _curve(folder: str, metric: str) -> dict[int, float]:
    """Step -> the held-out metric."""
    lines = MetricsFile.read(os.path.join(folder, METRICS_FILE))
    return {line["step"]: line["eval"][metric] for line in lines if metric in line.get("eval", ())}


SOFTENING = ("optimizer.label_smoothing", "augment.mixup", "augment.cutmix")


def of_run(workdir: str) -> Chart:
    """The loss of a run over its steps, in training and held out, as its metrics.jsonl has it."""
    lines = MetricsFile.read(os.path.join(workdir, METRICS_FILE))
    training = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    heldout = [
        (line["step"], line["eval"]["loss"]) for line in lines if "loss" in line.get("eval", ())
    ]
    looks = drawing.Look(drawing.GREY, "."), drawing.Look(drawing.FAMILIES["gMLP"])
    path = os.path.join(workdir, CONFIG_FILE)
    config = config_lib.load(path) if files.exists(path) else {}
    softened = ", of softened targets" if any(config.get(key) for key in SOFTENING) else ""
    names = f"training{softened}", "held out"
    series = [
        Series(name, look, [step for step, _ in points], [loss for _, loss in points])
        for name, look, points in zip(names, looks, (training, heldout), strict=True)
        if points
    ]
    title = (
        f"held-out loss {heldout[-1][1]:.3g} after {heldout[-1][0]:,} steps"
        if heldout
        else "training loss"
    )
    return Chart([Panel(title, Scale("step"), Scale("loss (nats)"), series)])
