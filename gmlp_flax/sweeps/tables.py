"""Tables of a sweep: how far its runs are, as their folders tell, and each point's metrics over its seeds."""

import collections
import datetime
import os
import statistics
from collections.abc import Mapping
from typing import Any

from gmlp_flax import tasks
from gmlp_flax.checkpoints.metrics_file import MetricsFile, read_result
from gmlp_flax.checkpoints.names import METRICS_FILE
from gmlp_flax.io import files
from gmlp_flax.sweeps import runner
from gmlp_flax.sweeps.definition import Sweep, Trial
from gmlp_flax.sweeps.runner import Metrics

STATISTICS = {"median": statistics.median, "mean": statistics.mean, "lowest": min, "highest": max}
STATES = ("done", "failed", "part way", "not begun")


def status(sweep: Sweep) -> str:
    """A row for each run, why runs failed, and how many are in each state.

    A folder does not tell whether a run that is part way is still running, perhaps on another machine: "time left" is
    how long the remaining steps take at the rate in its last training line.

    Raises:
        RunError: a run's metrics.jsonl is damaged.
    """
    # --choose=best trains one seed of each point that it has not chosen.
    first = sweep.trials[0].config.seed if sweep.trials else 0
    rows = [["", "state", "step", "steps", sweep.metric, "time left"]]
    for trial in sweep.trials:
        if not sweep.choosing or trial.config.seed == first or _begun(os.path.join(sweep.out, trial.name)):
            rows.append(_row(sweep, trial))
    states = collections.Counter(row[1] for row in rows[1:])
    failed = [name for name, state, *_ in rows if state == "failed"]
    reasons = [f"{name}: {_failure(f'{os.path.join(sweep.out, name)}.log')}" for name in failed]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map("{:{}{}}".format, row, "<<>>>>", widths)).rstrip() for row in rows]
    return "\n".join([*lines, *reasons, ", ".join(f"{states[state]} {state}" for state in STATES)])


def _row(sweep: Sweep, trial: Trial) -> list[str]:
    folder = os.path.join(sweep.out, trial.name)
    result, lines = read_result(folder), MetricsFile.read(os.path.join(folder, METRICS_FILE))
    step = lines[-1]["step"] if lines else 0
    evaluation = next((line["eval"] for line in reversed(lines) if "eval" in line), {})
    left = ""
    if result is not None:
        state, step, evaluation = "done", result.get("step", step), result["eval"]
    elif _failure(f"{folder}.log"):
        state = "failed"
    elif _begun(folder):
        state, left = "part way", _time_left(trial, lines)
    else:
        state = "not begun"
    value = evaluation.get(sweep.metric)
    shown = "" if value is None else f"{value:.5g}"
    return [trial.name, state, str(step), str(trial.config.steps), shown, left]


def _begun(folder: str) -> bool:
    return files.exists(folder) or files.exists(f"{folder}.log")


def _failure(log: str) -> str:
    """Why the last command in a log failed; empty if it did not, or was killed: that leaves no message."""
    told = f"a traceback is in {log}" if "\nTraceback (most" in runner.last_output(log) else ""
    return runner.read_error(log) or told


def _time_left(trial: Trial, lines: list[dict[str, Any]]) -> str:
    task = tasks.find(trial.config.task).without_data(trial.config)
    rate = next((line.get(f"{task.unit}_per_second", 0) for line in reversed(lines) if "loss" in line), 0)
    steps = trial.config.steps - lines[-1]["step"] if rate else 0
    seconds = steps * trial.config.batch_size * task.units_per_example / (rate or 1)
    return str(datetime.timedelta(seconds=round(seconds))) if steps > 0 else ""


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
