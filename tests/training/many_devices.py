"""Trains a tiny model on 8 fake devices under every mesh and saves the results.

python many_devices.py FOLDER OUT.npz
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from gmlp_flax.checkpoints import checkpoint, pytree
from gmlp_flax.checkpoints.pytree import leaves_by_path
from gmlp_flax.planning import dry_run
from gmlp_flax.training import evaluation, step
from gmlp_flax.training.partition import Partition
from tests.training import tiny

TOKENS = 24  # a number that no other axis of the programs has
STEPS = 2


def make_config(folder: Path, sizes: tuple[int, int, int], dtype: str = "float32"):
    """aMLP of 6 layers with all that a mesh could change: microbatches, dropout, stochastic depth,
    a running mean."""
    config = tiny.text_config(
        folder, d_attn=4, dropout=0.1, attention_dropout=0.1, survival=0.8, dtype=dtype
    )
    config.batch_size = 16
    config.model.update(layers=6, d_model=16, d_ffn=64, length=TOKENS)
    config.optimizer.update(grad_accum_steps=2, ema=0.9)
    return tiny.with_mesh(config, sizes)


class Training:
    """Training under one mesh, on as many devices as the mesh needs."""

    def __init__(self, folder: Path, sizes: tuple[int, int, int], dtype: str = "float32"):
        self.config = make_config(folder, sizes, dtype)
        self.task, self.data = tiny.open_task(self.config, folder)
        self.partition = tiny.partition(self.config)
        self.programs = step.Training(self.task, self.partition)

    def train(self):
        """The state after a few steps, the sums of the window, and the text of the compiled
        step."""
        state = self.programs.init(jax.random.key(0))
        train_step = self.programs.step.lower(
            state,
            dry_run.batch_shapes(self.task, self.task.config.batch_size, self.partition.over_batch),
        ).compile()
        with self.data.train_batches(0, *self.partition.host_share()) as batches:
            for _ in range(STEPS):
                state, window = train_step(state, self.partition.put_batch(next(batches)))
        if self.partition.mesh.size > 1:
            spread = [len(leaf.sharding.device_set) for leaf in jax.tree.leaves(state)]
            assert set(spread) == {self.partition.mesh.size}, (
                "a leaf of the state sits on fewer devices"
            )
        return state, window, train_step.as_text()

    def results(self, state, window) -> dict[str, np.ndarray]:
        """Parameters, mean and moments, the window, and the held-out metrics, by path."""
        evaluator = evaluation.Evaluator(self.task, self.data, self.partition)
        metrics, _ = evaluator(state.params, state.ema)
        return leaves_by_path(jax.device_get((state, window))) | metrics


# Sizes of data, fsdp and tensor: one device, and every choice of axes.
MESHES = ((1, 1, 1), (8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 4, 1), (2, 2, 2))


def moved_to_other_meshes(folder: Path, state, where: str) -> bool:
    """Whether a state saved under one mesh is restored bit for bit under three others."""
    checkpoints = checkpoint.Checkpoints(where)
    checkpoints.save(STEPS, state, None)
    checkpoints.wait()
    expected = jax.device_get(state)
    same = True
    for sizes in ((1, 1, 1), (1, 8, 1), (4, 1, 2)):
        restored = checkpoints.restore(STEPS, Training(folder, sizes).programs.template)
        for x, y in zip(
            jax.tree.leaves(jax.device_get(restored)), jax.tree.leaves(expected), strict=True
        ):
            same &= np.array_equal(x, y)
    checkpoints.close()
    return same


def main(folder: str, out: str) -> None:
    root = Path(folder)
    arrays = {}
    programs = {}
    for sizes in MESHES:
        training = Training(root, sizes)
        state, window, programs[str(sizes)] = training.train()
        arrays |= {
            f"{'x'.join(map(str, sizes))}:{name}": x
            for name, x in training.results(state, window).items()
        }
        if sizes == (2, 2, 2):
            assert moved_to_other_meshes(root, state, str(root / "checkpoints"))
    for sizes in ((1, 1, 1), (2, 4, 1)):
        training = Training(root, sizes, "bfloat16")
        arrays |= {
            f"bf{'x'.join(map(str, sizes))}:{name}": x
            for name, x in training.results(*training.train()[:2]).items()
        }
    partition = Partition.make()
    x = jax.random.normal(jax.random.key(0), (16, 3))
    sums = [
        jax.jit(pytree.checksum)(jax.device_put(x, s))
        for s in (partition.over_batch, jax.devices()[0])
    ]
    np.savez(out, checksums=np.array(sums), **arrays)
    (root / "programs.json").write_text(json.dumps(programs))


if __name__ == "__main__":
    main(*sys.argv[1:])
