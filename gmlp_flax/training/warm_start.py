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
from gmlp_flax.models.parameters import Grids, ParamMetadata, is_for_offsets
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
        workdir: its folder; "" for a new run. A run that resumes finds all that it has inherited
            there, so that the other model may have been deleted.
        init: the model that starts the run, instead of `config.init_from`. The config has its keys
            already (`config.with_model_of`).

    Raises:
        UserError: there is no such model, or it cannot be read.
    """
    task = tasks.find(config.task)
    shared = task.inheritance.shared
    if init is not None:
        files = _only(shared, init.files)
        return config_lib.Start(init.where, config, files)
    if not config.init_from:
        return None
    options = config_lib.keys(config).values()
    inherits_keys = any(option.inherited for option in options)
    if not shared and not inherits_keys:
        return None
    run_config = os.path.join(workdir, CONFIG_FILE)
    if workdir and io_files.exists(run_config):
        resumed = config_lib.load(run_config)
        return config_lib.Start(config.init_from, resumed, {})
    opened = _open_init_from(config.init_from)
    files = _only(shared, opened.files)
    return config_lib.Start(config.init_from, opened.config, files)


def _open_init_from(name: str) -> Pretrained:
    try:
        return pretrained.open_model(name)
    except UserError as error:
        raise type(error)(f"config.init_from is {name}: {error}") from None


def _only(names: Collection[str], files: Files) -> Files:
    return {name: content for name, content in files.items() if name in names}


def inherits_parameters(config: ConfigDict, init: Pretrained | None) -> bool:
    """Whether a run starts from the parameters of another model."""
    if init is not None:
        return True
    return bool(config.init_from and config.init_parameters)


def load(task: Task, partition: Partition, init: Pretrained | None = None) -> Any:
    """The parameters from which a run starts, adapted to its model.

    A head for other classes than the task's gets new initial values, and so do parameters that only
    the task's model has.

    Args:
        task: of the run.
        partition: of the run, which places the parameters.
        init: the model to read them from, `config.init_from` if None. If the running mean of its
            parameters was kept, the mean is read.

    Returns:
        A nested dict of arrays.

    Raises:
        RunError: there is no such model, it was trained with another vocabulary, it does not fit,
            or one model sees only earlier tokens and the other all.
    """
    config = task.config
    if init is None:
        init = _open_init_from(config.init_from)
    shared_files = _only(task.inheritance.shared, task.files)
    require_same(init.files, shared_files, init.where)
    name = config.init_from or init.where
    compare_models(init.config, config, name)
    metadata = task.param_metadata()
    partition = partition.for_model(metadata)
    params = init.read(partition)
    return carry_over(params, init.files, task, init.config, partition, init.where)


def carry_over(
    params: Any, files: Files, task: Task, old_config: ConfigDict, partition: Partition, where: str
) -> Any:
    """`adapt`, with new initial values for a head of other classes than those in the saved model's
    `files`, and for the parameters that only the task's model has."""
    prefixes = _fresh_prefixes(params, files, task)
    fresh = _fresh(task, prefixes, partition)
    if fresh:
        names = ", ".join(fresh)
        distributed.say(f"note: {where} has no fitting {names}: newly initialized")
    note = _note_of_length(task, old_config, where)
    if note:
        distributed.say(note)
    return adapt(params, task, old_config, where, fresh)


def _fresh_prefixes(params: Any, files: Files, task: Task) -> tuple[str, ...]:
    """The first parts of the paths of the task's parameters that get new initial values."""
    prefixes = []
    for name, head in task.inheritance.heads.items():
        saved_classes = files.get(name)
        classes = task.files.get(name)
        if saved_classes != classes:
            prefixes.append(head)
    saved_paths = traverse_util.flatten_dict(params, sep="/")
    for prefix in task.inheritance.new_params:
        is_saved = any(path.startswith(prefix) for path in saved_paths)
        if not is_saved:
            prefixes.append(prefix)
    return tuple(prefixes)


def compare_models(old_config: ConfigDict, config: ConfigDict, where: str) -> None:
    """Prints what makes the saved parameters compute something else in the new model, even if they
    fit.

    Raises:
        RunError: only in one of the models each token sees only those before it, so its weights
            between tokens have other offsets.
    """
    old = config_lib.flat(old_config)
    new = config_lib.flat(config)
    changed = []
    for name, option in config_lib.keys(config).items():
        is_compared = option.architecture and name in old
        if is_compared and old[name] != new[name]:
            changed.append(name)
    if "model.causal" in changed:
        sees = {False: "all tokens", True: "only the tokens before it"}
        seen_before = sees[old["model.causal"]]
        seen_now = sees[new["model.causal"]]
        raise RunError(
            f"in {where} each token sees {seen_before}, and here {seen_now}: start from a run of a task like "
            f"{config.task}"
        )
    if not changed or "model.block" in changed:
        return
    differences = []
    for name in changed:
        key = name.removeprefix("model.")
        differences.append(f"{key} {old[name]!r} (here {new[name]!r})")
    shown = ", ".join(differences)
    distributed.say(f"note: {where} was trained with another config.model: {shown}")


def _note_of_length(task: Task, old_config: ConfigDict, where: str) -> str:
    """A line if the task's model has another length than the saved one, and its blocks therefore
    mix the same tokens with other weights; else ""."""
    if "block" not in task.config.model or not task.spec().mixes_by_length:
        return ""
    old_kind = tasks.find(old_config.task)
    old_task = old_kind(old_config)
    if old_task.length == task.length:
        return ""
    block = task.config.model.block
    return (
        f"note: {where} was trained with {old_task.length} tokens (here {task.length}), and the "
        f"weights between tokens of {block} depend on that: they are not those it has learned"
    )


def _fresh(task: Task, prefixes: tuple[str, ...], partition: Partition) -> dict[str, Any]:
    """New initial values of the parameters whose paths begin with one of the prefixes, by path."""
    if not prefixes:
        return {}

    def init(key: jax.Array) -> dict[str, Any]:
        params = task.init(key)
        by_path = traverse_util.flatten_dict(params, sep="/")
        fresh = {}
        for path, leaf in by_path.items():
            if path.startswith(prefixes):
                fresh[path] = leaf
        return fresh

    key = jax.random.key(task.config.seed)
    shapes = jax.eval_shape(init, key)
    shardings = partition.shardings(shapes)
    init_on_mesh = jax.jit(init, out_shardings=shardings)
    return init_on_mesh(key)


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
        task: of the run that reads them.
        old_config: of the run that saved them.
        where: the source of the parameters, for messages.
        fresh: new initial values, by path, which replace saved ones.

    Returns:
        Nested dict of arrays with the shapes of the task's model.

    Raises:
        RunError: paths are missing or have another shape; all are listed.
    """
    flat: dict[str, Any] = traverse_util.flatten_dict(saved, sep="/")
    flat.update(fresh or {})
    shapes = task.shapes()
    wanted: dict[str, Any] = traverse_util.flatten_dict(shapes, sep="/")
    grids = _grids(old_config, task.config)
    metadata = task.param_metadata()
    _refuse_other_rows(metadata, wanted, grids, where)
    _resize(flat, wanted, metadata, grids)
    try:
        require_fit(flat, wanted, where)
    except Unfit as error:
        old_kind = tasks.find(old_config.task)
        old_task = old_kind(old_config)
        if grids or old_task.length == task.length:  # images of another size were resized above
            raise
        raise Unfit(
            f"{error}; the saved model was made for {old_task.length} tokens, this config has "
            f"{task.length}"
        ) from None
    adapted = {name: flat[name] for name in wanted}
    return traverse_util.unflatten_dict(adapted, sep="/")


def _refuse_other_rows(
    metadata: Mapping[str, ParamMetadata], names: Collection[str], grids: Grids | None, where: str
) -> None:
    """Raises Unfit for weights of offsets between patches if the rows have another length."""
    if grids is None:
        return
    _, old_row = grids.old
    _, new_row = grids.new
    if old_row == new_row:
        return
    for name in names:
        resize = metadata[name].resize
        if is_for_offsets(resize):
            raise Unfit(
                f"{where} has {name}, of offsets between patches in rows of {old_row}, and rows "
                f"of {new_row} make them others: keep the width of images and patches, or start "
                "from a run with model.spatial=dense"
            )


def _resize(
    saved: dict[str, Any],
    wanted: Mapping[str, Any],
    metadata: Mapping[str, ParamMetadata],
    grids: Grids | None,
) -> None:
    """Resizes, in place, the saved parameters that have another shape or lie on another grid, if
    they have a rule for it. `saved` and `wanted` are by path."""
    has_other_grid = grids is not None and grids.old != grids.new
    for name, leaf in wanted.items():
        resize = metadata[name].resize
        if name not in saved or resize is None:
            continue
        value = saved[name]
        has_other_shape = value.shape != leaf.shape
        if has_other_grid or has_other_shape:
            saved[name] = resize(value, leaf.shape, grids)


def _grids(old_config: ConfigDict, config: ConfigDict) -> Grids | None:
    """The grids of patches of two configs, if both are image models with the same pooling."""
    old = old_config.model
    new = config.model
    if "patch_size" not in old or "patch_size" not in new:
        return None
    if old.pool != new.pool:
        return None
    old_grid = patch_grid(old.image_size, old.patch_size)
    new_grid = patch_grid(new.image_size, new.patch_size)
    class_tokens = 1 if new.pool == "cls" else 0
    return Grids(old_grid, new_grid, class_tokens)
