"""Fixtures of the training tests."""

import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.training.partition import Partition
from tests.training import tiny


@pytest.fixture
def config():
    return gmlp_config.default()


@pytest.fixture(scope="session")
def partition():
    return Partition.make()


@pytest.fixture(scope="session")
def text_task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    return MaskedLanguageModeling(tiny.text_config(folder, d_attn=4), str(folder))


@pytest.fixture(scope="session")
def image_task(tmp_path_factory):
    return ImageClassification(
        tiny.image_config(pool="cls"), str(tmp_path_factory.mktemp("images"))
    )
