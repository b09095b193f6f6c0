"""`gmlp train` on an existing run. Whole runs are in tests/runs, errors in flags in test_cli.py."""

import json
import re
import shutil

import pytest

from tests import preloaded


@pytest.mark.slow
@pytest.mark.smoke
def test_finished_run_resumes_with_more_steps(text_run, tmp_path):
    run = shutil.copytree(text_run, tmp_path / "run")
    command = ("train", f"--config={run}/config.json", f"--workdir={run}", "--config.steps=14")
    done = preloaded.gmlp(*command, PYTHONWARNINGS="error")
    assert done.returncode == 0, done.stderr
    assert f"resuming {run} at step 12" in done.stderr
    assert json.loads((run / "result.json").read_text())["step"] == 14
    lines = preloaded.without_heartbeats(done.stderr).splitlines()
    assert lines[0] == f"gmlp, masked_lm: 14 steps of 8 examples on 1 cpu device; writing to {run}"
    assert any(line.startswith("heldout: ") for line in lines)
    [sizes] = [line for line in lines if "parameters;" in line]
    # The text is the manual of this Python.
    pattern = r"12,182 parameters; [56],\d{3} sequences of 32 tokens to train on, [78]\d\d held out"
    assert re.fullmatch(pattern, sizes)
    figure, *advice = done.stdout.splitlines()
    assert figure.endswith("figures/loss.png")
    commands = [line.split()[1:3] for line in advice]
    assert commands == [
        ["predict", f"--workdir={run}"],
        ["draw", "filters"],
        ["evaluate", f"--workdir={run}"],
    ]


@pytest.mark.slow
def test_unwritable_figure_loses_no_result(text_run, tmp_path):
    """A file is in the place of the figures' folder."""
    run = shutil.copytree(text_run, tmp_path / "run")
    shutil.rmtree(run / "figures", ignore_errors=True)
    (run / "figures").write_text("")
    command = ("train", f"--config={run}/config.json", f"--workdir={run}", "--config.steps=14")
    done = preloaded.gmlp(*command)
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "result.json").read_text())["step"] == 14
    *_, last = done.stderr.splitlines()
    assert f"{run}/figures" in last
    assert "loss.png" not in done.stdout
    assert f"gmlp evaluate --workdir={run}" in done.stdout


@pytest.mark.slow
def test_members_are_trained_in_one_command(tmp_path):
    """Each member has the files of a run, and its figure. A killed command is simply repeated."""
    command = [
        "train",
        "--config=synthetic:sgu,d=16",
        "--config.steps=4",
        "--config.eval.every=2",
        "--config.optimizer.warmup=1",
        "--config.synthetic.heldout_examples=16",
        f"--member=0:1e-3:{tmp_path}/a",
        f"--member=1:2e-3:{tmp_path}/b",
    ]
    done = preloaded.gmlp(*command, PYTHONWARNINGS="error")
    assert done.returncode == 0, done.stderr
    expected = [f"{tmp_path}/{name}/figures/loss.png" for name in "ab"]
    assert done.stdout.splitlines() == expected
    for name, seed, rate in (("a", 0, 1e-3), ("b", 1, 2e-3)):
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["seed"] == seed
        assert config["optimizer"]["learning_rate"] == rate
        assert json.loads((tmp_path / name / "result.json").read_text())["step"] == 4
    assert "b: step 4  held out: loss" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--member=0:fast:runs/a"], "--member=0:fast:runs/a: expected SEED:RATE:FOLDER"),
        (["--member=0:1e-3"], "--member=0:1e-3: expected SEED:RATE:FOLDER"),
        (["--member=0:1e-3:a", "--workdir=b"], "--workdir and --member exclude each other"),
        (["--member=-1:1e-3:a"], "config.seed"),
    ],
)
def test_members_in_another_form_are_refused(flags, message):
    done = preloaded.gmlp("train", "--config=quickstart_text", *flags)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert message in line
