"""The Transformer block (Vaswani et al., 2017), the baseline of the paper's tables."""

from __future__ import annotations

import dataclasses

import jax
from flax import nnx

from gmlp_flax.models.attention import AttentionSpec, MultiHeadAttention, supports_length
from gmlp_flax.models.blocks.base import Block, Residual
from gmlp_flax.models.decode_cache import DecodeCache
from gmlp_flax.models.layers import LayerNorm
from gmlp_flax.models.mlp import ChannelMLP, ChannelMLPSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerSpec(AttentionSpec, ChannelMLPSpec):
    """Options of the Transformer: attention's and the MLP's."""


class TransformerBlock(Block):
    """x + attention(norm(x)), then the same with the channel MLP.

    Pre-norm, where BERT is post-norm: the paper does not say which its baselines are, and a post-norm stack of 48 or
    96 blocks would hardly train. gMLP's own block is pre-norm, so this also leaves one difference fewer between them.
    """

    Spec = TransformerSpec
    can_be_causal = True

    def __init__(self, spec: TransformerSpec, rngs: nnx.Rngs):
        self.attention_norm = LayerNorm(spec, spec.d_model)
        self.attention = MultiHeadAttention(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(
        self,
        x: jax.Array,
        residual: Residual,
        padding_mask: jax.Array | None = None,
        key: jax.Array | None = None,
        cache: DecodeCache | None = None,
    ) -> jax.Array:
        """See `Block`."""
        x = residual(x, self.attention(self.attention_norm(x), padding_mask, key, cache))
        return residual(x, self.mlp(self.mlp_norm(x)))

    @classmethod
    def supports_length(cls, spec: TransformerSpec, tokens: int) -> bool:
        """See `Block`: any number, or up to n if each position or offset has parameters of its own."""
        return supports_length(spec, tokens)

    def attention_scores(self, x: jax.Array) -> jax.Array:
        """See `Block`."""
        return self.attention.scores(self.attention_norm(x))
