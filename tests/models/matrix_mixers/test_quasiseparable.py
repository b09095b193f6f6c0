import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.blocks.hydra import HydraMixer
from tests.models.matrix_mixers.cases import shapes, spec_of
from tests.models.reference import count, function_of, params_of, program, softplus


def test_causal_matrices_have_one_direction():
    computed = shapes("quasiseparable", True, causal=True, dtype="float32")
    learned = shapes("quasiseparable", False, causal=True, dtype="float32")
    assert computed["features"]["proj"]["kernel"] == (6, 8)
    assert computed["steps"]["kernel"] == (6, 3)
    assert learned["b"] == (1, 1, 5, 4)


def test_long_matrices_are_not_materialized():
    spec = spec_of(length=1024, dtype="float32")
    module = nnx.eval_shape(lambda: HydraMixer(spec, nnx.Rngs(0)))
    state, call = function_of(module)
    x = jnp.ones((1, 1024, 6))
    for equation in program(call, state, x):
        for array in equation.outvars:
            assert array.aval.shape[-2:] != (1024, 1024)
    assert count("cumsum", call, state, x) == 2


@pytest.mark.slow
def test_initial_state_spaces_are_as_published():
    """Steps of 0.001 to 0.1 for a token of zeros, rates of 1, and the identity on the diagonal."""
    spec = spec_of(heads=64, d_model=64, dtype="float32", length=9)
    module = HydraMixer(spec, nnx.Rngs(0))
    p = params_of(module)["matrix"]
    steps = softplus(p["step_bias"])
    assert 0.001 <= steps.min() < 0.002
    assert 0.05 < steps.max() <= 0.1
    assert_array_equal(p["log_rates"], np.zeros(64))
    matrices = module.matrices(jnp.zeros((1, 9, 64)))
    identities = np.tile(np.eye(9), (1, 64, 1, 1))
    assert_allclose(matrices, identities, atol=1e-6)
