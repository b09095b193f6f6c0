"""`gmlp train` on a run that is there; whole runs are in tests/runs, mistakes in flags in
test_cli.py."""

import json
import re
import shutil

import pytest

from tests import preloaded


@pytest.mark.smoke
def test_a_finished_run_goes_on_when_it_is_given_more_steps(text_run, tmp_path):
    run = shutil.copytree(text_run, tmp_path / "run")
    command = ("train", f"--config={run}/config.json", f"--workdir={run}", "--config.steps=14")
    done = preloaded.gmlp(*command, PYTHONWARNINGS="error")
    assert done.returncode == 0, done.stderr
    assert f"resuming {run} at step 12" in done.stderr
    assert json.loads((run / "result.json").read_text())["step"] == 14
    first, *_ = lines = done.stderr.splitlines()
    assert first == f"gmlp, masked_lm: 14 steps of 8 examples on 1 cpu device; writing to {run}"
    assert any(line.startswith("heldout: ") for line in lines)
    [sizes] = [line for line in lines if "parameters;" in line]
    # The text is the manual of this Python.
    assert re.fullmatch(
        r"12,182 parameters; [56],\d{3} sequences of 32 tokens to train on, [78]\d\d held out",
        sizes,
    )
    figure, *advice = done.stdout.splitlines()
    assert figure.endswith("figures/loss.png")
    assert [line.split()[1:3] for line in advice] == [
        ["predict", f"--workdir={run}"],
        ["draw", "filters"],
        ["evaluate", f"--workdir={run}"],
    ]


def test_a_figure_that_cannot_be_written_loses_no_result(text_run, tmp_path):
    """Where the folder of figures should be is a file."""
    run = shutil.copytree(text_run, tmp_path / "run")
    shutil.rmtree(run / "figures", ignore_errors=True)
    (run / "figures").write_text("")
    done = preloaded.gmlp(
        "train", f"--config={run}/config.json", f"--workdir={run}", "--config.steps=14"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "result.json").read_text())["step"] == 14
    *_, last = done.stderr.splitlines()
    assert f"{run}/figures" in last
    assert "loss.png" not in done.stdout
    assert f"gmlp evaluate --workdir={run}" in done.stdout
