"""The spatial projection f(Z) = W Z + b over the token axis (paper, Equation 2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models import toeplitz
from gmlp_flax.models.products import over_tokens
from gmlp_flax.models.spec import EncoderSpec

APPLY = {"direct": toeplitz.apply_direct, "fft": toeplitz.apply_fft}


class SpatialProjection(nnx.Module):
    """W Z + b with one W for all channels and one bias per token, W near zero at the start.

    Parameters: `weight` [n, n] (spec.spatial == "dense") or `taps` [2n - 1] ("toeplitz"), and `bias` [n].
    A Toeplitz projection takes any length up to n: central taps, first biases. A dense one takes n alone.
    """

    def __init__(self, spec: EncoderSpec, bias: float, rngs: nnx.Rngs):
        n, dtype = spec.length, spec.param_dtype
        near_zero = nnx.initializers.normal(spec.spatial_init_std)
        if spec.spatial == "dense":
            self.weight = nnx.Param(near_zero(rngs.params(), (n, n), dtype))
        else:
            self.taps = nnx.Param(near_zero(rngs.params(), (2 * n - 1,), dtype))
        self.bias = nnx.Param(jnp.full((n,), bias, dtype))
        self.spec = spec

    def __call__(self, z: jax.Array) -> jax.Array:
        """[batch, tokens, channels] to the same.

        Raises:
            ValueError: more tokens than n, or, for a dense W, another number than n.
        """
        n, tokens = self.spec.length, z.shape[-2]
        if tokens > n or (self.spec.spatial == "dense" and tokens != n):
            accepts = f"exactly {n}" if self.spec.spatial == "dense" else f"at most {n}"
            raise ValueError(f"the spatial projection was made for {accepts} tokens and was given {tokens}")
        bias = self.bias[:tokens, None].astype(z.dtype)
        if self.spec.spatial == "dense":
            return over_tokens(self.weight.astype(z.dtype), z) + bias
        return APPLY[self.spec.toeplitz](toeplitz.crop(self.taps[...], tokens), z) + bias


def resize(
    weight: jax.Array, bias: jax.Array, grid: tuple[int, int], new_grid: tuple[int, int], method: str = "bicubic"
) -> tuple[jax.Array, jax.Array]:
    """A dense projection over one 2-D grid of patches, made to serve another resolution.

    W is interpolated over the grid of its outputs and over the grid of its inputs, b over its one grid. Each output
    then sums over more (or fewer) inputs, so W is scaled by the ratio of their numbers: a smooth picture keeps its
    response.

    Args:
        weight: [h * w, h * w], rows are outputs.
        bias: [h * w].
        grid: (h, w), patches in row-major order.
        new_grid: (H, W).
        method: of `jax.image.resize`.

    Returns:
        Weight [H * W, H * W] and bias [H * W]; unchanged where the grids agree.

    Raises:
        ValueError: the weight does not belong to the grid.
    """
    n, new_n = grid[0] * grid[1], new_grid[0] * new_grid[1]
    if weight.shape != (n, n) or bias.shape != (n,):
        raise ValueError(f"weight {weight.shape} and bias {bias.shape} do not belong to a grid of {grid}, {n} patches")
    if grid == new_grid:
        return weight, bias
    resized = jax.image.resize(weight.reshape(*grid, *grid), (*new_grid, *new_grid), method)
    new_bias = jax.image.resize(bias.reshape(grid), new_grid, method)
    return resized.reshape(new_n, new_n) * (n / new_n), new_bias.reshape(new_n)
