"""Every fuzzer: a tenth of its inputs for each change, all of them in the nightly tests.

`python -m tests.fuzz` runs more inputs by hand.
"""

import contextlib
import random
import subprocess
import sys

import pytest

from gmlp_flax.errors import DataError, RunError
from gmlp_flax.io import storage
from tests.fuzz import checkpoints, kills, tables, text_folders
from tests.preloaded import ROOT, environment

# Inputs of each target.
COUNTS = dict(
    config=60,
    run_files=100,
    metrics=300,
    prepared=200,
    tokenizers=300,
    images=3000,
    records=300,
    predict=20,
    tables=1000,
    text_folders=400,
    image_trees=300,
    labels=300,
)

FAILING = """
import os, time
from gmlp_flax.errors import DataError

CALLS = __file__ + ".calls"

def check(rng):
    open("left", "w").close()
    with open(CALLS, "a") as file:
        file.write(".")
    number = os.path.getsize(CALLS) - 1
    if number == 1:
        raise DataError("one line")
    if number == 2:
        raise KeyError("x")
    if number == 3:
        time.sleep(60)
    if number == 4:
        os.abort()

def make(folder):
    return check
"""


@pytest.mark.parametrize("target", COUNTS)
@pytest.mark.parametrize(
    "share", [pytest.param(10, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.nightly)]
)
def test_damaged_files_are_read_or_refused_in_one_line(target, share):
    """Each target with its inputs divided by `share`."""
    count = COUNTS[target] // share
    command = [sys.executable, "-m", "tests.fuzz", target, f"--count={count}", "--minutes=2"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{target}: {count:,} inputs, " in done.stdout


def test_text_folders_are_read_as_the_oracle_says(tmp_path):
    check = text_folders.make(tmp_path)
    for seed in range(60):
        with contextlib.suppress(DataError):
            check(random.Random(seed))


@pytest.mark.slow
def test_tracebacks_hangs_and_crashes_are_found(tmp_path):
    """Each kind of failure is counted, and the next input follows."""
    (tmp_path / "tests" / "fuzz").mkdir(parents=True)
    program = (ROOT / "tests" / "fuzz" / "__main__.py").read_text()
    program = program.replace("SECONDS = 30", "SECONDS = 2")
    (tmp_path / "tests" / "fuzz" / "__main__.py").write_text(program)
    (tmp_path / "tests" / "fuzz" / "records.py").write_text(FAILING)
    command = [sys.executable, "-m", "tests.fuzz", "records", "--count=6", "--minutes=2"]
    variables = environment() | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "records, seed 2: Traceback" in done.stdout
    assert "KeyError: 'x'" in done.stdout
    assert "records, seed 3: no answer in 2 s" in done.stdout
    assert "records, seed 4: the process died, exit code -6" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == "records: 6 inputs, 1 refused, 1 tracebacks, 1 hangs, 1 crashes"
    names = [path.name for path in tmp_path.iterdir()]
    assert names == ["tests"], "a file in the folder where it was started"


def test_random_tables_survive_a_round_trip(tmp_path):
    """A table in no documented form is refused, and never read as something else."""
    check = tables.make(tmp_path)
    refused = 0
    for seed in range(150):
        try:
            check(random.Random(seed))
        except DataError:
            refused += 1
    assert 30 < refused < 120


@pytest.mark.filterwarnings("ignore")  # reads that Orbax has abandoned
def test_damaged_checkpoints_never_give_another_state(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "PAUSES", (0.0,))
    damages = checkpoints.Damages(tmp_path)
    steps = []
    for seed in range(20):
        with contextlib.suppress(RunError):
            steps.append(damages.check(random.Random(seed)))
    assert steps.count(3) > 3, steps  # where 5 was moved away


@pytest.mark.nightly  # each change runs tests/runs/test_exact_resume.py
@pytest.mark.parametrize("mode", kills.MODES)
def test_killed_runs_end_as_uninterrupted_ones(mode):
    assert kills.campaign(mode, seed=0, minutes=5, kills=1).counts["kills"] >= 1
