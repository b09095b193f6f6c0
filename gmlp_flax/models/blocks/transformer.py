"""The Transformer block (Vaswani et al., 2017), the baseline of the paper's tables."""

import jax
from flax import nnx

from gmlp_flax.models.attention import AttentionSpec, MultiHeadAttention
from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.decode_cache import DecodeCache
from gmlp_flax.models.layers import EVALUATION, LayerNorm, LayerRng, add_branch
from gmlp_flax.models.mlp import ChannelMLP


class TransformerBlock(Block):
    """x + attention(norm(x)), then x + mlp(norm(x)).

    Pre-norm, unlike BERT's post-norm: the paper does not say which its baselines are, a post-norm stack of 48 or 96
    blocks would hardly train, and gMLP's own block is pre-norm.
    """

    Spec = AttentionSpec
    hides_padding = True
    can_be_causal = True

    def __init__(self, spec: AttentionSpec, rngs: nnx.Rngs):
        self.attention_norm = LayerNorm(spec, spec.d_model)
        self.attention = MultiHeadAttention(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(
        self,
        x: jax.Array,
        rng: LayerRng = EVALUATION,
        padding_mask: jax.Array | None = None,
        cache: DecodeCache | None = None,
    ) -> jax.Array:
        """See `Block`."""
        x = add_branch(x, self.attention(self.attention_norm(x), rng.mixing_keys, padding_mask, cache), rng, 0)
        return add_branch(x, self.mlp(self.mlp_norm(x)), rng, 1)

    def attention_scores(self, x: jax.Array) -> jax.Array:
        """See `Block`."""
        return self.attention.scores(self.attention_norm(x))
