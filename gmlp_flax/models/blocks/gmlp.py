"""The gMLP block (paper, Figure 1) and, with tiny attention, the aMLP block (Figure 6)."""

from __future__ import annotations

from collections.abc import Callable

import jax
from flax import nnx

from gmlp_flax.models import layout
from gmlp_flax.models.attention import TinyAttention
from gmlp_flax.models.gating import SpatialGate, gate_width
from gmlp_flax.models.layers import LayerNorm, activation, Linear
from gmlp_flax.models.spec import EncoderSpec


class GMLPBlock(nnx.Module):
    """x + V s(gelu(U norm(x))), s the spatial gate; tiny attention reads norm(x) and joins inside the gate."""

    final_norm = LayerNorm

    def __init__(self, spec: EncoderSpec, rngs: nnx.Rngs):
        width = gate_width(spec)
        self.norm = LayerNorm(spec, spec.d_model)
        self.proj_in = Linear(spec, spec.d_model, spec.d_ffn, rngs)
        self.gate = SpatialGate(spec, rngs)
        self.attention = TinyAttention(spec, width, rngs) if spec.d_attn else None
        self.proj_out = Linear(spec, width, spec.d_model, rngs)
        self.activation = spec.activation

    def __call__(
        self, x: jax.Array, residual: Callable[[jax.Array, jax.Array], jax.Array], seen: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """[batch, tokens, d_model] to the same; `seen` hides padding from tiny attention alone (paper, section 4)."""
        normed = self.norm(x)
        # Each half cut by channels: the gate never looks across them but in its norm, whose sums alone are exchanged.
        z = [
            activation(self.activation, layout.cut(part, layout.BATCH, None, layout.TENSOR))
            for part in self.proj_in.parts(normed, self.gate.parts)
        ]
        gated = self.gate(z[0], z[-1], self.attention(normed, seen, key) if self.attention else None)
        return residual(x, self.proj_out(gated))
