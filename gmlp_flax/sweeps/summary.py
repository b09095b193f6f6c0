"""What a sweep found: each point's metrics over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from gmlp_flax.sweeps import points
from gmlp_flax.sweeps.definition import Sweep, Trial
from gmlp_flax.sweeps.runner import Metrics

STATISTICS = {"median": statistics.median, "mean": statistics.mean, "lowest": min, "highest": max}


def rows(sweep: Sweep, found: Mapping[str, Metrics]) -> list[dict[str, Any]]:
    """A row for each point: its finished trials, and the statistics of each metric over their seeds.

    Args:
        sweep: the sweep.
        found: name of a finished trial -> its held-out metrics.
    """
    by_point: dict[str, list[Trial]] = {}
    for trial in sweep.trials:
        by_point.setdefault(str(trial.seedless), []).append(trial)
    table = []
    for trials in by_point.values():
        runs = [
            {"seed": trial.config.seed, "workdir": trial.name, "eval": found[trial.name]}
            for trial in trials
            if trial.name in found
        ]
        columns = {key: [run["eval"].get(key) for run in runs] for key in (runs[0]["eval"] if runs else ())}
        summary = {
            key: {name: statistic(values) for name, statistic in STATISTICS.items()}
            for key, values in columns.items()
            if all(isinstance(value, int | float) for value in values)
        }
        table.append({"point": trials[0].seedless, "runs": runs, "summary": summary})
    return table


def text(sweep: Sweep, table: list[dict[str, Any]], chosen: int | None) -> str:
    """The rows for reading, and which of them was chosen, if any."""
    names = [points.name(row["point"]) or "the config as it is" for row in table]
    width = max(map(len, names), default=0)
    lines = [f"{'':<{width}} seeds" + "".join(f"{name:>11}" for name in STATISTICS) + f"  {sweep.metric} of each seed"]
    for name, row in zip(names, table, strict=True):
        values = row["summary"].get(sweep.metric)
        summary = "".join(f"{values[key]:>11.5g}" if values else f"{'-':>11}" for key in STATISTICS)
        each = " ".join(f"{run['eval'][sweep.metric]:.5g}" for run in row["runs"])
        lines.append(f"{name:<{width}} {len(row['runs']):>5}{summary}  {each}".rstrip())
    if chosen is not None:
        lines.append(
            f"chosen: {names[chosen]}, for its held-out {sweep.metric} with seed {sweep.trials[0].config.seed} "
            "(--choose=best; the paper does not say how it chose)"
        )
    return "\n".join(lines)
