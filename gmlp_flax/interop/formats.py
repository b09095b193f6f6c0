"""The forward pass of a model in formats of other frameworks: a reader for PyTorch, StableHLO and
ONNX."""

import functools
import importlib.resources
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from gmlp_flax import config as config_lib
from gmlp_flax.errors import RunError, decode_errors, require
from gmlp_flax.interop import onnx_precision
from gmlp_flax.models import blocks, sharding
from gmlp_flax.tasks.base import Task
from gmlp_flax.tasks.text import TextTask
from gmlp_flax.training.model import Model

TORCH_TASKS = ("masked_lm", "causal_lm", "image_classification")
PLATFORMS = ("cpu", "cuda", "tpu")  # of StableHLO
NO_PADDING = "PAD_ID: int | None = None"  # a line of the reader for PyTorch
OUTPUT = "logits"
OPSET = 21  # of ONNX: the newest that onnxruntime 1.20 reads


class Format(NamedTuple):
    """A format.

    Attributes:
        file: the name of its file.
        encode: returns the content of the file, for a model and ONNX's opset.
        packages: what `encode` needs.
        extra: the extra of gmlp_flax that has these packages.
        opener: a line of Python that opens the file.
    """

    file: str
    encode: Callable[[Model, int], bytes]
    packages: tuple[str, ...]
    extra: str
    opener: str


def encode(model: Model, name: str, opset: int = OPSET) -> bytes:
    """A model in one of FORMATS, of ONNX with the operators of an opset; raises RunError if its
    package is missing, or if the format has no such model."""
    target = FORMATS[name]
    for package in target.packages:
        require(package, f"--format={name}", target.extra)
    config = model.config
    block = config.model.block
    what = f"--format={name} does not have this model, {block} in {config.task}"
    with decode_errors(what, "leave the format out", RunError):
        return target.encode(model, opset)


def _torch(model: Model, _opset: int) -> bytes:
    config = model.config
    block = blocks.find(config.model.block)
    reader = block.torch_reader
    if not reader or config.task not in TORCH_TASKS:
        known = ", ".join(TORCH_TASKS)
        raise ValueError(f"it has gMLP and aMLP in {known}")
    package = importlib.resources.files("gmlp_flax.interop")
    template = package / "templates" / reader
    content = template.read_text(encoding="utf-8")
    pad_id = _pad_id(model)
    padding = f"PAD_ID: int | None = {pad_id}"
    filled = content.replace(NO_PADDING, padding)
    return filled.encode()


def _pad_id(model: Model) -> int | None:
    """The id of padding, if the model ignores padding outside training; else None."""
    task = model.task
    if not isinstance(task, TextTask):
        return None
    tokens = np.zeros((1, task.length), np.int32)
    _, mask = task.reader(model.params, tokens)
    if mask is None:
        return None
    return task.tokenizer.pad_id


def _stablehlo(model: Model, _opset: int) -> bytes:
    task = model.task
    of_inputs = functools.partial(task.forward, model.params)
    forward = jax.jit(of_inputs)
    with sharding.portable():
        shapes = input_shapes(task)
        inputs = _as_inputs(shapes)
        export = jax.export.export(forward, platforms=PLATFORMS)
        exported = export(inputs)
    content = exported.serialize()
    return bytes(content)


def _onnx(model: Model, opset: int) -> bytes:
    traced = _traced(model, opset)
    return onnx_precision.to_float32(traced)


def _traced(model: Model, opset: int) -> bytes:
    """A model as jax2onnx writes it, with separate layers: in a loop, weights would not be
    constants, and a step takes longer."""
    import jax2onnx

    for name in ("jax2onnx", "onnx_ir"):  # they warn of operators that our models do not have
        logger = logging.getLogger(name)
        logger.setLevel(logging.ERROR)
    config = config_lib.mutable_copy(model.config)
    config.model.scan_layers = False
    kind = type(model.task)
    task = kind(config, model.task.files)
    shapes = input_shapes(task)
    params = jax.device_get(model.params)

    def forward(*arrays: Any) -> Any:
        """The logits of arrays in the order of `shapes`."""
        by_name = dict(zip(shapes, arrays, strict=True))
        inputs = _as_inputs(by_name)
        return task.forward(params, inputs)

    # jax2onnx has no operator for a choice of platform. It replaces other functions of JAX in the
    # same way while it traces.
    choose = jax.lax.platform_dependent
    try:
        jax.lax.platform_dependent = _default_platform
        with sharding.portable():
            exported = jax2onnx.to_onnx(
                forward,
                inputs=list(shapes.values()),
                opset=opset,
                input_names=list(shapes),
                output_names=[OUTPUT],
            )
    finally:
        jax.lax.platform_dependent = choose
    return exported.SerializeToString()


def _onnx_float16(model: Model, opset: int) -> bytes:
    traced = _traced(model, opset)
    return onnx_precision.to_float16(traced)


def _onnx_int8(model: Model, opset: int) -> bytes:
    traced = _traced(model, opset)
    return onnx_precision.to_int8(traced)


def _default_platform(*args: Any, default: Callable[..., Any], **_: Any) -> Any:
    return default(*args)


def _onnx_opener(file: str) -> str:
    return f"import onnxruntime; onnxruntime.InferenceSession('{file}').run(['logits'], inputs)"


FORMATS = {
    "torch": Format(
        "modeling_gmlp.py",
        _torch,
        (),
        "",
        "from modeling_gmlp import GMLP; GMLP.from_pretrained(FOLDER)",
    ),
    "stablehlo": Format(
        "model.stablehlo",
        _stablehlo,
        ("flatbuffers",),
        "stablehlo",
        "import jax.export; jax.export.deserialize(CONTENT).call(inputs)",
    ),
    "onnx": Format(
        "model.onnx",
        _onnx,
        ("jax2onnx", "onnxruntime"),
        "onnx",
        _onnx_opener("model.onnx"),
    ),
    "onnx-float16": Format(
        "model_fp16.onnx",
        _onnx_float16,
        ("jax2onnx", "onnxruntime"),
        "onnx",
        _onnx_opener("model_fp16.onnx"),
    ),
    "onnx-int8": Format(
        "model_int8.onnx",
        _onnx_int8,
        ("jax2onnx", "onnxruntime"),
        "onnx",
        _onnx_opener("model_int8.onnx"),
    ),
}


def input_shapes(task: Task) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and types of what `Task.forward` reads, by name, for a symbolic batch: `image`, or
    `tokens`, and `segments` if the model has them. Raises ValueError if the task answers no single
    inputs."""
    if task.Predictor is None:
        raise ValueError("its task answers no single inputs")
    [batch] = jax.export.symbolic_shape("batch")
    shapes = task.example_shapes()
    arrays = {}
    for name, (shape, dtype) in shapes.items():
        if name not in ("image", "tokens", "segments"):
            continue
        if name != "image":
            *leading, _ = shape
            shape = (*leading, task.length)
        arrays[name] = jax.ShapeDtypeStruct((batch, *shape), dtype)
    return arrays


def _as_inputs(arrays: dict[str, Any]) -> Any:
    """Named arrays as `Task.forward` takes them: a single one without its name."""
    if len(arrays) > 1:
        return arrays
    [array] = arrays.values()
    return array
