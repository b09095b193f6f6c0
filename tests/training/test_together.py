"""Runs trained together by one program: their numbers and files equal those of single runs."""

import dataclasses
import functools
import json
import os
from pathlib import Path

import jax
import optax
import pytest
from numpy.testing import assert_allclose

import gmlp_flax
from gmlp_flax.config.schema import MEMBER_KEYS
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.training import loop, together
from gmlp_flax.training.together import Outcome, Run
from tests.failures import raised
from tests.runs.command import metrics
from tests.training import interrupted, tiny

MEMBERS = {"slow": (0, 1e-3), "fast": (1, 4e-3), "other": (2, 1e-3)}


def config(folder: Path):
    options = tiny.text_config(folder)
    options.log.every = 2
    options.eval.every = 3
    options.checkpoint.every = 3
    return options


def run(options, folder: Path, name: str, seed: int, rate: float) -> Run:
    own = options.copy_and_resolve_references()
    pairs = zip(MEMBER_KEYS, (seed, rate), strict=True)
    values = dict(pairs)
    own.update_from_flattened_dict(values)
    return Run(own, str(folder / name))


def runs(options, folder: Path) -> list[Run]:
    members = []
    for name, (seed, rate) in MEMBERS.items():
        members.append(run(options, folder, name, seed, rate))
    return members


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    """The folders of runs that were trained together, and of the same runs trained alone."""
    folder = tmp_path_factory.mktemp("together")
    members = runs(config(folder), folder / "together")
    outcomes = together.train_together(members)
    for outcome, name in zip(outcomes, MEMBERS, strict=True):
        path = folder / "together" / name / "result.json"
        written = json.loads(path.read_text())
        assert outcome == Outcome(written)
    for alone in runs(config(folder), folder / "alone"):
        loop.train(alone.config, alone.workdir)
    return folder / "together", folder / "alone"


def numbers(lines: list[dict]) -> list[dict]:
    """The lines of metrics without the speed, which differs from run to run."""
    kept = []
    for line in lines:
        without_speed = {}
        for key, value in line.items():
            if not key.endswith("per_second"):
                without_speed[key] = value
        kept.append(without_speed)
    return kept


def assert_close(first_lines: list[dict], second_lines: list[dict]) -> None:
    """Checks that two lists of metrics lines are equal up to rounding, except for speeds."""
    first_tree = numbers(first_lines)
    second_tree = numbers(second_lines)
    assert jax.tree.structure(first_tree) == jax.tree.structure(second_tree)
    first_leaves = jax.tree.leaves(first_tree)
    second_leaves = jax.tree.leaves(second_tree)
    leaves = zip(first_leaves, second_leaves, strict=True)
    for first, second in leaves:
        if isinstance(first, str):
            assert first == second
        else:
            assert_allclose(first, second, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMBERS)
def test_metrics_equal_those_of_a_single_run(folders, name):
    first, second = folders
    first_metrics = metrics(first / name)
    second_metrics = metrics(second / name)
    assert_close(first_metrics, second_metrics)


@pytest.mark.slow
def test_members_differ(folders):
    together_folder, _ = folders
    losses = set()
    rates = []
    for name in MEMBERS:
        first_line = metrics(together_folder / name)[0]
        losses.add(first_line["loss"])
        rates.append(first_line["learning_rate"])
    assert len(losses) == 3
    assert_allclose(rates, [7.5e-4, 3e-3, 7.5e-4])  # of steps 1 and 2: 1/2 and 1


@pytest.mark.parametrize("name", MEMBERS)
def test_files_and_parameters_equal_those_of_a_single_run(folders, name):
    together_folder, alone_folder = folders
    first = together_folder / name
    second = alone_folder / name
    first_names = {path.name for path in first.iterdir()}
    second_names = {path.name for path in second.iterdir()}
    assert first_names == second_names
    first_config = (first / "config.json").read_text()
    second_config = (second / "config.json").read_text()
    assert first_config == second_config
    first_params = gmlp_flax.load(str(first)).params
    second_params = gmlp_flax.load(str(second)).params
    close = functools.partial(assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, first_params, second_params)


@pytest.mark.slow
def test_runs_at_different_steps_all_finish(folders, tmp_path):
    """One member resumes after three steps that it took alone, one starts, and one has finished."""
    alone = config(tmp_path)
    alone.steps = 3
    seed_and_rate = MEMBERS["slow"]
    first = run(alone, tmp_path, "slow", *seed_and_rate)
    loop.train(first.config, first.workdir)
    members = runs(config(tmp_path), tmp_path)
    finished = members[2]
    loop.train(finished.config, finished.workdir)
    before = (tmp_path / "other" / "metrics.jsonl").read_text()
    outcomes = together.train_together(members)
    steps = [outcome.result["step"] for outcome in outcomes]
    assert steps == [6, 6, 6]
    assert (tmp_path / "other" / "metrics.jsonl").read_text() == before
    _, whole = folders
    fast = metrics(tmp_path / "fast")
    expected = metrics(whole / "fast")
    assert_close(fast, expected)


def checkpoint_names(workdir) -> list[str]:
    """The names of the checkpoints of a run."""
    return [path.name for path in Path(workdir, "checkpoints").iterdir()]


@pytest.mark.slow
def test_signal_saves_all_members_which_resume_together_or_alone(tmp_path):
    """The signal arrives in the evaluation of the first member after step 3."""
    options = interrupted.config(tmp_path)
    options.data.stop_at = 1
    members = runs(options, tmp_path)
    outcomes = together.train_together(members)
    assert outcomes == [Outcome(None)] * 3
    for member in members:
        assert checkpoint_names(member.workdir) == ["3"]
    options.data.stop_at = 0
    slow, *others = runs(options, tmp_path)
    result = loop.train(slow.config, slow.workdir)
    assert result["step"] == 6
    outcomes = together.train_together(others)
    assert [outcome.result["step"] for outcome in outcomes] == [6, 6]
    steps = []
    for line in metrics(Path(others[0].workdir)):
        if "eval" in line:
            steps.append(line["step"])
    assert steps == [3, 6]


@pytest.mark.slow
def test_unreadable_data_leave_a_checkpoint_of_each_member(tmp_path):
    options = interrupted.config(tmp_path)
    options.data.unreadable = 1
    with pytest.raises(DataError, match="a held-out text cannot be read"):
        together.train_together(runs(options, tmp_path))
    for name in MEMBERS:
        assert checkpoint_names(tmp_path / name) == ["3"]


@pytest.mark.slow
def test_diverging_run_fails_alone(tmp_path, capfd):
    options = config(tmp_path)
    options.optimizer.clip = 0.0
    members = [
        run(options, tmp_path, "good", 0, 1e-3),
        run(options, tmp_path, "bad", 0, 1e30),
    ]
    good, bad = together.train_together(members)
    assert good.result["step"] == 6
    assert bad.result is None
    assert bad.problem.startswith("the loss or its gradient stopped being finite between steps")
    assert "bad: failed: the loss" in capfd.readouterr().err
    assert not (tmp_path / "bad" / "result.json").exists()
    diverging = members[1]
    again = raised(RunError, loop.train, diverging.config, diverging.workdir)
    assert "stopped being finite" in again  # it starts over and is not taken for a lost run


def perplexity_at(run: Path, step: int) -> float:
    """The perplexity of the evaluation after a step."""
    evaluations = [line for line in metrics(run) if "eval" in line]
    [line] = [line for line in evaluations if line["step"] == step]
    return line["eval"]["perplexity"]


@pytest.mark.slow
def test_run_that_reaches_its_target_stops_before_the_others(tmp_path):
    options = config(tmp_path)
    whole = tmp_path / "whole"
    first = together.train_together(runs(options, whole))
    perplexities = []
    for name in MEMBERS:
        perplexities.append(perplexity_at(whole / name, 3))
    low, high, _ = sorted(perplexities)
    options.eval.stop_at = (low + high) / 2
    members = runs(options, tmp_path / "short")
    outcomes = together.train_together(members)
    steps = [outcome.result["step"] for outcome in outcomes]
    expected_steps = []
    for perplexity in perplexities:
        expected_steps.append(3 if perplexity == low else 6)
    assert steps == expected_steps
    last = perplexities.index(max(perplexities))
    loss = outcomes[last].result["eval"]["loss"]
    whole_result = first[last].result
    expected_loss = whole_result["eval"]["loss"]
    assert_allclose(loss, expected_loss, rtol=1e-6)


def test_members_that_differ_in_other_keys_are_refused(tmp_path):
    members = runs(config(tmp_path), tmp_path)
    members[1].config.batch_size = 16
    message = raised(RunError, together.train_together, members)
    assert message == (
        f"config.batch_size is 8 in {tmp_path}/slow and 16 in {tmp_path}/fast: runs that are "
        "trained together may differ in seed and optimizer.learning_rate alone"
    )


def test_two_members_in_one_folder_are_refused(tmp_path):
    first, second, _ = runs(config(tmp_path), tmp_path)
    same_folder = os.path.join(tmp_path, ".", "slow")
    members = [first, second._replace(workdir=same_folder)]
    assert "is the folder of two runs" in raised(RunError, together.train_together, members)


def test_several_devices_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    members = runs(config(tmp_path), tmp_path)
    message = raised(RunError, together.train_together, members)
    assert "on one device, and there are 4" in message
    assert not list(tmp_path.glob("slow"))


def test_user_defined_optimizer_is_refused(tmp_path):
    sgd = optax.sgd(0.1)
    options = dataclasses.replace(loop.TrainOptions(), optimizer=sgd)
    members = runs(config(tmp_path), tmp_path)
    message = raised(RunError, together.train_together, members, options)
    assert "have the optimizer of their config" in message


def test_trackers_with_one_run_per_process_are_refused(tmp_path):
    options = config(tmp_path)
    options.log.wandb = "mixers"
    message = raised(RunError, together.train_together, runs(options, tmp_path))
    assert "Weights & Biases has one run in a process" in message


@pytest.mark.slow
def test_trace_covers_all_members(tmp_path):
    options = config(tmp_path)
    options.profile.steps = "2:3"
    together.train_together(runs(options, tmp_path))
    assert list((tmp_path / "slow" / "profile").rglob("*.pb"))
    assert not (tmp_path / "fast" / "profile").exists()
