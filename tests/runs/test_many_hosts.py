"""A run in two processes: real ones, that meet over the loopback."""

import json
import shutil
import signal

import pytest

from tests.runs.command import assert_same_run, await_line, final_state, metrics
from tests.runs.processes import assert_lost, outcome, run_two, two_processes

pytestmark = pytest.mark.slow

EVERY = ["--config.log.every=5", "--config.checkpoint.every=20"]
FLAGS = ["--config.steps=60", *EVERY, "--config.optimizer.grad_accum_steps=2"]


@pytest.fixture(scope="module")
def by_two(commands, text, tmp_path_factory):
    """The folder of a run that two processes trained without a break."""
    workdir = tmp_path_factory.mktemp("by_two") / "run"
    first, second = run_two(commands, text, *FLAGS, f"--workdir={workdir}")
    assert "step 60/60" in first.stderr
    assert str(workdir / "figures") in first.stdout
    assert "step " not in second.stderr
    assert "figures" not in second.stdout
    return workdir


@pytest.fixture(scope="module")
def by_one(commands, text, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("by_one") / "run"
    assert commands(text, *FLAGS, f"--workdir={workdir}").returncode == 0
    return workdir


def numbers(line, prefix=""):
    """The values of a metrics line, those of nested ones by their path."""
    for name, value in line.items():
        if isinstance(value, dict | list):
            inner = (
                value
                if isinstance(value, dict)
                else {str(number): item for number, item in enumerate(value)}
            )
            yield from numbers(inner, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def assert_close(found, expected):
    """The same numbers, but for the order in which they were added."""
    for one, other in zip(found, expected, strict=True):
        one = dict(numbers(one))
        other = dict(numbers(other))
        assert one.keys() == other.keys()
        for name, value in one.items():
            expected_value = (
                other[name] if isinstance(value, str) else pytest.approx(other[name], rel=2e-4)
            )
            assert value == expected_value, (name, one, other)


def test_two_processes_train_as_one(by_two, by_one):
    assert_close(metrics(by_two), metrics(by_one))
    assert json.loads((by_two / "environment.json").read_text())["devices"]["hosts"] == 2
    got = sorted(path.name for path in by_two.iterdir())
    expected = sorted(path.name for path in by_one.iterdir())
    assert got == expected


def test_checkpoints_move_from_two_processes_to_one_and_back(
    commands, text, by_two, by_one, tmp_path
):
    """Back to a state that the processes cut between them."""
    flags = [text, *FLAGS, "--config.steps=80"]
    for run in (by_two, by_one):
        shutil.copytree(run, tmp_path / run.parent.name)
    one = tmp_path / by_two.parent.name
    two = tmp_path / by_one.parent.name
    result = commands(*flags, f"--workdir={one}")
    assert f"resuming {one} at step 60" in result.stderr, result.stderr
    assert result.returncode == 0, result.stderr
    first, second = run_two(commands, *flags, "--config.mesh.fsdp=4", f"--workdir={two}")
    assert f"resuming {two} at step 60" in first.stderr
    assert not second.stderr
    changes = [line["changed"] for run in (one, two) for line in metrics(run) if "changed" in line]
    assert changes == [{"steps": [60, 80]}, {"steps": [60, 80], "mesh.fsdp": [1, 4]}]
    assert_close(*([line for line in metrics(run) if "changed" not in line] for run in (one, two)))


def test_two_processes_start_from_the_parameters_of_another_run(commands, text, by_one, tmp_path):
    """At learning rate 0 they end as they begin."""
    flags = ["--config.steps=1", "--config.optimizer.learning_rate=0.0", "--config.mesh.fsdp=4"]
    run_two(commands, text, *flags, f"--config.init_from={by_one}", f"--workdir={tmp_path / 'run'}")
    assert_close(metrics(tmp_path / "run")[-1:], [metrics(by_one)[-1] | {"step": 1}])


def test_stopped_and_killed_run_equals_an_uninterrupted_one(commands, text, by_two, tmp_path):
    command = [text, *FLAGS, f"--workdir={tmp_path / 'run'}"]
    with two_processes(commands, *command) as (first, second):
        await_line(first, "^step 5/")
        second.send_signal(signal.SIGTERM)
        results = outcome(first), outcome(second)
    assert [result.returncode for result in results] == [0, 0], results
    message = results[0].stderr.splitlines()[-1]
    assert message.startswith("SIGTERM: step "), results
    assert not results[1].stderr, results
    assert message.endswith("; to resume: start the same 2 processes again")
    saved = int(message.split()[2])
    assert 5 < saved < 60
    assert int(final_state(tmp_path / "run")["step"]) == saved

    with two_processes(commands, *command) as (first, second):
        await_line(first, f"^step {(saved // 20 + 1) * 20 + 5 if saved < 35 else 50}/")
        first.kill()
        assert_lost(outcome(second, 60))
    assert not (tmp_path / "run" / "result.json").exists()

    run_two(commands, *command)
    assert_same_run(tmp_path / "run", by_two)


def test_signal_to_one_process_ends_the_evaluation_of_both(commands, text, tmp_path):
    flags = ["--config.steps=20", "--config.log.every=20", "--config.eval.batch_size=4"]
    command = [text, *flags, f"--workdir={tmp_path}"]
    with two_processes(commands, *command) as (first, second):
        await_line(first, "^step 20/")
        second.send_signal(signal.SIGTERM)
        results = outcome(first), outcome(second)
    assert [result.returncode for result in results] == [0, 0], results
    assert results[0].stderr.startswith("SIGTERM: step 20 is saved"), results
    assert ["eval" in line for line in metrics(tmp_path)] == [False]
    run_two(commands, *command)
    assert ["eval" in line for line in metrics(tmp_path)] == [False, True]


def test_hanging_step_ends_with_all_stacks(commands, text, tmp_path):
    flags = [
        "--config.steps=100000",
        "--config.log.hang_seconds=5",
        "--config.checkpoint.every=100000",
    ]
    with two_processes(commands, text, *flags, f"--workdir={tmp_path / 'run'}") as (first, second):
        await_line(first, "^step 6/")
        second.send_signal(signal.SIGSTOP)
        result = outcome(first, 60)
    assert result.returncode == 1, result.stderr
    assert "Timeout (0:00:05)!" in result.stderr, result.stderr
    assert "loop.py" in result.stderr


def test_processes_with_different_configs_are_refused(commands, text, tmp_path):
    """By each, with one line, in place of waiting for each other in a collective that one of them
    never begins."""
    with two_processes(
        commands, text, f"--workdir={tmp_path / 'run'}", second=("--config.steps=7",)
    ) as processes:
        results = [outcome(process) for process in processes]
    for result in results:
        assert result.returncode == 2, result.stderr
        assert result.stderr.splitlines()[-1].startswith(
            "error: the config of process 1 is not that of process 0"
        )
