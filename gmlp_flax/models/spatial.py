"""The spatial projection f(Z) = W Z + b over the token axis (paper, Equation 2)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models import toeplitz
from gmlp_flax.models.fitting import OverPatches, Taps, TokenBias
from gmlp_flax.models.options import AT_LEAST_0, option
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.products import over_tokens
from gmlp_flax.models.spec import BlockSpec

APPLY = {"direct": toeplitz.apply_direct, "fft": toeplitz.apply_fft}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpatialSpec(BlockSpec):
    """Options of the spatial projection. The paper's images have a dense W, all of its text a Toeplitz one."""

    spatial: str = option(
        "toeplitz", "the spatial projection: [n, n], or 2n - 1 taps", ("toeplitz", "dense"), architecture=True
    )
    toeplitz: str = option("direct", "how taps are applied; docs say when fft is faster", ("direct", "fft"))
    spatial_init_std: float = option(
        1e-6, "standard deviation of spatial weights at the start (paper: near zero)", AT_LEAST_0
    )


class SpatialProjection(nnx.Module):
    """W Z + b with one W for all channels and one bias per token, W near zero at the start.

    Parameters: `weight` [n, n] (spec.spatial == "dense") or `taps` [2n - 1] ("toeplitz"), and `bias` [n].
    A Toeplitz projection takes any length up to n: central taps, first biases. A dense one takes n alone.
    """

    def __init__(self, spec: SpatialSpec, bias: float, rngs: nnx.Rngs):
        n, dtype = spec.length, spec.param_dtype
        near_zero = nnx.initializers.normal(spec.spatial_init_std)
        if spec.spatial == "dense":
            over_patches = OverPatches(outputs=-2, inputs=-1)
            self.weight = parameter(near_zero(rngs.params(), (n, n), dtype), fit=over_patches)
        else:
            self.taps = parameter(near_zero(rngs.params(), (2 * n - 1,), dtype), fit=Taps())
        fit = OverPatches(outputs=-1) if spec.spatial == "dense" else TokenBias()
        self.bias = parameter(jnp.full((n,), bias, dtype), decayed=False, fit=fit)
        self.spec = spec

    def __call__(self, z: jax.Array) -> jax.Array:
        """[batch, tokens, channels] to the same.

        Raises:
            ValueError: more tokens than n, or, for a dense W, another number than n.
        """
        n, tokens = self.spec.length, z.shape[-2]
        if not takes(self.spec, tokens):
            accepts = f"exactly {n}" if self.spec.spatial == "dense" else f"at most {n}"
            raise ValueError(f"the spatial projection was made for {accepts} tokens and was given {tokens}")
        bias = self.bias[:tokens, None].astype(z.dtype)
        if self.spec.spatial == "dense":
            return over_tokens(self.weight[...].astype(z.dtype), z) + bias
        return APPLY[self.spec.toeplitz](toeplitz.crop(self.taps[...], tokens), z) + bias

    def matrix(self) -> jax.Array:
        """W [n, n]; rows are outputs."""
        return self.weight[...] if self.spec.spatial == "dense" else toeplitz.expand(self.taps[...])


def takes(spec: SpatialSpec, tokens: int) -> bool:
    """Whether a projection can be applied to so many tokens."""
    return tokens == spec.length if spec.spatial == "dense" else tokens <= spec.length
