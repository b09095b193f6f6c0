"""How far the runs of a sweep are, as their folders tell."""

from __future__ import annotations

import collections
import datetime
import os
import re
from typing import Any

from gmlp_flax import tasks
from gmlp_flax.checkpoints.metrics_file import MetricsFile, read_result
from gmlp_flax.checkpoints.names import METRICS_FILE
from gmlp_flax.io import files, logs
from gmlp_flax.sweeps.definition import Sweep, Trial

STATES = ("done", "failed", "part way", "not begun")
HEADER = ("", "state", "step", "steps", "metric", "time left", "written")


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
    wanted = [
        trial
        for trial in sweep.trials
        if not sweep.choosing or trial.config.seed == first or _begun(_folder(sweep, trial))
    ]
    header = [sweep.metric if word == "metric" else word for word in HEADER]
    rows = [header, *(_row(sweep, trial) for trial in wanted)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{'<' if place < 2 else '>'}{widths[place]}}" for place, cell in enumerate(row)).rstrip()
        for row in rows
    ]
    states = collections.Counter(row[1] for row in rows[1:])
    failed = [name for name, state, *_ in rows[1:] if state == "failed"]
    reasons = [f"{name}: {_failure(f'{os.path.join(sweep.out, name)}.log')}" for name in failed]
    return "\n".join([*lines, *reasons, ", ".join(f"{states[state]} {state}" for state in STATES)])


def _row(sweep: Sweep, trial: Trial) -> list[str]:
    folder = _folder(sweep, trial)
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


def _folder(sweep: Sweep, trial: Trial) -> str:
    return os.path.join(sweep.out, trial.name)


def _begun(folder: str) -> bool:
    return files.exists(folder) or files.exists(f"{folder}.log")


def _failure(log: str) -> str:
    """Why the last command in a log failed; empty if it did not, or was killed: that leaves no message."""
    words = (files.read(log) or b"").decode(errors="replace")
    last = re.split(r" -m gmlp_flax\.train '?--workdir=", words)[-1]  # the shell's quotes, if it needs some
    errors = re.findall(r"^error: (.*)", last, re.MULTILINE)
    return errors[-1] if errors else f"a traceback is in {log}" if "\nTraceback (most" in last else ""


def _time_left(trial: Trial, lines: list[dict[str, Any]]) -> str:
    task = tasks.find(trial.config.task).without_data(trial.config)
    rate = next((line.get(f"{task.unit}_per_second", 0) for line in reversed(lines) if "loss" in line), 0)
    per_step = trial.config.batch_size * task.units_per_example
    return _clock((trial.config.steps - lines[-1]["step"]) * per_step / rate) if rate else ""


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=max(0, round(seconds))))
