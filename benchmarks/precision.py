"""The benchmark's part about bfloat16: gradients next to those in float32, by parameter."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config, tasks
from gmlp_flax.benchmarks.timing import Row, example_batch, reaches
from gmlp_flax.checkpoints.pytree import leaves_by_path
from gmlp_flax.errors import RunError
from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.training.partition import Partition

SYNTHESIZERS = (
    "dense",
    "factorized_dense",
    "factorized_random",
    "random+dense",
    "dense+factorized_dense",
)


def _rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for name in BLOCKS:
        rows[name] = {"block": name}
    rows["amlp"] = {"block": "gmlp", "d_attn": 64}
    for positions in ("relative", "relative_only"):
        rows[positions] = {"block": "transformer", "positions": positions}
    for parts in SYNTHESIZERS:
        rows[f"synthesizer, {parts}"] = {"block": "synthesizer", "synthesizer": parts}
    rows["dynamic"] = {"block": "convolution", "convolution": "dynamic"}
    return rows


ROWS = _rows()  # name of a row -> options of its model; every block is among them
FIRST = ("gmlp", "relative")  # without --rows: a minute
# The end of a row's name -> residual_dtype.
STREAMS = {"": "", ", float32 stream": "float32"}


def bench_precision(rows: Sequence[str], layers: int) -> Iterator[Row]:
    """|bfloat16 - float32| / |float32| of the gradients of a fresh masked language model, norms
    over each parameter.

    Args:
        rows: names of ROWS, or `all`; empty for FIRST.
        layers: number of blocks.

    Yields:
        Two rows for each model, the second with `model.residual_dtype=float32`: the median,
        smallest and largest error of its parameters, in percent; the name of the parameter with the
        largest error, and all errors in `parameters`.

    Raises:
        RunError: there is no such row.
    """
    for name in rows:
        if name not in ROWS and name != "all":
            known = ", ".join(ROWS)
            raise RunError(f"--rows has {name!r}: expected all, or some of {known}")
    chosen = rows or FIRST
    if "all" in rows:
        chosen = list(ROWS)
    for name in chosen:
        yield from model_rows(name, layers)


def model_rows(name: str, layers: int) -> Iterator[Row]:
    """The rows of one model, each as soon as it is measured."""
    model = ROWS[name]
    in_float32 = _config(model, layers, dtype="float32")
    exact = _gradients(in_float32)
    for words, stream in STREAMS.items():
        in_bfloat16 = _config(model, layers, dtype="bfloat16", residual_dtype=stream)
        rough = _gradients(in_bfloat16)
        errors = relative_errors(rough, exact)
        percent = {path: 100 * error for path, error in errors.items()}
        values = list(percent.values())
        worst = max(percent, key=lambda path: percent[path])
        goal = "<= 5"
        parameter = worst.removeprefix("encoder/blocks/")
        yield {
            "name": f"{name}{words}: {parameter}",
            "median": float(np.median(values)),
            "min": min(values),
            "max": percent[worst],
            "unit": "%",
            "goal": goal,
            "verdict": "reached" if reaches(percent[worst], goal) else "missed",
            "layers": layers,
            "parameters": percent,
        }


def relative_errors(rough: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> dict[str, float]:
    """Path of each parameter that has a gradient -> |rough - exact| / |exact|."""
    norms = {}
    for path, gradient in exact.items():
        norms[path] = float(np.linalg.norm(gradient))
    # Below it is only rounding, in parameters without effect, such as a bias before a softmax.
    least = 1e-6 * max(norms.values())
    errors = {}
    for path, gradient in exact.items():
        if norms[path] > least:
            difference = rough[path] - gradient
            distance = float(np.linalg.norm(difference))
            errors[path] = distance / norms[path]
    return errors


def _config(model: dict, layers: int, **types: str) -> ConfigDict:
    options = config.default(block=model["block"])
    options.batch_size = 8
    options.model.update(d_model=128, d_ffn=256)
    options.model.update({**model, "layers": layers, **types})
    return options


def _gradients(options: ConfigDict) -> dict[str, np.ndarray]:
    task = tasks.find(options.task)(options)
    first_device, *_ = jax.devices()
    partition = Partition.make(devices=[first_device])
    batch = example_batch(task, partition)
    batch["key"] = jax.random.split(jax.random.key(1), options.batch_size)
    params = jax.jit(task.init)(jax.random.key(0))

    def loss(params: Any) -> jax.Array:
        total, *_ = task.loss(params, batch)
        return total

    gradients = jax.jit(jax.grad(loss))(params)
    by_path = {}
    for path, leaf in leaves_by_path(gradients).items():
        in_float32 = jnp.asarray(leaf, jnp.float32)
        by_path[path] = np.asarray(in_float32).astype(np.float64)
    return by_path
