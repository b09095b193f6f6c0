"""Pretraining, finetuning, files of answers, and their scores by the official script: real
commands."""

import json

import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.finetuning import squad_answers
from tests.data.finetuning.squad_files import colours, read, write
from tests.runs.command import assert_done, assert_only_one_line, final_state

SQUAD = "--config=configs/finetune_squad.py"


@pytest.mark.slow
def test_finetuning_inherits_the_model_and_has_the_official_scores(commands, finished, tmp_path):
    train = [colours(number, impossible=number % 2 == 0) for number in range(6)]
    heldout = [colours(number, impossible=True) for number in (6, 7)]
    write(tmp_path / "train.json", *train)
    write(tmp_path / "dev.json", *heldout)
    values = {
        "init_from": finished,
        "data.train": tmp_path / "train.json",
        "data.heldout": tmp_path / "dev.json",
        "model.length": 64,
        "squad.max_query": 24,
        "squad.stride": 20,
        "eval.batch_size": 16,
        "batch_size": 8,
        "steps": 12,
        "optimizer.warmup": 2,
        "log.every": 6,
    }
    flags = [f"--config.{name}={value}" for name, value in values.items()]
    run = tmp_path / "run"
    out = tmp_path / "answers"
    assert_done(commands(f"{SQUAD}:v2.0,scale=small", *flags, f"--workdir={run}"))
    found = json.loads((run / "result.json").read_text())["eval"]
    assert found["total"] == 18
    assert found["NoAns_total"] == 2
    assert found["windows"] > 18
    assert (run / "tokenizer.model").read_bytes() == (finished / "tokenizer.model").read_bytes()
    params = final_state(run)["params"]
    assert params["spans"]["kernel"].shape[-1] == 2
    assert np.abs(params["segments"]["table"]).max() > 0

    result = commands(f"--workdir={run}", f"--predictions={out}", command="evaluate")
    assert_done(result)
    assert json.loads(result.stdout.splitlines()[-1])["eval"] == found
    files = {"predictions.json", "nbest_predictions.json", "null_odds.json"}
    assert {file.name for file in out.iterdir()} >= files
    questions = read(tmp_path / "dev.json", "v2.0")
    predictions = json.loads((out / "predictions.json").read_text())
    official = squad_answers.evaluate(questions, predictions)
    assert official.pop("missing_filled_with_empty") == 0
    assert {"exact", "f1", "HasAns_f1", "NoAns_f1"} < set(official)
    assert official == {name: found[name] for name in official}


@pytest.mark.parametrize("version", ["v1.1", "v2.0"])
def test_protocol_of_the_paper(version):
    """The paper's appendix A.2, Table 9, SQuAD's column."""
    config = gmlp_config.from_file("configs/finetune_squad.py", version)
    gmlp_config.validate(config)
    assert config.model.length == 512
    assert config.batch_size == 32
    assert config.steps == 8000
    assert config.optimizer.warmup == 1000
    adamw = config.optimizer
    assert adamw.learning_rate == 5e-5
    assert adamw.schedule == "linear"
    assert adamw.weight_decay == 0.01
    assert adamw.eps == 1e-6
    assert adamw.b1 == 0.9
    assert adamw.b2 == 0.999
    assert adamw.clip == 0
    assert config.model.dropout == 0.1
    assert config.model.attention_dropout == 0.1
    assert config.model.mask_padding
    assert config.data.train == f"tfds:squad/{version}"
    assert config.squad.version == version
    assert config.squad.stride == 128
    assert config.squad.max_query == 64
    assert config.squad.max_answer == 30
    assert config.squad.n_best == 20
    for scale in ("small", "gpu"):
        small = gmlp_config.from_file("configs/finetune_squad.py", f"{version},scale={scale}")
        gmlp_config.validate(small)
        assert small.optimizer.warmup == small.steps // 10
        assert small.steps % small.checkpoint.every == 0


def test_unknown_version_is_refused(commands, tmp_path):
    result = commands(f"{SQUAD}:v1", f"--workdir={tmp_path}")
    assert_only_one_line(result, "the config's argument is 'v1'; did you mean 'v1.1'?")
