"""What a causal model keeps from the tokens that it has read."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

# of all layers of a stack: the leading axis of each array is the layer
CacheArrays = dict[str, Array]


class DecodeCache:
    """What one layer stores of up to n tokens, so that a causal model can continue a text without
    reading its earlier tokens again: keys and values of attention, inputs of a spatial projection,
    states of a recurrence.

    Attributes:
        arrays: by name: values of tokens, with an axis of n positions, or states, without one. Empty
            before the first token.
        first: position of the first token of this call, from 0. All positions of the call are below
            n.
        length: n.
        text: number of tokens of this call that are not padding; None if none is padding.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        first: Array,
        length: int,
        text: Array | None = None,
    ):
        self.arrays = dict(arrays)
        self.first = first
        self.length = length
        self.text = text

    def update(self, name: str, values: Array, axis: int = 1) -> Array:
        """Stores values of the tokens of this call, and returns those of all n positions.

        Later positions hold zeros, or values of padding: no causal output depends on them.

        Args:
            name: name of the values, unique within a layer.
            values: the tokens of this call along `axis`, which is not negative.
        """
        stored = self.arrays.get(name)
        if stored is None:
            shape = list(values.shape)
            shape[axis] = self.length
            stored = jnp.zeros(shape, values.dtype)
        updated = jax.lax.dynamic_update_slice_in_dim(stored, values, self.first, axis)
        self.arrays[name] = updated
        return updated

    def state(self, name: str, initial: Array) -> Array:
        """The stored state of a recurrence, after the last token of the previous call; `initial` if
        there was none."""
        return self.arrays.get(name, initial)

    def store(self, name: str, state: Array) -> None:
        """Stores the state after the last token of this call that is not padding (`count`)."""
        self.arrays[name] = state

    def with_earlier(self, name: str, values: Array, count: int) -> Array:
        """Values of the last `count` tokens before this call, followed by those of this call: [batch,
        tokens, ...] to [batch, count + tokens, ...]. Zeros precede the first token of a text.

        Only the last `count` tokens are stored, as a state, for causal outputs that read no others.
        """
        batch, tokens, *rest = values.shape
        shape = (batch, count, *rest)
        zeros = jnp.zeros(shape, values.dtype)
        earlier = self.state(name, zeros)
        whole = jnp.concatenate([earlier, values], axis=1)
        first_kept = self.count(tokens)  # the kept tokens end with the last that is not padding
        last = jax.lax.dynamic_slice_in_dim(whole, first_kept, count, axis=1)
        self.store(name, last)
        return whole

    def count(self, tokens: int) -> Array | int:
        """How many of the `tokens` of this call are not padding. Padding follows them."""
        if self.text is None:
            return tokens
        return self.text
