"""The layers of gMLP and aMLP by themselves, for your own models: Flax NNX modules that need no
config.

    from flax import nnx
    from gmlp_flax.layers import GMLPBlock

    block = GMLPBlock(512, d_ffn=3072, tokens=196, rngs=nnx.Rngs(0))
    y = block(x)  # [..., 196, 512] to the same

Further options are those of `GMLPSpec`, such as causal=True, dtype="bfloat16" or
gate_norm_eps=1e-5. A value that makes no sense raises ValueError. `flax.nnx.bridge.to_linen` makes
layers of a Linen model of them.
"""

from typing import Any

from flax import nnx

from gmlp_flax.models.blocks import gmlp


def _spec(tokens: int, **options: Any) -> gmlp.GMLPSpec:
    return gmlp.GMLPBlock.spec(length=tokens, **{"layers": 1, "spatial": "dense", **options})


class SpatialGatingUnit(gmlp.SpatialGatingUnit):
    """Z1 * (W norm(Z2) + b), the halves of the channels (Equation 4): [..., tokens, channels] to
    [..., tokens, channels / 2]. W is [tokens, tokens], or with spatial="toeplitz" the same filter
    at each position."""

    def __init__(self, channels: int, tokens: int, *, rngs: nnx.Rngs, **options: Any):
        super().__init__(_spec(tokens, d_ffn=channels, **options), rngs)


class ToeplitzLinear(gmlp.SpatialProjection):
    """W x + b over the token axis, W a Toeplitz matrix (section 4.1): [..., tokens, channels] to
    the same.

    It has 2 tokens - 1 taps, of standard deviation `spatial_init_std`, and serves fewer tokens too;
    with causal=True, each token sees only itself and those before it.
    """

    def __init__(self, tokens: int, *, rngs: nnx.Rngs, **options: Any):
        super().__init__(_spec(tokens, **options, spatial="toeplitz"), 0.0, rngs)


class TinyAttention(gmlp.TinyAttention):
    """softmax(q k^T / sqrt(d_attn)) v with one head (Figure 6): [..., tokens, d_model] to [...,
    tokens, d_out], any number of tokens."""

    def __init__(
        self, d_model: int, d_out: int, d_attn: int = 64, *, rngs: nnx.Rngs, **options: Any
    ):
        super().__init__(_spec(1, d_model=d_model, d_attn=d_attn, **options), d_out, rngs)


class GMLPBlock(gmlp.GMLPBlock):
    """A gMLP block (Figure 1), or with d_attn=64 an aMLP block: [..., tokens, d_model] to the same.
    `d_ffn` counts both halves of the gate. In training, `rng` of a call has the keys of dropout."""

    def __init__(self, d_model: int, *, d_ffn: int, tokens: int, rngs: nnx.Rngs, **options: Any):
        super().__init__(_spec(tokens, d_model=d_model, d_ffn=d_ffn, **options), rngs)
