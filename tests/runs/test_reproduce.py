"""One of the paper's tables made again on a tiny corpus: what is missing is trained, what is there is kept."""

from __future__ import annotations

import json
import os

import pytest

from gmlp_flax import config as config_lib
from tests.reports.test_runs import write_run
from tests.runs.command import assert_done
from tests.training import tiny

FLAGS = {
    "steps": 2,
    "batch_size": 4,
    "optimizer.warmup": 1,
    "model.layers": 1,
    "model.length": 16,
    "model.d_model": 8,
    "model.d_ffn": 16,
    "model.vocab_size": 320,
    "data.heldout_share": 0.2,
}
ROWS = ("bert", "bert_rel", "bert_rel_only", "mixer", "linear", "additive", "multiplicative", "sgu")


@pytest.mark.slow
def test_a_table_is_trained_and_reported(commands, tmp_path):
    # Rows that have the same sizes still differ in block, gate or positions.
    changes = FLAGS | {
        "eval.every": 1,
        "data.cache": str(tmp_path / "cache"),
        "data.train": tiny.write_corpus(tmp_path / "corpus.jsonl"),
    }
    for row in ROWS[:-1]:
        for seed in range(3):
            made = config_lib.from_file("configs/c4_ablation.py", f"{row},scale=small")
            made.update_from_flattened_dict(changes | {"seed": seed, "data.train": str(changes["data.train"])})
            folder = tmp_path / "runs" / f"c4_ablation-{row}-scale_small,seed={seed}"
            write_run(folder, made, ((1, 400.0), (2, 300.0 + seed)))
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/*")}
    flags = (f"--config.{name}={value}" for name, value in changes.items() if name != "data.train")
    done = commands(
        "table3",
        f"--data={changes['data.train']}",
        f"--runs={tmp_path}/runs",
        f"--out={tmp_path}/reports",
        "--",
        *flags,
        command="reproduce",
    )
    assert_done(done)
    table = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0] for row in table[2:]] == list(ROWS)
    assert [row[3] for row in table[2:]] == ["3"] * 8
    assert table[2 + ROWS.index("linear")][2] == "301 ± 1"
    assert (
        100 < float(table[2 + ROWS.index("sgu")][2].split()[0]) < 400
    )  # hardly trained: as many as the vocabulary has
    assert "sgu,,128," in (tmp_path / "reports" / "table3" / "curves.csv").read_text()
    assert kept == {path: os.stat(path).st_mtime_ns for path in kept}
    assert len(list((tmp_path / "runs").glob("*sgu*/checkpoints"))) == 3


@pytest.mark.slow
def test_a_model_is_pretrained_finetuned_and_drawn(commands, tmp_path):
    sentences = ({"premise": f"a man {i}", "hypothesis": "nobody", "label": i % 3} for i in range(60))
    (tmp_path / "mnli.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentences))
    pretrained = FLAGS | {"model.length": 128, "model.d_attn": 4, "data.cache": tmp_path / "cache"}
    tuned = {"steps": 2, "optimizer.warmup": 1, "model.length": 128, "data.heldout_share": 0.5}
    command = (
        "figure10",
        f"--data={tiny.write_corpus(tmp_path / 'corpus.jsonl')}",
        f"--finetune=mnli={tmp_path / 'mnli.jsonl'}",
        "--finetune_seeds=0,1",
        *(f"--finetune_flag=--config.{name}={value}" for name, value in tuned.items()),
        f"--runs={tmp_path}/runs",
        f"--out={tmp_path}/reports",
        "--",
        *(f"--config.{name}={value}" for name, value in pretrained.items()),
    )
    assert_done(commands(*command, command="reproduce"))
    assert sorted(os.listdir(tmp_path / "runs" / "finetuned" / "mnli-amlp_36"))[:2] == ["seed=0", "seed=0.log"]
    report = tmp_path / "reports" / "figure10"
    assert {"attention.png", "layers.svg", "table.csv", "index.html"} <= set(os.listdir(report))
    header, row = (line.split(",") for line in (report / "table.csv").read_text().splitlines())
    shares = dict(zip(header, map(float, row), strict=True))
    assert 0 < shares["across"] < shares["within"] < 1 and shares["across"] + shares["within"] <= 1 + 1e-6
    done = commands(
        "figure10",
        f"--from={tmp_path}/runs",
        f"--out={tmp_path}/again",
        "--",
        *command[-len(pretrained) :],
        command="reproduce",
    )
    assert_done(done)
    assert (tmp_path / "again" / "figure10" / "table.csv").read_text() == (report / "table.csv").read_text()
