"""The ResMLP block (arXiv 2105.03404, section 2): one linear layer across patches, no statistics of activations."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models.mlp import ChannelMLP, TokenLinear
from gmlp_flax.models.spec import EncoderSpec


class Affine(nnx.Module):
    """alpha x + beta, one of each a channel (the paper's Aff, which stands where others normalise).

    Parameters: `scale` [channels], the paper's alpha, from 1, and `bias` [channels], its beta, from 0; named as a
    norm's, they are exempt from weight decay like them. Computed in float32, returned in the compute type.
    """

    def __init__(self, spec: EncoderSpec, channels: int):
        self.scale = nnx.Param(jnp.ones((channels,), spec.param_dtype))
        self.bias = nnx.Param(jnp.zeros((channels,), spec.param_dtype))
        self.precise_dtype, self.dtype = spec.precise_dtype, spec.compute_dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., channels] to [..., channels]."""
        return (x.astype(self.precise_dtype) * self.scale[...] + self.bias[...]).astype(self.dtype)


class LayerScale(nnx.Module):
    """gamma x, one a channel, so that a deep stack starts near the identity: `scale` [d_model], from `layer_scale`."""

    def __init__(self, spec: EncoderSpec):
        self.scale = nnx.Param(jnp.full((spec.d_model,), spec.layer_scale, spec.param_dtype))
        self.precise_dtype = spec.precise_dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., d_model] to the same, in the type of x."""
        return (x.astype(self.precise_dtype) * self.scale[...]).astype(x.dtype)


class ResMLPBlock(nnx.Module):
    """x + gamma1 (A affine(x)), then x + gamma2 mlp(affine(x)): A an n x n linear layer across patches, with bias."""

    final_norm = Affine

    def __init__(self, spec: EncoderSpec, rngs: nnx.Rngs):
        self.token_affine = Affine(spec, spec.d_model)
        self.token_linear = TokenLinear(spec, spec.length, spec.length, rngs)
        self.token_scale = LayerScale(spec)
        self.mlp_affine = Affine(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)
        self.mlp_scale = LayerScale(spec)

    def __call__(
        self, x: jax.Array, residual: Callable[[jax.Array, jax.Array], jax.Array], seen: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """[batch, tokens, d_model] to the same."""
        x = residual(x, self.token_scale(self.token_linear(self.token_affine(x))))
        return residual(x, self.mlp_scale(self.mlp(self.mlp_affine(x))))
