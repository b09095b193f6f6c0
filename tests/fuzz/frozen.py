"""Stops a training run at random moments, copies its folder, and goes on from the copy: what SIGKILL would have left.

    python tests/fuzz/frozen.py --moments=1000 [--seed=0]

A process that is stopped (SIGSTOP) has its folder in the state in which SIGKILL leaves it, and can run on: so one run
has many such moments. Checked at each: the copy is opened as by `gmlp train`; no checkpoint is damaged or lost; the
newest one has, bit for bit, the state that an undisturbed run has at its step, and the metrics are its lines up to
there. Half of the moments are taken while a checkpoint is saved or deleted.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a file
    sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import numpy as np
from absl import logging

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints import run_folder
from gmlp_flax.checkpoints.checkpoint import Checkpoints
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.checkpoints.names import METRICS_FILE
from gmlp_flax.training import loading
from gmlp_flax.training.partition import Partition
from tests import preloaded
from tests.fuzz.kills import FLAGS, newest
from tests.runs.command import Commands, assert_done, metrics


class Frozen:
    """Runs that are stopped and go on, and one that never was."""

    def __init__(self, rng: random.Random, folder: Path):
        self.rng, self.folder = rng, folder
        self.counts: collections.Counter[str] = collections.Counter()
        self._flags = [f"--config=tests/runs/tiny_text.py:{folder}", *FLAGS, "--config.eval.every=10"]
        expected = folder / "expected"
        assert_done(Commands()(*self._flags, f"--workdir={expected}", "--config.checkpoint.keep=1000"))
        self._config, self._lines = config_lib.load(str(expected / "config.json")), metrics(expected)
        self._config.checkpoint.keep = 1
        checkpoints = loading.open_checkpoints(self._config, str(expected), read_only=True)
        self._states = {step: self._state(checkpoints, step) for step in checkpoints.steps()}
        checkpoints.close()

    @staticmethod
    def _state(checkpoints: Checkpoints, step: int) -> Any:
        return jax.device_get(checkpoints.restore(step, Partition.make().describe(checkpoints.shapes(step))))

    def run(self, moments: int) -> None:
        """Stops run after run until there were so many moments."""
        number = 0
        while self.counts.total() < moments:
            workdir, number = self.folder / str(number), number + 1
            process = Commands().start(*self._flags, f"--workdir={workdir}")
            try:
                while process.poll() is None and self.counts.total() < moments:
                    self._await(workdir)
                    if workdir.exists() and stopped(process.pid):
                        self._look(workdir)
                        os.kill(process.pid, signal.SIGCONT)
            finally:
                process.kill()
                process.communicate()

    def _await(self, workdir: Path) -> None:
        """Some milliseconds, every other time from when the next save begins."""
        old, end = {*workdir.glob("checkpoints/*tmp*")}, time.monotonic() + self.rng.choice((0, 2))
        while time.monotonic() < end and not {*workdir.glob("checkpoints/*tmp*")} - old:
            time.sleep(0.001)
        time.sleep(self.rng.uniform(0, 0.04))

    def _look(self, workdir: Path) -> None:
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(workdir, copy)
        inside = [path.name for path in copy.glob("checkpoints/*")]
        kind = "a deletion" if "deleted" in inside else "a save" if any("tmp" in each for each in inside) else "neither"
        step = newest(copy)
        with run_folder.hold(str(copy)) as run:
            checkpoints = loading.open_checkpoints(self._config, str(copy), run=run.id)
            assert (checkpoints.steps() or [None])[-1] == step
            for each in checkpoints.steps():
                jax.tree.map(np.testing.assert_array_equal, self._state(checkpoints, each), self._states[each])
            checkpoints.close()
            deadline = time.monotonic() + 30
            while [
                name for name in os.listdir(copy / "checkpoints") if not name.isdigit()
            ]:  # Orbax deletes in the background
                assert time.monotonic() < deadline, os.listdir(copy / "checkpoints")
                time.sleep(0.002)
            lines = MetricsFile(str(copy / METRICS_FILE), step or 0)
            lines.begin()
            lines.close()
        assert metrics(copy) == ([line for line in self._lines if line["step"] <= step] if step else []), step
        assert not (copy / "damaged").exists()
        self.counts[kind] += 1
        if not self.counts.total() % 25:
            print(report(self.counts), flush=True)


def stopped(process: int) -> bool:
    """Stops a process; returns when all of its threads are, or False if it has ended."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(process, signal.SIGSTOP)
        while True:
            states = [
                (path / "stat").read_text().rpartition(")")[2].split()[0]
                for path in Path(f"/proc/{process}/task").iterdir()
            ]
            if "Z" in states:
                return False
            if set(states) == {"T"}:
                return True
            time.sleep(0.001)
    return False


def campaign(seed: int, moments: int) -> collections.Counter[str]:
    """So many moments; returns how many were in a save, in a deletion and in neither.

    Raises:
        AssertionError: something was lost, or is wrong; the folder then stays.
    """
    logging.set_verbosity(logging.FATAL)  # Orbax names what was never finished
    folder = Path(tempfile.mkdtemp(prefix="gmlp-frozen-"))
    found = Frozen(random.Random(seed), folder)
    found.run(moments)
    shutil.rmtree(folder)
    return found.counts


def report(counts: collections.Counter[str]) -> str:
    """The counts in a line."""
    kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(counts.items()))
    return f"{counts.total()} moments ({kinds}): nothing was lost"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(report(campaign(given.seed, given.moments)), flush=True)


if __name__ == "__main__":
    preloaded.environment()
    main()
