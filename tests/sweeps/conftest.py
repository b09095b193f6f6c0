"""The stand-in for the trainer beside a sweep file."""

import pytest

from tests.commands.test_sweep import TEXT
from tests.sweeps.stand_in import Trainer

# Two configs, a point of the second with a key of its own; ARGUMENT gives the number of seeds.
FILE = f"""
from gmlp_flax.sweeps import points

def get_sweep(arg="1"):
    configs = points.chained({{"config": [{TEXT!r}]}}, points.product({{"config": [{TEXT!r}], "batch_size": [8]}}))
    return points.product(configs, {{"seed": range(int(arg))}})
"""


@pytest.fixture
def trainer(tmp_path):
    (tmp_path / "points.py").write_text(FILE)
    return Trainer(tmp_path)
