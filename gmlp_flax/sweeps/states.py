"""The progress of a sweep's runs, read from their folders and logs."""

import dataclasses
import math
import os
from collections.abc import Iterable
from typing import Any

from gmlp_flax.checkpoints import METRICS_FILE, RESULT_FILE
from gmlp_flax.checkpoints.metrics_file import MetricsFile, read_result
from gmlp_flax.io import files
from gmlp_flax.sweeps import run_logs
from gmlp_flax.sweeps.definition import Sweep, Trial
from gmlp_flax.sweeps.pool import Metrics
from gmlp_flax.sweeps.progress import Work


@dataclasses.dataclass(frozen=True)
class RunState:
    """The progress of a run.

    Attributes:
        name: the name of its folder in that of the sweep.
        state: "done", "failed" or "unfinished".
        step: the steps that it has taken.
        steps: the steps of the whole run.
        eval: the held-out metrics of a finished run.
        error: why a run failed.
    """

    name: str
    state: str
    step: int
    steps: int
    eval: Metrics
    error: str = ""


def run_states(sweep: Sweep) -> list[RunState]:
    """The progress of each run. If the sweep chooses, runs that have not begun are left out: most of
    them never will.

    Raises:
        RunError: a run's metrics.jsonl is damaged.
    """
    runs = []
    for trial in sweep.trials:
        folder = os.path.join(sweep.out, trial.name)
        log = f"{folder}.log"
        has_begun = files.exists(folder) or files.exists(log)
        if has_begun or not sweep.choosing:
            run = _state(trial, folder, log)
            runs.append(run)
    return runs


def _state(trial: Trial, folder: str, log: str) -> RunState:
    """The progress of the run in a folder, whose output is in the file `log`."""
    step = _last_step(folder)
    steps = trial.config.steps
    result = read_result(folder)
    if result is not None:
        return RunState(trial.name, "done", step, steps, result["eval"])
    error = run_logs.read_error(log)
    state = "failed" if error else "unfinished"
    return RunState(trial.name, state, step, steps, {}, error)


def _last_step(folder: str) -> int:
    """The steps that the run in a folder has taken, by the last line of its metrics."""
    path = os.path.join(folder, METRICS_FILE)
    lines = MetricsFile.read(path)
    if not lines:
        return 0
    last = lines[-1]
    return last["step"]


def status(sweep: Sweep) -> str:
    """A line for each run of `run_states`, and how many are done."""
    lines = []
    done = 0
    for run in run_states(sweep):
        match run.state:
            case "done":
                done += 1
                score = run.eval.get(sweep.metric, math.nan)
                state = f"done, {sweep.metric} {score:.5g}"
            case "failed":
                state = f"failed: {run.error}"
            case _:
                state = f"step {run.step} of {run.steps}"
        lines.append(f"{run.name}: {state}")
    lines.append(f"{done} of {len(sweep.trials)} runs are done")
    return "\n".join(lines)


def status_object(sweep: Sweep) -> dict[str, Any]:
    """What `status` says, for programs; metrics that are not finite are None, as JSON has
    no name for them."""
    runs = []
    done = 0
    for state in run_states(sweep):
        metrics = {name: _in_json(value) for name, value in state.eval.items()}
        run = dataclasses.asdict(state)
        run["eval"] = metrics
        runs.append(run)
        if state.state == "done":
            done += 1
    return {
        "metric": sweep.metric,
        "done": done,
        "total": len(sweep.trials),
        "runs": runs,
    }


def _in_json(value: Any) -> Any:
    """A metric, or None for a number that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def work_of(sweep: Sweep) -> Work:
    """The runs and the steps of a sweep, and the steps that are left."""
    trials = sweep.trials
    runs = len(trials)
    steps = sum(trial.config.steps for trial in trials)
    left = steps_left(sweep.out, trials)
    return Work(runs, steps, left)


def steps_left(out: str, trials: Iterable[Trial]) -> int:
    """The steps that some trials have not taken, by the last lines of their metrics; none of a
    trial that is finished, perhaps early.

    Args:
        out: the folder of the trials.
        trials: the trials.
    """
    left = 0
    for trial in trials:
        folder = os.path.join(out, trial.name)
        result_path = os.path.join(folder, RESULT_FILE)
        if files.exists(result_path):
            continue
        steps = trial.config.steps
        left += max(0, steps - _last_step(folder))
    return left
