"""Blocks of a user's package as rows of the comparisons: the same setting and equal parameters."""

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.errors import ConfigError
from gmlp_flax.paper import custom_rows, matching, recall
from tests.custom_blocks import AVERAGING, PEEKING, SHIFTING, UNUSED
from tests.failures import raised

# Config with a place for the row -> the Transformer with which it is compared.
PLACES = {
    "c4_ablation:{},scale=small": "bert",
    "c4_ablation:{},scale=gpu": "bert",
    "c4_ablation:{}": "bert",
    "cifar10:{},scale=small": "vit",
    "tiny_imagenet:{},scale=gpu": "vit",
    "lra_listops:{},scale=small": "transformer",
    "lra_text:{},length=256,scale=small": "transformer",
    "lra_image:{}": "transformer",
    "synthetic:{},d=32": "bert",
    "synthetic:{},task=compression": "bert",
}


def open_row(place, row):
    config = config_lib.open_config(place.format(row))
    config_lib.validate(config)
    return config


@pytest.mark.parametrize("place", PLACES)
def test_a_class_has_the_setting_and_the_parameters_of_the_transformer(place):
    transformer = open_row(place, PLACES[place])
    config = open_row(place, AVERAGING)
    assert config.model.block == AVERAGING
    size = matching.encoder_size(config)
    assert size == pytest.approx(matching.encoder_size(transformer), rel=0.04)
    for key in ("batch_size", "steps", "eval", "data", "task"):
        assert config[key] == transformer[key]
    for key in ("layers", "d_model", "dtype", "vocab_size", "image_size"):
        assert config.model.get(key) == transformer.model.get(key)


def test_a_class_has_no_class_token_and_no_positions_of_vit():
    config = open_row("cifar10:{}", AVERAGING)
    vit = open_row("cifar10:{}", "vit")
    assert config.model.pool == "mean"
    assert config.model.positions == "none"
    assert vit.model.positions == "absolute"


def test_a_block_without_an_mlp_is_matched_by_its_layers():
    """bert has 396,800 parameters."""
    config = open_row("c4_ablation:{},scale=small", SHIFTING)
    layer = 128**2 + 128
    final_norm = 256
    assert round((396_800 - final_norm) / layer) == 24
    assert config.model.layers == 24
    assert matching.encoder_size(config) == 24 * layer + final_norm


@pytest.mark.parametrize(
    ("match", "layers", "d_ffn"),
    [
        ("params", 2, 184),
        ("layers", 1, 768),
        ("none", 2, 768),
    ],
)
def test_match_chooses_layers_and_width(match, layers, d_ffn):
    """bert has 24,432 parameters at d = 32. The default d_ffn of this block is 768."""
    row = custom_rows.with_match(AVERAGING, match)
    config = open_row("synthetic:{},d=32", row)
    assert config.model.layers == layers
    assert config.model.d_ffn == d_ffn
    layer = 65 * d_ffn + 96
    assert matching.encoder_size(config) == layers * layer + 64


def test_recall_is_causal_where_the_block_can_be():
    assert recall.mqar(SHIFTING, 64, 32, "cpu").model.causal
    assert not recall.mqar(AVERAGING, 64, 32, "cpu").model.causal


def test_recall_refuses_a_class_that_looks_ahead():
    message = raised(ConfigError, recall.mqar, PEEKING, 64, 32, "cpu")
    assert "depends on later tokens" in message


def test_names_of_rows():
    assert custom_rows.is_custom(AVERAGING)
    assert not custom_rows.is_custom("sgu")
    row = custom_rows.with_match(AVERAGING, "layers")
    assert row == f"{AVERAGING},match=layers"
    assert custom_rows.parts(row) == (AVERAGING, "layers")
    assert custom_rows.parts(AVERAGING) == (AVERAGING, "")
    assert custom_rows.label(row) == "Averaging"
    assert custom_rows.modules(["sgu", row, SHIFTING]) == ["tests.custom_blocks"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("c4_ablation:sgu,match=layers", "match=layers is for your own block"),
        ("c4_ablation:nowhere.blocks:Block", "cannot be imported"),
        ("c4_ablation:tests.custom_blocks:AVERAGING", "expected a class that extends"),
        ("c4_bert:tests.custom_blocks:Averaging", "the config's argument is"),
        (f"c4_ablation:{UNUSED},scale=small", "its parameters do not grow with d_ffn"),
        ("synthetic:tests.custom_blocks:Averaging,match=width", "match=params|layers|none"),
        ("synthetic:sgu,task=recall,n=64", "'n=64', which is for task=mqar"),
        ("synthetic:sgu,d=32,task=compression", "compression has n = 32 and d = 128"),
    ],
)
def test_invalid_rows_are_refused(source, message):
    with pytest.raises(ConfigError) as caught:
        config_lib.open_config(source)
    assert message in str(caught.value)
