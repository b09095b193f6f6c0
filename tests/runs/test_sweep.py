"""A sweep of tiny language models; its logic is tested in tests/commands and tests/sweeps."""

import json
import statistics
from pathlib import Path

import pytest

from gmlp_flax.reports import table
from tests.runs.command import assert_done

GRID = ("--grid=optimizer.learning_rate=0.0,1e-2", "--seeds=0,1")


def run(rate: str, seed: int) -> str:
    return f"optimizer.learning_rate={rate},seed={seed}"


def perplexity(out: Path, name: str) -> float:
    return json.loads((out / name / "result.json").read_text())["eval"]["perplexity"]


@pytest.mark.slow
def test_learning_rate_that_learns_is_chosen(commands, text, tmp_path):
    """At a rate of 0 nothing is learned; so the other has both seeds. The same command again trains
    nothing."""
    out = tmp_path / "out"
    done = commands(text, *GRID, f"--out={out}", command="sweep")
    assert_done(done)
    search = [f"{run(rate, 0)},data.search=True" for rate in ("0.0", "1e-2")]
    names = [*search, run("1e-2", 0), run("1e-2", 1)]
    got = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert got == sorted([*names, "report"])
    worse, best, better, other = (perplexity(out, name) for name in names)
    assert worse > best
    assert len({best, better, other}) == 3
    configs = [json.loads((out / name / "config.json").read_text()) for name in names]
    found = [
        (config["optimizer"]["learning_rate"], config["seed"], config["data"]["search"])
        for config in configs
    ]
    assert found == [(0.0, 0, True), (0.01, 0, True), (0.01, 0, False), (0.01, 1, False)]

    report = json.loads((out / "sweep.json").read_text())
    assert report["metric"] == "perplexity"
    assert report["mode"] == "min"
    assert report["chosen"] == 2
    summary = report["points"][2]["summary"]["perplexity"]
    assert summary["median"] == summary["mean"] == statistics.mean([better, other])
    assert summary["lowest"] == min(better, other)
    assert summary["highest"] == max(better, other)
    assert f"| {table.shown(better)} {table.shown(other)} |" in done.stdout
    curve = (out / "report" / "curves.csv").read_text().splitlines()
    assert curve[0].startswith("series,label,step,perplexity")
    assert len(curve) > 3
    assert "\nchosen: optimizer.learning_rate=1e-2, for its perplexity" in done.stdout
    before = {
        path: path.stat().st_mtime_ns
        for path in out.rglob("*")
        if not {"report", "sweep.json"} & {*path.parts}
    }
    assert commands(text, *GRID, f"--out={out}", command="sweep").stdout == done.stdout
    assert before == {
        path: path.stat().st_mtime_ns
        for path in out.rglob("*")
        if not {"report", "sweep.json"} & {*path.parts}
    }
