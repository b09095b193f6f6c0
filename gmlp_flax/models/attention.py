"""Tiny attention, the single head that turns gMLP into aMLP (paper, section 4.3 and Figure 6)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models.layers import Linear
from gmlp_flax.models.spec import EncoderSpec


class TinyAttention(nnx.Module):
    """softmax(q k^T / sqrt(d_attn)) v with one head, projected to d_out.

    The output projection starts near zero like the spatial projection that it is added to, so that a fresh gate is 1.
    """

    def __init__(self, spec: EncoderSpec, d_out: int, rngs: nnx.Rngs):
        self.qkv = Linear(spec, spec.d_model, 3 * spec.d_attn, rngs)
        near_zero = nnx.initializers.normal(spec.spatial_init_std)
        self.out = Linear(spec, spec.d_attn, d_out, rngs, init=near_zero)
        self.precise_dtype = spec.precise_dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to [batch, tokens, d_out]."""
        q, k, v = jnp.split(self.qkv(x), 3, axis=-1)
        scores = jnp.einsum("bnd,bmd->bnm", q, k, preferred_element_type=self.precise_dtype)
        weights = jax.nn.softmax(scores * q.shape[-1] ** -0.5, axis=-1).astype(x.dtype)
        return self.out(jnp.einsum("bnm,bmd->bnd", weights, v))
