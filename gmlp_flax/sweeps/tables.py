"""Tables of a sweep: how far its runs are, as their folders tell, and each point's metrics over its seeds."""

import math
import os
import statistics
from collections.abc import Mapping
from typing import Any

from gmlp_flax.checkpoints.metrics_file import MetricsFile, read_result
from gmlp_flax.checkpoints.names import METRICS_FILE
from gmlp_flax.io import files
from gmlp_flax.sweeps import runner
from gmlp_flax.sweeps.definition import Sweep, Trial
from gmlp_flax.sweeps.runner import Metrics

STATISTICS = {"median": statistics.median, "mean": statistics.mean, "lowest": min, "highest": max}


def status(sweep: Sweep) -> str:
    """A line for each run, done, failed and why, or at which step, and how many are done. Of a sweep that chooses, runs
    that have not begun are left out: most of them will never.

    Raises:
        RunError: a run's metrics.jsonl is damaged.
    """
    lines, done = [], 0
    for trial in sweep.trials:
        folder = os.path.join(sweep.out, trial.name)
        step = (MetricsFile.read(os.path.join(folder, METRICS_FILE)) or [{"step": 0}])[-1]["step"]
        if (result := read_result(folder)) is not None:
            state, done = f"done, {sweep.metric} {result['eval'].get(sweep.metric, math.nan):.5g}", done + 1
        else:
            reason = runner.read_error(f"{folder}.log")
            state = f"failed: {reason}" if reason else f"step {step} of {trial.config.steps}"
        if result is not None or not sweep.choosing or files.exists(folder) or files.exists(f"{folder}.log"):
            lines.append(f"{trial.name}: {state}")
    return "\n".join([*lines, f"{done} of {len(sweep.trials)} runs are done"])


def rows(sweep: Sweep, found: Mapping[str, Metrics]) -> list[dict[str, Any]]:
    """A row for each point: its finished trials, and the statistics of each metric over their seeds.

    Args:
        sweep: the sweep.
        found: name of a finished trial -> its held-out metrics.
    """
    by_point: dict[str, list[Trial]] = {}
    for trial in sweep.trials:
        by_point.setdefault(str(trial.seedless), []).append(trial)
    table = []
    for trials in by_point.values():
        runs = [
            {"seed": trial.config.seed, "workdir": trial.name, "eval": found[trial.name]}
            for trial in trials
            if trial.name in found
        ]
        columns = {key: [run["eval"].get(key) for run in runs] for key in (runs[0]["eval"] if runs else ())}
        summary = {
            key: {name: statistic(values) for name, statistic in STATISTICS.items()}
            for key, values in columns.items()
            if all(isinstance(value, int | float) for value in values)
        }
        table.append({"point": trials[0].seedless, "runs": runs, "summary": summary})
    return table


def steps_taken(sweep: Sweep) -> int:
    """The steps of all trials together, as their last lines of metrics tell."""
    files_of = (os.path.join(sweep.out, trial.name, METRICS_FILE) for trial in sweep.trials)
    return sum(lines[-1]["step"] for path in files_of if (lines := MetricsFile.read(path)))
