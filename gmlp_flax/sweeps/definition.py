"""The trials of a sweep, all checked before the first begins."""

import functools
import os
import runpy
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints import CONFIG_FILE
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.io import files
from gmlp_flax.sweeps import points as points_lib
from gmlp_flax.sweeps.points import CONFIG, Point, Points

SEARCH = "data.search"  # the key of the runs that choose


class Trial(NamedTuple):
    """One run of a sweep.

    Attributes:
        point: the keys that the sweep sets, the seed among them.
        flags: the command line's words for it, --config first, --trust last.
        config: the whole config.
    """

    point: Point
    flags: list[str]
    config: ConfigDict

    @property
    def name(self) -> str:
        """The name of its folder."""
        return points_lib.name(self.point)

    @property
    def seedless(self) -> Point:
        """The point without its seed, which the trials of other seeds share."""
        point = dict(self.point)
        point.pop("seed", None)
        return point


class Sweep(NamedTuple):
    """Many trials, and how they are compared.

    Attributes:
        source: the config with its argument, or the sweep file, whose points name their configs.
        overrides: the keys that --config.KEY=VALUE changes in every trial.
        trials: every point with every seed, or a part of them.
        choosing: whether only the best point is trained with more seeds than the first.
        metric, mode: the held-out metric that compares points, and whether "min" or "max" of it is
            the best.
        out: the folder of the runs.
    """

    source: str
    overrides: Point
    trials: tuple[Trial, ...]
    choosing: bool
    metric: str
    mode: str
    out: str


@functools.cache
def from_file(name: str) -> Points:
    """The points of a sweep file, FILE or FILE:ARGUMENT.

    Raises:
        ConfigError: there is no such file, or its get_sweep gives no points, or a point without a
            config.
    """
    path, colon, argument = name.partition(":")
    path = config_lib.locate(path, "sweep")
    try:
        module = runpy.run_path(path)
        get_sweep = module["get_sweep"]
        arguments = [argument] if colon else []
        points: Points = tuple(get_sweep(*arguments))
        points_lib.chained(points)  # checks the names, and that there are points
        for point in points:
            if not isinstance(point.get(CONFIG), str):
                raise ConfigError(
                    f"the point {point} names no config: set config to 'NAME:ARGUMENT'"
                )
    except Exception as error:
        raise config_lib.explain(error, name) from None
    return points


def define(
    source: str,
    points: Points,
    overrides: Point,
    out: str,
    choosing: bool = False,
    trusted: Sequence[str] = (),
) -> Sweep:
    """A sweep over points, checked.

    Args:
        source: the config of the points that name none, or the sweep file.
        points: the points, with their seeds.
        overrides: keys that change in every trial; values may be text.
        out: the folder of the runs.
        choosing: whether only the best point is trained with more seeds than the first.
        trusted: modules whose classes may be named by the config of a run, such as one that the
            trials start from.

    Raises:
        ConfigError: a value makes no sense, two trials are the same, or the points differ in their
            held-out metric.
        RunError: a folder in `out` holds a run of another config.
    """
    open_config = functools.cache(config_lib.open_config)
    trust = [f"--trust={module}" for module in trusted]
    names: dict[str, str] = {}  # name or config of a trial -> its name
    trials = []
    for point in points:
        for key in point:
            if key in overrides:
                raise ConfigError(f"--config.{key} and the sweep set the same key: give one")
        keys = {CONFIG: source} | overrides | point
        flags = [*points_lib.flags(keys), *trust]
        base_name = keys.pop(CONFIG)
        base = open_config(base_name)
        config = config_lib.overridden(base, keys)
        trial = Trial(point, flags, config)
        folder = os.path.join(out, trial.name)
        _refuse_twin(trial, names)
        _refuse_other_run(folder, config, keys)
        trials.append(trial)
    metric, mode = _common_metric(trials)
    first = trials[0].config
    parsed_overrides = {key: first[key] for key in overrides}  # no longer as text
    return Sweep(source, parsed_overrides, tuple(trials), choosing, metric, mode, out)


def _refuse_twin(trial: Trial, names: dict[str, str]) -> None:
    """Raises ConfigError if another trial has the same name or config.

    Args:
        trial: the trial.
        names: the earlier trials: name or config -> name. The trial is added.
    """
    name = trial.name
    config_text = config_lib.to_json(trial.config)
    for mark in (name, config_text):
        if mark in names:
            earlier = names[mark]
            raise ConfigError(
                f"two points are one run, or share the name of its folder: {earlier} and {name}"
            )
        names[mark] = name


def _common_metric(trials: Sequence[Trial]) -> tuple[str, str]:
    """The held-out metric that all trials are compared by, and whether "min" or "max" of it is
    best; raises ConfigError if they differ."""
    best: dict[tuple[str, str], None] = {}  # in order
    for trial in trials:
        task = tasks.find(trial.config.task)
        best[task.best] = None
    if len(best) > 1:
        metrics = ", ".join(name for name, _ in best)
        raise ConfigError(
            f"the points differ in their held-out metric ({metrics}): make a sweep of each"
        )
    [metric_and_mode] = best
    return metric_and_mode


def _refuse_other_run(folder: str, config: ConfigDict, explicit: Collection[str]) -> None:
    """Raises RunError, with the first key that differs, if a folder holds a run whose config is not
    what this one would be after `config.resolve`. The keys that the run inherited and the mesh that
    it chose do not count as differences."""
    path = os.path.join(folder, CONFIG_FILE)
    if not files.exists(path):
        return
    before = config_lib.load(path)

    def inherited_before(config: ConfigDict) -> config_lib.Start | None:
        if not config.init_from:
            return None
        return config_lib.Start(config.init_from, before, {})

    mesh = before.mesh

    def mesh_before(config: ConfigDict) -> tuple[config_lib.Sizes, str]:
        sizes = (mesh.data, mesh.fsdp, mesh.tensor)
        return sizes, "as before"

    choose_mesh = None if mesh.auto else mesh_before
    resolution = config_lib.resolve(config, inherited_before, choose_mesh, explicit)
    differences = config_lib.differences(before, resolution.config)
    for key, (old, new) in differences.items():
        raise RunError(
            f"{folder} is a run of another config (config.{key} was {old!r} and is now {new!r}): "
            "choose another folder (--out of `gmlp sweep`, --runs of `gmlp reproduce`)"
        )
