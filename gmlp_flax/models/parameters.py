"""Metadata of parameters: how they are sharded, decayed, and resized for other lengths, stated where
a parameter is made; and which axis is the layer, stated where layers are stacked.

Training reads it with `metadata`. No file outside the models lists parameters by name.

A rule of resizing (`Resize`) makes parameters for n tokens fit another number of tokens, or another
grid of patches. It takes a parameter, whose leading axis may be the layer, its new shape, and the
grids of patches of two image models (None for text). It returns the resized parameter or, if the
rule does not apply, the parameter unchanged. Rules are compared by value.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models.sharding import FSDP


class Grids(NamedTuple):
    """Rows and columns of patches before and after, and the number of tokens (cls) before the first
    patch."""

    old: tuple[int, int]
    new: tuple[int, int]
    prefix: int = 0


Resize = Callable[[Array, tuple[int, ...], Grids | None], Array]


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

    def __call__(self, x: Array, shape: tuple[int, ...], grids: Grids | None) -> Array:
        """A rule, as above."""
        if not grids:
            return x
        if self.outputs is not None:
            x = self._resize_axis(x, self.outputs, grids, summed=False)
        if self.inputs is not None:
            x = self._resize_axis(x, self.inputs, grids, summed=True)
        return x

    def _resize_axis(self, x: Array, axis: int, grids: Grids, summed: bool) -> Array:
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

    def __call__(self, x: Array, shape: tuple[int, ...], grids: Grids | None) -> Array:
        """A rule, as above."""
        for axis in self.axes:
            if grids and self.over_patches:
                interpolate = OverPatches(outputs=axis)
                x = interpolate(x, shape, grids)
                continue
            old = x.shape[axis]
            new = shape[axis]
            # an even number of biases belongs to buckets of offsets, which do not depend on n
            is_odd = (new - old) % 2 == 1
            has_buckets = self.keep == "center" and is_odd
            is_too_short = new > old and not self.fill
            if has_buckets or is_too_short:
                return x
            resize = self._crop if new <= old else self._pad
            x = resize(x, axis, new)
        return x

    def _crop(self, x: Array, axis: int, new: int) -> Array:
        """The `new` entries along an axis that stay."""
        removed = x.shape[axis] - new
        first = self._count_before(removed)
        stop = first + new
        axis_from_start = axis % x.ndim
        return jax.lax.slice_in_dim(x, first, stop, axis=axis_from_start)

    def _pad(self, x: Array, axis: int, new: int) -> Array:
        """x with `new` entries along an axis."""
        added = new - x.shape[axis]
        before = self._count_before(added)
        after = added - before
        widths = [(0, 0)] * x.ndim
        widths[axis] = (before, after)
        return jnp.pad(x, widths, mode=self.fill)

    def _count_before(self, count: int) -> int:
        """How many of `count` removed or added entries lie before those that stay."""
        counts = {"first": 0, "center": count // 2, "last": count}
        return counts[self.keep]


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


def resize_tokens(x: Array, axis: int, grids: Grids, summed: bool = False) -> Array:
    """Interpolates an axis of tokens over their 2-D grid of patches.

    Args:
        x: any shape; along `axis` first `grids.prefix` tokens, which do not change, then h * w
            patches, row-major.
        axis: the axis of the tokens, counted from the start.
        grids: (h, w), (H, W) and the prefix.
        summed: whether x holds the weights of a sum over these tokens. The patches are then scaled
            by h w / (H W), so that the response to a smooth image stays the same.

    Returns:
        x with prefix + H * W entries along `axis`.
    """
    prefix, old_patches = jnp.split(x, [grids.prefix], axis)
    new_patches = _resize_patches(old_patches, axis, grids)
    if summed:
        old_count = math.prod(grids.old)
        new_count = math.prod(grids.new)
        ratio = old_count / new_count
        new_patches = new_patches * ratio
    return jnp.concatenate([prefix, new_patches], axis)


def _resize_patches(patches: Array, axis: int, grids: Grids) -> Array:
    """Patches [..., h * w, ...] along an axis, interpolated to [..., H * W, ...]."""
    before = patches.shape[:axis]
    after = patches.shape[axis + 1 :]
    old_shape = (*before, *grids.old, *after)  # [..., h, w, ...]
    new_shape = (*before, *grids.new, *after)  # [..., H, W, ...]
    flat_shape = (*before, -1, *after)  # [..., H * W, ...]
    old_grid = patches.reshape(old_shape)
    new_grid = jax.image.resize(old_grid, new_shape, "bicubic")
    return new_grid.reshape(flat_shape)


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


def parameter(value: Array, **metadata: Any) -> nnx.Param:
    """A parameter with its `ParamMetadata`, whose fields are the other arguments."""
    param_metadata = ParamMetadata(**metadata)
    return nnx.Param(value, param_metadata=param_metadata)


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
    """The parameters of layers, with those that are sharded along `fsdp` gathered, in `dtype`.

    One collective gathers all of them, and in the backward pass one collective scatters their
    gradients. It serves programs that are written for one device along `fsdp` (`jax.shard_map`).
    Elsewhere the compiler gathers, and `params` is returned unchanged.

    Args:
        params: a tree of `nnx.Variable`.
        dtype: the type of the gathered parameters.
    """
    leaves, structure = jax.tree.flatten(params, is_leaf=_is_variable)
    axes = _fsdp_axes(leaves)
    mesh = jax.sharding.get_abstract_mesh()
    if not axes or FSDP not in mesh.manual_axes:
        return params
    shards = []
    for number, axis in axes.items():
        leaf = leaves[number]
        shard = leaf[...].astype(dtype)
        shard = jnp.moveaxis(shard, axis, 0)
        shards.append(shard)
    gathered = _gather_arrays(shards)
    for (number, axis), whole in zip(axes.items(), gathered, strict=True):
        leaf = leaves[number]
        value = jnp.moveaxis(whole, 0, axis)
        leaves[number] = leaf.replace(value)
    return jax.tree.unflatten(structure, leaves)


def _is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def _fsdp_axes(leaves: list[nnx.Variable]) -> dict[int, int]:
    """Index of each leaf that is sharded along `fsdp` -> the sharded axis, counted from the end."""
    axes = {}
    for number, leaf in enumerate(leaves):
        names = metadata_of(leaf).sharding
        if FSDP in names:
            axis_among_named = names.index(FSDP)
            axes[number] = axis_among_named - len(names)
    return axes


def _gather_arrays(shards: list[Array]) -> list[Array]:
    """The whole arrays of which each device along `fsdp` has a shard of the leading axis, by one
    collective: each [rows of a device, ...] to [rows of all devices, ...]."""
    all_rows, row_counts = _in_rows(shards)
    gathered = jax.lax.all_gather(all_rows, FSDP)  # [devices, rows, width]
    ends = list(itertools.accumulate(row_counts))
    bounds = ends[:-1]
    parts = jnp.split(gathered, bounds, axis=1)  # each [devices, rows of an array, width]
    arrays = []
    for shard, part in zip(shards, parts, strict=True):
        inner_shape = shard.shape[1:]
        array = part.reshape(-1, *inner_shape)
        arrays.append(array)
    return arrays


def _in_rows(arrays: list[Array]) -> tuple[Array, list[int]]:
    """The entries of all arrays in rows of one width, [rows, width], and each array's number of
    rows. Rows that fill a TPU's tiles are copied the least, so the width is up to 1,024."""
    sizes = [array.size for array in arrays]
    width = math.gcd(1024, *sizes)
    rows = [array.reshape(-1, width) for array in arrays]
    row_counts = [len(rows_of_array) for rows_of_array in rows]
    return jnp.concatenate(rows), row_counts


def count(shapes: Any) -> int:
    """The number of parameters in a tree of arrays or shapes."""
    total = 0
    for leaf in jax.tree.leaves(shapes):
        total += math.prod(leaf.shape)
    return total


def metadata(module: nnx.Module) -> dict[str, ParamMetadata]:
    """Path, such as `encoder/norm/scale` -> metadata, of all parameters of a module. They may be
    shapes instead of arrays."""
    params = nnx.state(module, nnx.Param)
    by_path = {}
    for path, variable in nnx.to_flat_state(params):
        parts = map(str, path)
        name = "/".join(parts)
        by_path[name] = metadata_of(variable)
    return by_path
