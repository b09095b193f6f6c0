"""The benchmark's part about bfloat16: gradients beside those in float32, by parameter."""

from collections.abc import Iterator, Sequence

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
        for parts in (
            "dense",
            "factorized_dense",
            "factorized_random",
            "random+dense",
            "dense+factorized_dense",
        )
    },
    "dynamic": {"block": "convolution", "convolution": "dynamic"},
}


FIRST = ("gmlp", "relative")  # without --rows: a minute
# of the residuals: what a row's name ends with -> residual_dtype
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
        largest, and in `parameters` all of them.

    Raises:
        RunError: there is no such row.
    """
    if unknown := [row for row in rows if row not in (*ROWS, "all")]:
        raise RunError(f"--rows has {unknown[0]!r}: expected all, or some of {', '.join(ROWS)}")
    for name in ROWS if "all" in rows else rows or FIRST:
        yield from model_rows(name, layers)


def model_rows(name: str, layers: int) -> Iterator[Row]:
    """The rows of one model, each as soon as it is measured."""
    exact = _gradients(_config(ROWS[name], layers, dtype="float32"))
    for words, stream in STREAMS.items():
        rough = _gradients(_config(ROWS[name], layers, dtype="bfloat16", residual_dtype=stream))
        percent = {path: 100 * error for path, error in relative_errors(rough, exact).items()}
        worst = max(percent, key=percent.__getitem__)
        values = list(percent.values())
        figures = {"median": float(np.median(values)), "min": min(values), "max": percent[worst]}
        title = f"{name}{words}: {worst.removeprefix('encoder/blocks/')}"
        yield {
            "name": title,
            **figures,
            "unit": "%",
            "goal": "<= 5",
            "layers": layers,
            "parameters": percent,
        }


def relative_errors(rough: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> dict[str, float]:
    """Path of each parameter that has a gradient -> |rough - exact| / |exact|."""
    norms = {path: float(np.linalg.norm(gradient)) for path, gradient in exact.items()}
    # rounding alone, of what has no effect, such as a bias before a softmax
    least = 1e-6 * max(norms.values())
    return {
        path: float(np.linalg.norm(rough[path] - gradient)) / norms[path]
        for path, gradient in exact.items()
        if norms[path] > least
    }


def _config(model: dict, layers: int, **types: str) -> ConfigDict:
    options = config.default(block=model["block"])
    options.batch_size = 8
    options.model.update({"d_model": 128, "d_ffn": 256, **model, "layers": layers, **types})
    return options


def _gradients(options: ConfigDict) -> dict[str, np.ndarray]:
    task = tasks.find(options.task)(options)
    batch = example_batch(task, Partition.make(devices=jax.devices()[:1]))
    batch["key"] = jax.random.split(jax.random.key(1), options.batch_size)
    params = jax.jit(task.init)(jax.random.key(0))
    gradients = jax.jit(jax.grad(lambda params: task.loss(params, batch)[0]))(params)
    leaves = jax.tree_util.tree_leaves_with_path(gradients)
    return {
        path_name(path): np.asarray(jnp.asarray(leaf, jnp.float32)).astype(np.float64)
        for path, leaf in leaves
    }
