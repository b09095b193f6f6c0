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
KINDS = {name: {**row.requires, "name": name} for name, row in OPTIMIZERS.items()} | {
    "lora": {"lora_rank": 2}
}


def train(folder: Path, name: str, sizes: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Parameters and the optimizer's state after a few updates, by path; and the shares "split" and
    "size": of the state's numbers those over `fsdp`, and the state's numbers over the
    parameters'."""
    config = tiny.text_config(folder)
    # sizes whose second moments Adafactor keeps by rows and columns
    config.model.update(d_model=128, d_ffn=256)
    config.optimizer.update(KINDS[name])
    task = tasks.find(config.task)(tiny.with_mesh(config, sizes))
    training = step.Training(task, tiny.partition(config))
    state = training.init(jax.random.key(0))
    params = state.params
    opt_state = state.opt_state

    @jax.jit
    def update(gradients, opt_state, params):
        updates, opt_state = training.optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    for number in range(STEPS):
        rng = np.random.default_rng(number)
        drawn = jax.tree.map(lambda p, rng=rng: rng.normal(size=p.shape).astype("f4"), params)
        gradients = jax.device_put(drawn, jax.tree.map(lambda p: p.sharding, params))
        params, opt_state = update(gradients, opt_state, params)
    leaves = jax.tree.leaves(state.opt_state)
    size = 0
    split = 0
    for leaf in leaves:
        size += leaf.size
        if "fsdp" in leaf.sharding.spec:
            split += leaf.size
    found = leaves_by_path(jax.device_get({"params": params, "state": opt_state}))
    found["split"] = np.array(split / size)
    found["size"] = np.array(size / parameters.count(params))
    return found


def main(folder: str, out: str) -> None:
    arrays = {}
    for name in KINDS:
        for sizes in ((1, 1, 1), (1, 8, 1)):
            arrays |= {
                f"{name}:{sizes[1]}:{key}": x for key, x in train(Path(folder), name, sizes).items()
            }
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
