"""scripts/table3.sh with a stand-in for the trainer: it resumes where it stopped, and at last
trains nothing."""

import os
import subprocess
import sys

import pytest

from gmlp_flax.paper.tables import TABLES
from tests.sweeps.stand_in import Trainer

# Python of the environment: `gmlp sweep` with the stand-in where it starts the trainer; the report
# is only asked for.
PYTHON = """#!/bin/sh
case "$*" in *" reproduce "*) echo "$@"; exit 0 ;; esac
exec {python} -c '
import runpy, sys
sys.executable, sys.argv = "{executable}", ["gmlp", *sys.argv[3:]]
runpy.run_module("gmlp_flax", run_name="__main__")
' "$@"
"""
SEARCH = [f"optimizer.learning_rate={rate},seed=0,data.search=True" for rate in ("4e-3", "8e-3")]
REPORTED = [f"optimizer.learning_rate=8e-3,seed={seed}" for seed in (0, 1)]


@pytest.fixture
def trainer(tmp_path):
    trainer = Trainer(tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(python=sys.executable, executable=trainer.executable))
    python.chmod(0o755)
    return trainer


def call(trainer, minutes, *words):
    variables = {
        "VENV": f"{trainer.folder}/venv",
        "ROWS": "sgu",
        "RATES": "4e-3,8e-3",
        "SEEDS": "0,1",
    }
    command = ["scripts/table3.sh", minutes, "books.jsonl", f"{trainer.folder}/runs", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **variables, "PYTHONPATH": "."}
    )


@pytest.mark.slow
def test_a_second_call_resumes_and_a_third_does_nothing(trainer):
    scores = dict(zip([*SEARCH, *REPORTED], (30.0, 20.0, 21.0, 22.0), strict=True))
    trainer.plan(scores | {REPORTED[0]: "stops"})  # as a run does that saves when the time is over
    done = call(trainer, "60")
    assert done.returncode == 1
    assert "some rows are missing: run the same command again" in done.stderr
    assert trainer.names() == [*SEARCH, REPORTED[0]]
    report = (
        f"-m gmlp_flax reproduce table3 --scale=gpu --from={trainer.folder}/runs/* --out=reports"
    )
    assert done.stdout.splitlines()[-1] == report
    trainer.plan(scores)
    done = call(trainer, "60")
    assert done.returncode == 0, done.stderr
    assert trainer.names()[3:] == REPORTED
    assert {path.name for path in (trainer.folder / "runs").iterdir()} == {"sgu"}
    assert call(trainer, "60").returncode == 0
    assert len(trainer.names()) == 5


def test_without_time_nothing_is_trained(trainer):
    done = call(trainer, "0", "--config.steps=3")
    assert done.returncode == 1
    assert trainer.names() == []
    assert "reproduce table3" in done.stdout


@pytest.mark.parametrize("words", [[], ["x", "books.jsonl", "runs"], ["25", "books.jsonl"]])
def test_user_errors_are_one_line(words):
    done = subprocess.run(["scripts/table3.sh", *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: expected scripts/table3.sh MINUTES DATA RUNS")


def test_its_rows_are_those_of_table_3():
    help_ = subprocess.run(
        ["scripts/table3.sh", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert help_.startswith("Trains Table 3 again")
    with open("scripts/table3.sh") as file:
        rows = file.read().partition("${ROWS:-")[2].partition("}")[0].split()
    assert sorted(rows) == sorted(TABLES["table3"].trained["gpu"])
