"""A sweep of tiny language models; its logic is tested in tests/commands and tests/sweeps."""

import json
import statistics
from pathlib import Path

import pytest

from gmlp_flax.reports import table
from tests.runs.command import assert_done

GRID = ("--grid=optimizer.learning_rate=0.0,1e-2", "--seeds=0,1")


def name_of(rate: str, seed: int) -> str:
    """The name of a run."""
    return f"optimizer.learning_rate={rate},seed={seed}"


def perplexity(run: Path) -> float:
    """The final perplexity of a run."""
    result = json.loads((run / "result.json").read_text())
    return result["eval"]["perplexity"]


def setting(run: Path) -> tuple[float, int, bool]:
    """The learning rate and the seed of a run, and whether it is part of the search."""
    config = json.loads((run / "config.json").read_text())
    return config["optimizer"]["learning_rate"], config["seed"], config["data"]["search"]


def times_of(out: Path) -> dict[Path, int]:
    """When the files of all runs were changed."""
    times = {}
    for path in out.rglob("*"):
        if "report" not in path.parts and path.name != "sweep.json":
            times[path] = path.stat().st_mtime_ns
    return times


@pytest.mark.slow
def test_learning_rate_that_learns_is_chosen(commands, text, tmp_path):
    """Nothing is learned at a rate of 0, so that the other rate gets both seeds. The same command
    again trains nothing."""
    out = tmp_path / "out"
    done = commands(text, *GRID, f"--out={out}", command="sweep")
    assert_done(done)
    worse = out / f"{name_of('0.0', 0)},data.search=True"
    best = out / f"{name_of('1e-2', 0)},data.search=True"
    first = out / name_of("1e-2", 0)
    second = out / name_of("1e-2", 1)
    folders = {path for path in out.iterdir() if path.is_dir()}
    assert folders == {worse, best, first, second, out / "report"}
    assert perplexity(worse) > perplexity(best)
    assert len({perplexity(best), perplexity(first), perplexity(second)}) == 3
    assert setting(worse) == (0.0, 0, True)
    assert setting(best) == (0.01, 0, True)
    assert setting(first) == (0.01, 0, False)
    assert setting(second) == (0.01, 1, False)

    report = json.loads((out / "sweep.json").read_text())
    assert report["metric"] == "perplexity"
    assert report["mode"] == "min"
    assert report["chosen"] == 2
    perplexities = [perplexity(first), perplexity(second)]
    summary = report["points"][2]["summary"]["perplexity"]
    assert summary["median"] == statistics.mean(perplexities)
    assert summary["mean"] == statistics.mean(perplexities)
    assert summary["lowest"] == min(perplexities)
    assert summary["highest"] == max(perplexities)
    shown = " ".join(table.shown(value) for value in perplexities)
    assert f"| {shown} |" in done.stdout
    curve = (out / "report" / "curves.csv").read_text().splitlines()
    assert curve[0].startswith("series,label,step,perplexity")
    assert len(curve) > 3
    assert "\nchosen: optimizer.learning_rate=1e-2, for its perplexity" in done.stdout
    before = times_of(out)
    again = commands(text, *GRID, f"--out={out}", command="sweep")
    assert again.stdout == done.stdout
    assert times_of(out) == before
