"""Metadata of parameters, stated where a parameter is made: sharding, weight decay, resizing for other lengths.

Training reads it with `metadata`. No file outside the models lists parameters by name.
"""

import math
from typing import Any, NamedTuple

import jax
from flax import nnx

from gmlp_flax.models.resize import Resize


class ParamMetadata(NamedTuple):
    """What training needs to know about a parameter.

    Attributes:
        sharding: the mesh axis of each of its last axes, None for an axis that is not sharded. Axes before them, such
            as the layer, are not sharded.
        decayed: whether weight decay applies: not to norms, biases, cls tokens and learned positions.
        resize: how it is resized for another number of tokens; None if its shape does not depend on that.
    """

    sharding: tuple[str | None, ...] = ()
    decayed: bool = True
    resize: Resize | None = None


def parameter(value: jax.Array, **metadata: Any) -> nnx.Param:
    """A parameter with its `ParamMetadata`, whose fields are the other arguments."""
    return nnx.Param(value, param_metadata=ParamMetadata(**metadata))


def count(shapes: Any) -> int:
    """The number of parameters in a tree of arrays or shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def metadata(module: nnx.Module) -> dict[str, ParamMetadata]:
    """Path, such as `encoder/norm/scale` -> metadata, for all parameters of a module. Shapes instead of arrays suffice.

    A plain `nnx.Param` is not sharded, is decayed, and cannot be resized.
    """
    state = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {
        "/".join(map(str, path)): variable.get_metadata().get("param_metadata", ParamMetadata())
        for path, variable in state
    }
