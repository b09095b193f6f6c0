"""How far the runs of a sweep are, as their folders tell."""

from __future__ import annotations

import collections
import datetime
import os
from typing import Any

from gmlp_flax import tasks
from gmlp_flax.checkpoints.metrics_file import MetricsFile, read_result
from gmlp_flax.checkpoints.names import METRICS_FILE
from gmlp_flax.io import files, logs
from gmlp_flax.sweeps import runner
from gmlp_flax.sweeps.definition import Sweep, Trial

STATES = ("done", "failed", "part way", "not begun")


def table(sweep: Sweep) -> str:
    """A row for each run, why runs failed, and how many are in each state.

    A folder does not tell whether a run that is part way is still running, perhaps on another machine: "written" is
    the time since its last line of metrics; "time left" is how long the remaining steps take at the rate in the last
    training line.

    Raises:
        RunError: a run's metrics.jsonl is damaged.
    """
    # --choose=best trains one seed of each point that it has not chosen.
    first = sweep.trials[0].config.seed if sweep.trials else 0
    rows = [["", "state", "step", "steps", sweep.metric, "time left", "written"]]
    for trial in sweep.trials:
        if not sweep.choosing or trial.config.seed == first or _begun(os.path.join(sweep.out, trial.name)):
            rows.append(_row(sweep, trial))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, "<<>>>>>", widths, strict=True)).rstrip()
        for row in rows
    ]
    states = collections.Counter(row[1] for row in rows[1:])
    failed = [name for name, state, *_ in rows if state == "failed"]
    reasons = [f"{name}: {_failure(f'{os.path.join(sweep.out, name)}.log')}" for name in failed]
    return "\n".join([*lines, *reasons, ", ".join(f"{states[state]} {state}" for state in STATES)])


def _row(sweep: Sweep, trial: Trial) -> list[str]:
    folder = os.path.join(sweep.out, trial.name)
    metrics, result = os.path.join(folder, METRICS_FILE), read_result(folder)
    lines = MetricsFile.read(metrics)
    step = lines[-1]["step"] if lines else 0
    evaluation = next((line["eval"] for line in reversed(lines) if "eval" in line), {})
    left = written = ""
    if result is not None:
        state, step, evaluation = "done", result.get("step", step), result["eval"]
    elif _failure(f"{folder}.log"):
        state = "failed"
    elif _begun(folder):
        state, left = "part way", _time_left(trial, lines)
        written = f"{_clock(logs.age(metrics) or 0)} ago" if lines else ""
    else:
        state = "not begun"
    value = evaluation.get(sweep.metric)
    shown = "" if value is None else f"{value:.5g}"
    return [trial.name, state, str(step), str(trial.config.steps), shown, left, written]


def _begun(folder: str) -> bool:
    return files.exists(folder) or files.exists(f"{folder}.log")


def _failure(log: str) -> str:
    """Why the last command in a log failed; empty if it did not, or was killed: that leaves no message."""
    told = f"a traceback is in {log}" if "\nTraceback (most" in runner.last_output(log) else ""
    return runner.read_error(log) or told


def _time_left(trial: Trial, lines: list[dict[str, Any]]) -> str:
    task = tasks.find(trial.config.task).without_data(trial.config)
    rate = next((line.get(f"{task.unit}_per_second", 0) for line in reversed(lines) if "loss" in line), 0)
    per_step = trial.config.batch_size * task.units_per_example
    return _clock((trial.config.steps - lines[-1]["step"]) * per_step / rate) if rate else ""


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=max(0, round(seconds))))
