"""The experiments of configs/, shrunk: each model of Table 3 in small, and long text."""

import json
import math

import jax
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.training import loading, loop
from tests.runs.command import assert_done, final_state, metrics
from tests.training import tiny

ROWS = ("bert", "bert_rel", "mixer", "linear", "sgu", "amlp_36")
QUICK = "sgu"  # the other rows take the same path with another gate or block
# What tells the row's model from the others: parameters that it alone, or its kind, has.
PARTS = {
    "bert": ("/positions/table",),
    "bert_rel": ("attention", "bias"),
    "mixer": ("token_mlp/proj_in/weight",),
    "amlp_36": ("gate/spatial/taps", "attention"),
}
TINY = {
    "steps": 3,
    "batch_size": 4,
    "checkpoint.every": 3,
    "log.every": 1,
    "optimizer.warmup": 1,
    "model.layers": 2,
    "model.length": 16,
    "model.d_model": 16,
    "model.d_ffn": 32,
    "model.vocab_size": 320,
    "data.heldout_share": 0.2,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Documents of random words, and a cache, for all rows."""
    root = tmp_path_factory.mktemp("corpus")
    return tiny.write_corpus(root / "corpus.jsonl"), root / "cache"


@pytest.mark.parametrize("row", [pytest.param(row, marks=() if row == QUICK else pytest.mark.slow) for row in ROWS])
def test_row_of_table_3_trains(row, corpus, tmp_path):
    config = gmlp_config.from_file("configs/c4_ablation.py", f"{row},scale=small")
    train, cache = corpus
    config.update_from_flattened_dict(TINY | {"data.train": train, "data.cache": str(cache)})
    result = loop.train(config, str(tmp_path))
    assert 200 < result["eval"]["perplexity"] < 500  # About the vocabulary's 320: nothing is learned in 3 steps.
    assert [line["step"] for line in metrics(tmp_path) if "loss" in line] == [1, 2, 3]
    paths = [
        "/" + "/".join(key.key for key in path)
        for path, _ in jax.tree_util.tree_leaves_with_path(final_state(tmp_path)["params"])
    ]
    for part in PARTS.get(row, ("gate/spatial/taps",)):
        assert any(part in path for path in paths), paths
    # A line shorter than the model's sequences, with every kind of block.
    trained = loading.load(str(tmp_path))
    ((ranked,),) = trained.task.predict(trained.weights, ["the [MASK] of"], top=4)
    assert len(ranked) == 4 and all(0 < share < 0.1 for _, share in ranked)


@pytest.mark.smoke
def test_row_of_table_3_from_the_command_line(commands, corpus, tmp_path):
    flags = [f"--config.{name}={value}" for name, value in TINY.items()]
    train, cache = corpus
    flags += [f"--config.data.train={train}", f"--config.data.cache={cache}", f"--workdir={tmp_path / 'run'}"]
    assert_done(commands("--config=configs/c4_ablation.py:mixer,scale=small", *flags))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["step"] == 3 and math.isfinite(result["eval"]["loss"])


@pytest.mark.slow
def test_long_text(commands, tmp_path, corpus):
    """The embedded text by FFT: the gate's taps are those of 512 tokens."""
    flags = ["--config.steps=2", "--config.log.every=1", "--config.batch_size=2", "--config.optimizer.warmup=1"]
    flags += ["--config.model.layers=1", "--config.eval.batch_size=16", f"--config.data.cache={corpus[1]}"]
    assert_done(commands("--config=configs/long_text.py:512,scale=small", *flags, f"--workdir={tmp_path / 'run'}"))
    taps = final_state(tmp_path / "run")["params"]["encoder"]["blocks"]["gate"]["spatial"]["taps"]
    assert taps.shape == (1, 1023)
    config = gmlp_config.load(str(tmp_path / "run" / "config.json"))
    assert (config.model.toeplitz, config.masking.max_predictions) == ("fft", 77)
    assert [line["step"] for line in metrics(tmp_path / "run") if "loss" in line] == [1, 2]
