"""Damaged files and odd values, by the thousand: each must be read, or be refused with one line.

    python -m tests.fuzz images --count=1000
    python -m tests.fuzz all --minutes=10
    python -m tests.fuzz images --first=4711 --count=1     # one input again

A target is a file of this folder with `make(folder)`, which returns a function of a random number
generator: it makes one input and reads it, in a temporary folder that is also the current one. A
user's error (UserError, BadRecord) is an answer; any other exception, an
answer that takes longer than 30 seconds, and a process that dies are failures, and are printed with
their seeds. The inputs run in a process of their own with 8 GB of memory, which is started again
after a hang. Time in which the process could run, but other processes had the processor, does not
count: a busy machine is no hang.
"""

import argparse
import collections
import contextlib
import importlib
import json
import mmap
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

TARGETS = (
    "config",
    "run_files",
    "metrics",
    "prepared",
    "tokenizers",
    "images",
    "records",
    "tables",
    "image_trees",
    "predict",
    "checkpoints",
    "text_folders",
    "labels",
)
SECONDS = 30
MEMORY = 8 << 30
BROKEN = 3  # the exit code of a target that cannot begin
PLACE = struct.Struct("qqq")  # the seed in work, inputs that were read or refused, those refused


class Progress:
    """Numbers that a process and its parent share, in a file."""

    def __init__(self, path: Path):
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), PLACE.size)

    @property
    def numbers(self) -> tuple[int, int, int]:
        return PLACE.unpack(self._map[:])

    @numbers.setter
    def numbers(self, values: tuple[int, int, int]) -> None:
        self._map[:] = PLACE.pack(*values)


def work(target: str, first: int, count: int, seconds: float, place: Path) -> None:
    """The inputs from seed `first` on, in this process, for so many seconds; prints each new kind
    of traceback as a line of JSON."""
    from gmlp_flax.errors import UserError
    from gmlp_flax.io.records import BadRecord

    answers = (BadRecord, UserError)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    progress = Progress(place)
    known = set()
    _, done, refused = progress.numbers
    with tempfile.TemporaryDirectory(prefix="gmlp_fuzz_") as folder:
        # so a value that is taken for a path, ../.. too, stays in `folder`
        here = Path(folder, "inside", "here")
        here.mkdir(parents=True)
        os.chdir(here)
        try:
            check = importlib.import_module(f"tests.fuzz.{target}").make(Path(folder))
        except Exception:
            traceback.print_exc()
            raise SystemExit(BROKEN) from None
        end = time.monotonic() + seconds
        for seed in range(first, first + count):
            if time.monotonic() > end:
                break
            progress.numbers = seed, done, refused
            try:
                check(random.Random(f"{target} {seed}"))
            except answers as error:
                refused += 1
                if "\n" in str(error):
                    print(
                        json.dumps({"seed": seed, "traceback": f"more than one line: {error}"}),
                        flush=True,
                    )
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                kind = type(error).__name__, where.filename, where.lineno
                told = "" if kind in known else traceback.format_exc()
                known.add(kind)
                print(
                    json.dumps({"seed": seed, "traceback": told or f"as before: {kind}"}),
                    flush=True,
                )
                continue
            done += 1
        progress.numbers = -1, done, refused


def run(target: str, count: int, minutes: float, first: int) -> dict[str, int]:
    """Inputs of one target: how many, how many were refused, and how many failed in which way."""
    found = collections.Counter(inputs=0, refused=0, tracebacks=0, hangs=0, crashes=0)
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "progress")
        seed = first
        place.write_bytes(PLACE.pack(first, 0, 0))
        progress = Progress(place)
        while seed < first + count and (left := end - time.monotonic()) > 0:
            told = Path(folder, "told")
            with (
                open(Path(folder, "output"), "w+") as output,
                open(told, "w+", errors="replace") as messages,
            ):
                words = [
                    target,
                    f"--first={seed}",
                    f"--count={first + count - seed}",
                    f"--seconds={left}",
                ]
                words.append(f"--place={place}")
                child = subprocess.Popen(
                    [sys.executable, "-m", "tests.fuzz", *words], stdout=output, stderr=messages
                )
                hung = _watch(child, progress)
                output.seek(0)
                # libraries print as well
                for line in (each for each in output if each.startswith('{"seed"')):
                    failure = json.loads(line)
                    found["tracebacks"] += 1
                    print(f"{target}, seed {failure['seed']}: {failure['traceback']}", flush=True)
                messages.seek(0)
                last = messages.read()[-2000:]
            if child.returncode == BROKEN:
                raise SystemExit(f"{target} cannot begin: {last}")
            seed, done, refused = progress.numbers
            if seed < 0:
                break
            found["hangs" if hung else "crashes"] += 1
            what = (
                f"no answer in {SECONDS} s"
                if hung
                else f"the process died, exit code {child.returncode}: {last}"
            )
            print(f"{target}, seed {seed}: {what}", flush=True)
            seed += 1
            progress.numbers = seed, done, refused
        _, done, refused = progress.numbers
    found["inputs"], found["refused"] = (
        done + found["tracebacks"] + found["hangs"] + found["crashes"],
        refused,
    )
    return dict(found)


def _watch(child: subprocess.Popen, progress: Progress) -> bool:
    """Waits for a process, or ends it if it stays at one seed for too long, which the result
    says."""
    seed = None
    since = 0.0
    work_since = 0.0
    waits = 0.0
    begun = time.monotonic()
    while child.poll() is None:
        time.sleep(0.1)
        now = progress.numbers[0]
        work = worked(child.pid)
        # the waits of a thread that ends are forgotten by Linux
        waits = max(waits, starved(child.pid))
        own = time.monotonic() - begun - waits  # seconds
        limit = SECONDS * (1 if progress.numbers[1] else 4)  # imports
        if now != seed:
            seed = now
            since = own
            work_since = work
        elif own - since > limit or work - work_since > 4 * limit:
            child.kill()
            child.wait()
            return True
    return False


def starved(process: int) -> float:
    """Seconds that a process's threads, added up, were ready to run while others had the processor,
    by Linux."""
    waits = 0
    for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError):  # a thread that ends
            waits += int(path.read_text().split()[1])
    return waits / 1e9


def worked(process: int) -> float:
    """Seconds of the processor that a process has had."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Runs one target or all; exit code 1 if something failed."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--count", type=int, default=10**9, help="inputs of a target")
    parser.add_argument("--minutes", type=float, default=1.0, help="for a target, at most")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.place:
        return work(options.target, options.first, options.count, options.seconds, options.place)
    failed = False
    for target in TARGETS if options.target == "all" else [options.target]:
        found = run(target, options.count, options.minutes, options.first)
        failed = failed or any(found[name] for name in ("tracebacks", "hangs", "crashes"))
        print(
            f"{target}: " + ", ".join(f"{count:,} {name}" for name, count in found.items()),
            flush=True,
        )
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
