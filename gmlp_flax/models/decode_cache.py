"""The cache with which a causal model continues a text without reading its earlier tokens again."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

CacheArrays = dict[str, jax.Array]  # of the layers of a stack: the leading axis of each array is the layer


class DecodeCache:
    """What one layer stores of up to n tokens: keys and values of attention, inputs of a spatial projection.

    Attributes:
        arrays: by name, with the tokens along an axis of n; empty before the first token.
        first: position of the first token of this call, from 0. All positions of the call lie below n.
    """

    def __init__(self, arrays: Mapping[str, jax.Array], first: jax.Array, length: int):
        self.arrays, self.first, self.length = dict(arrays), first, length

    def update(self, name: str, values: jax.Array, axis: int = 1) -> jax.Array:
        """Stores values of the tokens of this call, and returns those of all n positions.

        Later positions hold zeros, or values of padding: no causal output depends on them.

        Args:
            name: name of the values, unique within a layer.
            values: the tokens of this call along `axis`, which is not negative.
        """
        if name not in self.arrays:
            shape = (*values.shape[:axis], self.length, *values.shape[axis + 1 :])
            self.arrays[name] = jnp.zeros(shape, values.dtype)
        self.arrays[name] = jax.lax.dynamic_update_slice_in_dim(self.arrays[name], values, self.first, axis)
        return self.arrays[name]
