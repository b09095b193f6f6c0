"""What scripts/sweep.py is asked to train, checked before any of it is."""

from __future__ import annotations

import copy
import functools
import os
import re
import runpy
import sys
from typing import TYPE_CHECKING, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from gmlp_flax import cli, sweep
from gmlp_flax import config as config_lib
from gmlp_flax.training.errors import RunError

if TYPE_CHECKING:
    from gmlp_flax.tasks.base import Task

LONGEST_NAME = 200  # file systems allow 255; the log's name is longer

SHORT = {"lr": "optimizer.learning_rate"}  # names that --sweep.NAME=... takes beside the keys


class Run(NamedTuple):
    """A point of the sweep, with its seed.

    Attributes:
        point: what the sweep sets.
        flags: the command line's words for it, --config first.
        config: all that it is trained with.
    """

    point: sweep.Point
    flags: list[str]
    config: ConfigDict

    @property
    def name(self) -> str:
        """Of its folder."""
        return sweep.name(self.point)

    @property
    def alike(self) -> sweep.Point:
        """What it has in common with its runs of other seeds."""
        return {key: value for key, value in self.point.items() if key != "seed"}


class Plan(NamedTuple):
    """What is to be trained.

    Attributes:
        config: the file with its argument, or the sweep's file, whose points name theirs.
        overrides: what the command line changes of it.
        runs: every point with every seed, or the share that --index names.
        choosing: whether only the best point is trained with more seeds than the first.
        metric, mode: the held-out metric that tells points apart, and whether "min" or "max" of it is the best.
        out: folder of the runs.
    """

    config: str
    overrides: sweep.Point
    runs: tuple[Run, ...]
    choosing: bool
    metric: str
    mode: str
    out: str


def parse_flags(argv: list[str]) -> list[str]:
    """As `cli.parse_flags`. With a sweep file --config is that of its first point, for --config.KEY=VALUE to change.

    --sweep.KEY=VALUE,... stands for --grid=KEY=VALUE,... and --choose=none. A word -- may stand before the overrides.
    """
    given, own = [word for word in argv if word != "--"], []
    words = [re.sub(r"^--?sweep\.([^=]+)", _grid, word) for word in given]
    with cli.explaining():
        if file := _sweep_argument(argv):
            if config := cli.config_argument(argv):
                raise config_lib.ConfigError(
                    f"--config={config} and --sweep={file} exclude each other: a sweep file's points name their configs"
                )
            own = [f"--config={of_file(file)[0][sweep.CONFIG]}"]
    # First, so that --choose=... further on counts.
    every = ["--choose=none"] if file or words != given else []
    return cli.parse_flags([*words[:1], *every, *own, *words[1:]])


def _grid(flag: re.Match) -> str:
    return f"--grid={':'.join(SHORT.get(key, key) for key in flag[1].split(':'))}"


def _sweep_argument(argv: list[str]) -> str:
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        if match := re.match(r"--?sweep(?:=(.*))?$", argument):
            return following if match[1] is None else match[1]
    return ""


@functools.cache
def of_file(given: str) -> sweep.Points:
    """The points of a sweep file, FILE or FILE:ARGUMENT.

    Raises:
        ConfigError: there is no such file, or its get_sweep gives no points, or one without a config.
    """
    path, colon, argument = given.partition(":")
    if not os.path.isfile(path):
        raise config_lib.ConfigError(f"there is no sweep file {path}: give --sweep=configs/sweeps/x.py[:ARGUMENT]")
    try:
        found = runpy.run_path(path)
        if "get_sweep" not in found:
            raise config_lib.ConfigError("there is no get_sweep in it: define get_sweep(arg='') that returns points")
        points = tuple(found["get_sweep"](*[argument] if colon else []) or ())
        if not points:
            raise config_lib.ConfigError("a sweep of no points: let get_sweep return gmlp_flax.sweep.product(...)")
        sweep.chained(points)  # Checks the names.
        if bare := [point for point in points if not isinstance(point.get(sweep.CONFIG), str)]:
            raise config_lib.ConfigError(f"the point {bare[0]} names no config: set config to 'configs/x.py:ARGUMENT'")
    except Exception as error:  # noqa: BLE001 - a sweep file is the user's code and may raise anything
        raise config_lib.explain(error, given) from None
    return points


def planned() -> Plan:
    """What the command line asks for, checked.

    Raises:
        ConfigError, RunError: it cannot be run.
    """
    values = flags.FLAGS
    if values.config is None:
        raise config_lib.ConfigError("--config is missing: give --config=configs/x.py[:ARGUMENT], or --sweep=FILE")
    if not values.out:
        raise config_lib.ConfigError("--out is missing: give --out=DIR, a folder for the runs")
    if values.sweep and values.choose != "none":
        raise config_lib.ConfigError("--choose=best goes with --grid: all points of a sweep file are trained")
    points = sweep.product(*([of_file(values.sweep)] if values.sweep else []), sweep.parse(values.grid))
    overrides = config_flags.get_override_values(values["config"])
    if twice := [key for point in points for key in point if key in overrides]:
        raise config_lib.ConfigError(f"--config.{twice[0]} and the sweep set the same key: give one")
    seeds = _seeds(points, overrides)
    choosing = values.choose == "best" and len(points) > 1
    if choosing and (values.print or values.index is not None):
        raise config_lib.ConfigError("--print and --index choose no point: give --choose=none, for all with all seeds")
    runs = _checked(tuple(point | seed for point in points for seed in seeds), overrides, values.out)
    best = dict.fromkeys(task(run.config).best for run in runs)
    if len(best) > 1:
        metrics = ", ".join(metric for metric, _ in best)
        raise config_lib.ConfigError(f"the points differ in their held-out metric ({metrics}): make a sweep of each")
    runs = _share(runs, values.index, values.of)
    return Plan(values.sweep or cli.config_argument(sys.argv), overrides, runs, choosing, *next(iter(best)), values.out)


def _seeds(points: sweep.Points, overrides: sweep.Point) -> tuple[sweep.Point, ...]:
    """What each point is trained with; one empty point where the sweep sets the seed, or its config does."""
    values, own = flags.FLAGS, any("seed" in point for point in points)
    given = values["seeds"].present
    if own and given:
        raise config_lib.ConfigError("--seeds and the sweep set the same key, seed: give one")
    if values.choose == "none" and (own or values.sweep and not given):
        return ({},)
    if not values.seeds or not all(seed.isdecimal() for seed in values.seeds):
        raise config_lib.ConfigError(f"--seeds={','.join(values.seeds)}: expected numbers, as in --seeds=0,1,2")
    if own or "seed" in overrides:
        raise config_lib.ConfigError("the key seed is set by --seeds: give it there alone")
    return tuple({"seed": seed} for seed in dict.fromkeys(map(int, values.seeds)))


def _checked(points: sweep.Points, overrides: sweep.Point, out: str) -> tuple[Run, ...]:
    """The runs, their values checked, that no two are the same, and that none in `out` is of another config."""
    values, seen, runs = flags.FLAGS, {}, []
    for point in points:
        file = point.get(sweep.CONFIG)
        full = resolved(_loaded(file) if file else values.config, overrides | point)
        whole = {sweep.CONFIG: file or cli.config_argument(sys.argv)} | overrides | point
        run = Run(point, sweep.flags(whole), full)
        marks = run.name, config_lib.to_json(full)
        if known := [seen[mark] for mark in marks if mark in seen]:
            raise config_lib.ConfigError(f"two points are one: {known[0]} and {run.name}")
        seen |= dict.fromkeys(marks, run.name)
        path = os.path.join(out, run.name, "config.json")
        if len(run.name) > LONGEST_NAME:
            raise config_lib.ConfigError(f"{run.name} is too long to name a folder: sweep over fewer keys at once")
        if os.path.exists(path) and (changed := _difference(config_lib.load(path), full)):
            raise RunError(f"{os.path.dirname(path)} is a run of another config ({changed}): give another --out")
        runs.append(run)
    return tuple(runs)


@functools.cache
def _loaded(given: str) -> ConfigDict:
    """The config that --config=FILE:ARGUMENT names."""
    path, colon, argument = given.partition(":")
    if not os.path.isfile(path):
        raise config_lib.ConfigError(f"there is no config file {path}, which the sweep names")
    if path.endswith(".json"):
        return config_lib.load(path)
    try:
        config = runpy.run_path(path)["get_config"](*[argument] if colon else [])
    except Exception as error:  # noqa: BLE001 - a config file is the user's code and may raise anything
        raise config_lib.explain(error, given) from None
    if config is None:
        raise config_lib.ConfigError(f"{given}: get_config() returned nothing: return the config")
    return config


def task(config: ConfigDict) -> type[Task]:
    """What a config trains."""
    from gmlp_flax.tasks import TASKS  # Brings JAX; mistakes in flags answer at once.

    return TASKS[config.task]


def resolved(config: ConfigDict, point: sweep.Point) -> ConfigDict:
    """The config at a point, whose values may be text.

    Raises:
        ConfigError: a value has another type than its key, or makes no sense.
    """
    words, values = sweep.flags({key: value for key, value in point.items() if key != sweep.CONFIG}), flags.FlagValues()
    config_flags.DEFINE_config_dict("config", copy.deepcopy(config), flag_values=values, sys_argv=words)
    try:
        values(["sweep", *words])
    except flags.Error as error:
        raise config_lib.ConfigError(config_lib.in_words(error)) from None
    config_lib.validate(values["config"].value)
    return values["config"].value


def _difference(before: ConfigDict, now: ConfigDict) -> str:
    """The first key in which a run and its config differ, with its values; empty if there is none.

    What a run inherits from that of `init_from` is the other one's, whatever its config says.
    """
    inherited = {f"model.{key}" for key in task(now).inherits} if now.init_from else ()
    changed = (key for key, _ in config_lib.keys() if before[key] != now[key] and key not in inherited)
    return next((f"config.{key} was {before[key]!r} and is now {now[key]!r}" for key in changed), "")


def _share(runs: tuple[Run, ...], index: int | None, of: int | None) -> tuple[Run, ...]:
    """The runs that --index and --of name."""
    if index is None:
        if of is not None:
            raise config_lib.ConfigError(f"--of={of} goes with --index: give --index=I, from 0 to {of - 1}")
        return runs
    count = of or len(runs)
    if not 0 <= index < count:
        why = f"with --of={of}" if of else f"for a sweep of {count} points"
        raise config_lib.ConfigError(f"--index={index} is out of range: expected 0 to {count - 1} {why}")
    return runs[index::count]
