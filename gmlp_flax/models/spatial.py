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


Grid = tuple[int, int]


def resize_tokens(
    x: jax.Array, axis: int, grid: Grid, new_grid: Grid, prefix: int = 0, method: str = "bicubic"
) -> jax.Array:
    """Interpolates an axis of tokens over their 2-D grid of patches.

    Args:
        x: any shape; along `axis` come `prefix` tokens that are no patches (cls), then h * w patches, row-major.
        axis: not negative.
        grid: (h, w).
        new_grid: (H, W).
        prefix: number of tokens in front, which are kept as they are.
        method: of `jax.image.resize`.

    Returns:
        `x` with prefix + H * W along `axis`; unchanged where the grids agree.

    Raises:
        ValueError: the axis does not belong to the grid.
    """
    patches = grid[0] * grid[1]
    if x.shape[axis] != prefix + patches:
        raise ValueError(f"{x.shape[axis]} tokens do not belong to a grid of {grid}, {patches} patches, after {prefix}")
    if grid == new_grid:
        return x
    kept, moved = jnp.split(x, [prefix], axis)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    moved = jax.image.resize(moved.reshape(*before, *grid, *after), (*before, *new_grid, *after), method)
    return jnp.concatenate([kept, moved.reshape(*before, new_grid[0] * new_grid[1], *after)], axis)


def resize_inputs(
    weight: jax.Array, axis: int, grid: Grid, new_grid: Grid, prefix: int = 0, method: str = "bicubic"
) -> jax.Array:
    """Interpolates the axis of a matrix along which it sums over the tokens of a 2-D grid of patches.

    It then sums over more (or fewer) patches, so their weights are scaled by the ratio of their numbers: a smooth
    picture keeps its response. Arguments, result and errors as of `resize_tokens`.
    """
    resized = resize_tokens(weight, axis, grid, new_grid, prefix, method)
    patches = (slice(None),) * axis + (slice(prefix, None),)
    return resized.at[patches].multiply((grid[0] * grid[1]) / (new_grid[0] * new_grid[1]))
