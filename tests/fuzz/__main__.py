"""Fuzzing with thousands of damaged files and odd values: each is read, or refused in one line.

    python -m tests.fuzz images --count=1000
    python -m tests.fuzz all --minutes=10
    python -m tests.fuzz images --first=4711 --count=1     # repeats one input

A target is a module of this folder with `make(folder)`, which returns a function of a random number
generator. The function makes one input and reads it, in a temporary folder that is also the current
one. A user's error (UserError, BadRecord) is an answer. Any other exception, an answer that takes
longer than 30 seconds, and a process that dies are failures, and are printed with their seeds. The
inputs run in a child process with 8 GB of memory, which is restarted after a hang. Time that the
process spends waiting for a processor does not count, so a busy machine is not taken for a hang.
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
BROKEN = 3  # the exit code of a target that cannot start
PLACE = struct.Struct("qqq")  # current seed, inputs read or refused, inputs refused


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
    """Checks the inputs from seed `first` on in this process, for at most so many seconds.

    Prints each failure as a line of JSON, with the traceback of the first one of its kind.
    """
    from gmlp_flax.errors import UserError
    from gmlp_flax.io.records import BadRecord

    answers = (BadRecord, UserError)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    progress = Progress(place)
    known = set()
    _, done, refused = progress.numbers
    with tempfile.TemporaryDirectory(prefix="gmlp_fuzz_") as folder:
        # A value that is taken for a path, even ../.., then stays in `folder`.
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
                    _print_failure(seed, f"more than one line: {error}")
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                kind = (type(error).__name__, where.filename, where.lineno)
                if kind in known:
                    _print_failure(seed, f"as before: {kind}")
                else:
                    _print_failure(seed, traceback.format_exc())
                known.add(kind)
                continue
            done += 1
        progress.numbers = -1, done, refused


def _print_failure(seed: int, message: str) -> None:
    print(json.dumps({"seed": seed, "traceback": message}), flush=True)


def run(target: str, count: int, minutes: float, first: int) -> dict[str, int]:
    """Checks the inputs of one target; counts them, the refused ones and each kind of failure."""
    found = collections.Counter(inputs=0, refused=0, tracebacks=0, hangs=0, crashes=0)
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "progress")
        seed = first
        place.write_bytes(PLACE.pack(first, 0, 0))
        progress = Progress(place)
        while seed < first + count:
            left = end - time.monotonic()
            if left <= 0:
                break
            with (
                open(Path(folder, "output"), "w+") as output,
                open(Path(folder, "messages"), "w+", errors="replace") as messages,
            ):
                command = [sys.executable, "-m", "tests.fuzz", target]
                command += [f"--first={seed}", f"--count={first + count - seed}"]
                command += [f"--seconds={left}", f"--place={place}"]
                child = subprocess.Popen(command, stdout=output, stderr=messages)
                hung = _watch(child, progress)
                output.seek(0)
                for line in output:
                    if not line.startswith('{"seed"'):  # printed by a library
                        continue
                    failure = json.loads(line)
                    found["tracebacks"] += 1
                    print(f"{target}, seed {failure['seed']}: {failure['traceback']}", flush=True)
                messages.seek(0)
                last = messages.read()[-2000:]
            if child.returncode == BROKEN:
                raise SystemExit(f"{target} cannot start: {last}")
            seed, done, refused = progress.numbers
            if seed < 0:
                break
            if hung:
                found["hangs"] += 1
                message = f"no answer in {SECONDS} s"
            else:
                found["crashes"] += 1
                message = f"the process died, exit code {child.returncode}: {last}"
            print(f"{target}, seed {seed}: {message}", flush=True)
            seed += 1
            progress.numbers = seed, done, refused
        _, done, refused = progress.numbers
    found["inputs"] = done + found["tracebacks"] + found["hangs"] + found["crashes"]
    found["refused"] = refused
    return dict(found)


def _watch(child: subprocess.Popen, progress: Progress) -> bool:
    """Waits for a process, or kills it if it stays at one seed for too long.

    Returns:
        whether it was killed.
    """
    seed = None
    since = 0.0
    work_since = 0.0
    waits = 0.0
    start = time.monotonic()
    while child.poll() is None:
        time.sleep(0.1)
        now, done, _ = progress.numbers
        work = processor_seconds(child.pid)
        # Linux forgets the waits of a thread that has ended.
        waits = max(waits, waiting_seconds(child.pid))
        own = time.monotonic() - start - waits
        is_first = done == 0  # imports and compiles
        limit = 4 * SECONDS if is_first else SECONDS
        if now != seed:
            seed = now
            since = own
            work_since = work
            continue
        is_late = own - since > limit
        is_busy = work - work_since > 4 * limit
        if is_late or is_busy:
            child.kill()
            child.wait()
            return True
    return False


def waiting_seconds(process: int) -> float:
    """Seconds for which a process's threads waited for a processor, summed, as Linux counts them."""
    nanoseconds = 0
    for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):  # a thread that has ended
            _, waited, _ = path.read_text().split()
            nanoseconds += int(waited)
    return nanoseconds / 1e9


def processor_seconds(process: int) -> float:
    """The processor time that a process has used."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0.0
    _, _, after_name = stat.rpartition(")")
    fields = after_name.split()
    user_ticks = int(fields[11])
    system_ticks = int(fields[12])
    return (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK")


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
    targets = TARGETS if options.target == "all" else [options.target]
    for target in targets:
        found = run(target, options.count, options.minutes, options.first)
        if found["tracebacks"] or found["hangs"] or found["crashes"]:
            failed = True
        counts = [f"{count:,} {name}" for name, count in found.items()]
        print(f"{target}: {', '.join(counts)}", flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
