"""Parameters from another run: as they are, or made to fit another length, resolution or set of classes."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.sharding import Mesh
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.models import spatial, toeplitz
from gmlp_flax.models.image import patch_grid
from gmlp_flax.tasks.base import Task
from gmlp_flax.training import distributed, folder, partition
from gmlp_flax.training.assets import Files
from gmlp_flax.training.checkpoint import require_fit

# Which axis of parameters [layers, ...] is that of the tokens that they give, and which of those that they sum over.
OVER_TOKENS = {
    "spatial/weight": (1, 2), "spatial/bias": (1, None), "token_linear/weight": (1, 2), "token_linear/bias": (1, None),
    "token_mlp/proj_in/weight": (None, 2), "token_mlp/proj_out/weight": (1, None), "token_mlp/proj_out/bias": (1, None),
    "token_norm/scale": (1, None), "token_norm/bias": (1, None),  # the feed-forward stack's, over tokens
    "positions/table": (0, None),  # has no layers
}


def inherit(config: ConfigDict, workdir: str) -> tuple[ConfigDict, Files]:
    """What a run takes over from `config.init_from` before its model can be made.

    Args:
        config: as given.
        workdir: the run folder. A run that goes on finds there what it took over, and does not need the other one.

    Returns:
        The config with the other run's model, as far as the task inherits it; and the task's shared files. What the
        config says otherwise, beside its defaults, is named on standard error.

    Raises:
        RunError: there is no such run or checkpoint.
    """
    task = tasks.TASKS[config.task]
    if not config.init_from or not task.shared_assets:
        return config, {}
    own, files = os.path.join(workdir, folder.CONFIG_FILE), {}
    if os.path.exists(own):
        old_config = config_lib.load(own)
    else:
        source, step, old_config = folder.parameter_source(config.init_from)
        files = {name: content for name, content in source.read_files(step).items() if name in task.shared_assets}
        source.close()
    config = config.copy_and_resolve_references()
    taken, usual = {key: old_config.model[key] for key in task.inherits}, config_lib.default().model
    unheard = [key for key in taken if config.model[key] not in (taken[key], usual[key])]
    if unheard:
        what = ", ".join(f"{key} {taken[key]!r} (not {config.model[key]!r})" for key in unheard)
        distributed.say(f"note: the model is that of {config.init_from}: config.model's {what}")
    config.model.update(taken)
    return config, files


def load(task: Task, shapes: Any, mesh: Mesh) -> Any:
    """Parameters of the run or checkpoint that `config.init_from` names, made to fit a task's model.

    Args:
        task: what is to be trained.
        shapes: of its parameters.
        mesh: the devices they go to.

    Returns:
        Nested dict of arrays. Heads of other classes than the task's are new, as is what the task's model adds.

    Raises:
        RunError: there is no such checkpoint, it belongs to another vocabulary, or it does not fit.
    """
    config, own = task.config, task.assets()
    source, step, old_config = folder.parameter_source(config.init_from)
    source.files = {name: own[name] for name in task.shared_assets}
    template = {"params": partition.describe(source.shapes(step)["params"], mesh)}
    params, files = source.restore(step, template)["params"], source.read_files(step)
    source.close()
    known = traverse_util.flatten_dict(params, sep="/")
    heads = [head for name, head in task.heads.items() if files.get(name) != own[name]]
    added = [path for path in task.added if not any(name.startswith(path) for name in known)]
    fresh = _fresh(task, (*heads, *added), mesh)
    if fresh:
        distributed.say(f"note: start anew, as {config.init_from} has no such: {', '.join(fresh)}")
    return adapt(params, shapes, old_config, config, f"{source.folder}/{step}", fresh)


def _fresh(task: Task, prefixes: tuple[str, ...], mesh: Mesh) -> dict[str, jax.Array]:
    """New parameters by path, those whose paths begin so."""
    def chosen(key: jax.Array) -> dict[str, jax.Array]:
        flat = traverse_util.flatten_dict(task.init(key), sep="/")
        return {name: leaf for name, leaf in flat.items() if name.startswith(prefixes)}

    if not prefixes:
        return {}
    return jax.jit(chosen, out_shardings=partition.replicated(mesh))(jax.random.key(task.config.seed))


def adapt(
    saved: Any, wanted: Any, old_config: ConfigDict, config: ConfigDict, where: str, fresh: dict[str, jax.Array]
) -> Any:
    """Makes saved parameters fit a model.

    Toeplitz projections and biases of offsets are cropped or extended to the model's length. Of images, dense layers
    over tokens and learned positions are interpolated over the grid of patches; a cls token's part stays. Positions of
    text are cropped. All else must have the model's shapes.

    Args:
        saved: nested dict of arrays.
        wanted: nested dict of shapes.
        old_config, config: of the run that saved and of the run that reads.
        where: what was read, for messages.
        fresh: parameters by path that start anew instead.

    Returns:
        Nested dict of arrays with the wanted shapes.

    Raises:
        RunError: paths are missing or have another shape; all are listed.
    """
    flat = traverse_util.flatten_dict(saved, sep="/") | fresh
    flat_wanted = traverse_util.flatten_dict(wanted, sep="/")
    misfits = {
        name: leaf.shape for name, leaf in flat_wanted.items() if name in flat and flat[name].shape != leaf.shape
    }
    grids = _grids(old_config, config)
    for name, shape in misfits.items():
        module = name.rpartition("/")[0]
        if f"{module}/taps" in flat:
            if name.endswith("/taps"):
                flat |= _fit_toeplitz(flat, module, flat_wanted[f"{module}/bias"].shape[-1])
        elif name.endswith("relative/bias") and not old_config.model.relative_buckets | config.model.relative_buckets:
            flat[name] = _fit_offsets(flat[name], shape[-1])
        elif grids:
            flat[name] = _fit_patches(flat[name], name, *grids)
        elif name == "positions/table":
            flat[name] = flat[name][: shape[0]]
    require_fit(flat, flat_wanted, where)
    return traverse_util.unflatten_dict({name: flat[name] for name in flat_wanted}, sep="/")


def _grids(old_config: ConfigDict, config: ConfigDict) -> tuple[spatial.Grid, spatial.Grid, int] | None:
    """Grids of patches before and after and the number of tokens in front, where both are images with as many."""
    if not old_config.task == config.task == "image_classification" or old_config.model.pool != config.model.pool:
        return None
    old, new = (patch_grid(c.model.image_size, c.model.patch_size) for c in (old_config, config))
    return old, new, int(config.model.pool == "cls")


def _fit_offsets(bias: jax.Array, entries: int) -> jax.Array:
    """[..., offsets] made to serve more tokens, whose offsets get the farthest known ones' biases, or fewer."""
    more = (entries - bias.shape[-1]) // 2
    if more < 0:
        return bias[..., -more:more]
    return jnp.pad(bias, [*[(0, 0)] * (bias.ndim - 1), (more, more)], mode="edge")


def _fit_patches(x: jax.Array, name: str, old: spatial.Grid, new: spatial.Grid, prefix: int) -> jax.Array:
    """A parameter of an image model for other patches, if its path and shape say that it has an axis of them."""
    axes = next((axes for ending, axes in OVER_TOKENS.items() if name.endswith(ending)), (None, None))
    for axis, resize in zip(axes, (spatial.resize_tokens, spatial.resize_inputs), strict=True):
        if axis is not None and x.shape[axis] == prefix + old[0] * old[1]:
            x = resize(x, axis, old, new, prefix)
    return x


def _fit_toeplitz(flat: dict[str, jax.Array], module: str, length: int) -> dict[str, jax.Array]:
    """The taps and biases of all layers, by their paths, for `length` tokens."""
    def fit(taps: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        if length <= bias.shape[0]:
            return toeplitz.crop(taps, length), bias[:length]
        return toeplitz.extend(taps, bias, length)

    names = f"{module}/taps", f"{module}/bias"
    return dict(zip(names, jax.vmap(fit)(*(flat[name] for name in names)), strict=True))
