"""Learned absolute positions, added to what a stem or an embedding gives."""

from __future__ import annotations

import jax
from flax import nnx

from gmlp_flax.models.spec import EncoderSpec


class LearnedPositions(nnx.Module):
    """One vector a position, `table` [length, d_model], as BERT and ViT have them. Takes any length up to n."""

    def __init__(self, spec: EncoderSpec, rngs: nnx.Rngs):
        init = nnx.initializers.normal(0.02)  # BERT's and ViT's
        self.table = nnx.Param(init(rngs.params(), (spec.length, spec.d_model), spec.param_dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to the same, in the type of x.

        Raises:
            ValueError: more tokens than the table has rows.
        """
        rows, tokens = self.table.shape[0], x.shape[-2]
        if tokens > rows:
            raise ValueError(f"the positions were made for at most {rows} tokens and were given {tokens}")
        return x + self.table[:tokens].astype(x.dtype)
