"""Widths and depths with which an encoder has a number of parameters."""

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.models import parameters
from gmlp_flax.paper import matching
from tests.custom_blocks import AVERAGING


def test_layers_are_counted_by_hand():
    config = config_lib.open_config(f"c4_ablation:{AVERAGING},scale=small")
    narrow = config.copy_and_resolve_references()
    narrow.model.d_ffn = 128
    maps = 2 * (128 * 128 + 128)
    norm = 2 * 128
    layer = maps + norm
    final_norm = 256
    assert matching.encoder_size(narrow) == 2 * layer + final_norm
    ten_layers = 10 * layer + final_norm
    assert matching.fitted_layers(narrow, ten_layers + layer // 3) == 10
    assert matching.fitted_layers(narrow, 100) == 1
    wide_layer = 2 * 128 * 1000 + 1000 + 128 + norm
    assert matching.fitted_width(narrow, 2 * wide_layer + final_norm) == 1000
    assert matching.fitted_width(narrow, 100) == 64  # at least half of d_model
    assert narrow.model.d_ffn == 128


@pytest.mark.parametrize(
    "source",
    [
        "c4_ablation:amlp_36,scale=small",
        "cifar10:vit",
        "cifar10:gmlp",
        "imagenet:deit_s",
        "lra_image:transformer",
        "lra_listops:hydra,scale=small",
        "synthetic:long_conv,d=32",
    ],
)
def test_encoder_size_counts_the_parameters_of_the_encoder(source):
    config = config_lib.open_config(source)
    task = tasks.find(config.task)(config)
    encoder = task.shapes()["encoder"]
    assert matching.encoder_size(config) == parameters.count(encoder)
