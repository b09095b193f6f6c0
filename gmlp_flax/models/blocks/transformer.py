"""The Transformer block (Vaswani et al., 2017), the baseline of the paper's tables."""

import dataclasses

import jax
from flax import nnx

from gmlp_flax.models.attention import AttentionSpec, MultiHeadAttention
from gmlp_flax.models.blocks.base import Block, final_norm
from gmlp_flax.models.layers import (
    EVALUATION,
    ChannelMLP,
    DecodeCache,
    GatedMLP,
    LayerNorm,
    LayerRng,
    add_normed,
)
from gmlp_flax.options import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerSpec(AttentionSpec):
    """Options of the Transformer."""

    norm: str = option(
        "pre",
        "norms before each branch, or post: after each sum (BERT)",
        ("pre", "post"),
        architecture=True,
    )
    norm_type: str = option(
        "layer",
        "layer norm, or rms: divides by the root mean square alone (Llama)",
        ("layer", "rms"),
        architecture=True,
    )
    mlp: str = option(
        "plain",
        "the MLP over channels: plain, or gated by a linear layer behind a GELU or SiLU",
        ("plain", "geglu", "swiglu"),
        architecture=True,
    )
    biases: bool = option(
        True, "biases in linear layers and norms; attention has its own option", architecture=True
    )


class TransformerBlock(Block):
    """x + attention(norm(x)), then x + mlp(norm(x)); with `norm="post"`, as BERT, norm(x +
    attention(x)), then norm(x + mlp(x)).

    Pre-norm unless said otherwise: the paper does not say which its baselines are, a post-norm
    stack of 48 or 96 blocks would hardly train, and gMLP's own block is pre-norm.
    """

    Spec = TransformerSpec
    final_norm = staticmethod(final_norm)
    hides_padding = True
    masks_documents = True
    can_be_causal = True

    def __init__(self, spec: TransformerSpec, rngs: nnx.Rngs):
        post = spec.norm == "post"
        self.attention_norm = LayerNorm(spec, spec.d_model, post=post)
        self.attention = MultiHeadAttention(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model, post=post)
        if spec.mlp == "plain":
            self.mlp = ChannelMLP(spec, rngs)
        else:
            gate = "silu" if spec.mlp == "swiglu" else spec.activation
            self.mlp = GatedMLP(spec, rngs, gate)
        self.pre_norm = spec.norm == "pre"
        self.dtype = spec.compute_dtype

    def __call__(
        self,
        x: jax.Array,
        rng: LayerRng = EVALUATION,
        padding_mask: jax.Array | None = None,
        cache: DecodeCache | None = None,
    ) -> jax.Array:
        """See `Block`."""

        def attention(x: jax.Array) -> jax.Array:
            return self.attention(x, rng.mixing_keys, padding_mask, cache)

        x = add_normed(x, self.attention_norm, attention, rng, 0)
        return add_normed(x, self.mlp_norm, self.mlp, rng, 1)

    def attention_scores(self, x: jax.Array) -> jax.Array:
        """See `Block`."""
        x = self.attention_norm(x) if self.pre_norm else x.astype(self.dtype)
        return self.attention.scores(x)
