"""A sweep of tiny language models; its logic is tested in tests/commands and tests/sweeps."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import pytest

from tests.runs.command import assert_done, assert_only_one_line, final_state, metrics

GRID = ("--grid=optimizer.learning_rate=0.0,1e-2", "--seeds=0,1")


def run(rate: str, seed: int) -> str:
    return f"optimizer.learning_rate={rate},seed={seed}"


def perplexity(out: Path, name: str) -> float:
    return json.loads((out / name / "result.json").read_text())["eval"]["perplexity"]


@pytest.fixture(scope="module")
def sweep(commands, text):
    """Runs the command."""
    return lambda *arguments: commands(text, *arguments, command="sweep")


@pytest.fixture(scope="module")
def swept(sweep, tmp_path_factory):
    """The folder of a sweep over two rates and two seeds, and what it printed."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    done = sweep(*GRID, f"--out={out}")
    assert_done(done)
    return out, done.stdout


@pytest.mark.slow
def test_the_rate_that_learns_is_chosen(swept):
    """At a rate of 0 nothing is learned; so the other has both seeds."""
    out, printed = swept
    names = [run("0.0", 0), run("1e-2", 0), run("1e-2", 1)]
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == sorted(names)
    worse, better, other = (perplexity(out, name) for name in names)
    assert worse > better and better != other
    configs = [json.loads((out / name / "config.json").read_text()) for name in names]
    found = [(config["optimizer"]["learning_rate"], config["seed"]) for config in configs]
    assert found == [(0.0, 0), (0.01, 0), (0.01, 1)]

    report = json.loads((out / "sweep.json").read_text())
    assert (report["metric"], report["mode"], report["chosen"]) == ("perplexity", "min", 1)
    summary = report["points"][1]["summary"]["perplexity"]
    assert summary["median"] == summary["mean"] == statistics.mean([better, other])
    assert (summary["lowest"], summary["highest"]) == (min(better, other), max(better, other))
    assert f"{better:.5g} {other:.5g}\n" in printed
    assert "\nchosen: optimizer.learning_rate=1e-2, for its held-out" in printed


@pytest.mark.slow
def test_again_trains_nothing(swept, sweep):
    out, printed = swept
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != "sweep.json"}
    again = sweep(*GRID, f"--out={out}")
    assert_done(again)
    assert again.stdout == printed
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != "sweep.json"}
    assert_only_one_line(sweep(*GRID, f"--out={out}", "--config.steps=13"), "config.steps was 12 and is now 13")


@pytest.mark.slow
def test_killed_alone_and_run_again(sweep, commands, text, tmp_path):
    """The script alone; its run dies with it, and goes on where it was."""
    arguments = [
        f"--out={tmp_path / 'out'}",
        "--seeds=0",
        "--config.steps=300",
        "--config.checkpoint.every=20",
        "--config.log.every=1",
    ]
    process = commands.start(text, *arguments, command="sweep")
    folder, deadline = tmp_path / "out" / "seed=0", time.monotonic() + 120
    while not any(path.name.isdigit() for path in folder.glob("checkpoints/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not (folder / "result.json").exists(), "finished too early to be killed"

    done = sweep(*arguments)
    assert_done(done)
    assert "resuming " in Path(f"{folder}.log").read_text()
    assert [line["step"] for line in metrics(folder) if "loss" in line] == list(range(1, 301))
    assert int(final_state(folder)["step"]) == 300
    assert f"seed=0: perplexity {perplexity(tmp_path / 'out', 'seed=0'):.5g}\n" == done.stderr


@pytest.mark.slow
def test_failing_run_is_one_line(sweep, tmp_path):
    done = sweep(f"--out={tmp_path / 'out'}", "--seeds=0", "--config.data.train=nowhere.jsonl")
    folder = tmp_path / "out" / "seed=0"
    assert_only_one_line(
        done, f"error: the run {folder} failed (config.data.train: nothing at", f"): its output is in {folder}.log"
    )
    assert "config.data.train: nothing at" in Path(f"{folder}.log").read_text().splitlines()[-1]


@pytest.mark.slow
def test_points_of_a_file_go_on_beside_one_that_fails(commands, text, tmp_path):
    file, out = tmp_path / "points.py", tmp_path / "out"
    config = text.partition("=")[2]
    points = [{"config": config, "data.train": "nowhere.jsonl"}, {"config": config, "seed": 5}]
    file.write_text(f"def get_sweep():\n    return {points}\n")
    arguments = [f"--sweep={file}", f"--out={out}", "--config.log.every=2"]
    done = commands(*arguments, command="sweep")
    runs = [path for path in sorted(out.iterdir()) if path.is_dir() and (path / "result.json").exists()]
    assert done.returncode == 1 and "Traceback" not in done.stderr and len(runs) == 1
    assert json.loads((runs[0] / "config.json").read_text())["seed"] == 5
    assert [line["step"] for line in metrics(runs[0]) if "loss" in line] == [2, 4, 6, 8, 10, 12]
    last = done.stderr.splitlines()[-1]
    assert "data.train=nowhere.jsonl failed (config.data.train: nothing at" in last and last.endswith(".log")

    status = commands(*arguments, "--status", command="sweep")
    assert_done(status)
    failed, ended = (line.split() for line in status.stdout.splitlines()[1:3])
    assert failed[1:] == ["failed", "0", "12"]
    assert ended == [runs[0].name, "done", "12", "12", f"{perplexity(out, runs[0].name):.5g}"]
