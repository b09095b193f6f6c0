"""The quickstart configs with blocks of every kind, for a few steps: text, finetuning, and
images."""

import jax
import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints.metrics_file import read_result
from gmlp_flax.commands import train
from gmlp_flax.training import loop, pretrained
from tests.training import tiny

# Block -> options, and a part of a parameter's path that only this model has.
TRAINED = {
    "transformer": ({"heads": 2, "positions": "relative"}, "attention"),
    "mixer": ({}, "token_mlp/proj_in/weight"),
    "fnet_hybrid": ({"attention_layers": 1}, "stack_1/attention"),
    "synthesizer": (
        {"synthesizer": "factorized_random+factorized_dense", "rank": 4},
        "factorized_random/rows",
    ),
    "external_attention": ({"memory": 16, "heads": 2, "positions": "absolute"}, "external/keys"),
    "convolution": ({"kernel_widths": (3, 5)}, "stack_1/convolution/kernel/logits"),
}
QUICK = "convolution"  # in two stacks, as fnet_hybrid; the others use the same code
SLOW = {"mixer"}  # its parameters depend on the length, as the synthesizer's do


def marked(name: str):
    """A case of TRAINED. Blocks that are neither quick nor slow run every night."""
    if name == QUICK:
        return pytest.param(name)
    mark = pytest.mark.slow if name in SLOW else pytest.mark.nightly
    return pytest.param(name, marks=mark)


def quickstart(name, folder):
    """A quickstart config of text with a block, a few steps and few data."""
    config = config_lib.changed(config_lib.from_file("quickstart_text"), block=name)
    config.steps = 3
    config.batch_size = 4
    config.optimizer.warmup = 1
    config.log.every = 1
    options, _ = TRAINED[name]
    config.model.update(options)
    config.model.update(layers=2, d_model=16, d_ffn=16, length=16, vocab_size=320)
    train = tiny.write_corpus(folder / "corpus.jsonl")
    config.data.update(train=train, heldout_share=0.2, cache=str(folder / "cache"))
    return config


def paths(params) -> list[str]:
    """The paths of all parameters."""
    found = []
    for keys, _ in jax.tree_util.tree_leaves_with_path(params):
        found.append(jax.tree_util.keystr(keys, simple=True, separator="/"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [marked(name) for name in TRAINED])
def test_block_is_pretrained_and_finetuned(name, tmp_path):
    run = tmp_path / "run"
    loop.train(quickstart(name, tmp_path), str(run))
    config = config_lib.load(str(run / "config.json"))
    perplexity = read_result(str(run))["eval"]["perplexity"]
    assert 200 < perplexity < 500  # about the vocabulary's 320: nothing is learned in 3 steps
    trained = pretrained.load(str(run))
    _, part = TRAINED[name]
    assert any(part in path for path in paths(trained.params))
    [predictions] = trained.predict(["the [MASK] of"], top=4)
    [candidates] = predictions
    assert len(candidates) == 4
    for split, last in (("train", "of"), ("dev", "in")):
        lines = ["sentence\tlabel"]
        for number, word in enumerate(tiny.WORDS):
            label = number % 2
            lines.append(f"the {word} {last}\t{label}")
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    options = config_lib.from_file("finetune_glue", "sst2,scale=small")
    options.update(steps=2, batch_size=4, init_from=str(run))
    # token MLPs and factors are made for n
    options.model.length = 16 if name in ("mixer", "synthesizer") else 12
    options.optimizer.warmup = 1
    options.eval.every = 2
    options.data.update(
        train=str(tmp_path / "train.tsv"),
        heldout=str(tmp_path / "dev.tsv"),
        cache=str(tmp_path / "cache"),
    )
    tuned = loop.train(options, str(tmp_path / "sst2"))
    assert 0 <= tuned["eval"]["accuracy"] <= 1
    tuned_config = pretrained.load(str(tmp_path / "sst2")).config
    assert tuned_config.model.block == config.model.block


def test_block_is_named_on_the_command_line(tmp_path):
    """Flags give a list and a word. The printed next commands are those that the model supports."""
    start = config_lib.from_file("quickstart_text")
    wanted = quickstart(QUICK, tmp_path)
    flags = []
    for name, (_, new) in config_lib.differences(start, wanted).items():
        if name == "model.kernel_widths":
            flags.append("--config.model.kernel_widths=3,5")
        elif new is not None:
            flags.append(f"--config.{name}={new}")
    config, _ = config_lib.apply_overrides(start, ["gmlp train", *flags])
    assert not config_lib.differences(config, wanted)
    assert config.model.kernel_widths == (3, 5)
    advice = "\n".join(train.what_next(config, "run"))
    assert "gmlp predict" in advice
    assert "gmlp draw filters" not in advice
