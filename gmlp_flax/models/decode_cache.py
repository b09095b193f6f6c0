"""What a causal model keeps of the tokens that it has read, so that the next one costs no second reading of them."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp


class DecodeCache:
    """One layer's memory of up to n tokens, which its mixing reads and adds to.

    Attributes:
        kept: arrays by name, the tokens along an axis of n; empty before the first token.
        first: the place of the tokens that are read now, counted from 0; place + tokens is at most n.
    """

    def __init__(self, kept: Mapping[str, jax.Array], first: jax.Array, length: int):
        self.kept, self.first, self.length = dict(kept), first, length

    def update(self, name: str, values: jax.Array, axis: int = 1) -> jax.Array:
        """Keeps the values of the tokens that are read now, and returns those of all n places.

        Places behind them hold zeros, or values of padding: no causal output depends on them.

        Args:
            name: of the values, one per layer.
            values: the tokens along `axis`.
            axis: not negative.
        """
        if name not in self.kept:
            shape = (*values.shape[:axis], self.length, *values.shape[axis + 1 :])
            self.kept[name] = jnp.zeros(shape, values.dtype)
        self.kept[name] = jax.lax.dynamic_update_slice_in_dim(self.kept[name], values, self.first, axis)
        return self.kept[name]
