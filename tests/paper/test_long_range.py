"""Models of Long Range Arena: of one size per task, as far as the number of tokens allows."""

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.models import parameters
from gmlp_flax.paper import long_range

N_ALONE = ("resmlp", "synthesizer")  # n sets the greater part of their size
# without attention's narrow queries, what is not its gate is as large as the whole layer
LARGER = {("pathfinder", "bigs"): 1.41, ("pathfinder", "long_conv"): 1.27}


def layers_of(config) -> int:
    """Parameters of the encoder, without what tokens alone decide: the final norm is left in."""
    return parameters.count(tasks.find(config.task)(config).shapes()["encoder"])


@pytest.mark.parametrize("task", ["listops", "pathfinder"])
def test_models_are_of_one_size(task):
    of = long_range.SETTINGS[task]

    def count(name):
        if task == "pathfinder":
            return layers_of(long_range.pixel_classifier(name, of, side=32, pool="mean"))
        return layers_of(
            long_range.text_classifier(
                name, task, of, length=2048, tokenizer="listops", vocab_size=20
            )
        )

    budget = of.layers * (4 * of.d_model * (of.d_qkv or of.d_model) + 2 * of.d_model * of.d_ffn)
    counts = {name: count(name) for name in long_range.MODELS}
    for name, found in counts.items():
        if name not in N_ALONE:
            expected = budget * LARGER.get((task, name), 1)
            assert found == pytest.approx(expected, rel=0.08), (name, found, expected)
    assert all(counts[name] > 0.95 * budget for name in N_ALONE)
    assert counts["resmlp"] > of.layers * 1024**2
    # where n leaves nothing for the channels, they keep half of the Transformer's width
    if task == "listops":
        config = long_range.text_classifier(
            "resmlp", task, of, length=2048, tokenizer=task, vocab_size=20
        )
        assert config.model.d_ffn == 512
        assert of.d_ffn == 1024


def counts_of(config) -> tuple[int, int]:
    """Parameters of the model without its head, and of the head."""
    shapes = tasks.find(config.task)(config).shapes()
    head = parameters.count(shapes["head"])
    return parameters.count(shapes) - head, head


def test_the_first_published_image_model_has_the_parameters_that_were_counted():
    """52,266 (issue 2 of google-research/long-range-arena), of which 2,762 are its head of two
    layers."""
    setting = long_range.SETTINGS["image"]._replace(d_model=32, heads=1, d_ffn=64, d_qkv=32)
    config = long_range.pixel_classifier("transformer", setting, side=32, pool="cls")
    without_head, _ = counts_of(config)
    head = (32 * 64 + 64) + (64 * 10 + 10)
    assert without_head == 52_266 - head


def test_short_trees_are_read_by_models_of_one_size():
    """Where n is small, also by what has parameters for each pair of tokens."""
    path = "configs/lra_listops.py"
    names = long_range.MODELS
    counts = [layers_of(config_lib.from_file(path, f"{name},scale=small")) for name in names]
    assert min(counts) > 99_000, counts
    assert max(counts) < 1.02 * min(counts), counts


def layer_params(d, qkv, d_ffn):
    """Attention without biases, an MLP, and two norms."""
    return 4 * d * qkv + 2 * d * d_ffn + d_ffn + d + 2 * 2 * d


def counts_of_transformer(name) -> tuple[int, int]:
    """Parameters of the transformer of a task, without its head and in its head."""
    return counts_of(config_lib.from_file(f"configs/lra_{name}.py", "transformer"))


def test_the_newest_published_image_transformer_has_the_parameters_of_its_sizes():
    without_head, _ = counts_of_transformer("image")
    tables = (256 + 1 + 1025) * 128
    assert without_head == tables + layer_params(128, 64, 128) + 2 * 128


def test_the_published_listops_transformer_has_the_parameters_of_its_sizes():
    without_head, head = counts_of_transformer("listops")
    segments = 2 * 512
    tables = (20 + 2048) * 512 + segments
    assert without_head == tables + 4 * layer_params(512, 512, 1024) + 2 * 512
    assert head == 512 * 10 + 10


def test_the_published_retrieval_transformer_has_the_parameters_of_its_sizes():
    """Its head is of [u, v]."""
    without_head, head = counts_of_transformer("retrieval")
    tables = (261 + 4096) * 128
    assert without_head == tables + 4 * layer_params(128, 128, 512) + 2 * 128
    expected = (256 * 512 + 512) + (512 * 256 + 256) + (256 * 2 + 2)
    assert head == expected


def test_the_whole_image_is_read():
    """One token per pixel, none cropped, mirrored or changed."""
    config = long_range.pixel_classifier("gmlp", long_range.SETTINGS["image"], side=32, pool="cls")
    assert tasks.find(config.task)(config).length == 1025
    assert config.data.min_scale == 1.0
    assert not config.data.flip
    assert config.data.eval_crop == 1.0
    assert config.augment.auto == "none"
    for name in ("mixup", "cutmix", "erasing"):
        assert config.augment[name] == 0


def test_a_short_convolution_reads_the_mean():
    """Its [CLS] would see 31 tokens per layer."""
    of = long_range.SETTINGS["text"]
    pools = {
        name: long_range.text_classifier(
            name, "imdb", of, length=1024, tokenizer="bytes", vocab_size=261
        ).model.pool
        for name in long_range.MODELS
    }
    assert pools.pop("convolution") == "mean"
    assert pools.pop("depthwise") == "mean"
    assert set(pools.values()) == {"cls"}
