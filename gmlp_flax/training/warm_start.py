"""Parameters from another run: as they are, or with their spatial projections made to fit another length."""

from __future__ import annotations

from typing import Any

import jax
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax.models import spatial, toeplitz
from gmlp_flax.models.image import patch_grid
from gmlp_flax.training.checkpoint import require_fit


def adapt(saved: Any, wanted: Any, old_config: ConfigDict, config: ConfigDict, where: str) -> Any:
    """Makes saved parameters fit a model.

    Toeplitz projections are cropped or extended to the model's length, dense ones over patches interpolated to its
    grid. All else must have the model's shapes.

    Args:
        saved: nested dict of arrays.
        wanted: nested dict of shapes.
        old_config, config: of the run that saved and of the run that reads.
        where: what was read, for messages.

    Returns:
        Nested dict of arrays with the wanted shapes.

    Raises:
        RunError: paths are missing or have another shape; all are listed.
    """
    flat = traverse_util.flatten_dict(saved, sep="/")
    flat_wanted = traverse_util.flatten_dict(wanted, sep="/")
    for name, leaf in flat_wanted.items():
        group, _, last = name.rpartition("/")
        if last not in ("taps", "weight") or name not in flat or flat[name].shape == leaf.shape:
            continue
        bias = f"{group}/bias"
        length = flat_wanted[bias].shape[-1]
        if last == "taps":
            fitted = jax.vmap(lambda t, b: _fit_taps(t, b, length))(flat[name], flat[bias])
        elif config.task == "image_classification" and config.model.pool == old_config.model.pool == "mean":
            grids = [patch_grid(c.model.image_size, c.model.patch_size) for c in (old_config, config)]
            fitted = jax.vmap(lambda w, b: spatial.resize(w, b, *grids))(flat[name], flat[bias])
        else:
            continue
        flat[name], flat[bias] = fitted
    require_fit(flat, flat_wanted, where)
    return traverse_util.unflatten_dict({name: flat[name] for name in flat_wanted}, sep="/")


def _fit_taps(taps: jax.Array, bias: jax.Array, length: int) -> tuple[jax.Array, jax.Array]:
    if length <= bias.shape[0]:
        return toeplitz.crop(taps, length), bias[:length]
    return toeplitz.extend(taps, bias, length)
