"""Fixtures of the tests of run folders."""

import pytest

from gmlp_flax import config as gmlp_config


@pytest.fixture
def config():
    return gmlp_config.default()
