"""The MLP-Mixer block (arXiv 2105.01601)."""

from __future__ import annotations

from collections.abc import Callable

import jax
from flax import nnx

from gmlp_flax.models.layers import LayerNorm
from gmlp_flax.models.mlp import ChannelMLP, TokenMLP
from gmlp_flax.models.spec import EncoderSpec


class MixerBlock(nnx.Module):
    """x + tokens(norm(x)), then x + channels(norm(x)): one MLP across tokens, one across channels."""

    final_norm = LayerNorm

    def __init__(self, spec: EncoderSpec, rngs: nnx.Rngs):
        self.token_norm = LayerNorm(spec, spec.d_model)
        self.token_mlp = TokenMLP(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(
        self, x: jax.Array, residual: Callable[[jax.Array, jax.Array], jax.Array], seen: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """[batch, tokens, d_model] to the same."""
        x = residual(x, self.token_mlp(self.token_norm(x)))
        return residual(x, self.mlp(self.mlp_norm(x)))
