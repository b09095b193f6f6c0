"""FNet (arXiv 2105.03824): tokens are mixed by a Fourier transform without parameters; and FNet-Hybrid."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import sharding
from gmlp_flax.models.attention import AttentionSpec, MultiHeadAttention, supports_length
from gmlp_flax.models.blocks.base import Block, Residual, up_to_length
from gmlp_flax.models.layers import LayerNorm
from gmlp_flax.models.matmul import NAME, over_tokens
from gmlp_flax.models.mlp import ChannelMLP, ChannelMLPSpec
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import AT_LEAST_0, option

# Where `auto` takes the two matrix products. CPU: measured here, docs/mixers.md. TPU: up to 4,096 tokens, as FNet's code
# in transformers has it; its authors use the FFT on GPUs. Neither was measured here.
MATMUL_UP_TO_ON_CPU = 80  # tokens and channels together
MATMUL_UP_TO_ON_TPU = 4096  # tokens


def dft(points: int, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """The real part C and the negative imaginary part S of the matrix of a DFT, [points, points]: F = C - i S.

    C[j, k] = cos(2 pi j k / points), S[j, k] = sin of the same.
    """
    # Behind the barrier, the compiler does not compute the whole matrix itself, number by number, as a constant.
    index = jax.lax.optimization_barrier(jnp.arange(points))
    angles = 2 * np.pi * np.arange(points) / points
    cosines, sines = (jnp.asarray(wave(angles), dtype) for wave in (np.cos, np.sin))
    turns = index[:, None] * index % points
    return cosines[turns], sines[turns]


def by_matmul(x: jax.Array) -> jax.Array:
    """`fourier` by matrix products over the channels and over the tokens: Re(F_n x F_d) = C_n x C_d - S_n x S_d."""
    (token_cos, token_sin), (channel_cos, channel_sin) = (dft(points, x.dtype) for points in x.shape[1:])
    return over_tokens(token_cos, x @ channel_cos) - over_tokens(token_sin, x @ channel_sin)


def by_fft(x: jax.Array) -> jax.Array:
    """`fourier` by the fast Fourier transform, in float32 (float64 for float64)."""
    precise = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return sharding.on_own_examples(lambda x: jnp.fft.fft2(x, axes=(1, 2)).real, precise).astype(x.dtype)


def by_platform(x: jax.Array) -> jax.Array:
    """`fourier` by what is faster on the platform that the program is compiled for."""
    _, tokens, channels = x.shape
    on_cpu = by_matmul if tokens + channels <= MATMUL_UP_TO_ON_CPU else by_fft
    on_tpu = by_matmul if tokens <= MATMUL_UP_TO_ON_TPU else by_fft
    return jax.lax.platform_dependent(x, cpu=on_cpu, cuda=by_fft, rocm=by_fft, default=on_tpu)


ALGORITHMS = {"auto": by_platform, "matmul": by_matmul, "fft": by_fft}


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def fourier(x: jax.Array, algorithm: str) -> jax.Array:
    """The real part of the 2-D DFT over tokens and channels: [batch, tokens, channels] to the same.

    `algorithm` is a name in ALGORITHMS; the numbers differ by rounding alone. The transform is its own transpose, as C
    and S are symmetric: its gradient costs one more transform and keeps nothing.
    """
    return ALGORITHMS[algorithm](x)


fourier.defvjp(lambda x, algorithm: (fourier(x, algorithm), None), lambda algorithm, _, g: (fourier(g, algorithm),))


def _norm_eps() -> Any:
    return option(1e-12, "epsilon of the layer norms (FNet's own)", AT_LEAST_0, architecture=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FNetSpec(ChannelMLPSpec):
    """Options of FNet."""

    norm_eps: float = _norm_eps()
    norm: str = option(
        "post",
        "where norms stand: post, after each sum (as published), or pre, before each branch (as in other blocks)",
        ("post", "pre"),
        architecture=True,
    )
    dft: str = option(
        "auto", "the transform by matrix products, by FFT, or by the faster one", tuple(ALGORITHMS), numerics_only=True
    )


def unchanged(x: jax.Array) -> jax.Array:
    """The final norm of post-norm blocks, which end with one of their own."""
    return x


class FNetBlock(Block):
    """norm(x + Re F_tokens F_channels x), then norm(x + mlp(x)), as published; or both with their norms inside.

    With the norms inside (`norm="pre"`) the transform is divided by sqrt(tokens * channels): then it keeps the sum of
    squares of a complex input, and does not drown its shortcut. As in its authors' code, dropout is for the MLP alone.
    """

    Spec = FNetSpec
    without_dropout = (0,)

    def __init__(self, spec: FNetSpec, rngs: nnx.Rngs):
        self.mixing_norm = LayerNorm(spec, spec.d_model)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)
        self.pre_norm, self.dft = spec.norm == "pre", spec.dft

    def mix(self, x: jax.Array, padding_mask: jax.Array | None, key: jax.Array | None) -> jax.Array:
        """The first branch: [batch, tokens, d_model] to the same."""
        scale = math.prod(x.shape[1:]) ** -0.5 if self.pre_norm else 1.0
        mixed: jax.Array = fourier(x, self.dft)
        return checkpoint_name(scale * mixed, NAME)

    def __call__(
        self, x: jax.Array, residual: Residual, padding_mask: jax.Array | None = None, key: jax.Array | None = None
    ) -> jax.Array:
        """See `Block`. Padding takes part in the transform."""
        if self.pre_norm:
            x = residual(x, self.mix(self.mixing_norm(x), padding_mask, key))
            return residual(x, self.mlp(self.mlp_norm(x)))
        x = self.mixing_norm(residual(x, self.mix(x, padding_mask, key)))
        return self.mlp_norm(residual(x, self.mlp(x)))

    @classmethod
    def final_norm(cls, spec: FNetSpec, d_model: int) -> nnx.Module | Callable[[jax.Array], jax.Array]:
        """See `Block`."""
        return LayerNorm(spec, d_model) if spec.norm == "pre" else unchanged

    @classmethod
    def supports_length(cls, spec: BlockSpec, tokens: int) -> bool:
        """See `Block`: any number, up to n with learned positions. It is another transform at each number."""
        return up_to_length(spec, tokens)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FNetHybridSpec(AttentionSpec, FNetSpec):
    """Options of FNet-Hybrid: attention's and FNet's."""

    norm_eps: float = _norm_eps()
    attention_layers: int = option(2, "how many layers, the last ones, have attention", AT_LEAST_0, architecture=True)

    def check(self) -> None:
        """Raises ValueError if there are fewer layers than those with attention."""
        super().check()
        if self.attention_layers > self.layers:
            raise ValueError(
                f"model.attention_layers is {self.attention_layers}: expected at most model.layers, {self.layers}"
            )


class FNetHybridBlock(FNetBlock):
    """A layer of FNet-Hybrid with attention in the place of the transform; its first layers are `FNetBlock`s."""

    Spec = FNetHybridSpec
    without_dropout = ()

    def __init__(self, spec: FNetHybridSpec, rngs: nnx.Rngs):
        super().__init__(spec, rngs)
        self.attention = MultiHeadAttention(spec, rngs)

    def mix(self, x: jax.Array, padding_mask: jax.Array | None, key: jax.Array | None) -> jax.Array:
        """See `FNetBlock`."""
        return self.attention(x, padding_mask, key)

    @classmethod
    def stacks(cls, spec: FNetHybridSpec) -> tuple[FNetHybridSpec, ...]:
        """See `Block`: the layers with the transform, then those with attention."""
        last = spec.attention_layers
        first = spec.layers - last
        mixing = [dataclasses.replace(spec, block=FNetBlock, layers=first, attention_layers=0)] if first else []
        return (*mixing, *([dataclasses.replace(spec, layers=last)] if last else []))

    @classmethod
    def supports_length(cls, spec: FNetHybridSpec, tokens: int) -> bool:
        """See `Block`: any number, or up to n if each position or offset has parameters of its own."""
        return supports_length(spec, tokens)

    def attention_scores(self, x: jax.Array) -> jax.Array:
        """See `Block`."""
        return self.attention.scores(self.mixing_norm(x) if self.pre_norm else x)
