"""The quickstart configs with every block, for a few steps: text, images, and finetuning from the text."""

from __future__ import annotations

import json

import jax
import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.training import loading, loop
from tests.runs.command import assert_done
from tests.training import tiny

# Flags -> a part of the path of a parameter that tells this model from others.
TRAINED = {
    "fnet": ({}, "mixing_norm"),
    "fnet_hybrid": ({"attention_layers": 1}, "stack_1/attention"),
    "synthesizer": ({}, "random/logits"),
    "synthesizer, mixed": (
        {"synthesizer": "dense+fixed_random+attention", "attention_dropout": 0.1},
        "synthesizer/weights",
    ),
    "synthesizer, factorized": (
        {"synthesizer": "factorized_random+factorized_dense", "rank": 4},
        "factorized_random/rows",
    ),
    "external_attention": ({"memory": 16, "heads": 2, "positions": "absolute"}, "external/keys"),
    "convolution": ({"kernel_widths": (3, 5)}, "stack_1/convolution/kernel/logits"),
    "convolution, dynamic": ({"convolution": "dynamic", "dilations": (1, 2)}, "stack_0/convolution/kernel/proj"),
}
QUICK = "convolution"  # in two stacks, as fnet_hybrid; the others take the same path
NAMES = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow][: name != QUICK]) for name in TRAINED]
)


def quickstart(which, name, folder):
    """A quickstart config with a block, and few steps of little data."""
    block, options = name.partition(",")[0], TRAINED[name][0]
    config = config_lib.changed(config_lib.from_file(f"quickstart_{which}"), block=block)
    config.steps, config.batch_size, config.optimizer.warmup, config.log.every = 3, 4, 1, 1
    config.model.update(options | {"layers": 2, "d_model": 16, "d_ffn": 16})
    if which == "text":
        config.model.update(length=16, vocab_size=320)
        config.data.update(
            train=tiny.write_corpus(folder / "corpus.jsonl"), heldout_share=0.2, cache=str(folder / "cache")
        )
    return config


def paths(params):
    return ["/".join(key.key for key in path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]


@NAMES
def test_text_is_pretrained_and_finetuned(name, tmp_path):
    config = quickstart("text", name, tmp_path)
    result = loop.train(config, str(tmp_path / "run"))
    assert 200 < result["eval"]["perplexity"] < 500  # About the vocabulary's 320: nothing is learned in 3 steps.
    trained = loading.load(str(tmp_path / "run"))
    assert any(TRAINED[name][1] in path for path in paths(trained.params))
    ((ranked,),) = trained.task.predict(trained.weights, ["the [MASK] of"], top=4)
    assert len(ranked) == 4
    lines = "".join(f"the {word} of\t{number % 2}\n" for number, word in enumerate(tiny.WORDS))
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + lines)
    options = config_lib.from_file("finetune_glue", "sst2,scale=small")
    options.update(steps=2, batch_size=4, init_from=str(tmp_path / "run"))
    options.model.length = 12 if "factorized_dense" not in str(TRAINED[name]) else 16  # factors of n are fixed
    options.optimizer.warmup, options.eval.every = 1, 2
    data = str(tmp_path / "train.tsv")
    options.data.update(train=data, heldout=data, cache=str(tmp_path / "cache"))
    tuned = loop.train(options, str(tmp_path / "sst2"))
    assert 0 <= tuned["eval"]["accuracy"] <= 1
    assert loading.load(str(tmp_path / "sst2")).config.model.block == config.model.block


@NAMES
def test_images(name, tmp_path):
    result = loop.train(quickstart("image", name, tmp_path), str(tmp_path / "run"))
    assert 0 <= result["eval"]["top1"] <= 1
    found = paths(loading.load(str(tmp_path / "run")).params)
    assert any(TRAINED[name][1] in path for path in found)


def test_from_the_command_line(commands, tmp_path):
    """A list and a word, as flags give them; and what comes next is what the model has."""
    flags = [
        "--config.model.block=convolution",
        "--config.model.kernel_widths=3,5",
        "--config.model.layers=2",
        "--config.steps=2",
        "--config.batch_size=4",
        "--config.model.d_model=16",
        "--config.model.d_ffn=16",
        "--config.optimizer.warmup=1",
    ]
    done = commands("--config=configs/quickstart_image.py", *flags, f"--workdir={tmp_path / 'run'}")
    assert_done(done)
    assert "gmlp predict" in done.stdout and "gmlp draw filters" not in done.stdout
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["kernel_widths"] == [3, 5]
