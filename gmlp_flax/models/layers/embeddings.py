"""Learned vectors of positions and of segments."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models.parameters import Resize, parameter
from gmlp_flax.models.spec import BlockSpec


class LearnedPositions(nnx.Module):
    """One vector per position, as in BERT and ViT, for any number of tokens up to n.

    Parameter: `table` [length, d_model], normal with a standard deviation of 0.02 at the start.
    `resize` says how it is resized for another number of positions.
    """

    def __init__(self, spec: BlockSpec, rngs: nnx.Rngs, resize: Resize):
        init = nnx.initializers.normal(0.02)  # BERT's and ViT's
        shape = (spec.length, spec.d_model)
        table = init(rngs.params(), shape, spec.param_dtype)
        self.table = parameter(table, decayed=False, resize=resize)

    def __call__(self, x: Array, first: Array | int = 0) -> Array:
        """[batch, tokens, d_model] to the same, in the type of x; `first` is the position of the
        first token. Raises ValueError for more tokens than the table has rows."""
        rows = self.table.shape[0]
        tokens = x.shape[-2]
        if tokens > rows:
            raise ValueError(
                f"the positions were made for at most {rows} tokens and were given {tokens}"
            )
        table = self.table[...]
        vectors = jax.lax.dynamic_slice_in_dim(table, first, tokens)
        return x + vectors.astype(x.dtype)


class LearnedSegments(nnx.Module):
    """One vector per segment, as in BERT for the two texts of a pair.

    Parameter: `table` [rows, d_model]. It starts at 0, so that it does not change a model that was
    pretrained without segments. A model that is pretrained with them passes `rngs`, and its table
    starts like that of positions.
    """

    def __init__(self, spec: BlockSpec, rows: int = 2, rngs: nnx.Rngs | None = None):
        shape = (rows, spec.d_model)
        if rngs is None:
            table = jnp.zeros(shape)
        else:
            init = nnx.initializers.normal(0.02)
            table = init(rngs.params(), shape)
        table = table.astype(spec.param_dtype)
        self.table = parameter(table, decayed=False)

    def __call__(self, x: Array, segments: Array) -> Array:
        """x [batch, tokens, d_model] plus the vector of each token's segment, in the type of x.
        `segments` are int [batch, tokens], below the number of rows."""
        table = self.table[...]
        vectors = jnp.take(table, segments, axis=0, mode="clip")
        rounded = vectors.astype(x.dtype)  # last: gradients are summed in the table's type
        return x + rounded
