"""Runs whose folder is in a bucket: the commands, kills, faults, and bad addresses.

`BUCKET_KILLS=20 pytest tests/runs/test_buckets.py` kills a run 20 times (otherwise once), and tests
all faults.
"""

import json
import os
import random
import time
from pathlib import Path

import pytest

from tests import buckets
from tests.runs.command import (
    assert_done,
    assert_one_line_error,
    assert_only_one_line,
    assert_same_run,
    await_line,
)
from tests.runs.kill import kill_until_done
from tests.runs.test_exact_resume import OPTIMIZED

KILLS = int(os.environ.get("BUCKET_KILLS", "1"))
long = pytest.mark.skipif(
    "BUCKET_KILLS" not in os.environ, reason="takes minutes: set BUCKET_KILLS=20"
)


@pytest.fixture(autouse=True)
def no_faults(request):
    if "store" in request.fixturenames:
        request.getfixturevalue("store").faults()


def fetched(store: buckets.Store, prefix: str, folder: Path) -> Path:
    """A local copy of a run folder in the bucket `runs`."""
    for name in store.names("runs", prefix):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.read("runs", name))
    return folder / prefix.rstrip("/")


def evaluation(folder: Path) -> dict:
    """The final metrics of a run."""
    result = json.loads((folder / "result.json").read_text())
    return result["eval"]


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def assert_same(workdir: Path, expected: Path) -> None:
    """Checks that state, metrics and result of two runs are equal."""
    assert_same_run(workdir, expected)
    assert evaluation(workdir) == evaluation(expected)


@pytest.mark.slow
def test_commands_on_a_run_in_a_bucket(commands, store, text, finished, tmp_path):
    workdir = "--workdir=gs://runs/a/one"
    assert_done(commands(text, workdir, **store.environment))
    run = fetched(store, "a/one/", tmp_path)
    assert_same(run, finished)
    assert names_in(run) == names_in(finished)
    assert names_in(run / "figures") == {"loss.pdf", "loss.png", "loss.svg"}

    repeated = commands(text, workdir, **store.environment)
    assert_done(repeated)
    assert "resuming gs://runs/a/one at step 12" in repeated.stderr
    scored = commands(workdir, command="evaluate", **store.environment)
    assert_done(scored)
    scores = json.loads(scored.stdout)
    assert scores["eval"] == evaluation(finished)
    filled = commands(workdir, command="predict", input="a [MASK] b\n", **store.environment)
    local = commands(f"--workdir={finished}", command="predict", input="a [MASK] b\n")
    assert filled.stdout == local.stdout
    assert "[MASK] 1:" in filled.stdout
    drawn = commands("filters", workdir, command="draw", **store.environment)
    assert drawn.stdout.strip() == "gs://runs/a/one/figures/filters.png", drawn.stderr
    assert store.read("runs", "a/one/figures/filters.png").startswith(b"\x89PNG")


@pytest.mark.slow
def test_run_copied_from_a_disk(commands, store, text, finished):
    """Its checkpoints are not taken for unfinished ones, which are deleted."""
    for path in finished.rglob("*"):
        if path.is_file():
            relative = path.relative_to(finished)
            store.write("runs", f"copied/{relative}", path.read_bytes())
    before = store.names("runs", "copied/")
    again = commands(text, "--workdir=gs://runs/copied", **store.environment)
    assert_done(again)
    assert "resuming gs://runs/copied at step 12" in again.stderr
    assert store.names("runs", "copied/") == before


@pytest.mark.slow
def test_run_killed_once_resumes(commands, store, text, finished, tmp_path):
    command = [text, "--workdir=gs://runs/once"]
    process = commands.start(*command, **store.environment)
    await_line(process, "^step 9")
    process.kill()
    process.communicate()
    again = commands(*command, **store.environment)
    assert_done(again)
    assert_same(fetched(store, "once/", tmp_path), finished)


@long
def test_run_killed_often_resumes(commands, store, text, tmp_path):
    steps = 12 * max(4, KILLS)
    flags = [
        text,
        f"--config.steps={steps}",
        "--config.checkpoint.every=5",
        "--config.log.every=1",
    ]
    assert_done(commands(*flags, f"--workdir={tmp_path / 'local'}", **OPTIMIZED))
    command = [*flags, "--workdir=gs://runs/killed"]
    environment = OPTIMIZED | store.environment

    def start():
        return commands.start(*command, **environment)

    rng = random.Random(KILLS)
    done, output = kill_until_done(start, KILLS, startup=8.0, lines=14, rng=rng)
    assert done == KILLS, "the run finished too early to be killed so often: give it more steps"
    assert_done(commands(*command, **environment))
    run = fetched(store, "killed/", tmp_path)
    assert_same(run, tmp_path / "local")
    assert output.count("resuming ") >= KILLS // 4
    for name in ("damaged", "lease.json", "metrics.jsonl.parts"):
        assert not (run / name).exists()


@pytest.mark.nightly
def test_run_that_loses_its_folder_ends(commands, store, text):
    """It detects the loss at its next heartbeat, at most ten seconds later."""
    flags = (
        "--config.steps=10000000",
        "--config.checkpoint.every=1000000",
        "--workdir=gs://runs/lost",
    )
    process = commands.start(text, *flags, **store.environment)
    await_line(process)
    lease = json.loads(store.read("runs", "lost/lease.json"))
    lease.update(token="x", host="elsewhere")
    store.write("runs", "lost/lease.json", json.dumps(lease).encode())
    _, stderr = process.communicate(timeout=60)
    line = stderr.splitlines()[-1]
    assert process.returncode == 2
    assert line.startswith("error: gs://runs/lost no longer belongs to this run: process ")
    assert " on elsewhere" in line
    assert json.loads(store.read("runs", "lost/lease.json")) == lease


@pytest.mark.nightly
def test_second_run_in_a_folder_is_refused(commands, store, text):
    flags = [text, "--config.steps=100000", "--workdir=gs://runs/two"]
    first = commands.start(*flags, **store.environment)
    await_line(first)
    second = commands(*flags, **store.environment)
    first.kill()
    first.communicate()
    assert_one_line_error(second, "gs://runs/two is in use by process ")


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param({"kind": "503", "times": 3}, marks=long),
        pytest.param({"kind": "503", "times": 3, "path": "checkpoints"}, marks=pytest.mark.nightly),
        pytest.param({"kind": "drop", "times": 3, "path": "checkpoints"}, marks=long),
        pytest.param(
            {"kind": "lost", "times": 3, "path": "checkpoints", "method": "POST"}, marks=long
        ),
        pytest.param({"kind": "lost", "times": 2, "path": "lease"}, marks=long),
        pytest.param({"kind": "slow", "times": 30, "seconds": 1}, marks=long),
        pytest.param({"kind": "401", "times": 1, "method": "POST", "path": "upload"}, marks=long),
    ],
    ids=lambda rule: " ".join(str(value) for value in rule.values()),
)
@pytest.mark.slow
def test_transient_errors_of_a_store_are_retried(commands, store, text, finished, tmp_path, rule):
    number = abs(hash(str(rule)))
    name = f"fault{number}"
    store.faults(rule)
    done = commands(text, f"--workdir=gs://runs/{name}", **store.environment)
    assert_done(done)
    times = {rule["kind"]: rule["times"]}
    assert store.met() == times
    folder = fetched(store, f"{name}/", tmp_path)
    assert_same(folder, finished)


@long
@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("503", 1, "failed (HttpError: Backend Error, 503)"),
        ("drop", 1, "failed (ServerDisconnectedError"),
        ("401", 2, "renew the credentials"),
    ],
)
@pytest.mark.parametrize("when", ["at the start", "in training"])
def test_permanent_errors_of_a_store_are_one_line(commands, store, text, kind, code, words, when):
    last_word = when.split()[-1]
    name = f"down-{kind}-{last_word}"
    process = commands.start(
        text, f"--workdir=gs://runs/{name}", "--config.steps=100000", **store.environment
    )
    if when == "in training":
        await_line(process, "^step 5")
    store.faults({"kind": kind, "times": 1_000_000})
    began = time.monotonic()
    _, errors = process.communicate(timeout=400)
    store.faults()
    last = errors.splitlines()[-1]
    assert process.returncode == code, errors
    assert last.startswith("error: "), errors
    assert words in last, errors
    assert "Traceback" not in errors
    assert time.monotonic() - began < 300
    if when == "in training":
        assert_done(
            commands(f"--workdir=gs://runs/{name}", command="evaluate", **store.environment)
        )


@pytest.mark.slow
def test_bad_addresses_are_one_line(commands, store, text):
    environment = store.environment | {"timeout": 100}  # a store is awaited for 15 minutes
    result = commands(text, "--workdir=gs://nobody/x", **environment)
    assert_only_one_line(result, "there is no bucket 'nobody'")
    result = commands(text, "--workdir=s3://runs/x", **environment)
    assert_only_one_line(result, "Orbax writes checkpoints to disks and to gs://")
    result = commands("--workdir=gs://nobody/x", command="evaluate", **environment)
    assert_only_one_line(result, "gs://nobody/x")
    arguments = {"train": [text], "evaluate": []}
    for command, words in arguments.items():
        store.faults({"kind": "403", "times": 1_000_000})
        denied = commands(*words, "--workdir=gs://runs/x", command=command, **environment)
        assert_only_one_line(denied, "permission denied")


@long
def test_sweep_in_a_bucket(commands, store, text):
    sweep = [text, "--out=gs://runs/sweep", "--sweep.lr=1e-3,2e-3", "--sweep.seed=0"]
    first = [word.replace("1e-3,2e-3", "1e-3") for word in sweep]
    done = commands(*first, command="sweep", **store.environment)
    assert_done(done)
    shown = commands(*sweep, "--status", command="sweep", **store.environment)
    last_line = shown.stdout.splitlines()[-1]
    assert last_line == "1 of 2 runs are done", shown.stderr
    done = commands(*sweep, command="sweep", **store.environment)
    assert_done(done)
    table = json.loads(store.read("runs", "sweep/sweep.json"))
    assert len(table["points"]) == 2
    log = store.read("runs", "sweep/optimizer.learning_rate=2e-3,seed=0.log").decode()
    assert "step 12/12" in log
