"""Trains a sweep: all of its trials, or the best point's; says how far it is."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, BinaryIO

import tqdm

from gmlp_flax.checkpoints import METRICS_FILE
from gmlp_flax.checkpoints.metrics_file import MetricsFile, read_result
from gmlp_flax.data.pipeline import usable_cores
from gmlp_flax.errors import RunError
from gmlp_flax.io import files, json_files, storage
from gmlp_flax.processes import stopping
from gmlp_flax.sweeps.definition import SEARCH, Sweep, Trial

PAUSE = 2.0  # seconds from one look at the runs' steps to the next


Metrics = dict[str, Any]


@contextlib.contextmanager
def training_pool(out: str, jobs: int) -> Iterator[Callable[[str, Sequence[str]], Future[Metrics]]]:
    """Trains runs in processes, some at a time. They work in the current folder.

    If the `with` block ends early, the running ones save and stop, and no other begins; so do
    Ctrl-C and SIGTERM.

    Args:
        out: the folder of the runs, made if need be.
        jobs: processes at a time, each on its share of the processor's cores. An accelerator has
            room for one.

    Yields:
        A function (name, flags) that has OUT/NAME trained with these flags, unless it is finished;
        the output goes to OUT/NAME.log. The future gives the run's last held-out metrics, or raises
        RunError.
    """
    out, lock, stopped, processes = files.absolute(out), threading.Lock(), threading.Event(), set()
    # XLA makes as many threads as it believes to have cores.
    environment = os.environ | {"PJRT_NPROC": str(max(1, usable_cores() // jobs))}

    def run(command: list[str], log_path: str) -> int:
        """Runs a command, its output in a log; returns its exit code. After the block's end nothing
        begins."""
        if stopped.is_set():
            return 0  # before the log is there, which says that a run was begun
        with _open_log(log_path, command) as log:
            with lock:
                if stopped.is_set():
                    return 0
                process = subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
                processes.add(process)
            code = process.wait()
            processes.discard(process)
            return code

    def metrics(name: str, flags: Sequence[str]) -> Metrics:
        """Trains a run, unless it is finished."""
        workdir = os.path.join(out, name)
        if (result := read_result(workdir)) is None:
            if run(
                [sys.executable, "-m", "gmlp_flax.train", f"--workdir={workdir}", *flags],
                f"{workdir}.log",
            ):
                reason = read_error(f"{workdir}.log")
                told = f" ({reason})" if reason else ""
                raise RunError(f"the run {workdir} failed{told}: its output is in {workdir}.log")
            if (result := read_result(workdir)) is None:
                raise RunError(
                    f"the run {workdir} was stopped before its end: give the same command again to resume it"
                )
        return result["eval"]

    with stopping.terminable(), concurrent.futures.ThreadPoolExecutor(jobs) as threads:
        try:
            yield functools.partial(threads.submit, metrics)
        finally:
            with lock:
                stopped.set()
                for process in list(processes):
                    process.terminate()
            threads.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _open_log(path: str, command: Sequence[str]) -> Iterator[BinaryIO]:
    """A file to be added to, which a command begins; one in a bucket is written there when the
    block ends."""
    line = os.fsencode(f"{shlex.join(command)}\n")
    if files.is_remote(path):
        with tempfile.TemporaryFile() as log:
            log.write(line)
            log.flush()
            yield log
            log.seek(0)
            files.write(path, (files.read(path) or b"") + log.read())
        return
    files.make_folder(os.path.dirname(path))
    with storage.file_errors(f"writing {path}"), open(path, "ab") as log:
        log.write(line)
    with open(path, "ab") as log:
        yield log


def read_error(log: str) -> str:
    """The error that the last command in a log told; empty if it told none, or was killed."""
    text = (files.read(log) or b"").decode(errors="replace")
    # the shell's quotes, if it needs some
    last = re.split(r" -m gmlp_flax\.train '?--workdir=", text)[-1]
    errors = re.findall(r"^error: (.*)|^(Traceback) ", last, re.MULTILINE)
    return next(filter(None, errors[-1])) if errors else ""


def train(sweep: Sweep, jobs: int = 1, go_on: bool = True) -> bool:
    """Trains, and says how each trial ended, and when all will have.

    Args:
        sweep: the sweep.
        jobs: processes at a time.
        go_on: whether the others continue if a trial fails; a sweep that chooses needs all of its
            first ones.

    Returns:
        Whether no trial failed.

    Raises:
        RunError: a trial failed and the others do not continue.
    """
    chosen = None
    metrics: dict[str, Metrics] = {}
    failed: dict[str, RunError] = {}

    def train_all(trials: Sequence[Trial]) -> None:
        """Trains them and notes their metrics or why they failed."""
        names = {submit(trial.name, trial.flags): trial.name for trial in trials}
        for number, (run, eta) in enumerate(
            ended(names, sweep._replace(trials=tuple(trials))), start=1
        ):
            name, told = names[run], ", ".join(filter(None, (f"{number} of {len(names)}", eta)))
            try:
                value = run.result().get(sweep.metric, math.nan)
                if not math.isfinite(value):
                    raise RunError(
                        f"the run {name} ended with {sweep.metric} {value}: it cannot be compared"
                    )
                tqdm.tqdm.write(f"{name}: {sweep.metric} {value:.5g} ({told})", file=sys.stderr)
                metrics[name] = run.result()
            except RunError as error:
                if not go_on:
                    raise
                failed[name] = error
                print(f"{error}; the others continue", file=sys.stderr, flush=True)

    with training_pool(sweep.out, jobs) as submit:
        first = tuple(trial for trial in sweep.trials if sweep.choosing and SEARCH in trial.point)
        train_all(first or sweep.trials)
        if first:
            better = {"min": min, "max": max}[sweep.mode]
            best = better(first, key=lambda trial: metrics[trial.name][sweep.metric]).seedless
            rest = sweep.trials[len(first) :]
            reported = tuple(trial for trial in rest if trial.seedless | {SEARCH: True} == best)
            train_all(reported)
            chosen, sweep = len(first), sweep._replace(trials=first + reported)
    table = rows(sweep, metrics)
    known = {
        "config": sweep.source,
        "overrides": sweep.overrides,
        "metric": sweep.metric,
        "mode": sweep.mode,
    }
    report = (
        known | {"chosen": chosen, "points": table} | ({"failed": list(failed)} if failed else {})
    )
    json_files.write(files.join(sweep.out, "sweep.json"), report)
    if failed:
        count = (
            f"{len(failed)} of {len(sweep.trials)} runs failed; the same command tries them again:"
        )
        print(count, *failed.values(), sep="\n", file=sys.stderr)
    return not failed


def ended(runs: Iterable[Future], sweep: Sweep) -> Iterator[tuple[Future, str]]:
    """The runs of a sweep as they end, each with the time that the others will take; a terminal has
    a bar of steps."""
    began, pending, steps = (
        time.monotonic(),
        set(runs),
        sum(trial.config.steps for trial in sweep.trials),
    )
    before = steps_taken(sweep)
    form = "{percentage:3.0f}%|{bar:20}| {n_fmt} of {total_fmt} steps  {desc}"
    with tqdm.tqdm(
        total=steps, initial=before, bar_format=form, disable=not sys.stderr.isatty()
    ) as bar:
        while pending:
            done, pending = concurrent.futures.wait(
                pending, PAUSE, concurrent.futures.FIRST_COMPLETED
            )
            taken, seconds = steps_taken(sweep), time.monotonic() - began
            left = (steps - taken) * seconds / (taken - before) if taken > before else math.nan
            eta = (
                f"ETA {tqdm.tqdm.format_interval(left)}" if pending and math.isfinite(left) else ""
            )
            bar.set_description_str(eta)
            bar.update(taken - bar.n)
            yield from ((run, eta) for run in done)


STATISTICS = {"median": statistics.median, "mean": statistics.mean, "lowest": min, "highest": max}


@dataclasses.dataclass(frozen=True)
class RunState:
    """How far a run is.

    Attributes:
        name: of its folder in that of the sweep.
        state: "done", "failed" or "unfinished".
        step, steps: of which it has done how many.
        eval: the held-out metrics of a finished run.
        error: why a run failed.
    """

    name: str
    state: str
    step: int
    steps: int
    eval: Metrics
    error: str = ""


def states(sweep: Sweep) -> list[RunState]:
    """How far each run is. Of a sweep that chooses, runs that have not begun are left out: most of
    them will never.

    Raises:
        RunError: a run's metrics.jsonl is damaged.
    """
    found = []
    for trial in sweep.trials:
        folder = os.path.join(sweep.out, trial.name)
        log = f"{folder}.log"
        has_begun = files.exists(folder) or files.exists(log)
        if sweep.choosing and not has_begun:
            continue
        lines = MetricsFile.read(os.path.join(folder, METRICS_FILE))
        step = lines[-1]["step"] if lines else 0
        result = read_result(folder)
        error = ""
        if result is not None:
            state = "done"
        else:
            error = read_error(log)
            state = "failed" if error else "unfinished"
        metrics = {} if result is None else result["eval"]
        found.append(RunState(trial.name, state, step, trial.config.steps, metrics, error))
    return found


def status(sweep: Sweep) -> str:
    """A line for each run of `states`, and how many are done."""
    lines = []
    done = 0
    for run in states(sweep):
        if run.state == "done":
            done += 1
            score = run.eval.get(sweep.metric, math.nan)
            lines.append(f"{run.name}: done, {sweep.metric} {score:.5g}")
        elif run.state == "failed":
            lines.append(f"{run.name}: failed: {run.error}")
        else:
            lines.append(f"{run.name}: step {run.step} of {run.steps}")
    lines.append(f"{done} of {len(sweep.trials)} runs are done")
    return "\n".join(lines)


def status_object(sweep: Sweep) -> dict[str, Any]:
    """What `status` says, for programs; metrics that are no finite numbers are None, as JSON has
    no name for them."""
    runs = []
    for state in states(sweep):
        run = dataclasses.asdict(state)
        for name, value in state.eval.items():
            if isinstance(value, float) and not math.isfinite(value):
                run["eval"][name] = None
        runs.append(run)
    done = sum(run["state"] == "done" for run in runs)
    return {"metric": sweep.metric, "done": done, "total": len(sweep.trials), "runs": runs}


def rows(sweep: Sweep, found: Mapping[str, Metrics]) -> list[dict[str, Any]]:
    """A row for each point: its finished trials, and the statistics of each metric over their
    seeds.

    Args:
        sweep: the sweep.
        found: name of a finished trial -> its held-out metrics.
    """
    table: dict[str, dict[str, Any]] = {}
    for trial in sweep.trials:
        row = table.setdefault(
            str(trial.seedless), {"point": trial.seedless, "runs": [], "summary": {}}
        )
        if trial.name in found:
            row["runs"].append(
                {"seed": trial.config.seed, "workdir": trial.name, "eval": found[trial.name]}
            )
    for row in table.values():
        for key in row["runs"][0]["eval"] if row["runs"] else ():
            values = [run["eval"].get(key) for run in row["runs"]]
            if all(isinstance(value, int | float) for value in values):
                row["summary"][key] = {
                    name: statistic(values) for name, statistic in STATISTICS.items()
                }
    return list(table.values())


def steps_taken(sweep: Sweep) -> int:
    """The steps of all trials together, as their last lines of metrics tell."""
    files_of = (os.path.join(sweep.out, trial.name, METRICS_FILE) for trial in sweep.trials)
    return sum(lines[-1]["step"] for path in files_of if (lines := MetricsFile.read(path)))
