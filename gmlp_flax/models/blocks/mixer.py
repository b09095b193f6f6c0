"""The MLP-Mixer block (arXiv 2105.01601)."""

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
)


class MixerBlock(Block):
    """x + token_mlp(norm(x)), then x + mlp(norm(x)): one MLP over tokens, one over channels."""

    Spec = TokenMLPSpec

    def __init__(self, spec: TokenMLPSpec, rngs: nnx.Rngs):
        self.token_norm = LayerNorm(spec, spec.d_model)
        self.token_mlp = TokenMLP(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(
        self, x: Array, rng: LayerRng = EVALUATION, padding_mask: Array | None = None
    ) -> Array:
        """See `Block`."""
        normed = self.token_norm(x)
        mixed = self.token_mlp(normed)
        x = add_branch(x, mixed, rng, 0)
        normed = self.mlp_norm(x)
        hidden = self.mlp(normed)
        return add_branch(x, hidden, rng, 1)
