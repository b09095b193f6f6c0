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
    layer = 2 * 128 * 128 + 128 + 128 + 2 * 128  # two maps with biases, and a norm
    assert matching.encoder_size(narrow) == 2 * layer + 256
    assert matching.fitted_layers(narrow, 10 * layer + 256 + layer // 3) == 10
    assert matching.fitted_layers(narrow, 100) == 1
    wide = 2 * 128 * 1000 + 1000 + 128 + 256
    assert matching.fitted_width(narrow, 2 * wide + 256) == 1000
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
