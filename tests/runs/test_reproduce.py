"""One of the paper's figures made again on a tiny corpus; what is finished is not trained again,
see test_sweep.py."""

import json
import os

import pytest

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


@pytest.mark.slow
def test_model_is_pretrained_finetuned_and_drawn(commands, tmp_path):
    sentences = (
        {"premise": f"a man {i}", "hypothesis": "nobody", "label": i % 3} for i in range(60)
    )
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
    assert sorted(os.listdir(tmp_path / "runs" / "finetuned" / "mnli-amlp_36"))[:2] == [
        "seed=0",
        "seed=0.log",
    ]
    report = tmp_path / "reports" / "figure10"
    assert {"attention.png", "attention_layers.svg", "table.csv", "index.html"} <= set(
        os.listdir(report)
    )
    header, row = (line.split(",") for line in (report / "table.csv").read_text().splitlines())
    shares = dict(zip(header, map(float, row), strict=True))
    assert 0 < shares["across"] < shares["within"] < 1
    assert shares["across"] + shares["within"] <= 1 + 1e-6
    done = commands(
        "figure10",
        f"--from={tmp_path}/runs",
        f"--out={tmp_path}/again",
        "--",
        *command[-len(pretrained) :],
        command="reproduce",
    )
    assert_done(done)
    assert (tmp_path / "again" / "figure10" / "table.csv").read_text() == (
        report / "table.csv"
    ).read_text()
