"""Kills runs at random moments, restarts them, and compares them with runs that were never killed.

    python -m tests.fuzz.kills --minutes=10 [--kills=N] [--seed=0]
    [--mode=any|save|evaluation|processes|preparation]

Checked after each kill: the restarted run resumes from the newest finished checkpoint, no checkpoint
is damaged, and standard error holds nothing but the run's expected messages. Checked at the end of
each run: the whole state, bit for bit; each line of metrics once; the result. Of `gmlp prepare`:
every byte of every file. Commands are forked from a server that has imported everything (see
tests/preloaded.py), so that starting one takes a second. What a kill interrupted is inferred from
the messages of the process and from unfinished files in its folder.
"""

import argparse
import collections
import contextlib
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests import preloaded
from tests.runs.command import Commands, assert_same_run, metrics
from tests.runs.processes import two_processes
from tests.training import tiny

FLAGS = (
    "--config.log.every=1",
    "--config.checkpoint.every=3",
    "--config.optimizer.ema=0.9",
    "--config.model.dropout=0.1",
    "--config.model.layers=1",
)
# Steps between evaluations, by mode.
EVALUATIONS = {"any": 15, "save": 30, "evaluation": 2, "processes": 15}
# Two processes take longer to start, and are killed after as few steps, so they run fewer.
STEPS = {"processes": 45}
MODES = (*EVALUATIONS, "preparation")
LEFT = ("damaged", "lease.json", "deleted", "*tmp*")  # names that no finished run has
MESSAGES = re.compile(  # of a run
    r"step \d|note: |resuming |compiling |\w+, \w+: |to compare: |[\d,]+ parameters; |tokenizing |training a tokenizer|"
    r"(train|heldout): |the data have no split to hold out|no checkpoint was finished before |.*orbax-checkpoint-tmp.* was never finished and is ignored|"
    r"error: lost a process|$|E\d+ |[\w ]+: \d+ s so far$"
)


class Campaign:
    """Kills training runs in one mode."""

    def __init__(self, mode: str, rng: random.Random, folder: Path):
        self.mode = mode
        self.rng = rng
        self.folder = folder
        self._steps = STEPS.get(mode, 120)
        self.counts: collections.Counter[str] = collections.Counter()
        self.interrupted: collections.Counter[str] = collections.Counter()
        self._commands = Commands()
        self._flags = [
            f"--config=tests/runs/tiny_text.py:{folder}",
            *FLAGS,
            f"--config.steps={self._steps}",
            f"--config.eval.every={EVALUATIONS[mode]}",
        ]
        self._expected = folder / f"{mode}-expected"
        self._attempt(self._expected, lambda _: None)

    def run(self, enough: Callable[[], bool]) -> None:
        """Kills run after run until `enough` says so; the last run is left to finish."""
        while not enough():
            workdir = self.folder / f"{self.mode}-{self.counts['runs']}"
            while not (workdir / "result.json").exists():
                before = newest(workdir)
                if enough():
                    words = self._attempt(workdir, lambda _: None)
                else:
                    words = self._attempt(workdir, partial(self._kill, workdir))
                self._check_start(words, before)
            self._check_end(workdir)
            shutil.rmtree(workdir)

    def _attempt(self, workdir: Path, kill: Callable[[list[Any]], None]) -> str:
        arguments = [*self._flags, f"--workdir={workdir}"]
        with contextlib.ExitStack() as closing:
            if self.mode == "processes":
                processes = list(closing.enter_context(two_processes(self._commands, *arguments)))
            else:
                processes = [self._commands.start(*arguments)]
            self._read = ""
            kill(processes)
            words = [each.communicate(timeout=1800)[1] for each in processes]
        words[0] = self._read + words[0]
        allowed = {0, -9}
        if self.mode == "processes":
            # 1, SIGABRT and SIGSEGV: a process whose peer was killed while both were in a
            # collective operation, or were compiling one.
            allowed |= {1, -6, -11}
        codes = [each.returncode for each in processes]
        assert set(codes) <= allowed, (codes, words)
        self._killed = -9 in codes
        if self._killed:
            self.counts["kills"] += 1
            task = interrupted(words[0], workdir, EVALUATIONS[self.mode])
            self.interrupted[task] += 1
        return "".join(words)

    def _kill(self, workdir: Path, processes: list[Any]) -> None:
        """Kills a run milliseconds after it prints a line, or starts a save or an evaluation.

        The moment does not depend on a clock, so that runs advance even on a busy machine.
        """
        first, *_ = processes
        if self.mode == "save":
            self._await_saves(first, workdir, self.rng.randint(1, 2))
        elif self.mode == "evaluation":
            self._await_lines(first, self.rng.randint(1, 4))
        else:
            self._await_lines(first, self.rng.randint(0, 14))
        delay = self.rng.uniform(0, 0.06)
        time.sleep(delay)
        count = self.rng.randint(1, len(processes))
        for process in self.rng.sample(processes, count):
            process.kill()
        # Otherwise the survivors exit by themselves after half a minute.
        if self.mode == "processes" and self.rng.random() < 0.8:
            self._end_others(processes)

    @staticmethod
    def _end_others(processes: list[Any]) -> None:
        """Gives the survivors seconds to notice that one is lost, then kills them, as a scheduler
        does."""
        end = time.monotonic() + 4
        while time.monotonic() < end:
            running = [each for each in processes if each.poll() is None]
            if not running:
                break
            time.sleep(0.05)
        for each in processes:
            each.kill()

    @staticmethod
    def _await_saves(process: Any, workdir: Path, count: int) -> None:
        old = {*workdir.glob("checkpoints/*tmp*")}
        while count and process.poll() is None:
            new = {*workdir.glob("checkpoints/*tmp*")} - old
            if new:
                count -= 1
                old |= new
            time.sleep(0.002)

    def _await_lines(self, process: Any, count: int) -> None:
        """Waits for so many lines; in the mode of evaluations, for lines of the step before one."""
        while count:
            line = process.stderr.readline()
            if not line:
                return
            self._read += line
            if self.mode != "evaluation" or _is_before_evaluation(line):
                count -= 1

    def _check_start(self, words: str, before: int | None) -> None:
        found = re.search(r"^resuming .* at step (\d+)$", words, re.MULTILINE)
        if found:
            self.counts["resumed"] += 1
            message = f"resumed from step {found[1]}, not from {before}:\n{words}"
            assert int(found[1]) == before, message
        assert "Traceback" not in words, words
        assert before is None or "it begins again" not in words, words
        if self.mode != "processes":  # Gloo and the coordination service print messages too
            for line in words.splitlines():
                assert MESSAGES.match(line), words

    def _check_end(self, workdir: Path) -> None:
        assert_same_run(workdir, self._expected)
        got = [line["step"] for line in metrics(workdir) if "loss" in line]
        expected = list(range(1, self._steps + 1))
        assert got == expected
        left = []
        for pattern in LEFT:
            for path in workdir.rglob(pattern):
                # A process killed after its result, which is written last, still holds the folder.
                if not (self._killed and "lease.json" in path.name):
                    left.append(str(path.relative_to(workdir)))
        assert not left, f"left at the end: {', '.join(left)}"
        self.counts["runs"] += 1


def _is_before_evaluation(line: str) -> bool:
    found = re.match(r"step (\d+)/", line)
    if not found:
        return False
    return int(found[1]) % EVALUATIONS["evaluation"] == 0


class Preparations:
    """Kills `gmlp prepare`."""

    def __init__(self, rng: random.Random, folder: Path):
        self.rng = rng
        self.folder = folder
        self.counts: collections.Counter[str] = collections.Counter()
        self.interrupted: collections.Counter[str] = collections.Counter()
        self._corpus = folder / "corpus"
        self._corpus.mkdir()
        for number in range(12):
            tiny.write_corpus(self._corpus / f"{number}.jsonl", documents=500)
        self._prepare(folder / "first")  # imports take longer the first time
        start = time.monotonic()
        self._expected = self._prepare(folder / "expected")
        self._seconds = time.monotonic() - start

    def _start(self, folder: Path) -> Any:
        flags = [f"--out={folder / 'out'}", f"--cache={folder / 'cache'}"]
        flags += ["--vocab_size=320", "--shard_bytes=50000", "--workers=1"]
        return preloaded.start("-m", "gmlp_flax", "prepare", self._corpus, *flags)

    def _prepare(self, folder: Path) -> dict[str, bytes]:
        """The files of a preparation that is not killed."""
        process = self._start(folder)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        return contents(folder / "out")

    def run(self, enough: Callable[[], bool]) -> None:
        """Kills one preparation after another until `enough` says so; each is then finished, and
        its files are compared."""
        folder = self.folder / "killed"
        while not enough():
            while not self._attempt(folder, is_last=enough()):
                pass
            found = contents(folder / "out")
            assert found == self._expected, "not the files of a preparation that was never killed"
            self.counts["runs"] += 1
            shutil.rmtree(folder)

    def _attempt(self, folder: Path, is_last: bool) -> bool:
        """Starts a preparation, or resumes it, and kills it unless it is the last time.

        Returns:
            whether it finished.
        """
        before = shards_in(folder)
        process = self._start(folder)
        if not is_last:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.rng.random() * self._seconds)
            process.kill()
        _, errors = process.communicate(timeout=300)
        assert process.returncode in (0, -9), errors
        assert "Traceback" not in errors, errors
        if process.returncode == 0:
            return True
        self.counts["kills"] += 1
        if before:
            self.counts["resumed"] += 1
        if shards_in(folder) > before:
            self.interrupted["tokenizing"] += 1
        elif "training" in errors:
            self.interrupted["training a tokenizer"] += 1
        else:
            self.interrupted["a start"] += 1
        return False


def shards_in(folder: Path) -> int:
    """How many shards a preparation has written."""
    return len(list(folder.glob("out/ids*")))


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder that are not hidden."""
    found = {}
    for path in folder.iterdir():
        if not path.name.startswith("."):
            found[path.name] = path.read_bytes()
    return found


def interrupted(words: str, workdir: Path, interval: int) -> str:
    """What a run that was killed was doing.

    Args:
        words: what it had printed.
        workdir: its folder, as the kill left it.
        interval: steps from one evaluation to the next.
    """
    inside = [path.name for path in workdir.glob("checkpoints/*")]
    lines = []
    for line in words.splitlines():
        if re.match(r"step \d+|compiling|to compare", line):
            lines.append(line)
    if "deleted" in inside:
        return "a deletion"
    # Before the first step, the unfinished save is that of an earlier kill.
    if any("tmp" in name for name in inside) and len(lines) > 1:
        return "a save"
    if [*workdir.glob(".*.tmp")]:
        return "the writing of a file"
    if not lines:
        return "a start"
    if lines[-1].startswith("compiling"):
        return "compiling"
    if lines[-1].startswith("to compare"):
        return "the end of a run"
    found = re.match(r"step (\d+)/", lines[-1])
    if found and int(found[1]) % interval == 0:
        return "an evaluation"
    return "steps"


def newest(workdir: Path) -> int | None:
    """The step of the newest finished checkpoint."""
    steps = []
    for path in workdir.glob("checkpoints/*"):
        if path.name.isdigit():
            steps.append(int(path.name))
    return max(steps, default=None)


def campaign(mode: str, seed: int, minutes: float, kills: int) -> Campaign | Preparations:
    """Kills for so many minutes, or so many times; returns the campaign, for its counts.

    Raises:
        AssertionError: something was lost, or is wrong; the folder is then kept.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"gmlp-kills-{mode}-"))
    rng = random.Random(seed)
    found = Preparations(rng, folder) if mode == "preparation" else Campaign(mode, rng, folder)
    end = time.monotonic() + 60 * minutes

    def enough() -> bool:
        return time.monotonic() > end or found.counts["kills"] >= kills

    found.run(enough)
    shutil.rmtree(folder)
    return found


def report(mode: str, found: Campaign | Preparations) -> str:
    """The counts in a line."""
    interrupted = []
    for task, number in sorted(found.interrupted.items()):
        interrupted.append(f"{task} {number}")
    during = ", ".join(interrupted)
    kills = found.counts["kills"]
    resumed = found.counts["resumed"]
    ended = found.counts["runs"]
    return f"{mode}: {kills} kills ({during}), {resumed} resumed, {ended} ended as if never killed"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="for each mode")
    parser.add_argument("--kills", type=int, default=10**9, help="at most, for each mode")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=MODES, action="append")
    options = parser.parse_args()
    for mode in options.mode or MODES:
        found = campaign(mode, options.seed, options.minutes, options.kills)
        print(report(mode, found), flush=True)


if __name__ == "__main__":
    preloaded.environment()  # all share its folder of compiled programs
    main()
