"""The feed-forward block in the order of the Mixer's two MLPs, and with other norms, to see which
of them matters.

docs/results/which-mixer.md has what came of it. A run:

    gmlp train --config=c4_ablation:feed_forward,scale=small --config.data.train=books.jsonl.xz
        --workdir=runs/order \\
        --config.model.block=docs.results.feed_forward_order:FeedForwardOrder
        --config.model.token_norm=tokens_rms
"""

import dataclasses
from typing import Any

import jax
from flax import nnx

from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.layers import (
    EVALUATION,
    ChannelMLP,
    LayerNorm,
    LayerRng,
    TokenMLP,
    TokenMLPSpec,
    add_branch,
)
from gmlp_flax.options import option

TOKENS = "tokens"
CHANNELS = "channels"
TOKENS_RMS = "tokens_rms"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedForwardOrderSpec(TokenMLPSpec):
    """Options of the block."""

    token_mlp_first: bool = option(
        True, "the MLP over tokens before the one over channels", architecture=True
    )
    token_norm: str = option(
        TOKENS,
        "what the norm before the MLP over tokens is over; tokens_rms subtracts no mean",
        (TOKENS, CHANNELS, TOKENS_RMS),
        architecture=True,
    )


class RMSNorm(nnx.Module):
    """A layer norm over the last axis that subtracts no mean."""

    def __init__(self, spec: FeedForwardOrderSpec, channels: int):
        self.norm = LayerNorm(spec, channels)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., channels] to [..., channels]."""
        precise = x.astype(self.norm.precise_dtype)
        squares = precise**2
        mean_square = squares.mean(-1, keepdims=True)
        normed = precise * jax.lax.rsqrt(mean_square + self.norm.eps)
        bias: Any = self.norm.bias  # this spec has biases
        scaled = normed * self.norm.scale[...] + bias[...]
        return scaled.astype(x.dtype)


class FeedForwardOrder(Block):
    """Published: the MLP over tokens second, its norm over tokens. First, with a norm over
    channels: the Mixer."""

    Spec = FeedForwardOrderSpec

    def __init__(self, spec: FeedForwardOrderSpec, rngs: nnx.Rngs):
        size = spec.d_model if spec.token_norm == CHANNELS else spec.length
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)
        norm_class = RMSNorm if spec.token_norm == TOKENS_RMS else LayerNorm
        self.token_norm = norm_class(spec, size)
        self.token_mlp = TokenMLP(spec, rngs)
        self.first = spec.token_mlp_first
        self.over_channels = spec.token_norm == CHANNELS

    def __call__(
        self, x: jax.Array, rng: LayerRng = EVALUATION, padding_mask: Any = None
    ) -> jax.Array:
        """See `Block`."""

        def mix_tokens(x: jax.Array) -> jax.Array:
            mixed = self.token_mlp(self._norm_tokens(x))
            return add_branch(x, mixed, rng, 1)

        if self.first:
            x = mix_tokens(x)
        normed = self.mlp_norm(x)
        x = add_branch(x, self.mlp(normed), rng, 0)
        if not self.first:
            x = mix_tokens(x)
        return x

    def _norm_tokens(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, channels] to the same, normed over channels or over tokens."""
        if self.over_channels:
            return self.token_norm(x)
        tokens_last = self.token_norm(x.swapaxes(1, 2))
        return tokens_last.swapaxes(1, 2)
