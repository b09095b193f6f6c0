import json

import pytest

from tests.runs.command import assert_done, assert_one_line_error


@pytest.mark.smoke
def test_evaluate_gives_the_metrics_that_the_run_ended_with(commands, finished):
    result = commands(f"--workdir={finished}", command="evaluate")
    assert_done(result)
    found = json.loads(result.stdout)
    assert found["step"] == 12 and found["checkpoint"] == f"{finished}/checkpoints/12"
    assert found["eval"] == json.loads((finished / "result.json").read_text())["eval"]


def test_checkpoint_that_does_not_exist(commands, finished):
    result = commands(f"--workdir={finished}", "--checkpoint=5", command="evaluate")
    assert_one_line_error(result, "has no checkpoint '5'", "8, 12")


def test_folder_that_is_no_run(commands, tmp_path):
    assert_one_line_error(commands(f"--workdir={tmp_path}", command="evaluate"), "is no run folder", "config.json")
