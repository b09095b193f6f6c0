"""Trains a tiny model on 8 fake devices with every mesh and saves the results.

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

Sizes = tuple[int, int, int]  # of a mesh: data, fsdp and tensor
TOKENS = 24  # a number that no other axis of the programs has
STEPS = 2


def make_config(folder: Path, sizes: Sizes, dtype: str = "float32"):
    """A config of aMLP with 6 layers and everything that a mesh could change: microbatches, dropout,
    stochastic depth, EMA."""
    config = tiny.text_config(folder, d_attn=4, dropout=0.1, dtype=dtype)
    config.model.update(attention_dropout=0.1, survival=0.8)
    config.batch_size = 16
    config.model.update(layers=6, d_model=16, d_ffn=64, length=TOKENS)
    config.optimizer.update(grad_accum_steps=2, ema=0.9)
    return tiny.with_mesh(config, sizes)


class Training:
    """Training with one mesh, on as many devices as the mesh needs."""

    def __init__(self, folder: Path, sizes: Sizes, dtype: str = "float32"):
        self.config = make_config(folder, sizes, dtype)
        self.task, self.data = tiny.open_task(self.config, folder)
        self.partition = tiny.partition(self.config)
        self.programs = step.Training(self.task, self.partition)

    def train(self):
        """The state after a few steps, the sums of the window, and the text of the compiled
        step."""
        key = jax.random.key(0)
        state = self.programs.init(key)
        over_batch = self.partition.over_batch
        batch_size = self.config.batch_size
        shapes = dry_run.batch_shapes(self.task, batch_size, over_batch)
        lowered = self.programs.step.lower(state, shapes)
        train_step = lowered.compile()
        host, hosts = self.partition.host_share()
        with self.data.train_batches(0, host, hosts) as batches:
            for _ in range(STEPS):
                batch = self.partition.put_batch(next(batches))
                state, window = train_step(state, batch)
        devices = self.partition.mesh.size
        if devices > 1:
            for leaf in jax.tree.leaves(state):
                assert len(leaf.sharding.device_set) == devices
        return state, window, train_step.as_text()

    def results(self, state, window) -> dict[str, np.ndarray]:
        """Parameters, EMA and moments, the window, and the held-out metrics, by path."""
        evaluator = evaluation.Evaluator(self.task, self.data, self.partition)
        metrics, _ = evaluator(state.params, state.ema)
        arrays = jax.device_get((state, window))
        return leaves_by_path(arrays) | metrics


# One device, and every choice of axes.
MESHES = ((1, 1, 1), (8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 4, 1), (2, 2, 2))


def moved_to_other_meshes(folder: Path, state, where: str) -> bool:
    """Whether a state saved with one mesh is restored bit for bit with three others."""
    checkpoints = checkpoint.Checkpoints(where)
    checkpoints.save(STEPS, state, None)
    checkpoints.wait()
    expected = jax.device_get(state)
    same = True
    mesh_shapes = ((1, 1, 1), (1, 8, 1), (4, 1, 2))
    for sizes in mesh_shapes:
        template = Training(folder, sizes).programs.template
        device_state = checkpoints.restore(STEPS, template)
        restored = jax.device_get(device_state)
        is_same = jax.tree.map(np.array_equal, restored, expected)
        same &= jax.tree.all(is_same)
    checkpoints.close()
    return same


def named(group: str, results: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Results with names that `fake_devices.read` splits into groups."""
    renamed = {}
    for name, array in results.items():
        renamed[f"{group}:{name}"] = array
    return renamed


def text_of(sizes: Sizes) -> str:
    """The sizes of a mesh as text, such as 2x4x1."""
    return "x".join(map(str, sizes))


def main(folder: str, out: str) -> None:
    root = Path(folder)
    arrays = {}
    programs = {}
    for sizes in MESHES:
        training = Training(root, sizes)
        state, window, program = training.train()
        programs[str(sizes)] = program
        found = training.results(state, window)
        arrays |= named(text_of(sizes), found)
        if sizes == (2, 2, 2):
            assert moved_to_other_meshes(root, state, str(root / "checkpoints"))
    for sizes in ((1, 1, 1), (2, 4, 1)):
        training = Training(root, sizes, "bfloat16")
        state, window, _ = training.train()
        found = training.results(state, window)
        arrays |= named(f"bf{text_of(sizes)}", found)
    np.savez(out, checksums=checksums(), **arrays)
    (root / "programs.json").write_text(json.dumps(programs))


def checksums() -> np.ndarray:
    """The checksums of one array over all devices and on one."""
    partition = Partition.make()
    key = jax.random.key(0)
    x = jax.random.normal(key, (16, 3))
    checksum = jax.jit(pytree.checksum)
    sums = []
    for sharding in (partition.over_batch, jax.devices()[0]):
        placed = jax.device_put(x, sharding)
        sums.append(checksum(placed))
    return np.array(sums)


if __name__ == "__main__":
    main(*sys.argv[1:])
