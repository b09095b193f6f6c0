"""A model's forward pass in formats that need no gmlp_flax: a reader for PyTorch, StableHLO for JAX, and ONNX.

StableHLO and ONNX take any batch, and what `Task.forward` reads: images uint8 [batch, height, width, channels], or
int32 [batch, length], tokens and, for models finetuned on text, segments (ONNX has them in the order of the alphabet).
"""

import functools
import importlib
import importlib.resources
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from gmlp_flax.errors import RunError, decode_errors, install
from gmlp_flax.models import blocks, sharding
from gmlp_flax.tasks.base import Task
from gmlp_flax.training.loading import Trained

TORCH_TASKS = ("masked_lm", "causal_lm", "image_classification")


class Format(NamedTuple):
    """A format: the name of its file, its content for a model, the package that this needs, and how it is opened."""

    file: str
    encode: Callable[[Trained], bytes]
    package: str
    opener: str

    def write(self, model: Trained) -> bytes:
        """The file's content. Raises RunError if the package is missing, or if the format does not have the model."""
        name, config = next(name for name, known in FORMATS.items() if known == self), model.config
        try:
            importlib.import_module(self.package)
        except ImportError:
            raise RunError(f"--format={name} needs {self.package}, not installed: {install(name)}") from None
        what = f"--format={name} does not have this model, {config.model.block} in {config.task}"
        with decode_errors(what, "leave the format out", RunError):
            return self.encode(model)


def _torch(model: Trained) -> bytes:
    reader = blocks.find(model.config.model.block).torch_reader
    if not reader or model.config.task not in TORCH_TASKS:
        raise ValueError(f"it has gMLP and aMLP in {', '.join(TORCH_TASKS)}")
    return (importlib.resources.files("gmlp_flax.interop") / "templates" / reader).read_bytes()


def _stablehlo(model: Trained) -> bytes:
    forward = jax.jit(functools.partial(model.task.forward, model.weights))
    with sharding.portable():
        exported = jax.export.export(forward, platforms=("cpu", "cuda", "tpu"))(_inputs(model.task))
    return bytes(exported.serialize())


def _onnx(model: Trained) -> bytes:
    import jax2onnx

    for name in ("jax2onnx", "onnx_ir"):  # which tell of operators that our models do not have
        logging.getLogger(name).setLevel(logging.ERROR)
    leaves, structure = jax.tree.flatten(_inputs(model.task))
    forward = functools.partial(model.task.forward, jax.device_get(model.weights))
    choose = jax.lax.platform_dependent
    try:  # as jax2onnx does with other functions while it traces: it has no operator for a choice of platform
        jax.lax.platform_dependent = lambda *args, default, **_: default(*args)
        with sharding.portable():
            exported = jax2onnx.to_onnx(lambda *arrays: forward(jax.tree.unflatten(structure, arrays)), inputs=leaves)
    finally:
        jax.lax.platform_dependent = choose
    return exported.SerializeToString()


FORMATS = {
    "torch": Format("modeling_gmlp.py", _torch, "json", "from modeling_gmlp import GMLP; GMLP.from_pretrained(FOLDER)"),
    "stablehlo": Format("model.stablehlo", _stablehlo, "flatbuffers", "jax.export.deserialize(CONTENT).call(inputs)"),
    "onnx": Format("model.onnx", _onnx, "jax2onnx", "onnxruntime.InferenceSession(FILE).run(None, {NAME: inputs})"),
}


def _inputs(task: Task) -> Any:
    """Shapes and types of what `Task.forward` reads, for a symbolic batch."""
    (batch,) = jax.export.symbolic_shape("batch")
    arrays = {
        name: jax.ShapeDtypeStruct((batch, *shape[:-1], task.length if name != "image" else shape[-1]), dtype)
        for name, (shape, dtype) in task.example_shapes().items()
        if name in ("image", "tokens", "segments")
    }
    return arrays if len(arrays) > 1 else next(iter(arrays.values()))
