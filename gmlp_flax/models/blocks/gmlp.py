"""The gMLP block (paper, Figure 1) and, with tiny attention, the aMLP block (Figure 6)."""

from __future__ import annotations

import dataclasses

import jax
from flax import nnx

from gmlp_flax.models import spatial
from gmlp_flax.models.attention import TinyAttention, TinyAttentionSpec
from gmlp_flax.models.blocks.base import Block, Residual
from gmlp_flax.models.decode_cache import DecodeCache
from gmlp_flax.models.gating import GateSpec, SpatialGate, gate_width
from gmlp_flax.models.layers import LayerNorm, Linear
from gmlp_flax.models.sharding import FSDP, TENSOR


@dataclasses.dataclass(frozen=True, kw_only=True)
class GMLPSpec(GateSpec, TinyAttentionSpec):
    """Options of gMLP and aMLP: the gate's, the spatial projection's, tiny attention's."""


class GMLPBlock(Block):
    """x + V s(gelu(U norm(x))), s the spatial gate; tiny attention reads norm(x) and joins inside the gate."""

    Spec = GMLPSpec
    mixes_at_start = False
    can_be_causal = True

    def __init__(self, spec: GMLPSpec, rngs: nnx.Rngs):
        width = gate_width(spec)
        self.norm = LayerNorm(spec, spec.d_model)
        self.proj_in = Linear(
            spec,
            spec.d_model,
            spec.d_ffn,
            rngs,
            sharding=(FSDP, TENSOR),
            activation=spec.activation,
            parts=spec.d_ffn // width,
        )
        self.gate = SpatialGate(spec, rngs)
        self.attention = TinyAttention(spec, width, rngs) if spec.d_attn else None
        self.proj_out = Linear(spec, width, spec.d_model, rngs, sharding=(TENSOR, FSDP))

    def __call__(
        self,
        x: jax.Array,
        residual: Residual,
        padding_mask: jax.Array | None = None,
        key: jax.Array | None = None,
        cache: DecodeCache | None = None,
    ) -> jax.Array:
        """See `Block`."""
        normed = self.norm(x)
        attention = self.attention(normed, padding_mask, key, cache) if self.attention else None
        z = self.proj_in(normed)
        return residual(x, self.proj_out(self.gate(z, attention, cache)))

    @classmethod
    def supports_length(cls, spec: GMLPSpec, tokens: int) -> bool:
        """See `Block`: up to n tokens, but exactly n with a dense projection that is not causal."""
        return spatial.supports_length(spec, tokens)

    def spatial_matrix(self) -> jax.Array:
        """See `Block`."""
        return self.gate.spatial.matrix()

    def attention_scores(self, x: jax.Array) -> jax.Array | None:
        """See `Block`: the one head of tiny attention."""
        return self.attention.scores(self.norm(x))[:, None] if self.attention else None
