"""The Transformer block (Vaswani et al., 2017), the baseline of the paper's tables."""

from __future__ import annotations

from collections.abc import Callable

import jax
from flax import nnx

from gmlp_flax.models.attention import MultiHeadAttention
from gmlp_flax.models.layers import LayerNorm
from gmlp_flax.models.mlp import ChannelMLP
from gmlp_flax.models.spec import EncoderSpec


class TransformerBlock(nnx.Module):
    """x + attention(norm(x)), then the same with the channel MLP.

    Pre-norm, where BERT is post-norm: the paper does not say which its baselines are, and a post-norm stack of 48 or
    96 blocks would hardly train. gMLP's own block is pre-norm, so this also leaves one difference fewer between them.
    """

    final_norm = LayerNorm

    def __init__(self, spec: EncoderSpec, rngs: nnx.Rngs):
        self.attention_norm = LayerNorm(spec, spec.d_model)
        self.attention = MultiHeadAttention(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(
        self, x: jax.Array, residual: Callable[[jax.Array, jax.Array], jax.Array], seen: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """[batch, tokens, d_model] to the same."""
        x = residual(x, self.attention(self.attention_norm(x), seen, key))
        return residual(x, self.mlp(self.mlp_norm(x)))
