"""One of the paper's figures reproduced on a tiny corpus. test_sweep.py tests that finished runs
are not trained again."""

import csv
import io
import os

import pytest

from tests.data import writers
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


def config_flags(values: dict) -> list[str]:
    return [f"--config.{name}={value}" for name, value in values.items()]


@pytest.mark.slow
def test_model_is_pretrained_finetuned_and_drawn(commands, tmp_path):
    records = []
    for number in range(60):
        records.append({"premise": f"a man {number}", "hypothesis": "nobody", "label": number % 3})
    (tmp_path / "mnli.jsonl").write_bytes(writers.json_lines(*records))
    pretrained = config_flags(
        FLAGS | {"model.length": 128, "model.d_attn": 4, "data.cache": tmp_path / "cache"}
    )
    tuned = config_flags(
        {"steps": 2, "optimizer.warmup": 1, "model.length": 128, "data.heldout_share": 0.5}
    )
    command = (
        "figure10",
        f"--data={tiny.write_corpus(tmp_path / 'corpus.jsonl')}",
        f"--finetune=mnli={tmp_path / 'mnli.jsonl'}",
        "--finetune_seeds=0,1",
        *(f"--finetune_flag={flag}" for flag in tuned),
        f"--runs={tmp_path}/runs",
        f"--out={tmp_path}/reports",
        "--",
        *pretrained,
    )
    assert_done(commands(*command, command="reproduce"))
    names = os.listdir(tmp_path / "runs" / "finetuned" / "mnli-amlp_36")
    assert sorted(names)[:2] == ["seed=0", "seed=0.log"]
    report = tmp_path / "reports" / "figure10"
    files = {"attention.png", "attention_layers.svg", "table.csv", "index.html"}
    assert files <= set(os.listdir(report))
    table = (report / "table.csv").read_text()
    [row] = csv.DictReader(io.StringIO(table))
    across = float(row["across"])
    within = float(row["within"])
    assert 0 < across < within < 1
    assert across + within <= 1 + 1e-6
    again = ("figure10", f"--from={tmp_path}/runs", f"--out={tmp_path}/again", "--", *pretrained)
    assert_done(commands(*again, command="reproduce"))
    assert (tmp_path / "again" / "figure10" / "table.csv").read_text() == table
