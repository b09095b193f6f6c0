"""The Transformer block (Vaswani et al., 2017), the baseline of the paper's tables."""

import dataclasses

from flax import nnx
from jax import Array

from gmlp_flax.models.attention.kernels import served_by
from gmlp_flax.models.attention.multi_head import MultiHeadAttention
from gmlp_flax.models.attention.spec import AttentionSpec
from gmlp_flax.models.blocks.base import Block, final_norm
from gmlp_flax.models.layers import (
    EVALUATION,
    ChannelMLP,
    DecodeCache,
    GatedMLP,
    LayerNorm,
    LayerRng,
    add_branch,
    add_normed,
)
from gmlp_flax.options import AT_LEAST_0, option


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
    first_norm: bool = option(
        True,
        "a norm before the attention of the first layer (ModernBERT: none after the embeddings' "
        "norm)",
        architecture=True,
    )
    global_every: int = option(
        3,
        "with a window: one in this many layers, beginning with the first, sees all tokens; 0: none",
        AT_LEAST_0,
        architecture=True,
    )
    local_rotary_theta: float = option(
        0.0, "rotary_theta of the layers with a window; 0: the same", AT_LEAST_0, architecture=True
    )

    def check(self) -> None:
        """Raises ValueError also for a norm that only another block can be without."""
        super().check()
        if self.norm == "post" and not self.first_norm:
            raise ValueError(
                "model.norm is 'post' and model.first_norm is False: set model.norm to 'pre'"
            )


class TransformerBlock(Block):
    """x + attention(norm(x)), then x + mlp(norm(x)); with `norm="post"`, as BERT, norm(x +
    attention(x)), then norm(x + mlp(x)).

    Pre-norm unless said otherwise: the paper does not say which its baselines are, a post-norm
    stack of 48 or 96 blocks would hardly train, and gMLP's own block is pre-norm.

    With a `window` most layers are local, as in ModernBERT (Warner et al., arXiv 2412.13663, section
    2.1).
    """

    Spec = TransformerSpec
    final_norm = staticmethod(final_norm)
    hides_padding = True
    masks_documents = True
    can_be_causal = True

    def __init__(self, spec: TransformerSpec, rngs: nnx.Rngs):
        post = spec.norm == "post"
        if spec.first_norm:
            self.attention_norm = LayerNorm(spec, spec.d_model, post=post)
        else:
            self.attention_norm = None
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
        x: Array,
        rng: LayerRng = EVALUATION,
        padding_mask: Array | None = None,
        cache: DecodeCache | None = None,
    ) -> Array:
        """See `Block`."""

        def attention(x: Array) -> Array:
            return self.attention(x, rng.mixing_keys, padding_mask, cache)

        if self.attention_norm is None:
            x = add_branch(x, attention(x.astype(self.dtype)), rng, 0)
        else:
            x = add_normed(x, self.attention_norm, attention, rng, 0)
        return add_normed(x, self.mlp_norm, self.mlp, rng, 1)

    @classmethod
    def stack_specs(cls, spec: TransformerSpec) -> tuple[TransformerSpec, ...]:
        """See `Block`: the first layer is a stack of its own if it has no norm before its
        attention."""
        if spec.first_norm:
            return (spec,)
        first = dataclasses.replace(spec, layers=1)
        if spec.layers == 1:
            return (first,)
        others = dataclasses.replace(spec, layers=spec.layers - 1, first_norm=True)
        return first, others

    @classmethod
    def layer_specs(cls, spec: TransformerSpec) -> tuple[TransformerSpec, ...]:
        """See `Block`: layers with a window, and those that see all tokens."""
        layers = super().layer_specs(spec)
        if not spec.window:
            return layers
        every = spec.global_every
        programs = []
        for number, layer in enumerate(layers):
            if every and number % every == 0:
                program = dataclasses.replace(layer, window=0)
            else:
                theta = spec.local_rotary_theta or spec.rotary_theta
                program = dataclasses.replace(layer, rotary_theta=theta)
            programs.append(program)
        return tuple(programs)

    @classmethod
    def notes(cls, spec: TransformerSpec, platform: str) -> list[str]:
        """See `Block`: what computes the attention of layers with a window, and of the others."""
        if not spec.window:
            return []
        layers = cls.layer_specs(spec)
        local = [layer for layer in layers if layer.window]
        others = [layer for layer in layers if not layer.window]
        notes = []
        if local:
            kernel = served_by(local[0], platform)
            what = f"attention in {len(local)} layers with windows of {spec.window}"
            notes.append(f"{what}: {kernel}")
        if others:
            kernel = served_by(others[0], platform)
            what = f"attention in {len(others)} layers that see all tokens"
            notes.append(f"{what}: {kernel}")
        return notes

    def attention_scores(self, x: Array) -> Array:
        """See `Block`."""
        if self.pre_norm and self.attention_norm is not None:
            inputs = self.attention_norm(x)
        else:
            inputs = x.astype(self.dtype)
        return self.attention.scores(inputs)
