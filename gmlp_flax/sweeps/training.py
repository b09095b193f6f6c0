"""Trains a sweep: all of its trials, or those of the best point; reports its progress."""

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
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, BinaryIO

import tqdm

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints import CONFIG_FILE, METRICS_FILE, RESULT_FILE
from gmlp_flax.checkpoints.metrics_file import MetricsFile, read_result
from gmlp_flax.config import schema
from gmlp_flax.data.pipeline import usable_cores
from gmlp_flax.errors import RunError
from gmlp_flax.io import files, json_files, logs, storage
from gmlp_flax.processes import stopping
from gmlp_flax.sweeps.definition import SEARCH, Sweep, Trial
from gmlp_flax.sweeps.points import Point
from gmlp_flax.sweeps.progress import Progress, Work

# An error in a run's log: a line of ours, or a traceback, whose exception follows indented lines.
_ERROR = re.compile(
    r"^(?:error: (?P<message>.*)|Traceback .*\n(?:[ \t].*\n)*(?P<exception>\S.*)?)", re.MULTILINE
)
# The start of a command in a run's log; the flag may have the shell's quotes.
_COMMAND = re.compile(r" -m gmlp_flax\.train '?--(?:workdir|member)=")
LINE_WIDTH = 60  # of a line of a log, beside a bar
PAUSE = 2.0  # seconds from one look at the runs' steps to the next
SILENCE = 30.0  # seconds without a line after which one is printed, if there is no bar


Metrics = dict[str, Any]
Outcomes = dict[str, Metrics | RunError]  # name of a trial -> its metrics, or why it failed


@contextlib.contextmanager
def training_pool(out: str, jobs: int) -> Iterator[Callable[[Sequence[Trial]], Future[Outcomes]]]:
    """Trains runs in processes, some at a time. They work in the current folder.

    If the `with` block ends early, or on Ctrl-C or SIGTERM, the running processes save and stop,
    and no other begins.

    Args:
        out: the folder of the runs, made if it is missing.
        jobs: processes at a time, each on its share of the processor's cores. An accelerator has
            room for one.

    Yields:
        A function that trains trials in a process, each in the folder OUT/NAME, unless they are
        finished; the output goes to OUT/NAME.log of the first one. Several trials are trained
        together (`training.together`). The future returns each one's last held-out metrics, or the
        RunError with which it failed, by name.
    """
    processes = _Processes(jobs)

    def train_trials(trials: Sequence[Trial]) -> Outcomes:
        """Trains trials in one process, unless they are finished."""
        outcomes = _finished(out, trials)
        unfinished = [trial for trial in trials if trial.name not in outcomes]
        if not unfinished:
            return outcomes
        log = f"{_folder(out, unfinished[0])}.log"
        command = [sys.executable, "-m", "gmlp_flax.train", *_words(out, unfinished)]
        code = processes.run(command, log)
        for trial in unfinished:
            workdir = _folder(out, trial)
            outcomes[trial.name] = _outcome(workdir, code, log)
        return outcomes

    with stopping.terminable(), concurrent.futures.ThreadPoolExecutor(jobs) as threads:
        try:
            yield functools.partial(threads.submit, train_trials)
        finally:
            processes.stop()
            threads.shutdown(cancel_futures=True)


def _folder(out: str, trial: Trial) -> str:
    """The folder of a trial."""
    return os.path.join(files.absolute(out), trial.name)


def _finished(out: str, trials: Sequence[Trial]) -> Outcomes:
    """The metrics of the trials that are finished, by name."""
    outcomes: Outcomes = {}
    for trial in trials:
        workdir = _folder(out, trial)
        result = read_result(workdir)
        if result is not None:
            outcomes[trial.name] = result["eval"]
    return outcomes


def _words(out: str, trials: Sequence[Trial]) -> list[str]:
    """The words of `gmlp train` for one trial, or for several that are trained together."""
    first, *others = trials
    if not others:
        return [f"--workdir={_folder(out, first)}", *first.flags]
    words = [_member_flag(out, trial) for trial in trials]
    for word in first.flags:
        flag, _, _ = word.partition("=")
        key = flag.removeprefix("--config.")
        if key not in schema.MEMBER_KEYS:
            words.append(word)
    return words


def _member_flag(out: str, trial: Trial) -> str:
    """The flag of `gmlp train` for one of several trials that are trained together."""
    seed = trial.config.seed
    rate = trial.config.optimizer.learning_rate
    folder = _folder(out, trial)
    return f"--member={seed}:{rate}:{folder}"


def _outcome(workdir: str, code: int, log: str) -> Metrics | RunError:
    """The last held-out metrics of a run whose process ended with an exit code, or why it has
    none."""
    result = read_result(workdir)
    if result is not None:
        return result["eval"]
    if not code:
        return RunError(
            f"the run {workdir} was stopped before its end: give the same command again to resume it"
        )
    reason = read_error(log)
    suffix = f" ({reason})" if reason else ""
    return RunError(f"the run {workdir} failed{suffix}: its output is in {log}")


def groups(trials: Sequence[Trial], size: int) -> list[list[Trial]]:
    """Trials that can be trained together, because they differ in their seeds and rates alone, in
    groups of at most `size`."""
    if size == 1:
        return [[trial] for trial in trials]
    alike: dict[str, list[Trial]] = {}
    for trial in trials:
        shared = _shared_config(trial)
        members = alike.setdefault(shared, [])
        members.append(trial)
    made = []
    for members in alike.values():
        for start in range(0, len(members), size):
            stop = start + size
            made.append(members[start:stop])
    return made


def _shared_config(trial: Trial) -> str:
    """The config of a trial as JSON, without the keys in which trials of a group may differ."""
    shared = config_lib.mutable_copy(trial.config)
    with shared.ignore_type():
        for key in schema.MEMBER_KEYS:
            shared.update_from_flattened_dict({key: 0})
    return config_lib.to_json(shared)


class _Processes:
    """Runs commands in processes until it is stopped.

    Args:
        jobs: how many there are at a time, each on its share of the cores.
    """

    def __init__(self, jobs: int):
        self._lock = threading.Lock()
        self._is_stopped = False
        self._running: set[subprocess.Popen] = set()
        # XLA makes a thread for each core that it sees.
        cores = max(1, usable_cores() // jobs)
        self._environment = os.environ | {"PJRT_NPROC": str(cores)}

    def run(self, command: list[str], log_path: str) -> int:
        """Runs a command, its output in a log; returns its exit code, 0 if it was not begun."""
        if self._is_stopped:
            return 0  # before the log is there, which says that a run was begun
        with _open_log(log_path, command) as log:
            with self._lock:
                if self._is_stopped:
                    return 0
                process = subprocess.Popen(
                    command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                self._running.add(process)
            code = process.wait()
            self._running.discard(process)
            return code

    def stop(self) -> None:
        """Asks the running processes to save and stop; no other begins."""
        with self._lock:
            self._is_stopped = True
            for process in list(self._running):
                process.terminate()


@contextlib.contextmanager
def _open_log(path: str, command: Sequence[str]) -> Iterator[BinaryIO]:
    """A file to append to, after a line with the command; in a bucket, it is written when the block
    ends."""
    line = os.fsencode(f"{shlex.join(command)}\n")
    if files.is_remote(path):
        with _open_remote(path) as log:
            log.write(line)
            log.flush()
            yield log
        return
    files.make_folder(os.path.dirname(path))
    with storage.file_errors(f"writing {path}"), open(path, "ab") as log:
        log.write(line)
    with open(path, "ab") as log:
        yield log


@contextlib.contextmanager
def _open_remote(path: str) -> Iterator[BinaryIO]:
    """A local file, whose content is appended to a file in a bucket when the block ends."""
    with tempfile.TemporaryFile() as local:
        yield local
        local.seek(0)
        added = local.read()
        earlier = files.read(path) or b""
        files.write(path, earlier + added)


def read_error(log: str) -> str:
    """The error that the last command in a log printed; empty if it printed none, or was killed."""
    content = files.read(log) or b""
    text = content.decode(errors="replace")
    *_, last_output = _COMMAND.split(text)
    errors = list(_ERROR.finditer(last_output))
    if not errors:
        return ""
    last = errors[-1]
    return last["message"] or last["exception"] or "Traceback"


def train(
    sweep: Sweep,
    jobs: int = 1,
    continue_on_failure: bool = True,
    together: int = 1,
    progress: Progress | None = None,
) -> bool:
    """Trains a sweep; prints how each trial ended, and when all will have ended.

    Args:
        sweep: the sweep.
        jobs: processes at a time.
        continue_on_failure: whether the others continue if a trial fails; a sweep that chooses needs all trials
            of its search.
        together: how many trials one program trains at most.
        progress: of the command, if it trains other sweeps too.

    Returns:
        Whether no trial failed.

    Raises:
        RunError: a trial failed and the others do not continue.
    """
    search = []
    if sweep.choosing:
        search = [trial for trial in sweep.trials if SEARCH in trial.point]
    if progress is None:
        progress = Progress({"": _planned(sweep, search)})
    trainer = _Trainer(sweep, continue_on_failure, together, progress)
    reported = list(sweep.trials)
    with training_pool(sweep.out, jobs) as submit:
        if search:
            trainer.train(submit, search)
            best = trainer.best_of(search)
            reported = _of_point(sweep.trials[len(search) :], best)
        trainer.train(submit, reported)
    trained = sweep._replace(trials=tuple(search + reported))
    failed = trainer.failed
    report = {
        "config": sweep.source,
        "overrides": sweep.overrides,
        "metric": sweep.metric,
        "mode": sweep.mode,
        "chosen": len(search) if search else None,
        "points": rows(trained, trainer.metrics),
    }
    if failed:
        report["failed"] = list(failed)
    report_path = files.join(sweep.out, "sweep.json")
    json_files.write(report_path, report)
    if failed:
        count = f"{len(failed)} of {len(trained.trials)} runs failed"
        print(f"{count}; the same command tries them again:", file=sys.stderr)
        print(*failed.values(), sep="\n", file=sys.stderr)
    return not failed


def _planned(sweep: Sweep, search: Sequence[Trial]) -> list[Work]:
    """The work of the search, if there is one, and that of the trials that are reported."""
    if not search:
        return [work_of(sweep)]
    others = sweep.trials[len(search) :]
    of_first_point = _of_point(others, search[0].seedless)
    works = []
    for trials in (search, of_first_point):
        part = sweep._replace(trials=tuple(trials))
        works.append(work_of(part))
    return works


def work_of(sweep: Sweep) -> Work:
    """The runs and the steps of a sweep, and the steps that are left."""
    steps = sum(trial.config.steps for trial in sweep.trials)
    left = steps_left(sweep.out, sweep.trials)
    return Work(len(sweep.trials), steps, left)


def _of_point(trials: Iterable[Trial], point: Point) -> list[Trial]:
    """The trials of a point, whatever their seeds, and whether or not the point names a search."""
    wanted = point | {SEARCH: False}
    of_point = []
    for trial in trials:
        reported = trial.seedless | {SEARCH: False}
        if reported == wanted:
            of_point.append(trial)
    return of_point


class _Trainer:
    """Trains trials of a sweep, and remembers how they ended.

    Attributes:
        metrics: name of a finished trial -> its held-out metrics.
        failed: name of a failed trial -> why.
    """

    def __init__(self, sweep: Sweep, continue_on_failure: bool, together: int, progress: Progress):
        self.sweep = sweep
        self.progress = progress
        self.continue_on_failure = continue_on_failure
        self.together = together
        self.metrics: dict[str, Metrics] = {}
        self.failed: dict[str, RunError] = {}

    def train(
        self, submit: Callable[[Sequence[Trial]], Future[Outcomes]], trials: Sequence[Trial]
    ) -> None:
        """Trains some trials; raises RunError if one fails and the others do not continue."""
        group_of = {}
        for group in groups(trials, self.together):
            run = submit(group)
            group_of[run] = group
        part = self.sweep._replace(trials=tuple(trials))
        self.progress.begin_sweep(work_of(part))
        for run in ended(group_of, self.sweep.out, self.progress):
            outcomes = _outcomes(run, group_of[run])
            for name, outcome in outcomes.items():
                self.progress.end_run()
                self._note_or_continue(name, outcome)

    def _note_or_continue(self, name: str, outcome: Metrics | RunError) -> None:
        """`_note`; a failed run is kept and printed if the others continue."""
        try:
            self._note(name, outcome)
        except RunError as error:
            if not self.continue_on_failure:
                raise
            self.failed[name] = error
            print(f"{error}; the others continue", file=sys.stderr, flush=True)

    def _note(self, name: str, outcome: Metrics | RunError) -> None:
        """Prints and keeps the metrics of a run; raises RunError if it failed, or if they cannot be
        compared."""
        if isinstance(outcome, RunError):
            raise outcome
        metric = self.sweep.metric
        value = outcome.get(metric, math.nan)
        if not math.isfinite(value):
            raise RunError(f"the run {name} ended with {metric} {value}: it cannot be compared")
        self.metrics[name] = outcome
        line = f"{name}: {metric} {value:.5g} ({self.progress})"
        tqdm.tqdm.write(line, file=sys.stderr)

    def best_of(self, trials: Sequence[Trial]) -> Point:
        """The point, without its seed, of the best of some trials."""

        def score(trial: Trial) -> float:
            """The metric of a trial."""
            metrics = self.metrics[trial.name]
            return metrics[self.sweep.metric]

        choose = min if self.sweep.mode == "min" else max
        best = choose(trials, key=score)
        return best.seedless


def _outcomes(run: Future[Outcomes], group: Sequence[Trial]) -> Outcomes:
    """How the trials of a group ended; all of them with the error of a group that could not be
    trained."""
    try:
        return run.result()
    except RunError as error:
        return {trial.name: error for trial in group}


def ended(
    group_of: Mapping[Future, Sequence[Trial]], out: str, progress: Progress
) -> Iterator[Future]:
    """The runs of a sweep as they end. A terminal shows a bar of the steps of the command's part;
    elsewhere a line says how far they are if none was printed for SILENCE seconds.

    Args:
        group_of: run -> the trials that it trains.
        out: the folder of the trials.
        progress: is told of the steps that are left.
    """
    pending = set(group_of)
    part = progress.part()
    last_line = time.monotonic()
    with tqdm.tqdm(
        total=part.steps,
        initial=part.steps - part.left,
        desc=str(progress),
        bar_format="{percentage:3.0f}%|{bar:20}| {desc}",
        disable=not sys.stderr.isatty(),
        leave=False,
    ) as bar:
        while pending:
            done, pending = concurrent.futures.wait(
                pending, PAUSE, concurrent.futures.FIRST_COMPLETED
            )
            unfinished: list[Trial] = []
            for run in pending:
                unfinished += group_of[run]
            progress.advance(steps_left(out, unfinished))
            part = progress.part()
            taken = part.steps - part.left
            doing = _preparing(out, unfinished) or f"{taken:,} of {part.steps:,} steps"
            status = f"{doing}, {progress}"
            now = time.monotonic()
            if not bar.disable:
                bar.set_description_str(status, refresh=False)
                bar.update(taken - bar.n)
                bar.refresh()
            elif done:  # the caller prints a line for each
                last_line = now
            elif now - last_line >= SILENCE:
                logs.to_stderr(status)
                last_line = now
            yield from done


def _preparing(out: str, unfinished: Sequence[Trial]) -> str:
    """What the runs are doing that have begun, if none has taken a step; otherwise empty."""
    doing = ""
    for trial in unfinished:
        folder = _folder(out, trial)
        if files.exists(os.path.join(folder, CONFIG_FILE)):  # written with the first step
            return ""
        line = _last_line(f"{folder}.log")
        if line:
            doing = f"preparing: {line}"
    return doing


def _last_line(log: str) -> str:
    """The start of the last line that a run has printed; "starting" if it has printed none, and
    empty if it has not begun."""
    content = files.read(log)
    if not content:
        return ""
    *_, line = content.decode(errors="replace").splitlines()
    if _COMMAND.search(line):
        return "starting"
    return textwrap.shorten(line, LINE_WIDTH, placeholder=" ...")


STATISTICS = {"median": statistics.median, "mean": statistics.mean, "lowest": min, "highest": max}


@dataclasses.dataclass(frozen=True)
class RunState:
    """How far a run is.

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


def states(sweep: Sweep) -> list[RunState]:
    """How far each run is. If the sweep chooses, runs that have not begun are left out: most of
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
            runs.append(_state(trial, folder, log))
    return runs


def _state(trial: Trial, folder: str, log: str) -> RunState:
    """How far the run in a folder is, whose output is in the file `log`."""
    step = _last_step(folder)
    steps = trial.config.steps
    result = read_result(folder)
    if result is not None:
        return RunState(trial.name, "done", step, steps, result["eval"])
    error = read_error(log)
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
    """A line for each run of `states`, and how many are done."""
    lines = []
    done = 0
    for run in states(sweep):
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
    """What `status` says, for programs; metrics that are no finite numbers are None, as JSON has
    no name for them."""
    runs = []
    done = 0
    for state in states(sweep):
        run = dataclasses.asdict(state)
        run["eval"] = {name: _in_json(value) for name, value in state.eval.items()}
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


def rows(sweep: Sweep, metrics: Mapping[str, Metrics]) -> list[dict[str, Any]]:
    """A row for each point: its finished trials, and the statistics of each metric over their
    seeds.

    Args:
        sweep: the sweep.
        metrics: name of a finished trial -> its held-out metrics.
    """
    trials_of_point: dict[str, list[Trial]] = {}
    for trial in sweep.trials:
        point = str(trial.seedless)
        trials = trials_of_point.setdefault(point, [])
        trials.append(trial)
    return [_row(trials, metrics) for trials in trials_of_point.values()]


def _row(trials: Sequence[Trial], metrics: Mapping[str, Metrics]) -> dict[str, Any]:
    """The row of a point, from all of its trials; see `rows`."""
    finished = [trial for trial in trials if trial.name in metrics]
    runs = []
    for trial in finished:
        run = {
            "seed": trial.config.seed,
            "workdir": trial.name,
            "eval": metrics[trial.name],
        }
        runs.append(run)
    return {
        "point": trials[0].seedless,
        "runs": runs,
        "summary": _summary([metrics[trial.name] for trial in finished]),
    }


def _summary(metrics: Sequence[Metrics]) -> dict[str, dict[str, float]]:
    """The statistics of each metric that is a number in all runs."""
    if not metrics:
        return {}
    summary = {}
    for key in metrics[0]:
        values: list[Any] = [run.get(key) for run in metrics]
        if all(map(_is_number, values)):
            summary[key] = _statistics(values)
    return summary


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _statistics(values: Sequence[float]) -> dict[str, float]:
    """Each of STATISTICS of some numbers."""
    statistics_of_values = {}
    for name, statistic in STATISTICS.items():
        statistics_of_values[name] = statistic(values)
    return statistics_of_values


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
        if not files.exists(os.path.join(folder, RESULT_FILE)):
            left += max(0, trial.config.steps - _last_step(folder))
    return left
