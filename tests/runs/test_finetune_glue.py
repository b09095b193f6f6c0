"""Pretraining, finetuning from it, scoring with files of predictions: real commands, on random words."""

import json
import random
import runpy

import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.finetuning.glue import GLUE_TASKS
from gmlp_flax.sweeps import points as sweep
from tests.runs.command import assert_done, assert_only_one_line, final_state, metrics
from tests.runs.processes import run_two
from tests.training import tiny

SST2 = "--config=configs/finetune_glue.py:sst2"
GOOD, BAD = tiny.WORDS[:20], tiny.WORDS[20:]


def test_the_config_knows_every_task():
    examples = runpy.run_path("configs/finetune_glue.py")["EXAMPLES"]
    assert set(examples) == {*GLUE_TASKS, "own"}
    for name in examples:
        for scale in ("paper", "small", "gpu"):
            options = gmlp_config.from_file("configs/finetune_glue.py", f"{name},scale={scale}")
            gmlp_config.validate(options)
            assert options.glue.task == name and options.model.mask_padding and options.optimizer.clip == 0
            assert options.optimizer.warmup == options.steps // 10 and options.steps % options.eval.every < 5
    mnli = gmlp_config.from_file("configs/finetune_glue.py", "mnli")
    assert (mnli.batch_size, mnli.steps, mnli.optimizer.warmup, mnli.model.length) == (32, 61_359, 6135, 128)
    assert (mnli.optimizer.learning_rate, mnli.optimizer.schedule, mnli.model.dropout) == (2e-5, "linear", 0.1)
    assert mnli.model.attention_dropout == 0.1
    assert (mnli.optimizer.eps, mnli.optimizer.b2, mnli.optimizer.weight_decay) == (1e-6, 0.999, 0.01)


def test_the_grid_of_the_configs_docstring_keeps_five_epochs():
    words = runpy.run_path("configs/finetune_glue.py")["__doc__"].split()
    points = sweep.parse(word.removeprefix("--grid=") for word in words if word.startswith("--grid="))
    assert len(points) == 6
    for point in points:
        steps = 5 * 67_349 // int(point["batch_size"])
        assert (int(point["steps"]), int(point["optimizer.warmup"])) == (steps, steps // 10)


def sentences(count: int, seed: int) -> str:
    """Rows that a bag of words tells apart: the words of each class are its own."""
    rng = random.Random(seed)
    rows = ((label, " ".join(rng.choices((BAD, GOOD)[label], k=rng.randint(2, 9)))) for label in [0, 1] * count)
    return "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for label, text in rows)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sst2")
    (folder / "train.tsv").write_text(sentences(100, 0))
    (folder / "dev.tsv").write_text(sentences(15, 1) + "broken\n")
    return folder


@pytest.fixture(scope="module")
def flags(finished, data):
    return [
        SST2,
        f"--config.init_from={finished}",
        f"--config.data.train={data}",
        "--config.data.max_bad_records=1",
        "--config.model.length=12",
        "--config.model.dtype=float32",
        "--config.batch_size=8",
        "--config.steps=30",
        "--config.optimizer.learning_rate=0.03",
        "--config.optimizer.warmup=3",
        "--config.eval.batch_size=16",
        "--config.eval.every=0",
        "--config.log.every=10",
    ]


@pytest.fixture(scope="module")
def finetuned(commands, flags, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finetuned") / "run"
    result = commands(*flags, f"--workdir={workdir}")
    assert_done(result)
    assert "heldout examples: 1 bad record(s) skipped, the first:" in result.stderr
    return workdir


@pytest.mark.slow
def test_it_learns_and_keeps_the_pretrained_model(finished, finetuned):
    result = json.loads((finetuned / "result.json").read_text())
    assert result["eval"]["accuracy"] > 0.8 and result["eval"]["examples"] == 30
    config = json.loads((finetuned / "config.json").read_text())
    pretrained = json.loads((finished / "config.json").read_text())
    names = ("layers", "d_model", "d_ffn", "vocab_size")
    assert [config["model"][name] for name in names] == [pretrained["model"][name] for name in names]
    assert (config["model"]["length"], config["model"]["dropout"], config["model"]["mask_padding"]) == (12, 0.1, True)
    assert (finetuned / "tokenizer.model").read_bytes() == (finished / "tokenizer.model").read_bytes()
    params = final_state(finetuned)["params"]
    assert params["head"]["kernel"].shape == (config["model"]["d_model"], 2)
    assert np.abs(params["segments"]["table"]).max() > 0  # trained, from zero
    assert params["encoder"]["blocks"]["gate"]["spatial"]["taps"].shape == (config["model"]["layers"], 23)


@pytest.mark.slow
def test_predictions_of_every_example(commands, finetuned, tmp_path, data):
    result = commands(f"--workdir={finetuned}", f"--predictions={tmp_path}", command="evaluate")
    assert_done(result)
    scored = json.loads(result.stdout.splitlines()[-1])["eval"]
    assert scored == json.loads((finetuned / "result.json").read_text())["eval"]
    lines = (tmp_path / "SST-2.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction" and len(lines) == 31
    rows = [line.split("\t") for line in (data / "dev.tsv").read_text().splitlines()[1:31]]
    predicted = [line.split("\t") for line in lines[1:]]
    assert [index for index, _ in predicted] == [str(i) for i in range(30)]
    hits = [label == row[1] for (_, label), row in zip(predicted, rows, strict=True)]
    assert sum(hits) / 30 == pytest.approx(scored["accuracy"])

    # By two processes, of which each has half of the examples: the first writes for both.
    both = [f"--workdir={finetuned}", f"--predictions={tmp_path / 'by_two'}"]
    first, second = run_two(commands, *both, command="evaluate")
    assert json.loads(first.stdout.splitlines()[-1])["eval"] == pytest.approx(scored, rel=2e-4)
    assert "eval" not in second.stdout and "wrote" not in second.stderr
    assert (tmp_path / "by_two" / "SST-2.tsv").read_bytes() == (tmp_path / "SST-2.tsv").read_bytes()


@pytest.mark.slow
def test_the_next_task_keeps_all_but_the_head(commands, flags, finetuned, data, tmp_path):
    """At learning rate 0, the parameters stay what warm starting makes of them."""
    more = [f"--config.init_from={finetuned}", "--config.steps=1", "--config.optimizer.learning_rate=0.0"]
    assert_done(commands(*flags, *more, f"--workdir={tmp_path / 'same'}"))
    (tmp_path / "train.jsonl").write_text(
        "".join(json.dumps({"premise": f"the {i}", "hypothesis": "a", "label": i % 3}) + "\n" for i in range(60))
    )
    more += [f"--config.data.train={tmp_path / 'train.jsonl'}", "--config.glue.task=mnli"]
    result = commands(*flags, *more, f"--workdir={tmp_path / 'other'}")
    assert_done(result)
    old, same, other = (final_state(folder)["params"] for folder in (finetuned, tmp_path / "same", tmp_path / "other"))
    np.testing.assert_array_equal(same["head"]["kernel"], old["head"]["kernel"])
    assert other["head"]["kernel"].shape == (8, 3) and "head/" in result.stderr
    for name in ("embedding", "segments"):
        np.testing.assert_equal(other[name], old[name])
    assert metrics(tmp_path / "other")[-1]["eval"]["examples"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["--config.glue.task=sst3"], ["config.glue.task is 'sst3': expected one of sst2, cola"]),
        (["--config.data.train=nowhere"], ["config.data.train: nothing at 'nowhere': expected a file or a folder"]),
        (
            ["--config.glue.task=rte"],
            ["dev.tsv, line 1: no column 'sentence1' or 'premise' in the header", "'sentence'"],
        ),
        (
            ["--config.data.max_bad_records=0"],
            ["dev.tsv, line 32: 1 columns, separated by tabs, where 2 were expected"],
        ),
        (["--config.init_from="], ["there is no vocabulary: give --config.init_from=RUN"]),
        (["--config.init_from=nowhere"], ["nowhere"]),
    ],
)
def test_bad_input_is_one_line(commands, flags, keys, words, tmp_path):
    assert_only_one_line(commands(*flags, *keys, f"--workdir={tmp_path / 'run'}"), *words)


def test_an_unknown_task_of_the_config(commands, tmp_path):
    result = commands("--config=configs/finetune_glue.py:sst-2", f"--workdir={tmp_path}")
    assert_only_one_line(result, "the config's argument is 'sst-2'; did you mean 'sst2'?")
