"""The models depend on few packages and on no other room."""

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, pkgutil, sys
import chex, flax.nnx, jax, numpy
before = {name.partition(".")[0] for name in sys.modules}
import gmlp_flax.models
for module in pkgutil.walk_packages(gmlp_flax.models.__path__, "gmlp_flax.models."):
    importlib.import_module(module.name)
print(*sorted({name.partition(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names)))
"""


@pytest.mark.slow
def test_models_need_only_jax_flax_numpy_and_chex():
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["gmlp_flax"]
