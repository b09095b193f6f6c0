"""Pretraining, finetuning, and scoring with files of predictions: real commands, on random
words."""

import json
import random
import runpy

import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.finetuning.text_tasks import GLUE_TASKS, NUMBER_TASKS
from gmlp_flax.sweeps import points as sweep
from tests.runs.command import assert_done, final_state
from tests.runs.processes import run_two
from tests.training import tiny

SST2 = "--config=configs/finetune_glue.py:sst2"
GOOD = tiny.WORDS[:20]
BAD = tiny.WORDS[20:]


def test_config_has_every_glue_task():
    examples = runpy.run_path("configs/finetune_glue.py")["EXAMPLES"]
    expected = {*GLUE_TASKS, *NUMBER_TASKS, "own", "own_number"}
    assert set(examples) == expected
    for name in examples:
        for scale in ("paper", "small", "gpu"):
            argument = f"{name},scale={scale}"
            options = gmlp_config.from_file("configs/finetune_glue.py", argument)
            gmlp_config.validate(options)
            is_regression = name in ("stsb", "own_number")
            kind = "text_regression" if is_regression else "text_classification"
            assert options.task == kind
            assert options.glue.task == name.removesuffix("_number")
            assert options.model.mask_padding
            assert options.optimizer.clip == 0
            assert options.optimizer.warmup == options.steps // 10
            assert options.steps % options.eval.every < 5
    mnli = gmlp_config.from_file("configs/finetune_glue.py", "mnli")
    assert mnli.batch_size == 32
    assert mnli.steps == 61_359
    assert mnli.optimizer.warmup == 6135
    assert mnli.model.length == 128
    assert mnli.optimizer.learning_rate == 2e-5
    assert mnli.optimizer.schedule == "linear"
    assert mnli.model.dropout == 0.1
    assert mnli.model.attention_dropout == 0.1
    assert mnli.optimizer.eps == 1e-6
    assert mnli.optimizer.b2 == 0.999
    assert mnli.optimizer.weight_decay == 0.01


def test_grid_in_the_config_docstring_keeps_five_epochs():
    text = runpy.run_path("configs/finetune_glue.py")["__doc__"]
    grid = []
    for word in text.split():
        if word.startswith("--grid="):
            grid.append(word.removeprefix("--grid="))
    points = sweep.parse(grid)
    assert len(points) == 6
    for point in points:
        steps = 5 * 67_349 // int(point["batch_size"])
        assert int(point["steps"]) == steps
        assert int(point["optimizer.warmup"]) == steps // 10


def sentences(count: int, seed: int) -> str:
    """Rows that a bag of words classifies: each class has different words."""
    rng = random.Random(seed)
    lines = ["sentence\tlabel"]
    for label in [0, 1] * count:
        words = GOOD if label else BAD
        length = rng.randint(2, 9)
        text = " ".join(rng.choices(words, k=length))
        lines.append(f"{text}\t{label}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sst2")
    (folder / "train.tsv").write_text(sentences(100, 0))
    (folder / "dev.tsv").write_text(sentences(15, 1) + "broken\n")
    return folder


@pytest.fixture(scope="module")
def finetuned(commands, finished, data, tmp_path_factory):
    values = {
        "init_from": finished,
        "data.train": data,
        "data.max_bad_records": 1,
        "model.length": 12,
        "model.dtype": "float32",
        "batch_size": 8,
        "steps": 30,
        "log.every": 10,
        "optimizer.learning_rate": 0.03,
        "optimizer.warmup": 3,
        "eval.batch_size": 16,
        "eval.every": 0,
    }
    flags = [f"--config.{name}={value}" for name, value in values.items()]
    workdir = tmp_path_factory.mktemp("finetuned") / "run"
    result = commands(SST2, *flags, f"--workdir={workdir}")
    assert_done(result)
    assert "1 bad record skipped, the first:" in result.stderr
    return workdir


@pytest.mark.slow
def test_finetuning_learns_and_keeps_the_pretrained_model(finished, finetuned):
    result = json.loads((finetuned / "result.json").read_text())
    assert result["eval"]["accuracy"] > 0.8
    assert result["eval"]["examples"] == 30
    config = json.loads((finetuned / "config.json").read_text())
    pretrained = json.loads((finished / "config.json").read_text())
    model = config["model"]
    for name in ("layers", "d_model", "d_ffn", "vocab_size"):
        pretrained_model = pretrained["model"]
        assert model[name] == pretrained_model[name]
    assert model["length"] == 12
    assert model["dropout"] == 0.1
    assert model["mask_padding"] is True
    tokenizer = (finetuned / "tokenizer.model").read_bytes()
    assert tokenizer == (finished / "tokenizer.model").read_bytes()
    params = final_state(finetuned)["params"]
    head_kernel = params["head"]["kernel"]
    assert head_kernel.shape == (model["d_model"], 2)
    segments = params["segments"]["table"]
    assert np.abs(segments).max() > 0  # trained, from zero
    blocks = params["encoder"]["blocks"]
    taps = blocks["gate"]["spatial"]["taps"]
    assert taps.shape == (model["layers"], 23)


def cells(path) -> list[list[str]]:
    """The lines of a table, split at tabs."""
    return [line.split("\t") for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_predictions_of_every_example(commands, finetuned, tmp_path, data):
    result = commands(f"--workdir={finetuned}", f"--predictions={tmp_path}", command="evaluate")
    assert_done(result)
    last_line = result.stdout.splitlines()[-1]
    scored = json.loads(last_line)["eval"]
    recorded = json.loads((finetuned / "result.json").read_text())
    assert scored == recorded["eval"]
    header, *predicted = cells(tmp_path / "SST-2.tsv")
    _, *rows = cells(data / "dev.tsv")
    assert header == ["index", "prediction"]
    assert len(predicted) == 30
    hits = 0
    for number, (index, label) in enumerate(predicted):
        assert index == str(number)
        _, expected = rows[number]
        hits += label == expected
    accuracy = scored["accuracy"]
    assert hits / 30 == pytest.approx(accuracy)

    # By two processes, each with half of the examples: the first writes for both.
    by_two = tmp_path / "by_two"
    arguments = [f"--workdir={finetuned}", f"--predictions={by_two}"]
    first, second = run_two(commands, *arguments, command="evaluate")
    last_line_of_both = first.stdout.splitlines()[-1]
    by_both = json.loads(last_line_of_both)["eval"]
    assert by_both == pytest.approx(scored, rel=2e-4)
    assert "eval" not in second.stdout
    assert "wrote" not in second.stderr
    predictions = (tmp_path / "SST-2.tsv").read_bytes()
    assert (by_two / "SST-2.tsv").read_bytes() == predictions
