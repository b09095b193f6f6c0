"""The MLP-Mixer block (arXiv 2105.01601)."""

from __future__ import annotations

import dataclasses

import jax
from flax import nnx

from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.layers import EVALUATION, LayerNorm, LayerRng, add_branch
from gmlp_flax.models.mlp import ChannelMLP, ChannelMLPSpec, TokenMLP, TokenMLPSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixerSpec(ChannelMLPSpec, TokenMLPSpec):
    """Options of the Mixer: the widths of its two MLPs."""


class MixerBlock(Block):
    """x + token_mlp(norm(x)), then x + mlp(norm(x)): one MLP over tokens, one over channels."""

    Spec = MixerSpec

    def __init__(self, spec: MixerSpec, rngs: nnx.Rngs):
        self.token_norm = LayerNorm(spec, spec.d_model)
        self.token_mlp = TokenMLP(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(self, x: jax.Array, rng: LayerRng = EVALUATION, padding_mask: jax.Array | None = None) -> jax.Array:
        """See `Block`."""
        x = add_branch(x, self.token_mlp(self.token_norm(x)), rng, 0)
        return add_branch(x, self.mlp(self.mlp_norm(x)), rng, 1)
