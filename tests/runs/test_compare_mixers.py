"""The comparison of token mixers on a tiny corpus, in runs of two steps; its logic is tested in tests/scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runs.command import Commands, assert_done, assert_only_one_line
from tests.training import tiny

FLAGS = {
    "steps": 2, "batch_size": 4, "optimizer.warmup": 1, "model.layers": 1, "model.length": 16, "model.d_model": 8,
    "model.d_ffn": 16, "model.vocab_size": 320, "data.heldout_share": 0.2,
}
MODELS = ("sgu", "mixer")
# Programs this small are compiled for longer than they run.
FAST = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}


def command(folder: Path, *options: str, data: object = None, config: dict | None = None) -> list[str]:
    """The comparison's arguments, its corpus (unless `data` is given), cache and results in a folder."""
    data = data or tiny.write_corpus(folder / "corpus.jsonl")
    config = FLAGS | {"data.cache": folder / "cache"} | (config or {})
    flags = [f"--config.{name}={value}" for name, value in config.items()]
    return [f"--data={data}", f"--out={folder / 'out'}", *options, "--", *flags]


def result(folder: Path, run: str) -> dict:
    return json.loads((folder / "out" / run / "result.json").read_text())


def table(folder: Path) -> dict[str, dict]:
    return {row["model"]: row for row in json.loads((folder / "out" / "table.json").read_text())}


def written(folder: Path) -> dict[str, int]:
    """When each file of the runs, and of their logs, was written last."""
    return {str(path): path.stat().st_mtime_ns for path in (folder / "out").rglob("*") if path.name != "table.json"}


@pytest.fixture(scope="module")
def compare(commands):
    """Runs the command."""
    return lambda *arguments: commands(*arguments, script="compare_mixers", **FAST)


@pytest.fixture(scope="module")
def compared(compare, tmp_path_factory):
    """A folder in which two models were compared with two seeds, and what the command printed."""
    folder = tmp_path_factory.mktemp("compare")
    done = compare(*command(folder, f"--models={','.join(MODELS)}", "--seeds=0,1"))
    assert_done(done)
    return folder, done.stdout


@pytest.mark.slow
def test_table_is_what_the_runs_ended_with(compared):
    folder, printed = compared
    rows = table(folder)
    assert set(rows) == set(MODELS)
    for model, row in rows.items():
        each = [result(folder, f"{model}-{seed}")["eval"]["perplexity"] for seed in (0, 1)]
        assert row["perplexities"] == each and each[0] != each[1] and 200 < min(each) and max(each) < 500
        assert row["mean"] == pytest.approx(sum(each) / 2) and row["rate"] is None
        assert f"{model:<16}{row['mean']:>11.2f}{min(each):>9.2f}{max(each):>9.2f}{row['paper']:>8.2f}" in printed
        # All see the same tokens in the same order, and are held to the same masks.
        assert [result(folder, f"{model}-{seed}")["eval"]["predictions"] for seed in (0, 1)] == [93, 93]
    assert [rows[model]["paper"] for model in MODELS] == [4.35, 5.34]


@pytest.mark.slow
def test_again_trains_nothing(compared, compare):
    folder, printed = compared
    before = written(folder)
    again = compare(*command(folder, f"--models={','.join(MODELS)}", "--seeds=0,1"))
    assert_done(again)
    assert again.stdout == printed and written(folder) == before


@pytest.mark.slow
def test_the_better_rate_is_found(compare, tmp_path):
    """At a rate of 0 nothing is learned; after 20 steps that is the worse."""
    done = compare(*command(tmp_path, "--models=sgu", "--seeds=0", "--rates=0.0,1e-2", "--probe_steps=20"))
    assert_done(done)
    assert table(tmp_path)["sgu"]["rate"] == "1e-2"
    names = ("probe-sgu-0.0", "probe-sgu-1e-2", "sgu-0")
    configs = [json.loads((tmp_path / "out" / name / "config.json").read_text()) for name in names]
    found = [(config["seed"], config["steps"], config["optimizer"]["learning_rate"]) for config in configs]
    assert found == [(100, 20, 0.0), (100, 20, 0.01), (0, 2, 0.01)]
    worse, better = (result(tmp_path, name)["eval"]["perplexity"] for name in names[:2])
    assert worse > better and f"sgu             0.0: {worse:.1f}  1e-2: {better:.1f}\n" in done.stdout


@pytest.mark.slow
def test_prepared_data_two_runs_at_a_time(compared, commands, tmp_path):
    """From tokens that were prepared before, the same table. Both runs compile, so they share no programs."""
    folder, _ = compared
    corpus = str(folder / "corpus.jsonl")
    flags = ["--heldout_share=0.2", f"--cache={tmp_path / 'cache'}", "--workers=1", "--vocab_size=320"]
    for side in ("train", "heldout"):
        assert_done(commands(corpus, *flags, f"--side={side}", f"--out={tmp_path / side}", script="prepare_data"))
    options = [f"--models={','.join(MODELS)}", "--seeds=0", "--jobs=2"]
    arguments = command(tmp_path, *options, data=tmp_path / "train", config={"data.heldout": tmp_path / "heldout"})
    alone = Commands(tmp_path / "programs")
    alone.environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    assert_done(alone(*arguments, script="compare_mixers", **FAST))
    found, expected = table(tmp_path), table(folder)
    for model in MODELS:
        assert found[model]["perplexities"] == pytest.approx(expected[model]["perplexities"][:1], rel=1e-5)


def test_failing_run_is_one_line(compare, tmp_path):
    done = compare(*command(tmp_path, "--models=sgu", "--seeds=0", data="nowhere.jsonl"))
    run = tmp_path / "out" / "sgu-0"
    assert_only_one_line(done, f"error: the run {run} failed: its output is in {run}.log")
    assert "config.data.train: no text at" in Path(f"{run}.log").read_text().splitlines()[-1]


def test_unknown_model_is_one_line(compare, tmp_path):
    done = compare(*command(tmp_path, "--models=sgu,mixr"))
    assert_only_one_line(done, "argument --models: the config's argument is 'mixr'; did you mean 'mixer'?")
    assert not (tmp_path / "out").exists()
