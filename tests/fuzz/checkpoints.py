"""Damages checkpoints at random, and restores them: the right state, or a refusal in one line, and
never another state.

An input copies the two checkpoints of a run, 3 and 5, and damages the newer one: bytes as in
damage.py, files deleted or exchanged, a folder deleted. Checked: `restore_newest` gives the state
of step 5, or that of step 3 with 5 moved away, or ends in one RunError with both where they were;
and after another save the best one is still there.
"""

import logging as std_logging
import random
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
from absl import logging
from numpy.testing import assert_array_equal

from gmlp_flax.checkpoints.checkpoint import Checkpoints
from gmlp_flax.checkpoints.retention import Retention
from gmlp_flax.errors import RunError
from gmlp_flax.io import storage
from gmlp_flax.processes import output
from gmlp_flax.training.partition import Partition
from tests.fuzz.damage import damaged

RETENTION = Retention(keep=1, keep_best=1, metric="loss")
OPTIONS = {"run": "own", "files": {"labels.json": b"[1, 2, 3]"}}
LOSSES = {3: 2.0, 5: 1.0, 7: 3.0}  # so 5 is the best


def state(step: int) -> dict[str, jax.Array]:
    """Arrays, of which Orbax keeps some in separate files and some in its index."""
    key = jax.random.key(step)
    return {
        "large": jax.random.normal(key, (3000,)),
        "half": jax.random.normal(key, (700,), jnp.bfloat16),
        "small": jax.random.normal(key, (5,)),
        "step": jnp.int32(step),
    }


def damage(folder: Path, rng: random.Random) -> str:
    """Damages a random part of a checkpoint; returns a description."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(files)
    kind = rng.random()
    if kind < 0.05:
        folders = sorted(each for each in folder.rglob("*") if each.is_dir())
        inside = rng.choice(folders)
        shutil.rmtree(inside)
        return f"deleted {inside.name}/"
    if kind < 0.12:
        path.unlink()
        return f"deleted {path.name}"
    if kind < 0.2:
        other = rng.choice(files)
        one = path.read_bytes()
        two = other.read_bytes()
        path.write_bytes(two)
        other.write_bytes(one)
        return f"exchanged {path.name} and {other.name}"
    path.write_bytes(damaged(path.read_bytes(), rng))
    return f"damaged {path.name}"


class Damages:
    """Two checkpoints, copied and damaged again and again."""

    def __init__(self, folder: Path):
        self.pristine = folder / "pristine"
        self.run = folder / "run"
        self.template = Partition.make().describe(jax.eval_shape(lambda: state(0)))
        self.states = {step: jax.device_get(state(step)) for step in LOSSES}
        checkpoints = self._open(self.pristine, Retention(keep=2))
        for step in (3, 5):
            checkpoints.save(step, state(step), {"loss": LOSSES[step]})
        checkpoints.wait()
        checkpoints.close()

    @staticmethod
    def _open(folder: Path, retention: Retention = RETENTION) -> Checkpoints:
        return Checkpoints(str(folder / "checkpoints"), retention=retention, **OPTIONS)

    def check(self, rng: random.Random) -> int:
        """The step that is restored, if none is refused."""
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.pristine, self.run)
        inside = self.run / "checkpoints"
        what = damage(inside / "5", rng)
        before = sorted(path.name for path in inside.iterdir())
        checkpoints = self._open(self.run)
        try:
            step, found = checkpoints.restore_newest(self.template) or (0, None)
        except RunError:
            assert sorted(path.name for path in inside.iterdir()) == before, what
            raise
        else:
            assert step in (3, 5), what
            assert found is not None, what
            jax.tree.map(assert_array_equal, jax.device_get(found), self.states[step])
            is_good = step == 5
            is_moved = (self.run / "damaged" / "5").exists()
            assert (inside / "5").exists() == is_good, what
            assert is_moved != is_good, what
            if rng.random() < 0.1:
                self._check_retention(checkpoints, step)
            return step
        finally:
            checkpoints.close()

    def _check_retention(self, checkpoints: Checkpoints, best: int) -> None:
        checkpoints.save(7, state(7), {"loss": LOSSES[7]})
        checkpoints.wait()
        steps = checkpoints.steps()
        assert steps == [best, 7], (steps, best)


def make(folder):
    output.silence_orbax()
    logging.set_verbosity(logging.FATAL)
    std_logging.getLogger("asyncio").disabled = True  # reads that Orbax has abandoned
    storage.PAUSES = (0.0,)
    return Damages(folder).check
