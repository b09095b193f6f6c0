"""The forward pass of a model in formats of other frameworks: a reader for PyTorch, StableHLO and
ONNX."""

import functools
import importlib.resources
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from gmlp_flax.errors import RunError, decode_errors, require
from gmlp_flax.models import blocks, sharding
from gmlp_flax.tasks.base import Task
from gmlp_flax.training.model import Model

TORCH_TASKS = ("masked_lm", "causal_lm", "image_classification")
PLATFORMS = ("cpu", "cuda", "tpu")  # of StableHLO


class Format(NamedTuple):
    """A format.

    Attributes:
        file: the name of its file.
        encode: the content of the file, for a model.
        package: that this needs.
        opener: how the file is opened, a line of Python.
    """

    file: str
    encode: Callable[[Model], bytes]
    package: str
    opener: str


def encode(model: Model, name: str) -> bytes:
    """A model in one of FORMATS; raises RunError if its package is missing, or if the format has no
    such model."""
    require(FORMATS[name].package, f"--format={name}", name)
    block = model.config.model.block
    what = f"--format={name} does not have this model, {block} in {model.config.task}"
    with decode_errors(what, "leave the format out", RunError):
        return FORMATS[name].encode(model)


def _torch(model: Model) -> bytes:
    reader = blocks.find(model.config.model.block).torch_reader
    if not reader or model.config.task not in TORCH_TASKS:
        raise ValueError(f"it has gMLP and aMLP in {', '.join(TORCH_TASKS)}")
    templates = importlib.resources.files("gmlp_flax.interop") / "templates"
    return (templates / reader).read_bytes()


def _stablehlo(model: Model) -> bytes:
    forward = jax.jit(functools.partial(model.task.forward, model.params))
    with sharding.portable():
        exported = jax.export.export(forward, platforms=PLATFORMS)(_inputs(model.task))
    return bytes(exported.serialize())


def _onnx(model: Model) -> bytes:
    import jax2onnx

    for name in ("jax2onnx", "onnx_ir"):  # which warn of operators that our models do not have
        logging.getLogger(name).setLevel(logging.ERROR)
    leaves, structure = jax.tree.flatten(_inputs(model.task))
    params = jax.device_get(model.params)

    def forward(*arrays: Any) -> Any:
        return model.task.forward(params, jax.tree.unflatten(structure, arrays))

    # jax2onnx has no operator for a choice of platform. It replaces other functions of JAX in the
    # same way while it traces.
    choose = jax.lax.platform_dependent
    try:
        jax.lax.platform_dependent = _default_platform
        with sharding.portable():
            exported = jax2onnx.to_onnx(forward, inputs=leaves)
    finally:
        jax.lax.platform_dependent = choose
    return exported.SerializeToString()


def _default_platform(*args: Any, default: Callable[..., Any], **_: Any) -> Any:
    return default(*args)


FORMATS = {
    "torch": Format(
        "modeling_gmlp.py",
        _torch,
        "json",
        "from modeling_gmlp import GMLP; GMLP.from_pretrained(FOLDER)",
    ),
    "stablehlo": Format(
        "model.stablehlo", _stablehlo, "flatbuffers", "jax.export.deserialize(CONTENT).call(inputs)"
    ),
    "onnx": Format(
        "model.onnx",
        _onnx,
        "jax2onnx",
        "onnxruntime.InferenceSession(FILE).run(None, {NAME: inputs})",
    ),
}


def _inputs(task: Task) -> Any:
    """Shapes and types of what `Task.forward` reads, for a symbolic batch."""
    (batch,) = jax.export.symbolic_shape("batch")
    arrays = {}
    for name, (shape, dtype) in task.example_shapes().items():
        if name == "image":
            arrays[name] = jax.ShapeDtypeStruct((batch, *shape), dtype)
        elif name in ("tokens", "segments"):
            arrays[name] = jax.ShapeDtypeStruct((batch, *shape[:-1], task.length), dtype)
    if len(arrays) > 1:
        return arrays
    [array] = arrays.values()
    return array
