"""The MLP-Mixer block (arXiv 2105.01601)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models.layers import LayerNorm, activation
from gmlp_flax.models.mlp import ChannelMLP
from gmlp_flax.models.products import over_tokens
from gmlp_flax.models.spec import EncoderSpec


class TokenLinear(nnx.Module):
    """W Z + b over the token axis, the same for all channels: `weight` [out, in], Glorot-uniform, and `bias` [out]."""

    def __init__(self, spec: EncoderSpec, tokens_in: int, tokens_out: int, rngs: nnx.Rngs):
        init = nnx.initializers.glorot_uniform()
        self.weight = nnx.Param(init(rngs.params(), (tokens_out, tokens_in), spec.param_dtype))
        self.bias = nnx.Param(jnp.zeros((tokens_out,), spec.param_dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, in, channels] to [batch, out, channels] in the type of x."""
        return over_tokens(self.weight.astype(x.dtype), x) + self.bias[:, None].astype(x.dtype)


class TokenMLP(nnx.Module):
    """Each channel's tokens, n to d_spatial to n, with the activation between."""

    def __init__(self, spec: EncoderSpec, rngs: nnx.Rngs):
        self.proj_in = TokenLinear(spec, spec.length, spec.d_spatial, rngs)
        self.proj_out = TokenLinear(spec, spec.d_spatial, spec.length, rngs)
        self.spec = spec

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, n, channels] to the same.

        Raises:
            ValueError: another number of tokens than n.
        """
        n, tokens = self.spec.length, x.shape[-2]
        if tokens != n:
            raise ValueError(f"the token MLP was made for exactly {n} tokens and was given {tokens}")
        return self.proj_out(activation(self.spec.activation, self.proj_in(x)))


class MixerBlock(nnx.Module):
    """x + tokens(norm(x)), then x + channels(norm(x)): one MLP across tokens, one across channels."""

    def __init__(self, spec: EncoderSpec, rngs: nnx.Rngs):
        self.token_norm = LayerNorm(spec, spec.d_model)
        self.token_mlp = TokenMLP(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(self, x: jax.Array, residual: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
        """[batch, tokens, d_model] to the same."""
        x = residual(x, self.token_mlp(self.token_norm(x)))
        return residual(x, self.mlp(self.mlp_norm(x)))
