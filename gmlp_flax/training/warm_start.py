"""Parameters from another run, unchanged or adapted to another length, image size or set of
classes."""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints import CONFIG_FILE
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.checkpoints.pytree import Unfit, require_fit
from gmlp_flax.config import named_overrides
from gmlp_flax.errors import RunError
from gmlp_flax.io import files as io_files
from gmlp_flax.models.image import patch_grid
from gmlp_flax.models.parameters import Grids, of_offsets
from gmlp_flax.processes import distributed
from gmlp_flax.tasks.base import Task
from gmlp_flax.training import loading
from gmlp_flax.training.partition import Partition


def inherit(config: ConfigDict, workdir: str) -> tuple[ConfigDict, Files]:
    """Takes from the run in `config.init_from` what is needed to make the model.

    Args:
        config: as given.
        workdir: the run folder. A run that resumes finds everything there, and does not need the
            other run.

    Returns:
        The config, with the values of the other run in all keys that the task inherits; and the
        task's shared files. Keys that were set to another value are named on standard error.

    Raises:
        RunError: there is no such run or checkpoint.
    """
    task = tasks.find(config.task)
    if not config.init_from or not (task.shared_assets or task.inherited_keys):
        return config, {}
    own_config, files = os.path.join(workdir, CONFIG_FILE), {}
    if io_files.exists(own_config):
        old_config = config_lib.load(own_config)
    else:
        source = loading.open_source(config.init_from)
        old_config = source.config
        files = {
            name: content for name, content in source.files.items() if name in task.shared_assets
        }
    config = inherit_model(config, old_config) if task.inherits_model else config
    return inherit_keys(config, old_config, task.inherited_keys, named_overrides(sys.argv)), files


def inherit_keys(
    config: ConfigDict, old_config: ConfigDict, names: Sequence[str], given: Collection[str] = ()
) -> ConfigDict:
    """A config with the values of another one in the keys `names`, if it has them and this one does
    not set them: to anything but the default, or among `given`. Keys whose values differ are named
        on standard error."""
    old, own, new = (
        config_lib.flat(old_config),
        config_lib.flat(config),
        config.copy_and_resolve_references(),
    )
    other = [name for name in names if name in old and old[name] != own[name]]
    default = {name: key.default for name, key in config_lib.keys(config).items()}
    kept = [name for name in other if name in given or own[name] != default[name]]
    taken = {name: old[name] for name in other if name not in kept}
    new.update_from_flattened_dict(taken)
    if kept:
        shown = ", ".join(f"{name} {old[name]!r} (here {own[name]!r})" for name in kept)
        distributed.say(f"note: {config.init_from} was trained with another {shown}")
    if taken:
        shown = ", ".join(f"{name} {value!r}" for name, value in taken.items())
        distributed.say(f"note: as in {config.init_from}: {shown}")
    return new


def inherit_model(config: ConfigDict, old_config: ConfigDict) -> ConfigDict:
    """A config with the architecture of another one's model: its block, and the options that say
    what a model is.

    Keys that the config sets to something else, and not to their defaults, are named on standard
    error.
    """
    new, old = config_lib.changed(config, block=old_config.model.block), config_lib.flat(old_config)
    inherited = {
        name: old[name]
        for name, key in config_lib.keys(new).items()
        if key.architecture and name in old
    }
    given = config_lib.flat(config)
    ignored = [
        f"{name[6:]} {repr(inherited[name]) if name in inherited else 'absent'} (not {given[name]!r})"
        for name, key in config_lib.keys(config).items()
        if key.architecture and given[name] not in (key.default, inherited.get(name))
    ]
    if ignored:
        distributed.say(
            f"note: the model is that of {config.init_from}: config.model's {', '.join(ignored)}"
        )
    new.update_from_flattened_dict(inherited)
    return new


def load(task: Task, partition: Partition, source: loading.Source | None = None) -> Any:
    """The parameters of a source, by default of the run or checkpoint in `config.init_from`,
    adapted to a task's model and placed by the new run's partition: a nested dict of arrays. If the
    run kept their running mean, that is taken. A head for other classes than the task's is
    initialized anew, and so are parameters that only the task's model has.

    Raises:
        RunError: there is no such checkpoint, it was trained with another vocabulary, it does not
            fit, or one model sees only earlier tokens and the other all.
    """
    config, own, partition = task.config, task.assets(), partition.for_model(task.param_metadata())
    source = source or loading.open_source(config.init_from)
    params = source.read(partition, {name: own[name] for name in task.shared_assets})
    compare_models(source.config, config, config.init_from or source.where)
    return carry_over(params, source.files, task, source.config, partition, source.where)


def carry_over(
    params: Any, files: Files, task: Task, old_config: ConfigDict, partition: Partition, where: str
) -> Any:
    """`adapt`, with new initial values for a head of other classes than those in the saved model's
    `files`, and for the parameters that only the task's model has."""
    known, own = traverse_util.flatten_dict(params, sep="/"), task.assets()
    heads = [head for name, head in task.heads.items() if files.get(name) != own[name]]
    added = [path for path in task.new_params if not any(name.startswith(path) for name in known)]
    fresh = _fresh(task, (*heads, *added), partition)
    if fresh:
        distributed.say(f"note: {where} has no fitting {', '.join(fresh)}: initialized anew")
    return adapt(params, task, old_config, where, fresh)


def compare_models(old_config: ConfigDict, config: ConfigDict, where: str) -> None:
    """Names what makes the saved parameters another function in the new model, though they may fit.

    Raises:
        RunError: of one model each token sees only those before it: its weights between tokens have
            other offsets.
    """
    old, new = config_lib.flat(old_config), config_lib.flat(config)
    other = [
        name
        for name, option in config_lib.keys(config).items()
        if option.architecture and name in old and old[name] != new[name]
    ]
    if "model.causal" in other:
        sees = ["all tokens", "only the tokens before it"]
        there, here = sees[old["model.causal"]], sees[new["model.causal"]]
        raise RunError(
            f"in {where} each token sees {there}, and here {here}: start from a run of a task like {config.task}"
        )
    if other and "model.block" not in other:
        shown = ", ".join(
            f"{name.removeprefix('model.')} {old[name]!r} (here {new[name]!r})" for name in other
        )
        distributed.say(f"note: {where} was trained with another config.model: {shown}")


def _fresh(task: Task, prefixes: tuple[str, ...], partition: Partition) -> dict[str, Any]:
    """New initial values of the parameters whose paths begin with one of the prefixes, by path."""

    def chosen(key: jax.Array) -> dict[str, Any]:
        flat = traverse_util.flatten_dict(task.init(key), sep="/")
        return {name: leaf for name, leaf in flat.items() if name.startswith(prefixes)}

    if not prefixes:
        return {}
    key = jax.random.key(task.config.seed)
    return jax.jit(chosen, out_shardings=partition.shardings(jax.eval_shape(chosen, key)))(key)


def adapt(
    saved: Any,
    task: Task,
    old_config: ConfigDict,
    where: str,
    fresh: Mapping[str, jax.Array] | None = None,
) -> Any:
    """Makes saved parameters fit a task's model, by the rules that its parameters state
    (`models.parameters`).

    Args:
        saved: nested dict of arrays.
        task: of the run that reads.
        old_config: of the run that saved.
        where: what was read, for messages.
        fresh: parameters by path that start anew instead.

    Returns:
        Nested dict of arrays with the shapes of the task's model.

    Raises:
        RunError: paths are missing or have another shape; all are listed.
    """
    flat: dict[str, Any] = traverse_util.flatten_dict(saved, sep="/") | dict(fresh or {})
    wanted: dict[str, Any] = traverse_util.flatten_dict(task.shapes(), sep="/")
    metadata = task.param_metadata()
    grids = _grids(old_config, task.config)
    other_grid = grids is not None and grids.old != grids.new
    for name, leaf in wanted.items():
        if grids is not None and grids.old[1] != grids.new[1] and of_offsets(metadata[name].resize):
            raise Unfit(
                f"{where} has {name}, of offsets between patches in rows of {grids.old[1]}, and rows of {grids.new[1]} "
                "make them others: keep the width of images and patches, or start from a run with model.spatial=dense"
            )
        if (
            name in flat
            and (flat[name].shape != leaf.shape or other_grid)
            and (resize := metadata[name].resize)
        ):
            flat[name] = resize(flat[name], leaf.shape, grids)
    try:
        require_fit(flat, wanted, where)
    except Unfit as error:
        before = tasks.find(old_config.task).without_data(old_config).length
        if grids or before == task.length:  # images of another size were resized above
            raise
        raise Unfit(
            f"{error}; the saved model was made for {before} tokens, this config has {task.length}"
        ) from None
    return traverse_util.unflatten_dict({name: flat[name] for name in wanted}, sep="/")


def _grids(old_config: ConfigDict, config: ConfigDict) -> Grids | None:
    """The grids of patches of two configs, if both are image models with the same pooling."""
    old, new = old_config.model, config.model
    if "patch_size" not in old or "patch_size" not in new or old.pool != new.pool:
        return None
    old_grid, new_grid = (patch_grid(model.image_size, model.patch_size) for model in (old, new))
    return Grids(old_grid, new_grid, int(new.pool == "cls"))
