"""Models of Long Range Arena: those of a task have equal sizes, if the number of tokens allows it."""

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.models import parameters
from gmlp_flax.paper import long_range

GROW_WITH_N = ("resmlp", "synthesizer")  # the number of tokens sets most of their size
# Models whose layers are larger even without an MLP, because Pathfinder's attention is narrow.
LARGER = {("pathfinder", "bigs"): 1.41, ("pathfinder", "long_conv"): 1.27}


def layers_of(config) -> int:
    """Parameters of the encoder: those of its layers and of the final norm."""
    task = tasks.find(config.task)(config)
    return parameters.count(task.shapes()["encoder"])


def open_model(task, name):
    setting = long_range.SETTINGS[task]
    if task == "pathfinder":
        return long_range.pixel_classifier(name, setting, side=32, pool="mean")
    return long_range.text_classifier(
        name, task, setting, length=2048, tokenizer="listops", vocab_size=20
    )


@pytest.mark.parametrize("task", ["listops", "pathfinder"])
def test_models_have_equal_sizes(task):
    setting = long_range.SETTINGS[task]
    d = setting.d_model
    attention = 4 * d * (setting.d_qkv or d)
    mlp = 2 * d * setting.d_ffn
    budget = setting.layers * (attention + mlp)
    for name in long_range.MODELS:
        count = layers_of(open_model(task, name))
        if name in GROW_WITH_N:
            assert count > 0.95 * budget, name
        else:
            expected = budget * LARGER.get((task, name), 1)
            assert count == pytest.approx(expected, rel=0.08), name


@pytest.mark.parametrize("task", ["listops", "pathfinder"])
def test_layers_of_resmlp_have_a_matrix_over_tokens(task):
    count = layers_of(open_model(task, "resmlp"))
    assert count > long_range.SETTINGS[task].layers * 1024**2


def test_mlps_keep_half_of_the_transformers_width():
    """The matrices over tokens exceed the budget."""
    config = open_model("listops", "resmlp")
    assert config.model.d_ffn == 512
    assert long_range.SETTINGS["listops"].d_ffn == 1024


def counts_of(config) -> tuple[int, int]:
    """Parameters of the model without its head, and of the head."""
    task = tasks.find(config.task)(config)
    shapes = task.shapes()
    whole = parameters.count(shapes)
    head = parameters.count(shapes["head"])
    return whole - head, head


def test_the_first_published_image_model_has_the_reported_parameters():
    """52,266 (issue 2 of google-research/long-range-arena), of which 2,762 are its head of two
    layers."""
    setting = long_range.SETTINGS["image"]._replace(d_model=32, heads=1, d_ffn=64, d_qkv=32)
    config = long_range.pixel_classifier("transformer", setting, side=32, pool="cls")
    without_head, _ = counts_of(config)
    head = (32 * 64 + 64) + (64 * 10 + 10)
    assert without_head == 52_266 - head


def test_small_models_of_listops_have_equal_sizes():
    """With few tokens, even those that have parameters for each pair of tokens."""
    counts = []
    for name in long_range.MODELS:
        config = config_lib.from_file("configs/lra_listops.py", f"{name},scale=small")
        counts.append(layers_of(config))
    assert min(counts) > 99_000, counts
    assert max(counts) < 1.02 * min(counts), counts


def layer_params(d, qkv, d_ffn):
    """Attention without biases, an MLP, and two norms."""
    attention = 4 * d * qkv
    mlp = (d * d_ffn + d_ffn) + (d_ffn * d + d)
    norm = 2 * d
    return attention + mlp + 2 * norm


def counts_of_transformer(name) -> tuple[int, int]:
    """Parameters of the transformer of a task, without its head and in its head."""
    config = config_lib.from_file(f"configs/lra_{name}.py", "transformer")
    return counts_of(config)


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
    """The input of its head is [u, v]."""
    without_head, head = counts_of_transformer("retrieval")
    tables = (261 + 4096) * 128
    layers = 4 * layer_params(128, 128, 512)
    final_norm = 2 * 128
    assert without_head == tables + layers + final_norm
    first = 256 * 512 + 512
    second = 512 * 256 + 256
    last = 256 * 2 + 2
    assert head == first + second + last


def test_images_are_read_whole_and_without_augmentation():
    """Each pixel is a token."""
    setting = long_range.SETTINGS["image"]
    config = long_range.pixel_classifier("gmlp", setting, side=32, pool="cls")
    task = tasks.find(config.task)(config)
    assert task.length == 1025
    assert config.data.min_scale == 1.0
    assert not config.data.flip
    assert config.data.eval_crop == 1.0
    assert config.augment.auto == "none"
    for name in ("mixup", "cutmix", "erasing"):
        assert config.augment[name] == 0


@pytest.mark.parametrize("name", long_range.MODELS)
def test_only_short_convolutions_pool_the_mean(name):
    """Their [CLS] would see 31 tokens per layer."""
    setting = long_range.SETTINGS["text"]
    config = long_range.text_classifier(
        name, "imdb", setting, length=1024, tokenizer="bytes", vocab_size=261
    )
    expected = "mean" if name in ("convolution", "depthwise") else "cls"
    assert config.model.pool == expected
