"""Damages checkpoints at random, and restores them: the right state, or a refusal in one line, and never another state.

    python tests/fuzz/checkpoints.py --minutes=10 [--count=N] [--seed=0]

A case copies the two checkpoints of a run, 3 and 5, and damages the newer one: bits flipped, bytes overwritten, cut off
or doubled, files emptied, deleted or exchanged, a folder deleted. Checked: `restore_newest` gives the state of step 5,
or that of step 3 with 5 put aside, or ends in one RunError with both where they were; and after another save the best
one is still there.
"""

from __future__ import annotations

import argparse
import collections
import gc
import logging as std_logging
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":  # started as a file
    sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from gmlp_flax.checkpoints.checkpoint import Checkpoints
from gmlp_flax.errors import RunError
from gmlp_flax.io import storage
from gmlp_flax.processes import output
from gmlp_flax.training.partition import Partition

OPTIONS = {"run": "own", "keep": 1, "keep_best": 1, "best": ("loss", "min"), "files": {"labels.json": b"[1, 2, 3]"}}
LOSSES = {3: 2.0, 5: 1.0, 7: 3.0}  # so 5 is the best


def state(step: int) -> dict[str, jax.Array]:
    """Some arrays that Orbax keeps in files of their own, and some inside its index."""
    key = jax.random.key(step)
    return {
        "large": jax.random.normal(key, (3000,)),
        "half": jax.random.normal(key, (700,), jnp.bfloat16),
        "small": jax.random.normal(key, (5,)),
        "step": jnp.int32(step),
    }


def flip(data: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def overwrite(data: bytearray, rng: random.Random) -> bytes:
    start, size = rng.randrange(len(data)), rng.choice((1, 4, 64, 512))
    data[start : start + size] = rng.choice((bytes(size), rng.randbytes(size), b"\xff" * size))[: len(data) - start]
    return bytes(data)


def cut(data: bytearray, rng: random.Random) -> bytes:
    return bytes(data[: rng.randrange(len(data))])


def double(data: bytearray, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return bytes(data[:place] + data[place:] + data[place:])


CONTENT: tuple[Callable[[bytearray, random.Random], bytes], ...] = (flip, flip, flip, overwrite, cut, double)


def damage(folder: Path, rng: random.Random) -> str:
    """Damages something in a checkpoint; says what."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(files)
    kind = rng.random()
    if kind < 0.05:
        inside = rng.choice(sorted(each for each in folder.rglob("*") if each.is_dir()))
        shutil.rmtree(inside)
        return f"deleted {inside.name}/"
    if kind < 0.12:
        path.unlink()
        return f"deleted {path.name}"
    if kind < 0.2:
        other = rng.choice(files)
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two)
        other.write_bytes(one)
        return f"exchanged {path.name} and {other.name}"
    data = bytearray(path.read_bytes())
    if not data:
        path.write_bytes(b"\0")
        return f"wrote to {path.name}"
    how = rng.choice(CONTENT)
    path.write_bytes(how(data, rng))
    return f"{how.__name__} {path.name}"


class Damages:
    """Two checkpoints, copied and damaged again and again."""

    def __init__(self, folder: Path):
        self.pristine, self.run = folder / "pristine", folder / "run"
        self.template = Partition.make().describe(jax.eval_shape(lambda: state(0)))
        self.states = {step: jax.device_get(state(step)) for step in LOSSES}
        checkpoints = self._open(self.pristine, keep=2)
        for step in (3, 5):
            checkpoints.save(step, state(step), {"loss": LOSSES[step]})
        checkpoints.wait()
        checkpoints.close()

    @staticmethod
    def _open(folder: Path, **options) -> Checkpoints:
        return Checkpoints(str(folder / "checkpoints"), **(OPTIONS | options))

    def case(self, seed: int) -> str:
        """One case; returns how it ended: right, put aside or refused."""
        rng = random.Random(seed)
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.pristine, self.run)
        inside = self.run / "checkpoints"
        what = damage(inside / "5", rng)
        before = sorted(path.name for path in inside.iterdir())
        try:
            checkpoints = self._open(self.run)
        except RunError as error:
            assert "\n" not in str(error)
            return "refused"
        try:
            step, found = checkpoints.restore_newest(self.template) or (0, None)
        except RunError as error:
            assert "\n" not in str(error) and sorted(path.name for path in inside.iterdir()) == before, (
                seed,
                what,
                error,
            )
            return "refused"
        else:
            assert step in (3, 5) and found is not None, (seed, what)
            jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), self.states[step])
            assert (inside / "5").exists() == (step == 5) != (self.run / "damaged" / "5").exists(), (seed, what)
            if rng.random() < 0.1:
                self._check_retention(checkpoints, step)
            return "right" if step == 5 else "put aside"
        finally:
            checkpoints.close()

    def _check_retention(self, checkpoints: Checkpoints, best: int) -> None:
        checkpoints.save(7, state(7), {"loss": LOSSES[7]})
        checkpoints.wait()
        assert checkpoints.steps() == [best, 7], (checkpoints.steps(), best)


def campaign(seed: int, minutes: float, count: int) -> collections.Counter[str]:
    """Runs cases for so many minutes, or so many; returns how many ended how.

    Raises:
        AssertionError: another state was restored, or a checkpoint was lost.
        Exception: whatever is no RunError, for a user a traceback.
    """
    output.silence_orbax()
    logging.set_verbosity(logging.FATAL)
    std_logging.getLogger("asyncio").disabled = True  # reads that Orbax has abandoned
    found: collections.Counter[str] = collections.Counter()
    end, pauses = time.monotonic() + 60 * minutes, storage.PAUSES
    storage.PAUSES = (0.0,)
    try:
        with tempfile.TemporaryDirectory(prefix="gmlp-damage-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            damages = Damages(Path(folder))
            while time.monotonic() < end and sum(found.values()) < count:
                found[damages.case(seed + sum(found.values()))] += 1
                if sum(found.values()) % 50 == 0:
                    gc.collect()
    finally:
        storage.PAUSES = pauses
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = campaign(given.seed, given.minutes, given.count)
    count = f"{sum(found.values())} damaged checkpoints from seed {given.seed}: {dict(found)}"
    print(f"{count}, 0 wrong states, 0 tracebacks", flush=True)


if __name__ == "__main__":
    main()
