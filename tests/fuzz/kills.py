"""Kills runs at random moments, restarts them, and compares them with runs that were never killed.

    python -m tests.fuzz.kills --minutes=10 [--kills=N] [--seed=0]
    [--mode=any|save|evaluation|processes|preparation]

Checked after each kill: the restarted run resumes from the newest checkpoint that was finished, no
checkpoint is damaged, nothing but the process's own words is on standard error. Checked at each
run's end: parameters, optimizer and all, to the last bit; each line of metrics once; the result. Of
`gmlp prepare`: every byte of every file. Commands are forked from a server that has imported all
there is (see tests/preloaded.py), so that a start costs a second. What a kill broke off is told
from what the process had said, and from what is half done in its folder.
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
# steps between them, by mode
EVALUATIONS = {"any": 15, "save": 30, "evaluation": 2, "processes": 15}
# fewer: two processes start for longer, and are killed after as few steps
STEPS = {"processes": 45}
MODES = (*EVALUATIONS, "preparation")
LEFT = ("damaged", "lease.json", "deleted", "*tmp*")  # names that no finished run has
TALK = re.compile(  # what a run says
    r"step \d|note: |resuming |compiling |\w+, \w+: |to compare: |[\d,]+ parameters; |tokenising |training a tokenizer|"
    r"(train|heldout): |the data have no split to hold out|no checkpoint was finished before |.*orbax-checkpoint-tmp.* was never finished and is ignored|"
    r"error: lost a process|$|E\d+ |[\w ]+: \d+ s so far$"
)


class Campaign:
    """Kills the runs of one mode of training."""

    def __init__(self, mode: str, rng: random.Random, folder: Path):
        self.mode = mode
        self.rng = rng
        self.folder = folder
        self._steps = STEPS.get(mode, 120)
        self.counts: collections.Counter[str] = collections.Counter()
        self.broken_off: collections.Counter[str] = collections.Counter()
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
        """Kills run after run until it is enough; the last run is brought to its end."""
        while not enough():
            workdir = self.folder / f"{self.mode}-{self.counts['runs']}"
            while not (workdir / "result.json").exists():
                before = newest(workdir)
                last = enough()
                words = self._attempt(
                    workdir, lambda each, to=workdir, last=last: last or self._kill(each, to)
                )
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
            self._said = ""
            kill(processes)
            words = [each.communicate(timeout=1800)[1] for each in processes]
        words[0] = self._said + words[0]
        # 1, SIGABRT and SIGSEGV: a process whose peer was killed, in a collective or while it
        # compiled one.
        allowed = (0, 1, -9, -6, -11) if self.mode == "processes" else (0, -9)
        codes = [each.returncode for each in processes]
        assert set(codes) <= set(allowed), list(zip(codes, words, strict=True))
        self._killed = -9 in codes
        if self._killed:
            self.counts["kills"] += 1
            self.broken_off[broken_off(words[0], workdir, EVALUATIONS[self.mode])] += 1
        return "".join(words)

    def _kill(self, processes: list[Any], workdir: Path) -> None:
        """Some milliseconds after any line that a run says, or after a save or an evaluation has
        begun. No clock decides, so that runs get on also on a busy machine."""
        if self.mode == "save":
            self._await_saves(processes[0], workdir, self.rng.randint(1, 2))
        else:
            self._await_lines(
                processes[0], self.rng.randint(*((1, 4) if self.mode == "evaluation" else (0, 14)))
            )
        time.sleep(self.rng.uniform(0, 0.06))
        for each in self.rng.sample(processes, self.rng.randint(1, len(processes))):
            each.kill()
        # else they end by themselves, after half a minute
        if self.mode == "processes" and self.rng.random() < 0.8:
            self._end_others(processes)

    @staticmethod
    def _end_others(processes: list[Any]) -> None:
        """Gives the others some seconds to notice that one is lost, then kills them, as a scheduler
        does."""
        end = time.monotonic() + 4
        while time.monotonic() < end and any(each.poll() is None for each in processes):
            time.sleep(0.05)
        for each in processes:
            each.kill()

    @staticmethod
    def _await_saves(process: Any, workdir: Path, count: int) -> None:
        old = {*workdir.glob("checkpoints/*tmp*")}
        while count and process.poll() is None:
            if new := {*workdir.glob("checkpoints/*tmp*")} - old:
                count = count - 1
                old = old | new
            time.sleep(0.002)

    def _await_lines(self, process: Any, count: int) -> None:
        """Of evaluations, the line of the step before one."""
        while count and (line := process.stderr.readline()):
            self._said += line
            found = re.match(r"step (\d+)/", line)
            count -= self.mode != "evaluation" or (
                bool(found) and int(found[1]) % EVALUATIONS[self.mode] == 0
            )

    def _check_start(self, words: str, before: int | None) -> None:
        found = re.search(r"^resuming .* at step (\d+)$", words, re.MULTILINE)
        if found:
            self.counts["resumed"] += 1
            assert int(found[1]) == before, (
                f"went on from step {found[1]}, not from {before}:\n{words}"
            )
        assert "Traceback" not in words, words
        assert before is None or "it begins again" not in words, words
        if self.mode != "processes":  # Gloo and the coordination service have words of their own
            assert all(map(TALK.match, words.splitlines())), words

    def _check_end(self, workdir: Path) -> None:
        assert_same_run(workdir, self._expected)
        got = [line["step"] for line in metrics(workdir) if "loss" in line]
        expected = list(range(1, self._steps + 1))
        assert got == expected
        left = [path for pattern in LEFT for path in workdir.rglob(pattern)]
        # Between the result, which is written last, and the end, a process still holds the folder.
        left = [path for path in left if not (self._killed and "lease.json" in path.name)]
        assert not left, (
            f"left at the end: {', '.join(str(path.relative_to(workdir)) for path in left)}"
        )
        self.counts["runs"] += 1


class Preparations:
    """Kills `gmlp prepare`."""

    def __init__(self, rng: random.Random, folder: Path):
        self.rng = rng
        self.folder = folder
        self.counts: collections.Counter[str] = collections.Counter()
        self.broken_off: collections.Counter[str] = collections.Counter()
        self._corpus = folder / "corpus"
        self._corpus.mkdir()
        for number in range(12):
            tiny.write_corpus(self._corpus / f"{number}.jsonl", documents=500)
        self._prepare(folder / "first")  # imports take longer the first time
        begin = time.monotonic()
        self._expected = self._prepare(folder / "expected")
        self._seconds = time.monotonic() - begin

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
        """Kills one after another until it is enough; each is brought to its end and compared."""
        folder = self.folder / "killed"
        while not enough():
            while not self._attempt(folder, is_last=enough()):
                pass
            found = contents(folder / "out")
            assert found == self._expected, "other files than if it is never killed"
            self.counts["runs"] += 1
            shutil.rmtree(folder)

    def _attempt(self, folder: Path, is_last: bool) -> bool:
        """Starts a preparation, or resumes it, and kills it unless it is the last time; whether it
        came to its end."""
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
            self.broken_off["tokenising"] += 1
        elif "training" in errors:
            self.broken_off["training a tokenizer"] += 1
        else:
            self.broken_off["a start"] += 1
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


def broken_off(words: str, workdir: Path, evaluations: int) -> str:
    """What a run that was killed was doing.

    Args:
        words: what it had said.
        workdir: its folder, as it was left.
        evaluations: steps between two of them.
    """
    inside = [path.name for path in workdir.glob("checkpoints/*")]
    lines = [
        line for line in words.splitlines() if re.match(r"step \d+|compiling|to compare", line)
    ]
    found = re.match(r"step (\d+)/", lines[-1]) if lines else None
    if "deleted" in inside:
        return "a deletion"
    # an earlier kill's is deleted before the first step
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
    return "an evaluation" if found and int(found[1]) % evaluations == 0 else "steps"


def newest(workdir: Path) -> int | None:
    """The step of the newest finished checkpoint."""
    return max(
        (int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdigit()),
        default=None,
    )


def campaign(mode: str, seed: int, minutes: float, kills: int) -> Campaign | Preparations:
    """Kills for so many minutes, or so many times; returns how many kills, resumed starts and
    finished runs there were.

    Raises:
        AssertionError: something was lost, or is wrong; the folder then stays.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"gmlp-kills-{mode}-"))
    rng = random.Random(seed)
    found = Preparations(rng, folder) if mode == "preparation" else Campaign(mode, rng, folder)
    end = time.monotonic() + 60 * minutes
    found.run(lambda: time.monotonic() > end or found.counts["kills"] >= kills)
    shutil.rmtree(folder)
    return found


def report(mode: str, found: Campaign | Preparations) -> str:
    """The counts in a line."""
    counts = found.counts
    of = ", ".join(f"{what} {number}" for what, number in sorted(found.broken_off.items()))
    kills = f"{mode}: {counts['kills']} kills ({of}), {counts['resumed']} resumed"
    return f"{kills}, {counts['runs']} ended as if never killed"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="for each mode")
    parser.add_argument("--kills", type=int, default=10**9, help="at most, for each mode")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=MODES, action="append")
    given = parser.parse_args()
    for mode in given.mode or MODES:
        print(report(mode, campaign(mode, given.seed, given.minutes, given.kills)), flush=True)


if __name__ == "__main__":
    preloaded.environment()  # its folder of compiled programs is shared by all
    main()
