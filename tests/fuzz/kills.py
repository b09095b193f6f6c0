"""Kills training runs at random moments, restarts them, and compares them with runs that were never killed.

    python tests/fuzz/kills.py --minutes=10 [--kills=N] [--seed=0] [--mode=any|save|evaluation|processes]

Checked after each kill: the restarted run goes on from the newest checkpoint that was finished, no checkpoint is damaged,
nothing but the process's own words is on standard error. Checked at each run's end: parameters, optimizer and all, to the
last bit; each line of metrics once; the result.
"""

from __future__ import annotations

import argparse
import collections
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a file
    sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import numpy as np

from tests import preloaded
from tests.runs.command import Commands, final_state, metrics
from tests.runs.processes import two_processes

STEPS = 60
FLAGS = (f"--config.steps={STEPS}", "--config.log.every=4", "--config.checkpoint.every=3", "--config.optimizer.ema=0.9",
         "--config.model.dropout=0.1", "--config.model.layers=1")
MODES: dict[str, tuple[str, ...]] = {
    "any": ("--config.eval.every=15",), "save": ("--config.eval.every=30",), "evaluation": ("--config.eval.every=2",),
    "processes": ("--config.eval.every=15",),
}
TALK = re.compile(  # what a run says
    r"step \d|note: |resuming |compiling |\w+, \w+: |to compare: |[\d,]+ parameters; |no checkpoint was finished before |"
    r".*orbax-checkpoint-tmp.* was never finished and is ignored|tokenising |training a tokenizer|error: lost a process|$|E\d+ "
)


class Campaign:
    """Kills the runs of one mode."""

    def __init__(self, mode: str, rng: random.Random, folder: Path):
        self.mode, self.rng, self.folder = mode, rng, folder
        self.counts: collections.Counter[str] = collections.Counter()
        self._commands = Commands()
        self._flags = [f"--config=tests/runs/tiny_text.py:{folder}", *FLAGS, *MODES[mode]]
        self._expected = folder / f"{mode}-expected"
        self._attempt(self._expected, lambda _: None)
        begin = time.monotonic()  # without compiling
        self._attempt(folder / f"{mode}-timed", lambda _: None)
        self.seconds = time.monotonic() - begin

    def run(self, enough: Callable[[], bool]) -> None:
        """Kills run after run until it is enough; the last run is brought to its end."""
        while not enough():
            workdir = self.folder / f"{self.mode}-{self.counts['runs']}"
            while not (workdir / "result.json").exists():
                before = newest(workdir)
                words = self._attempt(workdir, (lambda _: None) if enough() else lambda each: self._kill(each, workdir))
                self._check_start(words, before)
            self._check_end(workdir)
            shutil.rmtree(workdir)

    def _attempt(self, workdir: Path, kill: Callable[[list[Any]], None]) -> str:
        arguments = [*self._flags, f"--workdir={workdir}"]
        if self.mode == "processes":
            with two_processes(self._commands, *arguments) as processes:
                return self._ended(list(processes), kill)
        return self._ended([self._commands.start(*arguments)], kill)

    def _ended(self, processes: list[Any], kill: Callable[[list[Any]], None]) -> str:
        kill(processes)
        words = [each.communicate(timeout=300)[1] for each in processes]
        self.counts["kills"] += processes[0].returncode < 0 or processes[-1].returncode < 0
        allowed = (0, 1, -9, -6)  # 1 and SIGABRT: a process whose peer was killed
        assert all(each.returncode in allowed for each in processes), words
        return "".join(words)

    def _kill(self, processes: list[Any], workdir: Path) -> None:
        """At a random moment, or as soon as a save or an evaluation has begun, and some milliseconds."""
        begun, old = self.rng.randint(1, 4), {*workdir.glob("checkpoints/*tmp*")}
        deadline = time.monotonic() + self.rng.random() * self.seconds * (1 if self.mode in ("any", "processes") else 10)
        while time.monotonic() < deadline and processes[0].poll() is None and begun:
            if self.mode == "save" and (new := {*workdir.glob("checkpoints/*tmp*")} - old):
                begun, old = begun - 1, old | new
            elif self.mode == "evaluation":  # the line before one
                begun -= processes[0].stderr.readline().startswith("step ")
            time.sleep(0.002)
        if not begun:
            time.sleep(self.rng.uniform(0, 0.03))
        for each in self.rng.sample(processes, self.rng.randint(1, len(processes))):
            each.kill()

    def _check_start(self, words: str, before: int | None) -> None:
        found = re.search(r"^resuming .* at step (\d+)$", words, re.MULTILINE)
        if found:
            self.counts["resumed"] += 1
            assert int(found[1]) == before, f"went on from step {found[1]}, not from {before}:\n{words}"
        assert "Traceback" not in words, words
        assert before is None or "it begins again" not in words, words
        if self.mode != "processes":  # Gloo and the coordination service have words of their own
            assert all(map(TALK.match, words.splitlines())), words

    def _check_end(self, workdir: Path) -> None:
        jax.tree.map(np.testing.assert_array_equal, final_state(workdir), final_state(self._expected))
        assert metrics(workdir) == metrics(self._expected)
        steps = [line["step"] for line in metrics(workdir) if "loss" in line]
        assert steps == list(range(4, STEPS + 1, 4))
        assert not (workdir / "damaged").exists() and not (workdir / "lease.json").exists()
        self.counts["runs"] += 1


def newest(workdir: Path) -> int | None:
    """The step of the newest finished checkpoint."""
    return max((int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdigit()), default=None)


def campaign(mode: str, seed: int, minutes: float, kills: int) -> collections.Counter[str]:
    """Kills for so many minutes, or so many times; returns how many kills, resumed starts and finished runs there were.

    Raises:
        AssertionError: something was lost, or is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="gmlp-kills-") as folder:
        found = Campaign(mode, random.Random(seed), Path(folder))
        end = time.monotonic() + 60 * minutes
        found.run(lambda: time.monotonic() > end or found.counts["kills"] >= kills)
        return found.counts


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="for each mode")
    parser.add_argument("--kills", type=int, default=10**9, help="at most, for each mode")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=list(MODES), action="append")
    given = parser.parse_args()
    for mode in given.mode or MODES:
        found = campaign(mode, given.seed, given.minutes, given.kills)
        print(f"{mode}: {found['kills']} kills, {found['resumed']} resumed, {found['runs']} runs ended as if never killed",
              flush=True)


if __name__ == "__main__":
    preloaded.environment()  # its folder of compiled programs is shared by all
    main()
