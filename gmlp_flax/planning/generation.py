"""What a generated token costs, counted on the programs of a causal model."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gmlp_flax.models.flops import matmul_flops
from gmlp_flax.tasks.generation import TextGenerator


class TokenCost(NamedTuple):
    """The cost of one more token.

    Attributes:
        flops: operations in matrix products.
        window_flops: the same if all n tokens of a full window are read from scratch.
        cache_bytes: the cache of a window.
    """

    flops: int
    window_flops: int
    cache_bytes: int


def token_cost(generator: TextGenerator, params: Any) -> TokenCost:
    """What a token costs; `params` are parameters, or their shapes."""

    def tokens(count: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, count), jnp.int32)

    position = jax.ShapeDtypeStruct((), jnp.int32)
    window = params, tokens(generator.length), None, position, position
    _, cache = jax.eval_shape(generator.extend, *window)
    cache_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))
    flops = matmul_flops(generator.extend, params, tokens(1), cache, position, position)
    return TokenCost(flops, matmul_flops(generator.extend, *window), cache_bytes)
