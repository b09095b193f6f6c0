"""The MLPs of Transformers and Mixers: across the channels of a token, and across the tokens of a channel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models import layout
from gmlp_flax.models.layers import activation, Linear
from gmlp_flax.models.products import over_tokens
from gmlp_flax.models.spec import EncoderSpec


class ChannelMLP(nnx.Module):
    """Each token's channels, d_model to d_ffn to d_model, with the activation between."""

    def __init__(self, spec: EncoderSpec, rngs: nnx.Rngs):
        self.proj_in = Linear(spec, spec.d_model, spec.d_ffn, rngs)
        self.proj_out = Linear(spec, spec.d_ffn, spec.d_model, rngs)
        self.activation = spec.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to the same."""
        hidden = layout.cut(self.proj_in(x), layout.BATCH, None, layout.TENSOR)
        return self.proj_out(activation(self.activation, hidden))


def check_tokens(x: jax.Array, tokens: int) -> None:
    """Refuses activations [batch, tokens, channels] of another number of tokens than a layer over them has weights for.

    Raises:
        ValueError: giving both numbers.
    """
    if x.shape[-2] != tokens:
        raise ValueError(f"the layer over tokens was made for exactly {tokens} tokens and was given {x.shape[-2]}")


class TokenLinear(nnx.Module):
    """W Z + b over the token axis, the same for all channels: `weight` [out, in], Glorot-uniform, and `bias` [out]."""

    def __init__(self, spec: EncoderSpec, tokens_in: int, tokens_out: int, rngs: nnx.Rngs):
        init = nnx.initializers.glorot_uniform()
        self.weight = nnx.Param(init(rngs.params(), (tokens_out, tokens_in), spec.param_dtype))
        self.bias = nnx.Param(jnp.zeros((tokens_out,), spec.param_dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, in, channels] to [batch, out, channels] in the type of x.

        Raises:
            ValueError: another number of tokens than `in`.
        """
        check_tokens(x, self.weight.shape[1])
        return over_tokens(self.weight.astype(x.dtype), x) + self.bias[:, None].astype(x.dtype)


class TokenMLP(nnx.Module):
    """Each channel's tokens, n to d_spatial to n, with the activation between."""

    def __init__(self, spec: EncoderSpec, rngs: nnx.Rngs):
        self.proj_in = TokenLinear(spec, spec.length, spec.d_spatial, rngs)
        self.proj_out = TokenLinear(spec, spec.d_spatial, spec.length, rngs)
        self.activation = spec.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, n, channels] to the same.

        Raises:
            ValueError: another number of tokens than n.
        """
        return self.proj_out(activation(self.activation, self.proj_in(x)))
