"""The feed-forward block of "Do You Even Need Attention?" (arXiv 2105.02723): a ViT with an MLP
over tokens for attention."""

from flax import nnx
from jax import Array

from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.layers import (
    EVALUATION,
    ChannelMLP,
    LayerNorm,
    LayerRng,
    TokenMLP,
    TokenMLPSpec,
    add_branch,
    check_tokens,
)
from gmlp_flax.models.parameters import OverPatches


class FeedForwardBlock(Block):
    """x + mlp(norm(x)), then x + token_mlp(norm(x)), the second norm over tokens.

    It differs from the Mixer's block in the order of the two, and in the norm: the MLP over tokens
    is the same module on transposed activations, so its norm is over tokens too, with n scales and
    biases (`token_norm`).
    """

    Spec = TokenMLPSpec

    def __init__(self, spec: TokenMLPSpec, rngs: nnx.Rngs):
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)
        self.token_norm = LayerNorm(spec, spec.length, resize=OverPatches(outputs=-1))
        self.token_mlp = TokenMLP(spec, rngs)
        self.length = spec.length

    def __call__(
        self, x: Array, rng: LayerRng = EVALUATION, padding_mask: Array | None = None
    ) -> Array:
        """See `Block`. Raises ValueError if the number of tokens is not n."""
        check_tokens(x, self.length)
        normed = self.mlp_norm(x)
        hidden = self.mlp(normed)
        x = add_branch(x, hidden, rng, 0)
        by_channel = x.swapaxes(1, 2)  # [batch, d_model, tokens]
        normed_channels = self.token_norm(by_channel)
        normed_tokens = normed_channels.swapaxes(1, 2)
        mixed = self.token_mlp(normed_tokens)
        return add_branch(x, mixed, rng, 1)
