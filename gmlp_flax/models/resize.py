"""Resizes parameters of a model for n tokens to another number of tokens, or to another grid of patches."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from gmlp_flax.models import toeplitz

Grid = tuple[int, int]


class Grids(NamedTuple):
    """Rows and columns of patches before and after, and the number of tokens (cls) before the first patch."""

    old: Grid
    new: Grid
    prefix: int = 0


class Resize(Protocol):
    """A rule for one kind of parameter. Rules are compared by value."""

    def __call__(self, x: jax.Array, shape: tuple[int, ...], grids: Grids | None) -> jax.Array:
        """The parameter x, whose leading axis may be the layer, resized to `shape`.

        If the rule does not apply, x is returned unchanged, with its old shape.
        """
        ...


@dataclasses.dataclass(frozen=True)
class OverPatches:
    """Interpolates over the grid of patches.

    Attributes:
        outputs: axis of the tokens that the parameter produces, counted from the end; None if it has none.
        inputs: axis of the tokens that it sums over, counted from the end; None if it has none.
    """

    outputs: int | None = None
    inputs: int | None = None

    def __call__(self, x: jax.Array, shape: tuple[int, ...], grids: Grids | None) -> jax.Array:
        """See `Resize`."""
        for axis, resize in ((self.outputs, resize_tokens), (self.inputs, resize_inputs)):
            if grids and axis is not None and x.shape[axis] == grids.prefix + grids.old[0] * grids.old[1]:
                x = resize(x, axis % x.ndim, *grids)
        return x


def of_offsets(resize: Resize | None) -> bool:
    """Whether a rule is for parameters of offsets between tokens. On images their meaning depends on the length of a
    row of patches."""
    return isinstance(resize, Taps | PastTaps | Offsets)


@dataclasses.dataclass(frozen=True)
class Taps:
    """Toeplitz taps [..., 2n - 1]: the central taps, or zeros for larger offsets."""

    def __call__(self, x: jax.Array, shape: tuple[int, ...], grids: Grids | None) -> jax.Array:
        """See `Resize`."""
        length = (shape[-1] + 1) // 2
        return toeplitz.crop(x, length) if shape[-1] < x.shape[-1] else toeplitz.extend(x, length)


@dataclasses.dataclass(frozen=True)
class PastTaps:
    """Taps of a causal Toeplitz matrix [..., n], the largest distance first: those of the nearest tokens, or zeros for
    larger distances. With `repeat`, for biases of offsets, larger distances repeat the largest known one."""

    repeat: bool = False

    def __call__(self, x: jax.Array, shape: tuple[int, ...], grids: Grids | None) -> jax.Array:
        """See `Resize`."""
        more = max(shape[-1] - x.shape[-1], 0)
        padded = jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (more, 0)], mode="edge" if self.repeat else "constant")
        return padded[..., -shape[-1] :]


@dataclasses.dataclass(frozen=True)
class TokenBias:
    """Biases of tokens [..., n] beside Toeplitz taps: the first biases, or their mean for new tokens."""

    def __call__(self, x: jax.Array, shape: tuple[int, ...], grids: Grids | None) -> jax.Array:
        """See `Resize`."""
        more = max(shape[-1] - x.shape[-1], 0)
        return jnp.concatenate([x[..., : shape[-1]], jnp.repeat(x.mean(-1, keepdims=True), more, axis=-1)], axis=-1)


@dataclasses.dataclass(frozen=True)
class Offsets:
    """Biases of offsets [..., 2n - 1]: the central biases, or the outermost known ones for larger offsets."""

    def __call__(self, x: jax.Array, shape: tuple[int, ...], grids: Grids | None) -> jax.Array:
        """See `Resize`. An even number of biases belongs to buckets, which do not depend on n."""
        more = (shape[-1] - x.shape[-1]) // 2
        if x.shape[-1] % 2 == 0:
            return x
        if more < 0:
            return toeplitz.crop(x, (shape[-1] + 1) // 2)
        return jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (more, more)], mode="edge")


@dataclasses.dataclass(frozen=True)
class Positions:
    """A table of positions of text, [n, d_model]: the first rows."""

    def __call__(self, x: jax.Array, shape: tuple[int, ...], grids: Grids | None) -> jax.Array:
        """See `Resize`."""
        return x[: shape[0]]


@dataclasses.dataclass(frozen=True)
class TokenLogits:
    """Logits of a softmax with one entry per token along some axes, counted from the end.

    They are interpolated over a grid of patches. For text the first entries stay, and new ones are 0.
    """

    axes: tuple[int, ...]

    def __call__(self, x: jax.Array, shape: tuple[int, ...], grids: Grids | None) -> jax.Array:
        """See `Resize`."""
        for axis in self.axes:
            length = shape[axis]
            if grids:
                x = resize_tokens(x, axis % x.ndim, *grids)
            else:
                first = jax.lax.slice_in_dim(x, 0, min(length, x.shape[axis]), axis=axis % x.ndim)
                more = [(0, 0)] * x.ndim
                more[axis] = (0, length - first.shape[axis])
                x = jnp.pad(first, more)
        return x


def resize_tokens(
    x: jax.Array, axis: int, grid: Grid, new_grid: Grid, prefix: int = 0, method: str = "bicubic"
) -> jax.Array:
    """Interpolates an axis of tokens over their 2-D grid of patches.

    Args:
        x: any shape; along `axis` first `prefix` tokens that are not patches (cls), then h * w patches, row-major.
        axis: not negative.
        grid: (h, w).
        new_grid: (H, W).
        prefix: number of tokens before the patches, which do not change.
        method: of `jax.image.resize`.

    Returns:
        x with prefix + H * W entries along `axis`; x itself if the grids are equal.

    Raises:
        ValueError: the axis does not have prefix + h * w entries.
    """
    patches = grid[0] * grid[1]
    if x.shape[axis] != prefix + patches:
        raise ValueError(f"{x.shape[axis]} tokens do not belong to a grid of {grid}, {patches} patches, after {prefix}")
    if grid == new_grid:
        return x
    front, patches_old = jnp.split(x, [prefix], axis)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    resized = jax.image.resize(patches_old.reshape(*before, *grid, *after), (*before, *new_grid, *after), method)
    return jnp.concatenate([front, resized.reshape(*before, new_grid[0] * new_grid[1], *after)], axis)


def resize_inputs(
    weight: jax.Array, axis: int, grid: Grid, new_grid: Grid, prefix: int = 0, method: str = "bicubic"
) -> jax.Array:
    """Interpolates the axis of a matrix along which it sums over the tokens of a 2-D grid of patches.

    The weights are scaled by the ratio of the numbers of patches, so that the response to a smooth image stays the
    same. Arguments, result and errors are those of `resize_tokens`.
    """
    resized = resize_tokens(weight, axis, grid, new_grid, prefix, method)
    patches = (slice(None),) * axis + (slice(prefix, None),)
    return resized.at[patches].multiply((grid[0] * grid[1]) / (new_grid[0] * new_grid[1]))
