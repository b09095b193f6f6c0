"""Pretraining, finetuning from it, answers as files, the official script's scores of them: real commands."""

import json

import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.finetuning.squad import VERSIONS
from tests.data.finetuning.squad_files import article, colours, entry, write
from tests.runs.command import assert_done, assert_one_line_error, assert_only_one_line, final_state

SQUAD = "--config=configs/finetune_squad.py"
CONTEXT = "the name of it"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    write(folder / "train.json", *(colours(i, impossible=i % 2 == 0) for i in range(6)))
    write(folder / "dev.json", *(colours(i, impossible=True) for i in range(6, 8)))
    wrong = entry("a", "which?", CONTEXT, "name") | {"answers": [{"text": "names", "answer_start": 4}]}
    write(folder / "wrong.json", article("words", CONTEXT, wrong))
    twice = entry("a", "which?", CONTEXT, "name")
    write(folder / "twice.json", article("words", CONTEXT, twice, twice))
    return folder


@pytest.fixture(scope="module")
def flags(finished, data):
    return [
        f"{SQUAD}:v2.0,scale=small",
        f"--config.init_from={finished}",
        f"--config.data.train={data}/train.json",
        f"--config.data.heldout={data}/dev.json",
        "--config.model.length=64",
        "--config.squad.max_query=24",
        "--config.squad.stride=20",
        "--config.batch_size=8",
        "--config.steps=12",
        "--config.optimizer.warmup=2",
        "--config.eval.batch_size=16",
        "--config.log.every=6",
    ]


@pytest.fixture(scope="module")
def finetuned(commands, flags, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finetuned") / "run"
    assert_done(commands(*flags, f"--workdir={workdir}"))
    return workdir


@pytest.mark.slow
def test_it_takes_the_pretrained_model(finished, finetuned):
    result = json.loads((finetuned / "result.json").read_text())["eval"]
    assert result["total"] == 18 and result["NoAns_total"] == 2 and result["windows"] > 18
    assert (finetuned / "tokenizer.model").read_bytes() == (finished / "tokenizer.model").read_bytes()
    params = final_state(finetuned)["params"]
    assert params["spans"]["kernel"].shape[-1] == 2 and np.abs(params["segments"]["table"]).max() > 0
    assert params["encoder"]["blocks"]["gate"]["spatial"]["taps"].shape[-1] == 2 * 64 - 1


@pytest.mark.slow
def test_the_official_scores_of_the_written_answers(commands, finetuned, data, tmp_path):
    result = commands(f"--workdir={finetuned}", f"--predictions={tmp_path}", command="evaluate")
    assert_done(result)
    metrics = json.loads(result.stdout.splitlines()[-1])["eval"]
    assert metrics == json.loads((finetuned / "result.json").read_text())["eval"]
    assert {file.name for file in tmp_path.iterdir()} >= {
        "predictions.json",
        "nbest_predictions.json",
        "null_odds.json",
    }
    scored = commands(data / "dev.json", tmp_path / "predictions.json", command="score-squad")
    assert_done(scored)
    found = json.loads(scored.stdout)
    assert found.pop("missing_filled_with_empty") == 0
    assert found == {name: metrics[name] for name in found} and {"exact", "f1", "HasAns_f1", "NoAns_f1"} < set(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["--config.data.heldout=nowhere"], ["config.data.heldout: nothing at 'nowhere'"]),
        (["--config.data.heldout={data}/twice.json"], ["config.data.heldout: ", "the id 'a' occurs twice; remove"]),
        (
            ["--config.squad.version=v1.1"],
            ["question 6-road: no answer, which only v2.0 allows; set config.squad.version"],
        ),
        (["--config.squad.stride=0"], ["config.squad.stride is 0: expected from 1 to 1,048,576"]),
        (
            ["--config.squad.max_query=61"],
            ["config.model.length: length=64 has no room for a passage beside squad.max_query=61"],
        ),
        (["--config.init_from="], ["there is no vocabulary: give --config.init_from=RUN"]),
    ],
)
def test_bad_input_is_one_line(commands, flags, data, keys, words, tmp_path):
    keys = [key.format(data=data) for key in keys]
    assert_only_one_line(commands(*flags, *keys, f"--workdir={tmp_path / 'run'}"), *words)


@pytest.mark.slow
def test_a_wrong_answer_in_the_training_data(commands, flags, data, tmp_path):
    result = commands(*flags, f"--config.data.train={data}/wrong.json", f"--workdir={tmp_path / 'run'}")
    assert_one_line_error(
        result,
        "config.data.train: ",
        "wrong.json, article 1 ('words'), paragraph 1, question a: the answer 'names' "
        "is not in the context at 4, its answer_start, nor anywhere else",
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_the_papers_protocol(version):
    """The paper's appendix A.2, Table 9, SQuAD's column."""
    config = gmlp_config.from_file("configs/finetune_squad.py", version)
    gmlp_config.validate(config)
    assert (config.model.length, config.batch_size, config.steps, config.optimizer.warmup) == (512, 32, 8000, 1000)
    adamw = config.optimizer
    assert (adamw.learning_rate, adamw.schedule, adamw.weight_decay) == (5e-5, "linear", 0.01)
    assert (adamw.eps, adamw.b1, adamw.b2, adamw.clip) == (1e-6, 0.9, 0.999, 0)
    assert config.model.dropout == config.model.attention_dropout == 0.1 and config.model.mask_padding
    assert config.data.train == f"tfds:squad/{version}" and config.squad.version == version
    assert tuple(config.squad[name] for name in ("stride", "max_query", "max_answer", "n_best")) == (128, 64, 30, 20)
    for scale in ("small", "gpu"):
        small = gmlp_config.from_file("configs/finetune_squad.py", f"{version},scale={scale}")
        gmlp_config.validate(small)
        assert small.optimizer.warmup == small.steps // 10 and small.steps % small.checkpoint.every == 0


def test_an_unknown_version_of_the_config(commands, tmp_path):
    result = commands(f"{SQUAD}:v1", f"--workdir={tmp_path}")
    assert_only_one_line(result, "the config's argument is 'v1'; did you mean 'v1.1'?")
