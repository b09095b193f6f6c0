"""The spatial projection f(Z) = W Z + b over the token axis (paper, Equation 2)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models import toeplitz
from gmlp_flax.models.decode_cache import DecodeCache
from gmlp_flax.models.matmul import add_bias, over_tokens
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.resize import OverPatches, PastTaps, Taps, TokenBias
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import AT_LEAST_0, option

APPLY = {"direct": toeplitz.apply_direct, "fft": toeplitz.apply_fft}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpatialSpec(BlockSpec):
    """Options of the spatial projection. The paper's images have a dense W, all of its text a Toeplitz one."""

    spatial: str = option(
        "toeplitz",
        "the spatial projection: [n, n], or 2n - 1 taps (causal: n)",
        ("toeplitz", "dense"),
        architecture=True,
    )
    toeplitz: str = option(
        "direct", "how taps are applied; docs say when fft is faster", ("direct", "fft"), numerics_only=True
    )
    spatial_init_std: float = option(
        1e-6, "standard deviation of spatial weights at the start (paper: near zero)", AT_LEAST_0
    )

    def check(self) -> None:
        """Raises ValueError for a causal FFT, in which tokens see later ones by its rounding."""
        super().check()
        if self.causal and self.spatial == "toeplitz" and self.toeplitz == "fft":
            raise ValueError(
                "model.toeplitz is 'fft', whose rounding tells of later tokens: causal models have 'direct'"
            )


class SpatialProjection(nnx.Module):
    """W Z + b with one W for all channels and one bias per token, W near zero at the start.

    Parameters: `weight` [n, n] (spec.spatial == "dense") or `taps` [2n - 1] ("toeplitz"), and `bias` [n].
    A Toeplitz projection takes any length up to n: central taps, first biases. A dense one takes n alone.

    A causal W is 0 above its diagonal: it has `taps` [n], of the offsets 1 - n to 0, or ignores what `weight` has there.
    Then a dense one takes any length up to n as well: its upper-left corner.
    """

    def __init__(self, spec: SpatialSpec, bias: float, rngs: nnx.Rngs):
        n, dtype = spec.length, spec.param_dtype
        near_zero = nnx.initializers.normal(spec.spatial_init_std)
        if spec.spatial == "dense":
            over_patches = OverPatches(outputs=-2, inputs=-1)
            self.weight = parameter(near_zero(rngs.params(), (n, n), dtype), resize=over_patches)
        else:
            taps, resize = (n, PastTaps()) if spec.causal else (2 * n - 1, Taps())
            self.taps = parameter(near_zero(rngs.params(), (taps,), dtype), resize=resize)
        resize = OverPatches(outputs=-1) if spec.spatial == "dense" else TokenBias()
        self.bias = parameter(jnp.full((n,), bias, dtype), decayed=False, resize=resize)
        self.spec = spec

    def __call__(self, z: jax.Array, cache: DecodeCache | None = None) -> jax.Array:
        """[batch, tokens, channels] to the same shape. With `cache`, these tokens follow earlier ones, and only the rows of W
        for the new tokens are computed.

        Raises:
            ValueError: more tokens than n, or, for a dense W that is not causal, another number than n.
        """
        n, tokens = self.spec.length, z.shape[-2]
        if not supports_length(self.spec, tokens):
            accepts = f"at most {n}" if supports_length(self.spec, 1) else f"exactly {n}"
            raise ValueError(f"the spatial projection was made for {accepts} tokens and was given {tokens}")
        if cache is not None:
            bias = jax.lax.dynamic_slice_in_dim(self.bias[...], cache.first, tokens)
            rows = self._rows(cache.first, tokens).astype(z.dtype)
            return add_bias(over_tokens(rows, cache.update("gate", z)), bias[:, None])
        bias = self.bias[:tokens, None]
        if self.spec.spatial == "dense":
            return add_bias(over_tokens(self.matrix()[:tokens, :tokens].astype(z.dtype), z), bias)
        return add_bias(APPLY[self.spec.toeplitz](toeplitz.crop(self._all_taps(), tokens), z), bias)

    def matrix(self) -> jax.Array:
        """W [n, n]; rows are outputs."""
        if self.spec.spatial == "dense":
            return jnp.tril(self.weight[...]) if self.spec.causal else self.weight[...]
        return toeplitz.expand(self._all_taps())

    def _all_taps(self) -> jax.Array:
        return toeplitz.past_only(self.taps[...]) if self.spec.causal else self.taps[...]

    def _rows(self, first: jax.Array, count: int) -> jax.Array:
        """Rows [first, first + count) of a causal W."""
        if self.spec.spatial == "toeplitz":
            return toeplitz.rows(self._all_taps(), first, count)
        rows = jax.lax.dynamic_slice_in_dim(self.weight[...], first, count)
        return jnp.where(jnp.arange(self.spec.length) <= first + jnp.arange(count)[:, None], rows, 0)


def supports_length(spec: SpatialSpec, tokens: int) -> bool:
    """Whether a projection can be applied to so many tokens."""
    return tokens == spec.length if spec.spatial == "dense" and not spec.causal else tokens <= spec.length
