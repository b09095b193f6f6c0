"""Trains a sweep: all of its trials, or those of the best point; reports its progress."""

import concurrent.futures
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future

import tqdm

from gmlp_flax.checkpoints import CONFIG_FILE
from gmlp_flax.errors import RunError
from gmlp_flax.io import files, json_files, logs
from gmlp_flax.sweeps import pool, run_logs, states, summary
from gmlp_flax.sweeps.definition import SEARCH, Sweep, Trial
from gmlp_flax.sweeps.points import Point
from gmlp_flax.sweeps.pool import Metrics, Outcomes
from gmlp_flax.sweeps.progress import Progress, Work

PAUSE = 2.0  # seconds from one look at the runs' steps to the next
SILENCE = 30.0  # seconds without a line after which one is printed, if there is no bar
FIRST_SILENCE = 4.0  # the same for the first line


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
        continue_on_failure: whether the others continue if a trial fails; a sweep that chooses
            needs all trials of its search. They never do if the data that all trials share cannot
            be read.
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
        planned = _planned(sweep, search)
        progress = Progress({"": planned})
    trainer = _Trainer(sweep, continue_on_failure, together, progress)
    reported = list(sweep.trials)
    with pool.training_pool(sweep.out, jobs) as submit:
        if search:
            trainer.train(submit, search)
            best = trainer.best_of(search)
            others = sweep.trials[len(search) :]
            reported = _of_point(others, best)
        trainer.train(submit, reported)
    trained_trials = tuple(search + reported)
    trained = sweep._replace(trials=trained_trials)
    failed = trainer.failed
    report = {
        "config": sweep.source,
        "overrides": sweep.overrides,
        "metric": sweep.metric,
        "mode": sweep.mode,
        "chosen": len(search) if search else None,
        "points": summary.rows(trained, trainer.metrics),
    }
    if failed:
        report["failed"] = list(failed)
    report_path = files.join(sweep.out, "sweep.json")
    json_files.write(report_path, report)
    if failed:
        count = f"{len(failed)} of {len(trained_trials)} runs failed"
        print(f"{count}; the same command tries them again:", file=sys.stderr)
        print(*failed.values(), sep="\n", file=sys.stderr)
    return not failed


def _planned(sweep: Sweep, search: Sequence[Trial]) -> list[Work]:
    """The work of the search, if there is one, and that of the trials that are reported."""
    if not search:
        return [states.work_of(sweep)]
    others = sweep.trials[len(search) :]
    first = search[0]
    of_first_point = _of_point(others, first.seedless)
    works = []
    for trials in (search, of_first_point):
        part = sweep._replace(trials=tuple(trials))
        work = states.work_of(part)
        works.append(work)
    return works


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
        for group in pool.groups(trials, self.together):
            run = submit(group)
            group_of[run] = group
        part = self.sweep._replace(trials=tuple(trials))
        work = states.work_of(part)
        self.progress.begin_sweep(work)
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
            if not self.continue_on_failure or self._others_would_fail(name, error):
                raise
            self.failed[name] = error
            print(f"{error}; the others continue", file=sys.stderr, flush=True)

    def _others_would_fail(self, name: str, error: RunError) -> bool:
        """Whether a run has failed before its first step because of the data that all trials
        share."""
        if not isinstance(error, pool.FailedRun):
            return False
        [trial] = [trial for trial in self.sweep.trials if trial.name == name]
        folder = pool.folder_of(self.sweep.out, trial)
        config_path = files.join(folder, CONFIG_FILE)
        if files.exists(config_path):  # written with the first step
            return False
        path = trial.config.data.train
        shared = all(other.config.data.train == path for other in self.sweep.trials)
        beginnings = (
            path,
            repr(path),
            f"config.data.train: {path}",
            f"config.data.train: {path!r}",
        )
        return bool(path) and shared and error.reason.startswith(beginnings)

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
    elsewhere a line says how far they are after FIRST_SILENCE seconds, and then if none was printed
    for SILENCE seconds.

    Args:
        group_of: run -> the trials that it trains.
        out: the folder of the trials.
        progress: is told of the steps that are left.
    """
    pending = set(group_of)
    part = progress.part()
    next_line = time.monotonic() + FIRST_SILENCE
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
            left = states.steps_left(out, unfinished)
            progress.advance(left)
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
                next_line = now + SILENCE
            elif now >= next_line:
                logs.to_stderr(status)
                next_line = now + SILENCE
            yield from done


def _preparing(out: str, unfinished: Sequence[Trial]) -> str:
    """What the runs are doing that have begun, if none has taken a step; otherwise empty."""
    if files.is_remote(out):
        return ""  # a log in a bucket is written when its run ends
    doing = ""
    for trial in unfinished:
        folder = pool.folder_of(out, trial)
        config_path = os.path.join(folder, CONFIG_FILE)
        if files.exists(config_path):  # written with the first step
            return ""
        log = f"{folder}.log"
        line = run_logs.last_line(log)
        if line and not run_logs.read_error(log):  # it failed before, and waits to start again
            doing = f"preparing: {line}"
    return doing
