"""Fixtures of the training tests."""

import pytest

from gmlp_flax import config as gmlp_config
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
    task, _ = tiny.open_task(tiny.text_config(folder, d_attn=4), folder)
    return task


@pytest.fixture(scope="session")
def image_task(tmp_path_factory):
    config = tiny.image_config(pool="cls")
    task, _ = tiny.open_task(config, tmp_path_factory.mktemp("images"))
    return task
