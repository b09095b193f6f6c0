"""How far the runs of a sweep are, as their folders tell; for scripts/sweep.py --status."""

from __future__ import annotations

import collections
import datetime
import json
import os
import time

from sweep_plan import Plan, Run, task

from gmlp_flax.training import report

STATES = ("done", "failed", "part way", "not begun")
HEADER = ("", "state", "step", "steps", "metric", "time left", "written")


def table(plan: Plan) -> str:
    """A row a run, and how many are in each state.

    Whether a run that is part way is going on, no folder tells, for it may be another machine's: "written" is the time
    since its last line of metrics. Its time left is what its steps need at the rate that this line holds.

    Raises:
        RunError: a run's metrics.jsonl is damaged.
    """
    # Of the points that --choose=best has not chosen, one seed is trained.
    first = plan.runs[0].config.seed if plan.runs else 0
    wanted = [run for run in plan.runs if not plan.choosing or run.config.seed == first or _begun(_folder(plan, run))]
    rows = [[plan.metric if word == "metric" else word for word in HEADER], *(_row(plan, run) for run in wanted)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{'<' if place < 2 else '>'}{widths[place]}}" for place, cell in enumerate(row)).rstrip()
        for row in rows
    ]
    states = collections.Counter(row[1] for row in rows[1:])
    return "\n".join([*lines, ", ".join(f"{states[state]} {state}" for state in STATES)])


def _row(plan: Plan, run: Run) -> list[str]:
    folder, now = _folder(plan, run), time.time()
    metrics, result = (os.path.join(folder, name) for name in (report.METRICS_FILE, report.RESULT_FILE))
    lines = report.MetricsFile.read(metrics)
    step = lines[-1]["step"] if lines else 0
    evaluation = next((line["eval"] for line in reversed(lines) if "eval" in line), {})
    left = written = ""
    if os.path.exists(result):
        state = "done"
        with open(result) as file:
            ended = json.load(file)
        step, evaluation = ended.get("step", step), ended["eval"]
    elif _failed(f"{folder}.log"):
        state = "failed"
    elif _begun(folder):
        state, left = "part way", _left(run, lines)
        written = f"{_clock(now - os.path.getmtime(metrics))} ago" if lines else ""
    else:
        state = "not begun"
    value = evaluation.get(plan.metric)
    return [run.name, state, str(step), str(run.config.steps), "" if value is None else f"{value:.5g}", left, written]


def _folder(plan: Plan, run: Run) -> str:
    return os.path.join(plan.out, run.name)


def _begun(folder: str) -> bool:
    return os.path.isdir(folder) or os.path.exists(f"{folder}.log")


def _failed(log: str) -> bool:
    """Whether the last command in a log ended with an error. One that was killed says nothing."""
    if not os.path.exists(log):
        return False
    with open(log, errors="replace") as file:
        last = file.read().rpartition(" -m gmlp_flax.train --workdir=")[2]
    return "\nerror: " in last or "\nTraceback (most" in last


def _left(run: Run, lines: list[dict]) -> str:
    unit = task(run.config).unit
    rate = next((line.get(f"{unit}_per_second", 0) for line in reversed(lines) if "loss" in line), 0)
    per_step = run.config.batch_size * (run.config.model.length if unit == "tokens" else 1)
    return _clock((run.config.steps - lines[-1]["step"]) * per_step / rate) if rate else ""


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=max(0, round(seconds))))
