"""Fixtures of the task tests."""

import pytest

from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from tests.training import tiny


@pytest.fixture(scope="session")
def text_task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    return MaskedLanguageModeling(tiny.text_config(folder), str(folder))


@pytest.fixture(scope="session")
def image_task(tmp_path_factory):
    config = tiny.image_config()
    config.optimizer.label_smoothing = 0.1
    return ImageClassification(config, str(tmp_path_factory.mktemp("images")))
