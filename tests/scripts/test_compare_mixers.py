"""The comparison of token mixers, as a command on a tiny corpus."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training import tiny

ROOT = Path(__file__).parents[2]
FLAGS = [
    "--config.steps=2", "--config.batch_size=4", "--config.optimizer.warmup=1", "--config.model.layers=1",
    "--config.model.length=16", "--config.model.d_model=8", "--config.model.d_ffn=16", "--config.model.vocab_size=320",
    "--config.data.heldout_share=0.2",
]


def compare(folder: Path, *options: str, flags: list[str] = FLAGS) -> subprocess.CompletedProcess:
    """Runs the command with its corpus, cache and results in a folder."""
    command = [
        sys.executable, "scripts/compare_mixers.py", f"--data={tiny.write_corpus(folder / 'corpus.jsonl')}",
        f"--out={folder / 'out'}", "--models=sgu,mixer", *options, "--", *flags, f"--config.data.cache={folder / 'cache'}",
    ]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)


def runs(folder: Path) -> dict[str, int]:
    """When each file of each run was written last."""
    return {str(path): path.stat().st_mtime_ns for path in (folder / "out").rglob("*") if path.name != "table.json"}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A folder in which two models were compared, and what the command printed."""
    folder = tmp_path_factory.mktemp("compare")
    done = compare(folder, "--seeds=0")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_table(compared):
    folder, printed = compared
    rows = json.loads((folder / "out" / "table.json").read_text())
    assert [row["model"] for row in sorted(rows, key=lambda row: row["paper"])] == ["sgu", "mixer"]
    for row in rows:
        result = json.loads((folder / "out" / f"{row['model']}-0" / "result.json").read_text())
        assert row["perplexities"] == [result["eval"]["perplexity"]] and row["mean"] == result["eval"]["perplexity"]
        assert result["step"] == 2
        assert re.search(rf"^{row['model']} +{row['mean']:.2f} +{row['mean']:.2f} +{row['mean']:.2f} +{row['paper']:.2f}\b",
                         printed, re.MULTILINE), printed
    assert rows == sorted(rows, key=lambda row: row["mean"])
    verdict = "holds" if rows[0]["model"] == "sgu" else "is reversed"
    assert f"  sgu < mixer: {verdict}" in printed


def test_again_trains_nothing_new(compared):
    folder, printed = compared
    before = runs(folder)
    again = compare(folder, "--seeds=0")
    assert (again.returncode, again.stdout) == (0, printed)
    assert runs(folder) == before


def test_failing_run_is_one_line(tmp_path):
    done = compare(tmp_path, "--seeds=0", flags=[*FLAGS, "--config.model.gate=splitt"])
    log = tmp_path / "out" / "sgu-0.log"
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"error: the run {tmp_path}/out/sgu-0 failed: its output is in {log}"]
    assert "config.model.gate is 'splitt'" in log.read_text()


@pytest.mark.slow
def test_best_rate_is_chosen_for_each_model(tmp_path):
    """At a rate of 0 nothing is learned; after 20 steps that is the worse."""
    flags = [*(flag for flag in FLAGS if "steps" not in flag), "--config.steps=20"]
    done = compare(tmp_path, "--seeds=0", "--rates=0.0,1e-2", "--probe_steps=20", flags=flags)
    assert done.returncode == 0, done.stderr
    assert {row["model"]: row["rate"] for row in json.loads((tmp_path / "out" / "table.json").read_text())} == {
        "sgu": "1e-2", "mixer": "1e-2",
    }
    for model in ("sgu", "mixer"):
        config = json.loads((tmp_path / "out" / f"{model}-0" / "config.json").read_text())
        assert config["optimizer"]["learning_rate"] == 0.01
        probe = json.loads((tmp_path / "out" / f"probe-{model}-0.0" / "config.json").read_text())
        assert (probe["seed"], probe["optimizer"]["learning_rate"]) == (100, 0.0)


def test_unknown_model(tmp_path):
    done = compare(tmp_path, "--models=sgo")
    assert done.returncode == 2 and done.stderr.splitlines()[-1].endswith("error: there is no model 'sgo'")
