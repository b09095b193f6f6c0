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
