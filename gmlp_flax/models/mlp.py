"""The channel MLP of Transformers and Mixers."""

from __future__ import annotations

import jax
from flax import nnx

from gmlp_flax.models.layers import activation, Linear
from gmlp_flax.models.spec import EncoderSpec


class ChannelMLP(nnx.Module):
    """Each token's channels, d_model to d_ffn to d_model, with the activation between."""

    def __init__(self, spec: EncoderSpec, rngs: nnx.Rngs):
        self.proj_in = Linear(spec, spec.d_model, spec.d_ffn, rngs)
        self.proj_out = Linear(spec, spec.d_ffn, spec.d_model, rngs)
        self.activation = spec.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to the same."""
        return self.proj_out(activation(self.activation, self.proj_in(x)))
