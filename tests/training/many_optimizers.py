"""Updates the parameters of a tiny model with every optimizer, and LoRA, on 1 and on 8 fake
devices; saves the results.

python many_optimizers.py FOLDER OUT.npz
"""

import sys
from pathlib import Path

import jax
import numpy as np
import optax

from gmlp_flax import tasks
from gmlp_flax.checkpoints.pytree import leaves_by_path
from gmlp_flax.config.optimizers import OPTIMIZERS
from gmlp_flax.models import parameters
from gmlp_flax.training import step
from tests.training import tiny

STEPS = 3


def kinds() -> dict[str, dict]:
    """The options of each optimizer and of LoRA, by name."""
    options = {"lora": {"lora_rank": 2}}
    for name, row in OPTIMIZERS.items():
        options[name] = {**row.requires, "name": name}
    return options


KINDS = kinds()


def train(folder: Path, name: str, sizes: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Parameters and optimizer state after a few updates, by path. "split" is the fraction of the
    state's numbers that are sharded over `fsdp`, and "size" the ratio of the state's numbers to the
    parameters'."""
    config = tiny.text_config(folder)
    # sizes whose second moments Adafactor keeps by rows and columns
    config.model.update(d_model=128, d_ffn=256)
    config.optimizer.update(KINDS[name])
    kind = tasks.find(config.task)
    task = kind(tiny.with_mesh(config, sizes))
    training = step.Training(task, tiny.partition(config))
    state = training.init(jax.random.key(0))
    params = state.params
    opt_state = state.opt_state

    @jax.jit
    def update(gradients, opt_state, params):
        updates, opt_state = training.optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    shardings = jax.tree.map(lambda leaf: leaf.sharding, params)
    for number in range(STEPS):
        drawn = tiny.random_params(params, std=1.0, seed=number)
        gradients = jax.device_put(drawn, shardings)
        params, opt_state = update(gradients, opt_state, params)
    leaves = jax.tree.leaves(state.opt_state)
    size = 0
    split = 0
    for leaf in leaves:
        size += leaf.size
        if "fsdp" in leaf.sharding.spec:
            split += leaf.size
    arrays = jax.device_get({"params": params, "state": opt_state})
    found = leaves_by_path(arrays)
    found["split"] = np.array(split / size)
    found["size"] = np.array(size / parameters.count(params))
    return found


def main(folder: str, out: str) -> None:
    arrays = {}
    for name in KINDS:
        for sizes in ((1, 1, 1), (1, 8, 1)):
            _, devices, _ = sizes
            for key, array in train(Path(folder), name, sizes).items():
                arrays[f"{name}:{devices}:{key}"] = array
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
