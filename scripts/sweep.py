"""Trains a config at the points of a grid and with several seeds, and prints what its runs end with.

Usage: python scripts/sweep.py --config=FILE:ARGUMENT --out=DIR [--config.KEY=VALUE ...]
           [--grid=KEY=VALUE,VALUE,... [--grid=...]] [--seeds=0,1,2,3,4] [--choose=best|none] [--jobs=1]

    python scripts/sweep.py --config=configs/quickstart_image.py --out=runs/digits_sweep \\
        --grid=optimizer.learning_rate=1e-3,2e-3 --grid=batch_size=32,64

The points are all combinations of the values given with --grid, one flag a key. Keys that change together share a flag:
--grid=batch_size:steps=16:1000,32:500. Each point and seed is one run of `python -m gmlp_flax.train` in
DIR/KEY=VALUE,...,seed=SEED. With --choose=best every point is trained with the first seed alone, and the other seeds at
the point whose held-out metric is then the best, the metric being the task's own. (The paper reports medians of five
runs and does not say how it chose rates and batch sizes.) --choose=none trains every point with every seed. The table
has a row a point: median, mean, lowest and highest over its seeds, which count the one that chose. All metrics of all
runs are written to DIR/sweep.json.

A run that is finished in DIR is not run again and one that was interrupted goes on, so the same command ends what a
killed one began. Where one fails, or Ctrl-C or SIGTERM asks to stop, those under way save and stop as well.
"""

from __future__ import annotations

import copy
import json
import math
import os
import statistics
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags
from running import Metrics, Runs, results

from gmlp_flax import cli, sweep
from gmlp_flax import config as config_lib
from gmlp_flax.training.errors import RunError

if TYPE_CHECKING:
    from gmlp_flax.tasks.base import Task

SUMMARY = {"median": statistics.median, "mean": statistics.mean, "lowest": min, "highest": max}

LONGEST_NAME = 200  # file systems allow 255; the log's name is longer


class Plan(NamedTuple):
    """What is to be trained.

    Attributes:
        config: the file with its argument.
        overrides: what the command line changes of it.
        points: of the grid; one empty point where there is none.
        seeds: the first is the one that chooses.
        metric, mode: the held-out metric that tells points apart, and whether "min" or "max" of it is the best.
        out: folder of the runs.
    """

    config: str
    overrides: sweep.Point
    points: sweep.Points
    seeds: tuple[int, ...]
    metric: str
    mode: str
    out: str


class Runner:
    """Trains points with seeds and keeps what they end with, as `found[place of the point, seed]`."""

    def __init__(self, plan: Plan, runs: Runs):
        self.plan, self._runs, self.found = plan, runs, {}

    def __call__(self, places: list[int], seeds: tuple[int, ...]) -> None:
        """Trains each of the points with each of the seeds; says on standard error what each ends with."""
        plan = self.plan
        self.found |= results({
            (place, seed): self._runs.submit(name(plan.points[place], seed), [
                f"--config={plan.config}", *sweep.flags(plan.overrides | plan.points[place] | {"seed": seed}),
            ])
            for place in places for seed in seeds
        }, self._tell)

    def best(self) -> int:
        """The place of the point that is the best with the first seed."""
        plan, better = self.plan, {"min": min, "max": max}[self.plan.mode]
        return better(range(len(plan.points)), key=lambda place: self.found[place, plan.seeds[0]][plan.metric])

    def _tell(self, key: tuple[int, int], metrics: Metrics) -> None:
        run, metric = name(self.plan.points[key[0]], key[1]), self.plan.metric
        value = metrics.get(metric, math.nan)
        if not math.isfinite(value):
            raise RunError(f"the run {run} ended with {metric} {value}: it cannot be compared; leave its point out")
        print(f"{run}: {metric} {value:.5g}", file=sys.stderr, flush=True)


def name(point: sweep.Point, seed: int) -> str:
    """The folder of a run."""
    return sweep.name(point | {"seed": seed})


def planned() -> Plan:
    """What the command line asks for, checked.

    Raises:
        ConfigError, RunError: it cannot be run.
    """
    values = flags.FLAGS
    if values.config is None:
        raise config_lib.ConfigError("--config is missing: give --config=configs/x.py[:ARGUMENT]")
    if not values.out:
        raise config_lib.ConfigError("--out is missing: give --out=DIR, a folder for the runs")
    if not values.seeds or not all(seed.isdecimal() for seed in values.seeds):
        raise config_lib.ConfigError(f"--seeds={','.join(values.seeds)}: expected numbers, as in --seeds=0,1,2")
    points, overrides = sweep.parse(values.grid), config_flags.get_override_values(values["config"])
    if "seed" in {**points[0], **overrides}:
        raise config_lib.ConfigError("the key seed is set by --seeds: give it there alone")
    if twice := [key for key in points[0] if key in overrides]:
        raise config_lib.ConfigError(f"--config.{twice[0]} and --grid={twice[0]}=... set the same key: give one")
    seeds = tuple(dict.fromkeys(map(int, values.seeds)))
    check(values.config, points, seeds, values.out)
    best = task(resolved(values.config, points[0])).best
    return Plan(cli.config_argument(sys.argv), overrides, points, seeds, *best, values.out)


def check(config: ConfigDict, points: sweep.Points, seeds: tuple[int, ...], out: str) -> None:
    """Checks the values of all points, that no two are the same, and that no run in `out` is of another config.

    Raises:
        ConfigError, RunError: they are not so.
    """
    seen: dict[str, str] = {}
    for point in points:
        for seed in seeds:
            run, full = name(point, seed), resolved(config, point | {"seed": seed})
            marks = run, config_lib.to_json(full)
            if known := [seen[mark] for mark in marks if mark in seen]:
                raise config_lib.ConfigError(f"two points are one: {known[0]} and {run}")
            seen |= dict.fromkeys(marks, run)
            path = os.path.join(out, run, "config.json")
            if len(run) > LONGEST_NAME:
                raise config_lib.ConfigError(f"{run} is too long to name a folder: sweep over fewer keys at once")
            if os.path.exists(path) and (changed := difference(config_lib.load(path), full)):
                raise RunError(f"{os.path.dirname(path)} is a run of another config ({changed}): give another --out")


def task(config: ConfigDict) -> type[Task]:
    """What a config trains."""
    from gmlp_flax.tasks import TASKS  # Brings JAX; mistakes in flags answer at once.

    return TASKS[config.task]


def resolved(config: ConfigDict, point: sweep.Point) -> ConfigDict:
    """The config at a point, whose values may be text.

    Raises:
        ConfigError: a value has another type than its key, or makes no sense.
    """
    words, values = sweep.flags(point), flags.FlagValues()
    config_flags.DEFINE_config_dict("config", copy.deepcopy(config), flag_values=values, sys_argv=words)
    try:
        values(["sweep", *words])
    except flags.Error as error:
        raise config_lib.ConfigError(str(error)) from None
    config_lib.validate(values["config"].value)
    return values["config"].value


def difference(before: ConfigDict, now: ConfigDict) -> str:
    """The first key in which a run and its config differ, with its values; empty if there is none.

    What a run inherits from that of `init_from` is the other one's, whatever its config says.
    """
    inherited = {f"model.{key}" for key in task(now).inherits} if now.init_from else ()
    changed = (key for key, _ in config_lib.keys() if before[key] != now[key] and key not in inherited)
    return next((f"config.{key} was {before[key]!r} and is now {now[key]!r}" for key in changed), "")


def rows(runner: Runner) -> list[dict[str, Any]]:
    """A row a point: its runs, and each metric's median, mean, lowest and highest over its seeds."""
    table = []
    for place, point in enumerate(runner.plan.points):
        runs = {seed: runner.found[place, seed] for seed in runner.plan.seeds if (place, seed) in runner.found}
        columns = {key: [metrics.get(key) for metrics in runs.values()] for key in next(iter(runs.values()))}
        table.append({
            "point": point,
            "runs": [{"seed": seed, "workdir": name(point, seed), "eval": metrics} for seed, metrics in runs.items()],
            "summary": {
                key: {what: of(values) for what, of in SUMMARY.items()}
                for key, values in columns.items() if all(isinstance(value, int | float) for value in values)
            },
        })
    return table


def show(plan: Plan, table: list[dict[str, Any]], chosen: int | None) -> None:
    """Prints a row a point, and which was chosen, by what."""
    names = [sweep.name(row["point"]) or "the config as it is" for row in table]
    width = max(map(len, names))
    print(f"{'':<{width}} seeds" + "".join(f"{what:>11}" for what in SUMMARY) + f"  {plan.metric} of each seed")
    for label, row in zip(names, table, strict=True):
        summary = "".join(f"{row['summary'][plan.metric][what]:>11.5g}" for what in SUMMARY)
        each = " ".join(f"{run['eval'][plan.metric]:.5g}" for run in row["runs"])
        print(f"{label:<{width}} {len(row['runs']):>5}{summary}  {each}")
    if chosen is not None:
        print(
            f"chosen: {names[chosen]}, for its held-out {plan.metric} with seed {plan.seeds[0]} "
            "(--choose=best; the paper does not say how it chose)"
        )


def main(_argv: list[str]) -> None:
    """Trains, prints, writes."""
    plan = planned()
    every, chosen = list(range(len(plan.points))), None
    with Runs(plan.out, flags.FLAGS.jobs) as runs:
        runner = Runner(plan, runs)
        if flags.FLAGS.choose == "best" and len(plan.points) > 1:
            runner(every, plan.seeds[:1])
            chosen = runner.best()
            runner([chosen], plan.seeds[1:])
        else:
            runner(every, plan.seeds)
    table = rows(runner)
    show(plan, table, chosen)
    with open(os.path.join(plan.out, "sweep.json"), "w") as file:
        json.dump({
            "config": plan.config, "overrides": plan.overrides, "metric": plan.metric, "mode": plan.mode,
            "chosen": chosen, "points": table,
        }, file, indent=2)


if __name__ == "__main__":
    cli.define_config_flag()
    flags.DEFINE_string("out", None, "Folder for the runs and for sweep.json.")
    flags.DEFINE_list("seeds", ["0", "1", "2", "3", "4"], "Seeds, with commas between them; the first one chooses.")
    flags.DEFINE_multi_string("grid", [], "KEY=VALUE,VALUE,...: a config key and its values; give it once a key.")
    flags.DEFINE_enum("choose", "best", ["best", "none"], "All seeds at the point that is best with one, or at all.")
    flags.DEFINE_integer("jobs", 1, "Runs at a time.", lower_bound=1)
    cli.run(main)
