"""Metadata of parameters, stated where a parameter is made: how it is sharded, decayed, and fitted to other lengths.

Training code reads them with `metadata`. No file outside the models lists parameters by name.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
from flax import nnx

from gmlp_flax.models.resize import Resize


class ParamMetadata(NamedTuple):
    """What training needs to know of a parameter.

    Attributes:
        sharding: the mesh axis along which each of its last axes is cut, None for an axis that stays whole. Axes
            before those, such as the layers', stay whole.
        decayed: whether weight decay applies: not to norms, biases, cls tokens and learned positions.
        resize: how it is made to serve another number of tokens; None if that does not concern it.
        max_logit_gap: how far its entries may have to travel in training: ln(n - 1) for a bias on the logits of a softmax over
            n tokens, with which half of the mass lies on one token; 0 if nothing is known.
    """

    sharding: tuple[str | None, ...] = ()
    decayed: bool = True
    resize: Resize | None = None
    max_logit_gap: float = 0.0


def parameter(
    value: jax.Array,
    *,
    sharding: tuple[str | None, ...] = (),
    decayed: bool = True,
    resize: Resize | None = None,
    max_logit_gap: float = 0.0,
) -> nnx.Param:
    """A parameter with its `ParamMetadata`."""
    return nnx.Param(value, param_metadata=ParamMetadata(sharding, decayed, resize, max_logit_gap))


def count(shapes: Any) -> int:
    """The number of parameters in a tree of arrays or shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def metadata(module: nnx.Module) -> dict[str, ParamMetadata]:
    """The metadata of all parameters of a module (its shapes are enough), by path, such as `encoder/norm/scale`.

    A plain `nnx.Param` stays whole on every device, is decayed, and serves one number of tokens.
    """
    state = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {
        "/".join(map(str, path)): variable.get_metadata().get("param_metadata", ParamMetadata())
        for path, variable in state
    }
