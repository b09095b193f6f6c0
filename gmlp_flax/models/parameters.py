"""Metadata of parameters, stated where a parameter is made: sharding, weight decay, resizing for
other lengths; and, stated where layers are stacked, which axis is the layer.

Training reads it with `metadata`. No file outside the models lists parameters by name.

A rule of resizing makes parameters for n tokens fit another number of tokens, or another grid of
patches. It takes a parameter, whose leading axis may be the layer, its new shape, and the grids of
patches of two image models (None for text). It returns the resized parameter or, if the rule does
not apply, the parameter unchanged. Rules are compared by value.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
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
        tokens = grids.prefix + math.prod(grids.old)
        for axis, summed in ((self.outputs, False), (self.inputs, True)):
            if axis is not None and x.shape[axis] == tokens:
                x = resize_tokens(x, axis % x.ndim, grids, summed)
        return x


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
            more = shape[axis] - x.shape[axis]
            if grids and self.over_patches:
                x = OverPatches(outputs=axis)(x, shape, grids)
            elif (self.keep == "center" and more % 2) or (more > 0 and not self.fill):
                # an even number of biases belongs to buckets of offsets, which do not depend on n
                return x
            else:
                before = {"first": 0, "center": more // 2, "last": more}[self.keep]
                after = more - before
                start = max(-before, 0)
                stop = x.shape[axis] - max(-after, 0)
                x = jax.lax.slice_in_dim(x, start, stop, axis=axis % x.ndim)
                if more > 0:
                    widths = [(0, 0)] * x.ndim
                    widths[axis] = (max(before, 0), max(after, 0))
                    x = jnp.pad(x, widths, mode=self.fill)
        return x


TAPS = CropOrPad("center", "constant")  # Toeplitz taps [..., 2n - 1]
PAST_TAPS = CropOrPad("last", "constant")  # of a causal matrix [..., n], the largest distance first
OFFSETS = CropOrPad("center", "edge")  # biases of offsets [..., 2n - 1]
PAST_OFFSETS = CropOrPad("last", "edge")  # of offsets up to 0 [..., n]
TOKEN_BIAS = CropOrPad("first", "mean")  # biases of tokens [..., n] beside Toeplitz taps
POSITIONS = CropOrPad("first", "", axes=(-2,))  # a table of positions of text, [n, d_model]


def of_offsets(resize: Resize | None) -> bool:
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
    first, patches = jnp.split(x, [grids.prefix], axis)
    before = x.shape[:axis]
    after = x.shape[axis + 1 :]
    grid = patches.reshape(*before, *grids.old, *after)
    resized = jax.image.resize(grid, (*before, *grids.new, *after), "bicubic")
    if summed:
        resized = resized * (math.prod(grids.old) / math.prod(grids.new))
    flat = resized.reshape(*before, -1, *after)
    return jnp.concatenate([first, flat], axis)


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


PLAIN = ParamMetadata()  # of a parameter of which nothing was stated


def parameter(value: jax.Array, **metadata: Any) -> nnx.Param:
    """A parameter with its `ParamMetadata`, whose fields are the other arguments."""
    return nnx.Param(value, param_metadata=ParamMetadata(**metadata))


def metadata_of(variable: nnx.Variable) -> ParamMetadata:
    """What was said where it was made. A plain `nnx.Param` is not sharded, is decayed, and cannot
    be resized."""
    return variable.get_metadata().get("param_metadata", PLAIN)


def set_layers(module: nnx.Module, layers: Layers) -> None:
    """States that the leading axis of every parameter of a module is these layers."""
    for _, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Param):
            node.set_metadata(param_metadata=metadata_of(node)._replace(layers=layers))


def gather(params: Any, dtype: jnp.dtype) -> Any:
    """Layers' parameters, a tree of `nnx.Variable`, with what is sharded along `fsdp` whole and in
    `dtype`: gathered in one collective, and the gradients scattered in one.

    That is for programs that are written for one device along `fsdp` (`jax.shard_map`); elsewhere
    the compiler gathers.
    """
    leaves, structure = jax.tree.flatten(params, is_leaf=lambda x: isinstance(x, nnx.Variable))
    axes = {}  # number of a leaf -> its axis along fsdp, counted from the end
    for number, leaf in enumerate(leaves):
        names = metadata_of(leaf).sharding
        if FSDP in names:
            axes[number] = names.index(FSDP) - len(names)
    if not axes or FSDP not in jax.sharding.get_abstract_mesh().manual_axes:
        return params
    parts = []
    for number, axis in axes.items():
        part = leaves[number][...].astype(dtype)
        parts.append(jnp.moveaxis(part, axis, 0))
    # rows that fill a TPU's tiles are copied least
    width = math.gcd(1024, *(part.size for part in parts))
    rows = [part.reshape(-1, width) for part in parts]
    ends = itertools.accumulate(len(row) for row in rows[:-1])
    gathered = jax.lax.all_gather(jnp.concatenate(rows), FSDP)
    wholes = jnp.split(gathered, list(ends), axis=1)
    for (number, axis), part, whole in zip(axes.items(), parts, wholes, strict=True):
        value = whole.reshape(-1, *part.shape[1:])
        leaves[number] = leaves[number].replace(jnp.moveaxis(value, 0, axis))
    return jax.tree.unflatten(structure, leaves)


def count(shapes: Any) -> int:
    """The number of parameters in a tree of arrays or shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def metadata(module: nnx.Module) -> dict[str, ParamMetadata]:
    """Path, such as `encoder/norm/scale` -> metadata, of all parameters of a module. Shapes instead
    of arrays do."""
    state = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {"/".join(map(str, path)): metadata_of(variable) for path, variable in state}
