"""Metadata of parameters, stated where a parameter is made: sharding, weight decay, resizing for
other lengths; and, stated where layers are stacked, which axis is the layer.

Training reads it with `metadata`. No file outside the models lists parameters by name.

A rule of resizing (`Resize`) makes parameters for n tokens fit another number of tokens, or another
grid of patches. It takes a parameter, whose leading axis may be the layer, its new shape, and the
grids of patches of two image models (None for text). It returns the resized parameter or, if the
rule does not apply, the parameter unchanged. Rules are compared by value.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models.sharding import FSDP


class Grids(NamedTuple):
    """Rows and columns of patches before and after, and the number of tokens (cls) before the first
    patch."""

    old: tuple[int, int]
    new: tuple[int, int]
    prefix: int = 0


Resize = Callable[[jax.Array, tuple[int, ...], Grids | None], jax.Array]


@dataclasses.dataclass(frozen=True)
class OverPatches:
    """Interpolates over the grid of patches.

    Attributes:
        outputs: axis of the tokens that the parameter produces, counted from the end; None if it
            has none.
        inputs: axis of the tokens that it sums over, counted from the end; None if it has none.
    """

    outputs: int | None = None
    inputs: int | None = None

    def __call__(self, x: jax.Array, shape: tuple[int, ...], grids: Grids | None) -> jax.Array:
        """A rule, as above."""
        if not grids:
            return x
        if self.outputs is not None:
            x = self._resize_axis(x, self.outputs, grids, summed=False)
        if self.inputs is not None:
            x = self._resize_axis(x, self.inputs, grids, summed=True)
        return x

    def _resize_axis(self, x: jax.Array, axis: int, grids: Grids, summed: bool) -> jax.Array:
        patches = math.prod(grids.old)
        tokens = grids.prefix + patches
        if x.shape[axis] != tokens:
            return x
        axis_from_start = axis % x.ndim
        return resize_tokens(x, axis_from_start, grids, summed)


@dataclasses.dataclass(frozen=True)
class CropOrPad:
    """Crops or pads axes with one entry per token, or per offset between tokens.

    Attributes:
        keep: the entries that stay: "first" for tokens, "center" for offsets, "last" for offsets up
            to 0.
        fill: new entries, as a mode of `jnp.pad`: "constant" for 0, "edge" or "mean"; empty if
            there can be none.
        axes: counted from the end.
        over_patches: whether to interpolate instead, if there are grids.
    """

    keep: str
    fill: str
    axes: tuple[int, ...] = (-1,)
    over_patches: bool = False

    def __call__(self, x: jax.Array, shape: tuple[int, ...], grids: Grids | None) -> jax.Array:
        """A rule, as above."""
        for axis in self.axes:
            if grids and self.over_patches:
                interpolate = OverPatches(outputs=axis)
                x = interpolate(x, shape, grids)
                continue
            added = shape[axis] - x.shape[axis]  # negative: entries are removed
            # an even number of biases belongs to buckets of offsets, which do not depend on n
            is_in_buckets = self.keep == "center" and added % 2 == 1
            is_too_short = added > 0 and not self.fill
            if is_in_buckets or is_too_short:
                return x
            x = self._crop_or_pad(x, axis, added)
        return x

    def _crop_or_pad(self, x: jax.Array, axis: int, added: int) -> jax.Array:
        """Adds so many entries along an axis, or removes them if the number is negative."""
        added_before = {"first": 0, "center": added // 2, "last": added}
        before = added_before[self.keep]
        after = added - before
        # what is negative is removed
        cropped = _crop(x, axis, max(-before, 0), max(-after, 0))
        if added <= 0:
            return cropped
        widths = [(0, 0)] * x.ndim
        widths[axis] = (max(before, 0), max(after, 0))
        return jnp.pad(cropped, widths, mode=self.fill)


def _crop(x: jax.Array, axis: int, before: int, after: int) -> jax.Array:
    """Removes so many entries at the start and at the end of an axis."""
    stop = x.shape[axis] - after
    axis_from_start = axis % x.ndim
    return jax.lax.slice_in_dim(x, before, stop, axis=axis_from_start)


TAPS = CropOrPad("center", "constant")  # Toeplitz taps [..., 2n - 1]
PAST_TAPS = CropOrPad("last", "constant")  # of a causal matrix [..., n], the largest distance first
OFFSETS = CropOrPad("center", "edge")  # biases of offsets [..., 2n - 1]
PAST_OFFSETS = CropOrPad("last", "edge")  # of offsets up to 0 [..., n]
TOKEN_BIAS = CropOrPad("first", "mean")  # biases of tokens [..., n] that go with Toeplitz taps
POSITIONS = CropOrPad("first", "", axes=(-2,))  # the table of positions of text, [n, d_model]


def is_for_offsets(resize: Resize | None) -> bool:
    """Whether a rule is for parameters of offsets between tokens. On images their meaning depends
    on the length of a row of patches."""
    return isinstance(resize, CropOrPad) and resize.keep != "first"


def token_logits(*axes: int) -> CropOrPad:
    """The rule for logits of a softmax with one entry per token along these axes; for text, new
    entries are 0."""
    return CropOrPad("first", "constant", axes, over_patches=True)


def resize_tokens(x: jax.Array, axis: int, grids: Grids, summed: bool = False) -> jax.Array:
    """Interpolates an axis of tokens over their 2-D grid of patches.

    Args:
        x: any shape; along `axis` first `grids.prefix` tokens, which do not change, then h * w
            patches, row-major.
        axis: not negative.
        grids: (h, w), (H, W) and the prefix.
        summed: whether x are weights of a sum over these tokens. They are then scaled by the ratio
            of the numbers of patches, so that the response to a smooth image stays the same.

    Returns:
        x with prefix + H * W entries along `axis`.
    """
    before = x.shape[:axis]
    after = x.shape[axis + 1 :]
    old_shape = (*before, *grids.old, *after)  # [..., h, w, ...]
    new_shape = (*before, *grids.new, *after)  # [..., H, W, ...]
    flat_shape = (*before, -1, *after)  # [..., H * W, ...]
    prefix, old_patches = jnp.split(x, [grids.prefix], axis)
    old_grid = old_patches.reshape(old_shape)
    new_grid = jax.image.resize(old_grid, new_shape, "bicubic")
    if summed:
        old_count = math.prod(grids.old)
        new_count = math.prod(grids.new)
        new_grid = new_grid * (old_count / new_count)
    new_patches = new_grid.reshape(flat_shape)
    return jnp.concatenate([prefix, new_patches], axis)


class Layers(NamedTuple):
    """The layers along the leading axis of a parameter, which belong to one encoder.

    Attributes:
        first: the number of the first of them in the encoder, from 0.
        total: how many layers the encoder has, in all of its stacks.
    """

    first: int
    total: int


class ParamMetadata(NamedTuple):
    """What training needs to know about a parameter.

    Attributes:
        sharding: the mesh axis of each of its last axes, None for an axis that is not sharded. Axes
            before them, such as the layer, are not sharded. What a layer has along `fsdp` is
            gathered in the compute type.
        decayed: whether weight decay applies: not to norms, biases, cls tokens and learned
            positions.
        resize: how it is resized for another number of tokens; None if its shape does not depend on
            that.
        layers: the layers that are stacked along its leading axis; None if it is not stacked.
    """

    sharding: tuple[str | None, ...] = ()
    decayed: bool = True
    resize: Resize | None = None
    layers: Layers | None = None


PLAIN = ParamMetadata()  # of a parameter about which nothing was stated


def parameter(value: jax.Array, **metadata: Any) -> nnx.Param:
    """A parameter with its `ParamMetadata`, whose fields are the other arguments."""
    return nnx.Param(value, param_metadata=ParamMetadata(**metadata))


def metadata_of(variable: nnx.Variable) -> ParamMetadata:
    """What was stated where the parameter was made. A plain `nnx.Param` is not sharded, is decayed,
    and cannot be resized."""
    stated = variable.get_metadata()
    return stated.get("param_metadata", PLAIN)


def set_layers(module: nnx.Module, layers: Layers) -> None:
    """States that the leading axis of every parameter of a module is these layers."""
    for _, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Param):
            of_layer = metadata_of(node)
            stacked = of_layer._replace(layers=layers)
            node.set_metadata(param_metadata=stacked)


def gather(params: Any, dtype: jnp.dtype) -> Any:
    """Layers' parameters, a tree of `nnx.Variable`, with what is sharded along `fsdp` whole and in
    `dtype`: gathered in one collective, and the gradients scattered in one.

    That is for programs that are written for one device along `fsdp` (`jax.shard_map`); elsewhere
    the compiler gathers.
    """
    leaves, structure = jax.tree.flatten(params, is_leaf=_is_variable)
    axes = _fsdp_axes(leaves)
    mesh = jax.sharding.get_abstract_mesh()
    if not axes or FSDP not in mesh.manual_axes:
        return params
    parts = []
    for number, axis in axes.items():
        value = leaves[number][...]
        part = jnp.moveaxis(value.astype(dtype), axis, 0)
        parts.append(part)
    wholes = _gather_arrays(parts)
    for (number, axis), whole in zip(axes.items(), wholes, strict=True):
        leaf = leaves[number]
        value = jnp.moveaxis(whole, 0, axis)
        leaves[number] = leaf.replace(value)
    return jax.tree.unflatten(structure, leaves)


def _is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def _fsdp_axes(leaves: list[nnx.Variable]) -> dict[int, int]:
    """Number of a leaf that is sharded along `fsdp` -> its axis there, counted from the end."""
    axes = {}
    for number, leaf in enumerate(leaves):
        names = metadata_of(leaf).sharding
        if FSDP in names:
            axis_among_last = names.index(FSDP)
            axes[number] = axis_among_last - len(names)
    return axes


def _gather_arrays(parts: list[jax.Array]) -> Iterator[jax.Array]:
    """Arrays of which each device along `fsdp` has a part of the leading axis, whole, by one
    collective."""
    # rows that fill a TPU's tiles are copied least
    sizes = [part.size for part in parts]
    width = math.gcd(1024, *sizes)
    rows = [part.reshape(-1, width) for part in parts]
    all_rows = jnp.concatenate(rows)
    gathered = jax.lax.all_gather(all_rows, FSDP)  # [devices, rows, width]
    row_counts = [len(part) for part in rows]
    ends = list(itertools.accumulate(row_counts))
    bounds = ends[:-1]
    wholes = jnp.split(gathered, bounds, axis=1)
    for part, whole in zip(parts, wholes, strict=True):
        inner_shape = part.shape[1:]
        yield whole.reshape(-1, *inner_shape)


def count(shapes: Any) -> int:
    """The number of parameters in a tree of arrays or shapes."""
    total = 0
    for leaf in jax.tree.leaves(shapes):
        total += math.prod(leaf.shape)
    return total


def metadata(module: nnx.Module) -> dict[str, ParamMetadata]:
    """Path, such as `encoder/norm/scale` -> metadata, of all parameters of a module. Shapes instead
    of arrays do."""
    params = nnx.state(module, nnx.Param)
    by_path = {}
    for path, variable in nnx.to_flat_state(params):
        name = "/".join(map(str, path))
        by_path[name] = metadata_of(variable)
    return by_path
