"""State dicts of torch as our parameters.

A state dict is flat, with one tensor per layer. Our parameters are a nested dict, all layers
stacked along a leading axis. One table of rows per family of models maps between the two.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from flax import traverse_util

from gmlp_flax.io import weight_files
from gmlp_flax.io.weight_files import State

T = TypeVar("T")

# A view of one of our arrays in the layout of torch's tensor; np.asarray: the same.
Layout = Callable[[np.ndarray], np.ndarray]


class TensorName(NamedTuple):
    """A tensor of a layer.

    Attributes:
        theirs: the end of torch's name.
        ours: the end of our path.
        layout: of torch's tensor.
    """

    theirs: str
    ours: str
    layout: Layout = np.asarray


Tensors = tuple[TensorName, ...]


class Row(NamedTuple):
    """A layer of a family of models.

    Attributes:
        theirs: torch's name, in which `*` stands for the number of the block.
        ours: our path.
        tensors: of the layer.
        first: the number of the block whose tensors come first in ours.
    """

    theirs: str
    ours: str
    tensors: Tensors
    first: int = 0


def led_by_ones(ours: np.ndarray) -> np.ndarray:
    """An array with as many leading axes of size 1 as make three: of all examples and tokens."""
    ones = (1,) * (3 - ours.ndim)
    return ours.reshape(ones + ours.shape)


def columns(start: int, stop: int) -> Tensors:
    """The tensors of a layer that gives some of the outputs of one of ours."""

    def kernel(ours: np.ndarray) -> np.ndarray:
        return ours[..., start:stop].T

    def bias(ours: np.ndarray) -> np.ndarray:
        return ours[start:stop]

    return _linear(kernel, bias)


def _linear(kernel: Layout, bias: Layout) -> Tensors:
    """The tensors of a linear layer, in these layouts."""
    return TensorName(".weight", "/kernel", kernel), TensorName(".bias", "/bias", bias)


def half_of_linear(end: str) -> Tensors:
    """The tensors of a layer that is a half, by the `end` of its name, of a layer of torch's."""
    return (
        TensorName(f".weight{end}", "/kernel", np.transpose),
        TensorName(f".bias{end}", "/bias"),
    )


def _third(part: int) -> Tensors:
    """The tensors of queries, keys or values, of which one of our layers computes all three."""

    def bias(ours: np.ndarray) -> np.ndarray:
        thirds = np.split(ours, 3, axis=-1)
        return thirds[part]

    def kernel(ours: np.ndarray) -> np.ndarray:
        return bias(ours).T

    return _linear(kernel, bias)


LINEAR = _linear(np.transpose, np.asarray)
OVER_TOKENS: Tensors = (TensorName(".weight", "/weight"), TensorName(".bias", "/bias"))
NORM: Tensors = (TensorName(".weight", "/scale"), TensorName(".bias", "/bias"))
AFFINE: Tensors = (
    TensorName(".alpha", "/scale", led_by_ones),
    TensorName(".beta", "/bias", led_by_ones),
)
SINGLE: Tensors = (TensorName("", ""),)
OF_ALL_EXAMPLES: Tensors = (TensorName("", "", led_by_ones),)
QUERIES = _third(0)
KEYS = _third(1)
VALUES = _third(2)


def torch_views(flat: Mapping[str, np.ndarray], rows: Sequence[Row]) -> State:
    """Views of our parameters, given by path, under torch's names and in torch's layouts: what is
    written to a view is written to our parameter. Rows of layers that we do not have are skipped.
    """
    views = {}
    for row in rows:
        for tensor in row.tensors:
            path = row.ours + tensor.ours
            if path in flat:
                views |= _views_of(flat[path], row, tensor)
    return views


def _views_of(parameter: np.ndarray, row: Row, tensor: TensorName) -> State:
    """Views of one of our parameters, under torch's names: one for each layer if torch has a tensor
    for each."""
    name = row.theirs + tensor.theirs
    if "*" not in name:
        return {name: tensor.layout(parameter)}
    views = {}
    for layer, array in enumerate(parameter, start=row.first):
        name_in_layer = name.replace("*", str(layer))
        views[name_in_layer] = tensor.layout(array)
    return views


def from_torch(state: State, rows: Sequence[Row], like: dict, where: str) -> dict[str, Any]:
    """A state dict as our parameters, a nested dict of arrays.

    Args:
        state: tensors by torch's names.
        rows: of the family.
        like: our parameters or their shapes, a nested dict, whose names and types the result has.
        where: the source of the weights, for messages.

    Raises:
        RunError: weights are missing, unexpected, of another shape or not finite.
    """
    params = _unfilled(like)
    views = torch_views(params, rows)
    shapes = {name: view.shape for name, view in views.items()}
    weight_files.require_all(state, shapes, where)
    for name, view in views.items():
        view[...] = state[name]
    return traverse_util.unflatten_dict(params, sep="/")


def _unfilled(like: dict) -> dict[str, np.ndarray]:
    """Arrays of some shapes, a nested dict, by path. They are full of NaN, which a parameter that no
    row names would keep."""
    flat: dict[str, Any] = traverse_util.flatten_dict(like, sep="/")
    params = {}
    for path, leaf in flat.items():
        params[path] = np.full(leaf.shape, np.nan, leaf.dtype)
    return params


def renamed(state: Mapping[str, T], patterns: Mapping[str, str]) -> dict[str, T]:
    """A state dict, or the shapes of one, with each pattern replaced in all names, in turn."""
    new_names = {}
    for name in state:
        new_name = name
        for pattern, replacement in patterns.items():
            new_name = re.sub(pattern, replacement, new_name)
        new_names[name] = new_name
    return {new_names[name]: value for name, value in state.items()}
