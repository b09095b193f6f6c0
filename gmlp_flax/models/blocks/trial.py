"""A trial of a user's block: one layer is called as in a run, before any run starts."""

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models.blocks.causality import short
from gmlp_flax.models.layers import LayerRng

OURS = __name__.partition(".")[0]
MOST_CHARACTERS = 300  # of an exception's message


def problem_of_calls(spec: Any, padded: bool = False) -> str:
    """What is wrong with how a block is made or called, as words that follow its name; "" if
    nothing is. Nothing is computed.

    Args:
        spec: of the blocks of the model.
        padded: whether the block is called with a `padding_mask`.
    """
    arguments = ["x", "rng", "padding_mask"]
    if spec.causal:
        arguments.append("cache")
    for method, names in (("__init__", ["spec", "rngs"]), ("__call__", arguments)):
        problem = _problem_of_signature(spec.block, method, names)
        if problem:
            return problem
    for layer_spec in _different_layers(spec):
        problem = _problem_of_layer(layer_spec, padded)
        if problem:
            return problem
    return ""


def problem_of_values(spec: Any) -> str:
    """The same for the numbers of a block that can be called. One layer with its initial parameters
    computes its output, and its gradients, from random tokens.

    Args:
        spec: of the blocks of the model.
    """
    for layer_spec in _different_layers(short(spec)):
        block = layer_spec.block(layer_spec, nnx.Rngs(0))
        shape = (1, layer_spec.length, layer_spec.d_model)
        x = jax.random.normal(jax.random.key(1), shape, layer_spec.stream_dtype)
        gradients, output = _gradients(block, x)
        inputs = "for random tokens, with its initial parameters"
        if not _is_finite(output):
            return f"returns NaN or infinite numbers {inputs}"
        if not _is_finite(gradients):
            return f"has NaN or infinite gradients {inputs}"
    return ""


def _different_layers(spec: Any) -> Iterator[Any]:
    """The spec of each layer that differs from the layer before."""
    previous = None
    for layer_spec in spec.block.layer_specs(spec):
        if layer_spec != previous:
            yield layer_spec
        previous = layer_spec


def _problem_of_signature(block: type[Any], method: str, names: list[str]) -> str:
    signature = inspect.signature(getattr(block, method))
    try:
        signature.bind("self", *names)
    except TypeError:
        expected = ", ".join(["self", *names])
        return f"defines {method}{signature}: expected {method}({expected})"
    return ""


def _problem_of_layer(spec: Any, padded: bool) -> str:
    """The same for one layer, in training and in evaluation."""
    example = jax.ShapeDtypeStruct((1, spec.length, spec.d_model), spec.stream_dtype)
    for training in (False, True):
        call = _call_of(spec, training, padded)
        try:
            returned = nnx.eval_shape(call, example)
        except Exception as error:
            when = "with a padding_mask " if padded else ""
            line = _line_of(error, spec.block)
            return f"{when}raises {type(error).__name__}: {_message(error)}{line}"
        shape = getattr(returned, "shape", None)
        if shape != example.shape:
            return (
                f"returns {shape or type(returned).__name__} for tokens of shape "
                f"{example.shape}, [batch, tokens, d_model]: expected the same shape"
            )
        if returned.dtype != example.dtype:
            return f"returns {returned.dtype} for tokens of {example.dtype}: expected the same type"
    return ""


def _call_of(spec: Any, training: bool, padded: bool) -> Callable[[Array], Array]:
    """A function that makes a layer and calls it as the encoder does."""

    def call(x: Array) -> Array:
        keys = jax.random.split(jax.random.key(0), 1) if training and spec.draws else None
        survival = jnp.float32(spec.survival) if spec.survival < 1 else None
        mask = jnp.ones((1, spec.length), bool) if padded else None
        block = spec.block(spec, nnx.Rngs(0))
        return block(x, LayerRng(keys, spec.dropout, survival), mask)

    return call


@nnx.jit
def _gradients(block: nnx.Module, x: Array) -> tuple[Any, Array]:
    """The gradients of the sum of the squared outputs, by the parameters and by the tokens, and the
    outputs."""

    def loss(block: Any, x: Array) -> tuple[Array, Array]:
        output = block(x)
        return jnp.square(output).sum(), output

    return nnx.grad(loss, argnums=(0, 1), has_aux=True)(block, x)


def _is_finite(tree: Any) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


def _message(error: Exception) -> str:
    """The message of an exception in one line."""
    words = " ".join(str(error).split())
    if len(words) > MOST_CHARACTERS:
        return f"{words[:MOST_CHARACTERS]}..."
    return words


def _line_of(error: Exception, block: type[Any]) -> str:
    """The last line of the user's own code that an exception passed through; "" if there is none."""
    files = set()
    for base in block.__mro__:
        module = sys.modules.get(base.__module__)
        file = getattr(module, "__file__", None)
        if file and base.__module__.partition(".")[0] not in (OURS, "flax", "builtins"):
            files.add(file)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            return f" ({os.path.basename(frame.filename)}, line {frame.lineno})"
    return ""
