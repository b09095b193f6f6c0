"""The feed-forward stack: a ViT whose attention is a second MLP, across tokens ("Do You Even Need Attention?")."""

from __future__ import annotations

import dataclasses

import jax
from flax import nnx

from gmlp_flax.models.blocks.base import Block, Residual
from gmlp_flax.models.layers import LayerNorm
from gmlp_flax.models.mlp import ChannelMLP, ChannelMLPSpec, TokenMLP, TokenMLPSpec, check_tokens
from gmlp_flax.models.resize import OverPatches


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedForwardSpec(ChannelMLPSpec, TokenMLPSpec):
    """Options of the feed-forward stack: the widths of its two MLPs."""


class FeedForwardBlock(Block):
    """x + channels(norm(x)), then x + tokens(norm(x)), the second norm over tokens (arXiv 2105.02723).

    It differs from the Mixer's block in the order of the two, and in that the MLP across tokens, being the same module
    on transposed activations, has its norm over the axis that it mixes: `token_norm` has n scales and biases.
    """

    Spec = FeedForwardSpec

    def __init__(self, spec: FeedForwardSpec, rngs: nnx.Rngs):
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)
        self.token_norm = LayerNorm(spec, spec.length, resize=OverPatches(outputs=-1))
        self.token_mlp = TokenMLP(spec, rngs)
        self.length = spec.length

    def __call__(
        self, x: jax.Array, residual: Residual, padding_mask: jax.Array | None = None, key: jax.Array | None = None
    ) -> jax.Array:
        """See `Block`. Raises ValueError for another number of tokens than n."""
        check_tokens(x, self.length)
        x = residual(x, self.mlp(self.mlp_norm(x)))
        normed = self.token_norm(x.swapaxes(1, 2)).swapaxes(1, 2)
        return residual(x, self.token_mlp(normed))
