"""The options of a generated text, and that they need no JAX."""

import math
import subprocess
import sys

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.tasks.inference.sampling import Sampling
from tests.failures import raised


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"tokens": 0}, "tokens is 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_invalid_values_are_refused(options, expected):
    assert expected in raised(RunError, Sampling, **options)


def test_predict_help_does_not_import_jax():
    code = "import sys, gmlp_flax.commands.predict; print('jax' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
