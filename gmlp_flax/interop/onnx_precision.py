"""ONNX models as onnxruntime runs them best, in float32, or in float16 and int8, in a half and a
quarter of the space.

Constants are folded, and products with a constant become MatMul, which is faster than the Einsum
that jax2onnx writes, and which the tools of onnxruntime know.
"""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

# Of nodes for products with constants; a constant becomes the second factor.
PRODUCTS = ("MatMul", "Gemm")
LEAST = 256  # elements of a constant that is worth storing in less space


def to_float32(content: bytes) -> bytes:
    """The same model, folded and with MatMul.

    Args:
        content: a model, whose layers are written out.
    """
    _, model = _with_matmuls(content)
    return _without_unused(model).SerializeToString()


def to_float16(content: bytes) -> bytes:
    """The same model with products in float16, and their constants and the tables of embeddings
    stored so; norms, activations, sums, inputs and outputs stay float32.

    Args:
        content: a model, whose layers are written out.

    Raises:
        ValueError: a weight is too large for float16.
    """
    onnx, model = _with_matmuls(content)
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    halves: dict[str, Any] = {}  # tensor or node of each name in float16
    nodes = []

    def half(name: str) -> str:
        """The name of a value in float16, which is made if it is new."""
        new_name = f"{name}_float16"
        if new_name in halves:
            return new_name
        if name in constants:
            values = _float16(onnx.numpy_helper.to_array(constants[name]))
            halves[new_name] = onnx.numpy_helper.from_array(values, new_name)
            graph.initializer.append(halves[new_name])
        else:
            halves[new_name] = _cast(onnx, name, new_name, onnx.TensorProto.FLOAT16)
            nodes.append(halves[new_name])
        return new_name

    for node in graph.node:
        inputs = list(node.input)
        is_product = node.op_type in (*PRODUCTS, "Einsum")
        is_table = node.op_type == "Gather" and _is_large(onnx, constants.get(inputs[0]))
        if is_product and any(_is_large(onnx, constants.get(name)) for name in inputs):
            inputs = [half(name) for name in inputs]
        elif is_table:
            inputs[0] = half(inputs[0])
        else:
            nodes.append(node)
            continue
        [output] = node.output
        lower = onnx.NodeProto()
        lower.CopyFrom(node)
        del lower.input[:]
        lower.input.extend(inputs)
        lower.output[0] = f"{output}_in_float16"
        nodes.append(lower)
        nodes.append(_cast(onnx, lower.output[0], output, onnx.TensorProto.FLOAT))
    _replace(graph.node, nodes)
    return _without_unused(model).SerializeToString()


def _float16(values: np.ndarray) -> np.ndarray:
    """The values in float16; raises ValueError if one is too large."""
    largest = float(np.abs(values).max(initial=0))
    if largest > np.finfo(np.float16).max:
        raise ValueError(f"a weight of {largest:.3g} is too large for float16, 65,504 at most")
    return values.astype(np.float16)


def to_int8(content: bytes) -> bytes:
    """The same model with the weights of channels, and tables of embeddings, in int8, a scale for
    each channel; activations are quantised as they come (dynamic quantisation, of onnxruntime's own
    tool). Products over tokens stay float32.

    Args:
        content: a model, whose layers are written out.
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
        return _without_unused(onnx.load(target)).SerializeToString()


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Hides the advice to prepare a model, which has been done."""
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

    model = onnx.load_from_string(_folded(content))
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        if node.op_type == "Einsum" and len(node.input) == 2:
            nodes.append(_as_matmul(onnx, node, constants, graph))
        else:
            nodes.append(node)
    _replace(graph.node, nodes)
    return onnx, model


def _folded(content: bytes) -> bytes:
    """A model as onnxruntime writes it with what depends on constants alone computed."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = os.path.join(folder, "folded.onnx")
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        with open(options.optimized_model_filepath, "rb") as file:
            return file.read()


def _as_matmul(onnx: Any, node: Any, constants: dict[str, Any], graph: Any) -> Any:
    """An Einsum of states [..., k] and a constant [k, n] or [n, k] as a MatMul; any other as it
    is."""
    equation = node.attribute[0].s.decode().replace(" ", "")
    sources, _, result = equation.partition("->")
    states, _, weight = sources.partition(",")
    name = node.input[1]
    if name not in constants:
        return node
    states, weight, result = (part.replace("...", "") for part in (states, weight, result))
    summed = states[-1]
    kept = result[-1]
    if weight not in (summed + kept, kept + summed) or result[:-1] != states[:-1]:
        return node
    values = onnx.numpy_helper.to_array(constants[name])
    if values.size != values.shape[-1] * values.shape[-2]:
        return node
    matrix = values.reshape(values.shape[-2:])
    if weight == kept + summed:
        matrix = matrix.T
    new_name = f"{name}_{weight}"
    if new_name not in constants:
        tensor = onnx.numpy_helper.from_array(np.ascontiguousarray(matrix), new_name)
        constants[new_name] = tensor
        graph.initializer.append(tensor)
    return onnx.helper.make_node("MatMul", [node.input[0], new_name], node.output, node.name)


def _cast(onnx: Any, name: str, output: str, kind: int) -> Any:
    return onnx.helper.make_node("Cast", [name], [output], f"cast_to_{output}", to=kind)


def _is_large(onnx: Any, tensor: Any) -> bool:
    """Whether a tensor is a constant of many floats; None is no constant."""
    if tensor is None or tensor.data_type != onnx.TensorProto.FLOAT:
        return False
    return int(np.prod(tensor.dims)) >= LEAST


def _without_unused(model: Any) -> Any:
    """The model without constants that no node reads, and without the operator sets that
    onnxruntime lists and it does not use."""
    graph = model.graph
    read = {name for node in graph.node for name in node.input}
    _replace(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in read])
    domains = {node.domain for node in graph.node}
    used = [opset for opset in model.opset_import if opset.domain in domains]
    _replace(model.opset_import, used)
    del graph.value_info[:]
    return model


def _replace(messages: Any, new: list[Any]) -> None:
    """Puts other messages in the place of all in a list of a protocol buffer."""
    copies = []
    for message in new:
        copy = type(message)()
        copy.CopyFrom(message)
        copies.append(copy)
    del messages[:]
    messages.extend(copies)
