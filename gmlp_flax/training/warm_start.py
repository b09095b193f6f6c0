"""Parameters from another model, unchanged or adapted to another length, image size or set of
classes."""

import os
from collections.abc import Collection, Mapping
from typing import Any

import jax
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints import CONFIG_FILE
from gmlp_flax.checkpoints.assets import Files, require_same
from gmlp_flax.checkpoints.pytree import Unfit, require_fit
from gmlp_flax.errors import RunError, UserError
from gmlp_flax.io import files as io_files
from gmlp_flax.models.image import patch_grid
from gmlp_flax.models.parameters import Grids, ParamMetadata, of_offsets
from gmlp_flax.processes import distributed
from gmlp_flax.tasks.base import Task
from gmlp_flax.training import pretrained
from gmlp_flax.training.partition import Partition
from gmlp_flax.training.pretrained import Pretrained


def read_start(
    config: ConfigDict, workdir: str = "", init: Pretrained | None = None
) -> config_lib.Start | None:
    """What a run inherits from the model that starts it, for `config.resolve`; None if nothing.

    Args:
        config: of the run.
        workdir: its folder, in which a run that resumes finds all that it has inherited, so that
            the other model may have been deleted; "" for a new run.
        init: the model that starts the run, instead of `config.init_from`; the config has its keys
            already (`config.with_model_of`).

    Raises:
        UserError: there is no such model, or it cannot be read.
    """
    shared = tasks.find(config.task).inheritance.shared
    if init is not None:
        return config_lib.Start(init.where, config, _only(shared, init.files))
    inherits = any(option.inherited for option in config_lib.keys(config).values())
    if not config.init_from or not (shared or inherits):
        return None
    own_config = os.path.join(workdir, CONFIG_FILE)
    if workdir and io_files.exists(own_config):
        return config_lib.Start(config.init_from, config_lib.load(own_config), {})
    opened = _open_init_from(config.init_from)
    return config_lib.Start(config.init_from, opened.config, _only(shared, opened.files))


def _open_init_from(name: str) -> Pretrained:
    try:
        return pretrained.open_model(name)
    except UserError as error:
        raise type(error)(f"config.init_from is {name}: {error}") from None


def _only(names: Collection[str], files: Files) -> Files:
    return {name: content for name, content in files.items() if name in names}


def load(task: Task, partition: Partition, init: Pretrained | None = None) -> Any:
    """The parameters from which a run starts, adapted to its model.

    A head for other classes than the task's gets new initial values, and so do parameters that only
    the task's model has.

    Args:
        task: of the run.
        partition: of the run, which places the parameters.
        init: the model that they are from; None: that in `config.init_from`. If the running mean of
            its parameters was kept, that is taken.

    Returns:
        A nested dict of arrays.

    Raises:
        RunError: there is no such model, it was trained with another vocabulary, it does not fit,
            or one model sees only earlier tokens and the other all.
    """
    config = task.config
    opened = _open_init_from(config.init_from) if init is None else init
    where = opened.where
    shared = _only(task.inheritance.shared, task.files)
    require_same(opened.files, shared, where)
    compare_models(opened.config, config, config.init_from or where)
    partition = partition.for_model(task.param_metadata())
    params = opened.read(partition)
    return carry_over(params, opened.files, task, opened.config, partition, where)


def carry_over(
    params: Any, files: Files, task: Task, old_config: ConfigDict, partition: Partition, where: str
) -> Any:
    """`adapt`, with new initial values for a head of other classes than those in the saved model's
    `files`, and for the parameters that only the task's model has."""
    known = traverse_util.flatten_dict(params, sep="/")
    new = []
    for name, head in task.inheritance.heads.items():
        if files.get(name) != task.files.get(name):
            new.append(head)
    for path in task.inheritance.new_params:
        if not any(name.startswith(path) for name in known):
            new.append(path)
    fresh = _fresh(task, tuple(new), partition)
    if fresh:
        distributed.say(f"note: {where} has no fitting {', '.join(fresh)}: newly initialized")
    return adapt(params, task, old_config, where, fresh)


def compare_models(old_config: ConfigDict, config: ConfigDict, where: str) -> None:
    """Prints what makes the saved parameters another function in the new model, though they may fit.

    Raises:
        RunError: in one of the models each token sees only those before it: its weights between
            tokens have other offsets.
    """
    old = config_lib.flat(old_config)
    new = config_lib.flat(config)
    changed = []
    for name, option in config_lib.keys(config).items():
        if option.architecture and name in old and old[name] != new[name]:
            changed.append(name)
    if "model.causal" in changed:
        sees = {False: "all tokens", True: "only the tokens before it"}
        there = sees[old["model.causal"]]
        here = sees[new["model.causal"]]
        raise RunError(
            f"in {where} each token sees {there}, and here {here}: start from a run of a task like "
            f"{config.task}"
        )
    if changed and "model.block" not in changed:
        differences = []
        for name in changed:
            key = name.removeprefix("model.")
            differences.append(f"{key} {old[name]!r} (here {new[name]!r})")
        shown = ", ".join(differences)
        distributed.say(f"note: {where} was trained with another config.model: {shown}")


def _fresh(task: Task, prefixes: tuple[str, ...], partition: Partition) -> dict[str, Any]:
    """New initial values of the parameters whose paths begin with one of the prefixes, by path."""

    def chosen(key: jax.Array) -> dict[str, Any]:
        flat = traverse_util.flatten_dict(task.init(key), sep="/")
        return {name: leaf for name, leaf in flat.items() if name.startswith(prefixes)}

    if not prefixes:
        return {}
    key = jax.random.key(task.config.seed)
    shardings = partition.shardings(jax.eval_shape(chosen, key))
    return jax.jit(chosen, out_shardings=shardings)(key)


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
        fresh: new initial values, by path, which replace saved ones.

    Returns:
        Nested dict of arrays with the shapes of the task's model.

    Raises:
        RunError: paths are missing or have another shape; all are listed.
    """
    flat: dict[str, Any] = traverse_util.flatten_dict(saved, sep="/")
    flat.update(fresh or {})
    wanted: dict[str, Any] = traverse_util.flatten_dict(task.shapes(), sep="/")
    grids = _grids(old_config, task.config)
    _refuse_other_rows(task.param_metadata(), wanted, grids, where)
    _resize(flat, wanted, task.param_metadata(), grids)
    try:
        require_fit(flat, wanted, where)
    except Unfit as error:
        before = tasks.find(old_config.task)(old_config).length
        if grids or before == task.length:  # images of another size were resized above
            raise
        raise Unfit(
            f"{error}; the saved model was made for {before} tokens, this config has {task.length}"
        ) from None
    return traverse_util.unflatten_dict({name: flat[name] for name in wanted}, sep="/")


def _refuse_other_rows(
    metadata: Mapping[str, ParamMetadata], names: Collection[str], grids: Grids | None, where: str
) -> None:
    """Raises Unfit for weights of offsets between patches if the rows have another length."""
    if grids is None or grids.old[1] == grids.new[1]:
        return
    for name in names:
        if of_offsets(metadata[name].resize):
            raise Unfit(
                f"{where} has {name}, of offsets between patches in rows of {grids.old[1]}, and "
                f"rows of {grids.new[1]} make them others: keep the width of images and patches, "
                "or start from a run with model.spatial=dense"
            )


def _resize(
    saved: dict[str, Any],
    wanted: Mapping[str, Any],
    metadata: Mapping[str, ParamMetadata],
    grids: Grids | None,
) -> None:
    """Resizes the saved parameters, by path, that have another shape or lie on another grid, if
    they have a rule for it."""
    has_other_grid = grids is not None and grids.old != grids.new
    for name, leaf in wanted.items():
        resize = metadata[name].resize
        if name not in saved or resize is None:
            continue
        if has_other_grid or saved[name].shape != leaf.shape:
            saved[name] = resize(saved[name], leaf.shape, grids)


def _grids(old_config: ConfigDict, config: ConfigDict) -> Grids | None:
    """The grids of patches of two configs, if both are image models with the same pooling."""
    old = old_config.model
    new = config.model
    if "patch_size" not in old or "patch_size" not in new or old.pool != new.pool:
        return None
    old_grid = patch_grid(old.image_size, old.patch_size)
    new_grid = patch_grid(new.image_size, new.patch_size)
    return Grids(old_grid, new_grid, int(new.pool == "cls"))
