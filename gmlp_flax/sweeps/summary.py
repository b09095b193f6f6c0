"""The points of a sweep with the metrics of their runs, as sweep.json has them."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gmlp_flax.sweeps.definition import Sweep, Trial
from gmlp_flax.sweeps.pool import Metrics

STATISTICS = {"median": statistics.median, "mean": statistics.mean, "lowest": min, "highest": max}


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
    all_rows = []
    for trials in trials_of_point.values():
        row = _row(trials, metrics)
        all_rows.append(row)
    return all_rows


def _row(trials: Sequence[Trial], metrics: Mapping[str, Metrics]) -> dict[str, Any]:
    """The row of a point, from all of its trials; see `rows`."""
    runs = []
    metrics_of_runs = []
    for trial in trials:
        name = trial.name
        if name not in metrics:
            continue
        run = {
            "seed": trial.config.seed,
            "workdir": name,
            "eval": metrics[name],
        }
        runs.append(run)
        metrics_of_runs.append(metrics[name])
    first = trials[0]
    return {
        "point": first.seedless,
        "runs": runs,
        "summary": _summary(metrics_of_runs),
    }


def _summary(metrics: Sequence[Metrics]) -> dict[str, dict[str, float]]:
    """The statistics of each metric that is a number in all runs."""
    if not metrics:
        return {}
    first = metrics[0]
    summary = {}
    for key in first:
        values: list[Any] = [run.get(key) for run in metrics]
        if all(map(_is_number, values)):
            summary[key] = _statistics(values)
    return summary


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _statistics(values: Sequence[float]) -> dict[str, float]:
    """Each of STATISTICS of some numbers."""
    return {name: statistic(values) for name, statistic in STATISTICS.items()}
