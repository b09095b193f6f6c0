"""Trains a sweep: all of its trials, or the best point's; prints how they end."""

import concurrent.futures
import math
import sys
from collections.abc import Iterable

from gmlp_flax.checkpoints import run_folder
from gmlp_flax.errors import RunError
from gmlp_flax.io import files
from gmlp_flax.sweeps import tables
from gmlp_flax.sweeps.definition import SEARCH, Sweep, Trial
from gmlp_flax.sweeps.runner import Metrics, TrainingPool


def train(sweep: Sweep, jobs: int = 1, go_on: bool = True, is_whole: bool = True) -> bool:
    """Trains, and prints the table and which trials failed.

    Args:
        sweep: the sweep.
        jobs: processes at a time.
        go_on: whether the others go on if a trial fails; a sweep that chooses needs all of its first ones.
        is_whole: whether all trials are there, and sweep.json is written.

    Returns:
        Whether no trial failed.

    Raises:
        RunError: a trial failed and the others do not go on.
    """
    chosen = None
    metrics: dict[str, Metrics] = {}
    failed: dict[str, RunError] = {}

    def train_all(trials: Iterable[Trial]) -> None:
        """Trains them and notes their metrics or why they failed."""
        names = {pool.submit(trial.name, trial.flags): trial.name for trial in trials}
        for run in concurrent.futures.as_completed(names):
            name = names[run]
            try:
                value = run.result().get(sweep.metric, math.nan)
                if not math.isfinite(value):
                    raise RunError(f"the run {name} ended with {sweep.metric} {value}: it cannot be compared")
                print(f"{name}: {sweep.metric} {value:.5g}", file=sys.stderr, flush=True)
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
    if metrics:
        print(tables.text(sweep, table, chosen))
    if is_whole:
        known = {"config": sweep.source, "overrides": sweep.overrides, "metric": sweep.metric, "mode": sweep.mode}
        report = known | {"chosen": chosen, "points": table} | ({"failed": list(failed)} if failed else {})
        run_folder.write_json(files.join(sweep.out, "sweep.json"), report)
    if failed:
        count = f"{len(failed)} of {len(sweep.trials)} runs failed; the same command tries them again:"
        print(count, *failed.values(), sep="\n", file=sys.stderr)
    return not failed
