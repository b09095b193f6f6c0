"""The benchmark's part about bfloat16: gradients beside those in float32, by parameter."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config, tasks
from gmlp_flax.benchmarks.timing import Row, example_batch
from gmlp_flax.checkpoints.pytree import path_name
from gmlp_flax.errors import RunError
from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.training.partition import Partition

# Name of a row -> options of its model. Every block is among them.
ROWS = {
    **{name: {"block": name} for name in BLOCKS},
    "amlp": {"block": "gmlp", "d_attn": 64},
    "relative": {"block": "transformer", "positions": "relative"},
    "relative_only": {"block": "transformer", "positions": "relative_only"},
    **{
        f"synthesizer, {parts}": {"block": "synthesizer", "synthesizer": parts}
        for parts in ("dense", "factorized_dense", "factorized_random", "random+dense", "dense+factorized_dense")
    },
    "dynamic": {"block": "convolution", "convolution": "dynamic"},
}


def bench_precision(rows: Sequence[str]) -> list[Row]:
    """|bfloat16 - float32| / |float32| of the gradients of a fresh masked language model, norms over each parameter.

    Args:
        rows: names of ROWS; empty for all.

    Returns:
        A row for each model: the median, smallest and largest error of its parameters, in percent; the name of the
        parameter with the largest, and in `parameters` all of them.

    Raises:
        RunError: there is no such row.
    """
    if unknown := [row for row in rows if row not in ROWS]:
        raise RunError(f"--rows has {unknown[0]!r}: expected some of {', '.join(ROWS)}")
    return [model_row(name) for name in rows or ROWS]


def model_row(name: str, layers: int = 12) -> Row:
    """The row of one model."""
    errors = gradient_errors(ROWS[name], layers)
    percent = {path: 100 * error for path, error in errors.items()}
    worst = max(percent, key=percent.__getitem__)
    values = list(percent.values())
    figures = {"median": float(np.median(values)), "min": min(values), "max": percent[worst]}
    title = f"{name}: {worst.removeprefix('encoder/blocks/')}"
    return {"name": title, **figures, "unit": "%", "goal": "<= 5", "parameters": percent}


def gradient_errors(model: dict, layers: int = 12) -> dict[str, float]:
    """Path of each parameter that has a gradient -> its relative error in bfloat16."""
    rough, exact = (_gradients(_config(model, layers, dtype)) for dtype in ("bfloat16", "float32"))
    norms = {path: float(np.linalg.norm(gradient)) for path, gradient in exact.items()}
    least = 1e-6 * max(norms.values())  # rounding alone, of what has no effect, such as a bias before a softmax
    return {
        path: float(np.linalg.norm(rough[path] - gradient)) / norms[path]
        for path, gradient in exact.items()
        if norms[path] > least
    }


def _config(model: dict, layers: int, dtype: str) -> ConfigDict:
    options = config.default(block=model["block"])
    options.batch_size = 8
    options.model.update({"d_model": 128, "d_ffn": 256, **model, "layers": layers, "dtype": dtype})
    return options


def _gradients(options: ConfigDict) -> dict[str, np.ndarray]:
    task = tasks.find(options.task).without_data(options)
    batch = example_batch(task, Partition.make(devices=jax.devices()[:1]))
    batch["key"] = jax.random.split(jax.random.key(1), options.batch_size)
    params = jax.jit(task.init)(jax.random.key(0))
    gradients = jax.jit(jax.grad(lambda params: task.loss(params, batch)[0]))(params)
    leaves = jax.tree_util.tree_leaves_with_path(gradients)
    return {path_name(path): np.asarray(jnp.asarray(leaf, jnp.float32)).astype(np.float64) for path, leaf in leaves}
