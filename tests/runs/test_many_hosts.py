"""A run in two real processes, which communicate over the loopback."""

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
    """The folder of a run that two processes trained without interruption."""
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
    """The values of a metrics line; those of nested objects and lists by their path."""
    for name, value in line.items():
        path = f"{prefix}{name}"
        if isinstance(value, list):
            by_position = {str(number): item for number, item in enumerate(value)}
            yield from numbers(by_position, f"{path}/")
        elif isinstance(value, dict):
            yield from numbers(value, f"{path}/")
        else:
            yield path, value


def assert_close(found, expected):
    """Checks that metrics lines are equal up to the order of sums."""
    for found_line, expected_line in zip(found, expected, strict=True):
        found_values = dict(numbers(found_line))
        expected_values = dict(numbers(expected_line))
        assert found_values.keys() == expected_values.keys()
        for name, value in found_values.items():
            expected_value = expected_values[name]
            if not isinstance(value, str):
                expected_value = pytest.approx(expected_value, rel=2e-4)
            assert value == expected_value, (name, found_line, expected_line)


def test_two_processes_train_as_one(by_two, by_one):
    assert_close(metrics(by_two), metrics(by_one))
    environment = json.loads((by_two / "environment.json").read_text())
    assert environment["devices"]["hosts"] == 2
    names = {path.name for path in by_two.iterdir()}
    expected = {path.name for path in by_one.iterdir()}
    assert names == expected


def changes_and_others(lines: list[dict]) -> tuple[list[dict], list[dict]]:
    """The changes of the config in metrics lines, and the lines about something else."""
    changes = []
    others = []
    for line in lines:
        if "changed" in line:
            changes.append(line["changed"])
        else:
            others.append(line)
    return changes, others


def test_checkpoints_move_from_two_processes_to_one_and_back(
    commands, text, by_two, by_one, tmp_path
):
    """Back to a state that is sharded over both processes."""
    flags = [text, *FLAGS, "--config.steps=80"]
    for run in (by_two, by_one):
        target = tmp_path / run.parent.name
        shutil.copytree(run, target)
    one = tmp_path / by_two.parent.name
    two = tmp_path / by_one.parent.name
    result = commands(*flags, f"--workdir={one}")
    assert f"resuming {one} at step 60" in result.stderr, result.stderr
    assert result.returncode == 0, result.stderr
    first, second = run_two(commands, *flags, "--config.mesh.fsdp=4", f"--workdir={two}")
    assert f"resuming {two} at step 60" in first.stderr
    assert not second.stderr
    one_changes, one_lines = changes_and_others(metrics(one))
    two_changes, two_lines = changes_and_others(metrics(two))
    assert one_changes == [{"steps": [60, 80]}]
    changes = {"steps": [60, 80], "mesh.fsdp": [1, 4]}
    assert two_changes == [changes]
    assert_close(one_lines, two_lines)


@pytest.mark.nightly
def test_two_processes_start_from_the_parameters_of_another_run(commands, text, by_one, tmp_path):
    """At learning rate 0, the parameters at the end equal those at the start."""
    run = tmp_path / "run"
    flags = ["--config.steps=1", "--config.optimizer.learning_rate=0.0", "--config.mesh.fsdp=4"]
    run_two(commands, text, *flags, f"--config.init_from={by_one}", f"--workdir={run}")
    last = metrics(run)[-1]
    expected = metrics(by_one)[-1]
    expected_line = expected | {"step": 1}
    assert_close([last], [expected_line])


def test_stopped_and_killed_run_equals_an_uninterrupted_one(commands, text, by_two, tmp_path):
    command = [text, *FLAGS, f"--workdir={tmp_path / 'run'}"]
    with two_processes(commands, *command) as (first, second):
        await_line(first, "^step 5/")
        second.send_signal(signal.SIGTERM)
        results = [outcome(first), outcome(second)]
    for result in results:
        assert result.returncode == 0, results
    first_result, second_result = results
    message = first_result.stderr.splitlines()[-1]
    assert message.startswith("SIGTERM: step "), results
    assert not second_result.stderr, results
    assert message.endswith("; to resume: start the same 2 processes again")
    saved = int(message.split()[2])
    assert 5 < saved < 60
    state = final_state(tmp_path / "run")
    assert int(state["step"]) == saved

    # some steps after the next checkpoint, if there is one before the end
    next_checkpoint = (saved // 20 + 1) * 20
    killed_at = next_checkpoint + 5 if saved < 35 else 50
    with two_processes(commands, *command) as (first, second):
        await_line(first, f"^step {killed_at}/")
        first.kill()
        assert_lost(outcome(second, 60))
    assert not (tmp_path / "run" / "result.json").exists()

    run_two(commands, *command)
    assert_same_run(tmp_path / "run", by_two)


@pytest.mark.nightly
def test_signal_to_one_process_ends_the_evaluation_of_both(commands, text, tmp_path):
    flags = ["--config.steps=20", "--config.log.every=20", "--config.eval.batch_size=4"]
    command = [text, *flags, f"--workdir={tmp_path}"]
    with two_processes(commands, *command) as (first, second):
        await_line(first, "^step 20/")
        second.send_signal(signal.SIGTERM)
        results = [outcome(first), outcome(second)]
    for result in results:
        assert result.returncode == 0, results
    # On a busy machine, lines on the progress of the evaluation come first.
    assert "SIGTERM: step 20 is saved" in results[0].stderr, results
    [line] = metrics(tmp_path)
    assert "eval" not in line
    run_two(commands, *command)
    before, evaluation = metrics(tmp_path)
    assert before == line
    assert "eval" in evaluation


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
    """Each process is refused in one line, instead of waiting in a collective that the other one never
    starts."""
    arguments = (text, f"--workdir={tmp_path / 'run'}")
    with two_processes(commands, *arguments, second=("--config.steps=7",)) as processes:
        results = [outcome(process) for process in processes]
    for result in results:
        assert result.returncode == 2, result.stderr
        message = result.stderr.splitlines()[-1]
        assert message.startswith("error: the config of process 1 is not that of process 0")
