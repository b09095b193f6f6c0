"""Trains a sweep: all of its trials, or the best point's; says how far it is."""

import concurrent.futures
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future

import tqdm

from gmlp_flax.checkpoints import run_folder
from gmlp_flax.errors import RunError
from gmlp_flax.io import files
from gmlp_flax.sweeps import tables
from gmlp_flax.sweeps.definition import SEARCH, Sweep, Trial
from gmlp_flax.sweeps.runner import Metrics, TrainingPool

PAUSE = 2.0  # seconds from one look at the runs' steps to the next


def train(sweep: Sweep, jobs: int = 1, go_on: bool = True) -> bool:
    """Trains, and says how each trial ended, and when all will have.

    Args:
        sweep: the sweep.
        jobs: processes at a time.
        go_on: whether the others go on if a trial fails; a sweep that chooses needs all of its first ones.

    Returns:
        Whether no trial failed.

    Raises:
        RunError: a trial failed and the others do not go on.
    """
    chosen = None
    metrics: dict[str, Metrics] = {}
    failed: dict[str, RunError] = {}

    def train_all(trials: Sequence[Trial]) -> None:
        """Trains them and notes their metrics or why they failed."""
        names = {pool.submit(trial.name, trial.flags): trial.name for trial in trials}
        for number, (run, eta) in enumerate(ended(names, sweep._replace(trials=tuple(trials))), start=1):
            name, told = names[run], ", ".join(filter(None, (f"{number} of {len(names)}", eta)))
            try:
                value = run.result().get(sweep.metric, math.nan)
                if not math.isfinite(value):
                    raise RunError(f"the run {name} ended with {sweep.metric} {value}: it cannot be compared")
                tqdm.tqdm.write(f"{name}: {sweep.metric} {value:.5g} ({told})", file=sys.stderr)
                metrics[name] = run.result()
            except RunError as error:
                if not go_on:
                    raise
                failed[name] = error
                print(f"{error}; the others go on", file=sys.stderr, flush=True)

    with TrainingPool(sweep.out, jobs) as pool:
        first = tuple(trial for trial in sweep.trials if sweep.choosing and SEARCH in trial.point)
        train_all(first or sweep.trials)
        if first:
            better = {"min": min, "max": max}[sweep.mode]
            best = better(first, key=lambda trial: metrics[trial.name][sweep.metric]).seedless
            rest = sweep.trials[len(first) :]
            reported = tuple(trial for trial in rest if trial.seedless | {SEARCH: True} == best)
            train_all(reported)
            chosen, sweep = len(first), sweep._replace(trials=first + reported)
    table = tables.rows(sweep, metrics)
    known = {"config": sweep.source, "overrides": sweep.overrides, "metric": sweep.metric, "mode": sweep.mode}
    report = known | {"chosen": chosen, "points": table} | ({"failed": list(failed)} if failed else {})
    run_folder.write_json(files.join(sweep.out, "sweep.json"), report)
    if failed:
        count = f"{len(failed)} of {len(sweep.trials)} runs failed; the same command tries them again:"
        print(count, *failed.values(), sep="\n", file=sys.stderr)
    return not failed


def ended(runs: Iterable[Future], sweep: Sweep) -> Iterator[tuple[Future, str]]:
    """The runs of a sweep as they end, each with the time that the others will take; a terminal has a bar of steps."""
    began, pending, steps = time.monotonic(), set(runs), sum(trial.config.steps for trial in sweep.trials)
    before = tables.steps_taken(sweep)
    form = "{percentage:3.0f}%|{bar:20}| {n_fmt} of {total_fmt} steps  {desc}"
    with tqdm.tqdm(total=steps, initial=before, bar_format=form, disable=not sys.stderr.isatty()) as bar:
        while pending:
            done, pending = concurrent.futures.wait(pending, PAUSE, concurrent.futures.FIRST_COMPLETED)
            taken, seconds = tables.steps_taken(sweep), time.monotonic() - began
            left = (steps - taken) * seconds / (taken - before) if taken > before else math.nan
            eta = f"ETA {tqdm.tqdm.format_interval(left)}" if pending and math.isfinite(left) else ""
            bar.set_description_str(eta)
            bar.update(taken - bar.n)
            yield from ((run, eta) for run in done)
