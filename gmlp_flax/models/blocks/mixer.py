"""The MLP-Mixer block (arXiv 2105.01601)."""

from __future__ import annotations

import dataclasses

import jax
from flax import nnx

from gmlp_flax.models.blocks.base import Block, Residual
from gmlp_flax.models.layers import LayerNorm
from gmlp_flax.models.mlp import ChannelMLP, ChannelMLPSpec, TokenMLP, TokenMLPSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixerSpec(ChannelMLPSpec, TokenMLPSpec):
    """Options of the Mixer: the widths of its two MLPs."""


class MixerBlock(Block):
    """x + tokens(norm(x)), then x + channels(norm(x)): one MLP across tokens, one across channels."""

    Spec = MixerSpec

    def __init__(self, spec: MixerSpec, rngs: nnx.Rngs):
        self.token_norm = LayerNorm(spec, spec.d_model)
        self.token_mlp = TokenMLP(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(
        self, x: jax.Array, residual: Residual, padding_mask: jax.Array | None = None, key: jax.Array | None = None
    ) -> jax.Array:
        """See `Block`."""
        x = residual(x, self.token_mlp(self.token_norm(x)))
        return residual(x, self.mlp(self.mlp_norm(x)))
