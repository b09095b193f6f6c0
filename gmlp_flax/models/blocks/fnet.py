"""FNet (arXiv 2105.03824): tokens are mixed by a Fourier transform without parameters, and in
the last layers of FNet-Hybrid by attention."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import sharding
from gmlp_flax.models.attention.multi_head import MultiHeadAttention
from gmlp_flax.models.attention.spec import AttentionSpec
from gmlp_flax.models.blocks.base import Block, final_norm
from gmlp_flax.models.layers import (
    EVALUATION,
    ChannelMLP,
    ChannelMLPSpec,
    LayerNorm,
    LayerRng,
    add_normed,
)
from gmlp_flax.models.matmul import NAME, over_tokens_unnamed
from gmlp_flax.models.spec import AnyLengthSpec
from gmlp_flax.options import AT_LEAST_0, option

# Up to these sizes `auto` uses matrix products. CPU: measured, docs/mixers.md. TPU: as FNet's code
# in transformers; its authors use the FFT on GPUs. Neither was measured here.
MATMUL_UP_TO_ON_CPU = 80  # tokens and channels together
MATMUL_UP_TO_ON_TPU = 4096  # tokens


def dft(points: int, dtype: jnp.dtype) -> tuple[Array, Array]:
    """C and S, each [points, points], of the DFT matrix F = C - i S:
    C[j, k] = cos(2 pi j k / points), S[j, k] = sin(2 pi j k / points).

    j k modulo `points` gives the same angle, so both matrices are read from tables of `points`
    angles, which are computed in float64.
    """
    numbers = jnp.arange(points)
    # The barrier keeps the compiler from computing the whole matrix itself, as a constant.
    index = jax.lax.optimization_barrier(numbers)
    circles = 2 * np.pi * np.arange(points)
    angles = circles / points  # [points]
    precise_cosines = np.cos(angles)
    precise_sines = np.sin(angles)
    cosines = jnp.asarray(precise_cosines, dtype)
    sines = jnp.asarray(precise_sines, dtype)
    rows = index[:, None]
    products = rows * index  # j k, [points, points]
    entries = products % points
    return cosines[entries], sines[entries]


def by_matmul(x: Array) -> Array:
    """`fourier` by matrix products over the channels and over the tokens: Re(F_n x F_d) = C_n x C_d
    - S_n x S_d."""
    _, tokens, channels = x.shape
    token_cos, token_sin = dft(tokens, x.dtype)
    channel_cos, channel_sin = dft(channels, x.dtype)
    x_cos = x @ channel_cos  # x C_d
    x_sin = x @ channel_sin  # x S_d
    cos_cos = over_tokens_unnamed(token_cos, x_cos)
    sin_sin = over_tokens_unnamed(token_sin, x_sin)
    return cos_cos - sin_sin


def by_fft(x: Array) -> Array:
    """`fourier` by the fast Fourier transform, in float32 (float64 for float64)."""

    def transform(x: Array) -> Array:
        transformed = jnp.fft.fft2(x, axes=(1, 2))
        return transformed.real

    precise = jnp.promote_types(x.dtype, jnp.float32)
    precise_x = x.astype(precise)
    y = sharding.map_shards(transform, precise_x)
    return y.astype(x.dtype)


def by_platform(x: Array) -> Array:
    """`fourier` by the faster algorithm on the platform that the program is compiled for."""
    _, tokens, channels = x.shape
    is_small = tokens + channels <= MATMUL_UP_TO_ON_CPU
    on_cpu = by_matmul if is_small else by_fft
    is_short = tokens <= MATMUL_UP_TO_ON_TPU
    on_tpu = by_matmul if is_short else by_fft
    return jax.lax.platform_dependent(x, cpu=on_cpu, cuda=by_fft, rocm=by_fft, default=on_tpu)


ALGORITHMS = {"auto": by_platform, "matmul": by_matmul, "fft": by_fft}


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def fourier(x: Array, algorithm: str) -> Array:
    """The real part of the 2-D DFT over tokens and channels: [batch, tokens, channels] to the same.

    `algorithm` is a key of ALGORITHMS, which differ only by rounding. The gradient is one more
    transform, and nothing is saved for it.
    """
    transform = ALGORITHMS[algorithm]
    return transform(x)


@fourier.defjvp
def _fourier_jvp(algorithm, primals, tangents):
    (x,) = primals
    (d_x,) = tangents
    # Without the checkpoint, C and S would be saved for the backward pass.
    transform = jax.checkpoint(ALGORITHMS[algorithm], prevent_cse=False)
    return fourier(x, algorithm), transform(d_x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FNetSpec(ChannelMLPSpec, AnyLengthSpec):
    """Options of FNet."""

    norm_eps: float = option(
        1e-12, "epsilon of the layer norms (FNet's own)", AT_LEAST_0, architecture=True
    )
    norm: str = option(
        "post",
        "where norms stand: post, after each sum (as published), "
        "or pre, before each branch (as in other blocks)",
        ("post", "pre"),
        architecture=True,
    )
    dft: str = option(
        "auto",
        "the transform by matrix products, by FFT, or by the faster one",
        tuple(ALGORITHMS),
        may_change=True,
    )


class FNetBlock(Block):
    """norm(x + F(x)), then norm(x + mlp(x)), as published, or x + F(norm(x)), then x + mlp(norm(x))
    (`norm="pre"`).

    F(x) is the real part of the 2-D DFT. In the pre-norm block it is divided by
    sqrt(tokens * channels), with which the DFT keeps the sum of squares of its input: otherwise the
    branch would drown the shortcut. As in the authors' code, dropout applies only to the MLP.
    """

    Spec = FNetSpec
    final_norm = staticmethod(final_norm)

    def __init__(self, spec: FNetSpec, rngs: nnx.Rngs):
        post = spec.norm == "post"
        self.mixing_norm = LayerNorm(spec, spec.d_model, post=post)
        self.mlp_norm = LayerNorm(spec, spec.d_model, post=post)
        self.mlp = ChannelMLP(spec, rngs)
        self.pre_norm = spec.norm == "pre"
        self.dft = spec.dft

    def __call__(
        self, x: Array, rng: LayerRng = EVALUATION, padding_mask: Array | None = None
    ) -> Array:
        """See `Block`. Padding takes part in the transform."""
        x = add_normed(x, self.mixing_norm, self.transform, rng, 0, dropped=False)
        return add_normed(x, self.mlp_norm, self.mlp, rng, 1)

    def transform(self, x: Array) -> Array:
        """F(x): [batch, tokens, d_model] to the same."""
        _, tokens, channels = x.shape
        scale = 1.0
        if self.pre_norm:
            numbers = tokens * channels
            scale = numbers**-0.5
        transformed: Array = fourier(x, self.dft)
        scaled = scale * transformed
        return checkpoint_name(scaled, NAME)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FNetHybridSpec(AttentionSpec, FNetSpec):
    """Options of FNet-Hybrid: attention's and FNet's."""

    norm_eps: float = option(
        1e-12, "epsilon of the layer norms (FNet's own)", AT_LEAST_0, architecture=True
    )
    attention_layers: int = option(
        2, "how many layers, the last ones, have attention", AT_LEAST_0, architecture=True
    )

    def check(self) -> None:
        """Raises ValueError if there are fewer layers than layers with attention."""
        super().check()
        last = self.attention_layers
        if last > self.layers:
            raise ValueError(
                f"model.attention_layers is {last}: expected at most model.layers, {self.layers}"
            )


class FNetHybridBlock(Block):
    """A last layer of FNet-Hybrid: attention in place of F. The first layers are `FNetBlock`s.

    As in the authors' code, dropout applies to the MLP and, at `attention_dropout`, to the weights
    of attention.
    """

    Spec = FNetHybridSpec
    final_norm = staticmethod(final_norm)

    def __init__(self, spec: FNetHybridSpec, rngs: nnx.Rngs):
        post = spec.norm == "post"
        self.mixing_norm = LayerNorm(spec, spec.d_model, post=post)
        self.mlp_norm = LayerNorm(spec, spec.d_model, post=post)
        self.mlp = ChannelMLP(spec, rngs)
        self.attention = MultiHeadAttention(spec, rngs)
        self.pre_norm = spec.norm == "pre"
        self.dtype = spec.compute_dtype

    def __call__(
        self, x: Array, rng: LayerRng = EVALUATION, padding_mask: Array | None = None
    ) -> Array:
        """See `Block`."""
        attention = functools.partial(
            self.attention, dropout_keys=rng.mixing_keys, padding_mask=padding_mask
        )
        x = add_normed(x, self.mixing_norm, attention, rng, 0, dropped=False)
        return add_normed(x, self.mlp_norm, self.mlp, rng, 1)

    @classmethod
    def stack_specs(cls, spec: FNetHybridSpec) -> tuple[FNetHybridSpec, ...]:
        """See `Block`: the layers with the transform, then the layers with attention."""
        with_attention = spec.attention_layers
        without_attention = spec.layers - with_attention
        stacks = []
        if without_attention:
            stack = dataclasses.replace(
                spec, block=FNetBlock, layers=without_attention, attention_layers=0
            )
            stacks.append(stack)
        if with_attention:
            stacks.append(dataclasses.replace(spec, layers=with_attention))
        return tuple(stacks)

    def attention_scores(self, x: Array) -> Array:
        """See `Block`."""
        if self.pre_norm:
            normed = self.mixing_norm(x)
            return self.attention.scores(normed)
        inputs = x.astype(self.dtype)
        return self.attention.scores(inputs)
