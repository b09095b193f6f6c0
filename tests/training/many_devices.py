"""Trains a tiny model on as many devices as there are and saves its parameters: python many_devices.py FOLDER OUT.npz"""

import sys
from pathlib import Path

import jax
import numpy as np

from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.training import checkpoint, evaluation, optimizer, partition, step
from gmlp_flax.training.state import path_name
from tests.training import tiny


def main(folder: str, out: str) -> None:
    config = tiny.text_config(Path(folder), remat="none")
    config.optimizer.accumulate = 2
    task, mesh = MaskedLanguageModeling(config, folder), partition.make_mesh()
    transformation = optimizer.make(config, task.shapes())
    state = jax.jit(
        lambda key: step.init_state(task, transformation, False, task.init(key)),
        out_shardings=partition.replicated(mesh),
    )(jax.random.key(0))
    train_step = step.make_train_step(task, transformation, mesh, config)
    with task.train_batches(0, 0, 1) as batches:
        for _ in range(3):
            state, window = train_step(state, partition.put_batch(mesh, next(batches)))
    metrics, _ = evaluation.Evaluator(task, mesh)(state.params)
    x = jax.random.normal(jax.random.key(0), (16, 3))
    sums = [jax.jit(checkpoint.checksum)(jax.device_put(x, s)) for s in (partition.over_batch(mesh), jax.devices()[0])]
    flat = jax.tree_util.tree_leaves_with_path((state.params, window))
    arrays = {path_name(path): value for path, value in flat}
    np.savez(out, devices=jax.device_count(), **arrays, **metrics, checksums=np.array(sums))


if __name__ == "__main__":
    main(*sys.argv[1:])
