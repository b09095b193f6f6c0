"""ONNX models as onnxruntime runs them best: in float32, or in float16 and int8, which take half and
a quarter of the space.

Constants are folded, and products with a constant become MatMul. It is faster than the Einsum that
jax2onnx writes, and the tools of onnxruntime know it.
"""

import contextlib
import logging
import math
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

# Operators of products with constants; a constant becomes the second factor.
PRODUCTS = ("MatMul", "Gemm")
LEAST = 256  # elements of a constant that is worth storing in less space

# "abk,kn->abn" without dots; in a matrix product the states' last axis is summed.
_AXES = re.compile(
    r"(?P<others>\w*)(?P<summed>\w),(?P<weight>\w+)->(?P<kept_others>\w*)(?P<kept>\w)"
)


def to_float32(content: bytes) -> bytes:
    """The same model, folded and with MatMul.

    Args:
        content: a model with unrolled layers.
    """
    _, model = _with_matmuls(content)
    smaller = _without_unused(model)
    return smaller.SerializeToString()


def to_float16(content: bytes) -> bytes:
    """The same model with products in float16, and with their constants and the tables of
    embeddings stored in float16. Norms, activations, sums, inputs and outputs stay float32.

    Args:
        content: a model with unrolled layers.

    Raises:
        ValueError: a weight is too large for float16.
    """
    onnx, model = _with_matmuls(content)
    graph = model.graph
    lowered = _Float16Nodes(onnx, graph)
    for node in graph.node:
        lowered.add(node)
    _replace(graph.node, lowered.nodes)
    smaller = _without_unused(model)
    return smaller.SerializeToString()


class _Float16Nodes:
    """The nodes of a graph, with its large products and tables in float16.

    Args:
        onnx: the package.
        graph: constants in float16 are added to it.
    """

    def __init__(self, onnx: Any, graph: Any):
        self.nodes: list[Any] = []
        self._onnx = onnx
        self._graph = graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._names: set[str] = set()  # of values in float16

    def add(self, node: Any) -> None:
        """Adds a node, the next one in the order of the graph."""
        to_lower = self._inputs_to_lower(node)
        is_large = any(map(self._is_large, to_lower))
        if not is_large:
            self.nodes.append(node)
            return
        inputs = []
        for name in node.input:
            is_lowered = name in to_lower
            inputs.append(self._float16(name) if is_lowered else name)
        [output] = node.output
        lower_output = f"{output}_in_float16"
        lower = self._onnx.NodeProto()
        lower.CopyFrom(node)
        del lower.input[:]
        lower.input.extend(inputs)
        lower.output[0] = lower_output
        self.nodes.append(lower)
        self._add_cast(lower_output, output, self._onnx.TensorProto.FLOAT)

    def _inputs_to_lower(self, node: Any) -> list[str]:
        """The inputs that are in float16 if one of them is large: both factors of a product, or
        the table of an embedding."""
        if node.op_type in PRODUCTS or node.op_type == "Einsum":
            return list(node.input)
        if node.op_type == "Gather":
            table = node.input[0]
            return [table]
        return []

    def _float16(self, name: str) -> str:
        """The name of a value in float16, which is made if it is new."""
        new_name = f"{name}_float16"
        if new_name in self._names:
            return new_name
        self._names.add(new_name)
        constant = self._constants.get(name)
        if constant is None:
            self._add_cast(name, new_name, self._onnx.TensorProto.FLOAT16)
            return new_name
        arrays = self._onnx.numpy_helper
        precise_values = arrays.to_array(constant)
        values = _float16(precise_values)
        tensor = arrays.from_array(values, new_name)
        self._graph.initializer.append(tensor)
        return new_name

    def _add_cast(self, name: str, output: str, kind: int) -> None:
        make_node = self._onnx.helper.make_node
        node_name = f"cast_to_{output}"
        cast = make_node("Cast", [name], [output], node_name, to=kind)
        self.nodes.append(cast)

    def _is_large(self, name: str) -> bool:
        """Whether a name is that of a constant of many floats."""
        tensor = self._constants.get(name)
        if tensor is None:
            return False
        elements = math.prod(tensor.dims)
        is_float = tensor.data_type == self._onnx.TensorProto.FLOAT
        return is_float and elements >= LEAST


def _float16(values: np.ndarray) -> np.ndarray:
    """The values in float16; raises ValueError if one is too large."""
    sizes = np.abs(values)
    largest = float(sizes.max(initial=0))
    limit = np.finfo(np.float16).max
    if largest > limit:
        raise ValueError(f"a weight of {largest:.3g} is too large for float16, 65,504 at most")
    return values.astype(np.float16)


def to_int8(content: bytes) -> bytes:
    """The same model with the weights of channels, and tables of embeddings, in int8 with a scale
    for each channel. Activations are quantized at run time (dynamic quantization, by onnxruntime's
    own tool). Products over tokens stay float32.

    Args:
        content: a model with unrolled layers.
    """
    from onnxruntime import quantization

    onnx, model = _with_matmuls(content)
    with tempfile.TemporaryDirectory() as folder, _no_warnings():
        source = os.path.join(folder, "float32.onnx")
        target = os.path.join(folder, "int8.onnx")
        onnx.save(model, source)
        quantization.quantize_dynamic(
            source,
            target,
            per_channel=True,
            reduce_range=True,  # else sums overflow on processors without VNNI
            weight_type=quantization.QuantType.QInt8,
        )
        quantized = onnx.load(target)
    smaller = _without_unused(quantized)
    return smaller.SerializeToString()


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Hides the advice to prepare a model, which is prepared already."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _with_matmuls(content: bytes) -> tuple[Any, Any]:
    """The package onnx, and a model whose constants are folded, and whose products with constants
    are MatMul."""
    import onnx
    import onnx.numpy_helper

    folded = _folded(content)
    model = onnx.load_from_string(folded)
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        is_einsum = node.op_type == "Einsum"
        if is_einsum and len(node.input) == 2:
            node = _as_matmul(onnx, node, constants, graph)
        nodes.append(node)
    _replace(graph.node, nodes)
    return onnx, model


def _folded(content: bytes) -> bytes:
    """A model as onnxruntime writes it, with everything computed that depends only on constants."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "folded.onnx")
        options.optimized_model_filepath = path
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        with open(path, "rb") as file:
            return file.read()


def _as_matmul(onnx: Any, node: Any, constants: dict[str, Any], graph: Any) -> Any:
    """An Einsum of states [..., k] and a constant [k, n] or [n, k] as a MatMul; any other as it
    is."""
    states, name = node.input
    if name not in constants:
        return node
    equation = _equation(node)
    if not equation.is_product:
        return node
    arrays = onnx.numpy_helper
    values = arrays.to_array(constants[name])
    rows, columns = values.shape[-2:]
    is_matrix = values.size == rows * columns
    if not is_matrix:
        return node
    matrix = values.reshape(rows, columns)
    if equation.is_transposed:
        matrix = matrix.T
    new_name = f"{name}_{equation.weight}"
    if new_name not in constants:
        contiguous = np.ascontiguousarray(matrix)
        tensor = arrays.from_array(contiguous, new_name)
        constants[new_name] = tensor
        graph.initializer.append(tensor)
    return onnx.helper.make_node("MatMul", [states, new_name], node.output, node.name)


class _Equation(NamedTuple):
    """What an Einsum of states and a weight computes.

    Attributes:
        weight: the axes of the weight, a letter each.
        is_product: whether it is a matrix product over the last axis of the states.
        is_transposed: whether the weight's summed axis is its last.
    """

    weight: str
    is_product: bool
    is_transposed: bool


def _equation(node: Any) -> _Equation:
    """The equation of an Einsum of two arrays."""
    [attribute] = node.attribute
    text = attribute.s.decode()
    without_blanks = text.replace(" ", "")
    letters = without_blanks.replace("...", "")
    axes = _AXES.fullmatch(letters)
    if axes is None:
        return _Equation(text, is_product=False, is_transposed=False)
    weight = axes["weight"]
    summed = axes["summed"]
    kept = axes["kept"]
    is_transposed = weight == kept + summed
    is_plain = weight == summed + kept
    keeps_others = axes["others"] == axes["kept_others"]
    is_product = keeps_others and (is_transposed or is_plain)
    return _Equation(weight, is_product, is_transposed)


def _without_unused(model: Any) -> Any:
    """The model without constants that no node reads, and without the operator sets that
    onnxruntime lists although the model does not use them."""
    graph = model.graph
    read_names = set()
    domains = set()
    for node in graph.node:
        read_names.update(node.input)
        domains.add(node.domain)
    read = [tensor for tensor in graph.initializer if tensor.name in read_names]
    used = [opset for opset in model.opset_import if opset.domain in domains]
    _replace(graph.initializer, read)
    _replace(model.opset_import, used)
    del graph.value_info[:]
    return model


def _replace(messages: Any, new: list[Any]) -> None:
    """Replaces all messages in a list of a protocol buffer."""
    copies = []
    for message in new:
        kind = type(message)
        copy = kind()
        copy.CopyFrom(message)
        copies.append(copy)
    del messages[:]
    messages.extend(copies)
