"""A run that resumes with another number of processes is the same run."""

import json

import pytest

from tests.runs.command import assert_done, await_line, metrics
from tests.runs.processes import assert_lost, outcome, several_processes
from tests.runs.test_many_hosts import assert_close

pytestmark = pytest.mark.nightly  # test_many_hosts.py moves a run between two processes and one

EVERY = 10
FLAGS = [
    "--config.steps=60",
    "--config.log.every=1",
    f"--config.checkpoint.every={EVERY}",
    "--config.eval.every=20",
]
DEVICES = 4  # over all processes


def number_of_hosts(workdir) -> int:
    environment = json.loads((workdir / "environment.json").read_text())
    return environment["devices"]["hosts"]


def values_of(workdir, key: str) -> list:
    """The values of a key of metrics lines, as far as lines have it."""
    return [line[key] for line in metrics(workdir) if key in line]


def killed(commands, count: int, step: int, *arguments: str) -> None:
    """Runs some processes up to a step. Then one is killed, and the others end because of that."""
    each = ((),) * count
    with several_processes(commands, *arguments, each=each, devices=DEVICES // count) as processes:
        await_line(processes[0], f"^step {step}/")
        processes[-1].kill()
        for process in processes[:-1]:
            assert_lost(outcome(process))


def test_run_moves_from_two_processes_to_four_to_one(commands, text, tmp_path):
    """Every batch is the one on which a single process trains. The loss of each step is therefore the
    same, up to the order of sums. No step is lost or recorded twice, and the record does not name the
    processes."""
    elastic = tmp_path / "elastic"
    alone = tmp_path / "alone"
    assert_done(commands(text, *FLAGS, f"--workdir={alone}"))
    command = [text, *FLAGS, f"--workdir={elastic}"]
    killed(commands, 2, EVERY + 5, *command)
    assert number_of_hosts(elastic) == 2
    killed(commands, 4, 3 * EVERY + 5, *command)
    assert number_of_hosts(elastic) == 4
    done = commands(*command)
    assert_done(done)
    [resumed] = [line for line in done.stderr.splitlines() if line.startswith("resuming")]
    *_, last_word = resumed.split()
    step = int(last_word)
    assert step >= 3 * EVERY, resumed
    assert step % EVERY == 0, resumed

    losses = values_of(elastic, "loss")
    steps = [line["step"] for line in metrics(elastic) if "loss" in line]
    assert steps == list(range(1, 61))
    assert_close(metrics(elastic), metrics(alone))
    # 1.7e-7 was measured: a bit of float32
    assert losses == pytest.approx(values_of(alone, "loss"), rel=2e-6)
    assert (elastic / "config.json").read_bytes() == (alone / "config.json").read_bytes()
    names = {path.name for path in elastic.iterdir()}
    expected = {path.name for path in alone.iterdir()}
    assert names == expected
