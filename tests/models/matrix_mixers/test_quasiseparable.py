import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.blocks.hydra import HydraMixer
from tests.models.matrix_mixers.cases import shapes, spec_of
from tests.models.reference import count, function_of, params_of, program


def test_a_causal_matrix_has_one_direction():
    computed = shapes("quasiseparable", True, causal=True, dtype="float32")
    assert computed["features"]["proj"]["kernel"] == (6, 8)
    assert computed["steps"]["kernel"] == (6, 3)
    learned = shapes("quasiseparable", False, causal=True, dtype="float32")
    assert learned["b"] == (1, 1, 5, 4)


def test_a_long_quasiseparable_matrix_is_not_built():
    spec = spec_of(length=1024, dtype="float32")
    state, call = function_of(nnx.eval_shape(lambda: HydraMixer(spec, nnx.Rngs(0))))
    x = jnp.ones((1, 1024, 6))
    shapes = [aval.shape for aval in intermediate_arrays(call, state, x)]
    assert not any(shape[-2:] == (1024, 1024) for shape in shapes)
    assert count("cumsum", call, state, x) == 2


def intermediate_arrays(call, *inputs):
    return [out.aval for equation in program(call, *inputs) for out in equation.outvars]


@pytest.mark.slow
def test_the_state_space_model_at_the_start():
    """Steps of 0.001 to 0.1 for a token of zeros, rates of 1, and the identity on the diagonal."""
    spec = spec_of(heads=64, d_model=64, dtype="float32", length=9)
    module = HydraMixer(spec, nnx.Rngs(0))
    p = params_of(module)["matrix"]
    steps = np.log1p(np.exp(p["step_bias"]))
    assert 0.001 <= steps.min() < 0.002
    assert 0.05 < steps.max() <= 0.1
    np.testing.assert_array_equal(p["log_rates"], np.zeros(64))
    matrices = module.matrices(jnp.zeros((1, 9, 64)))
    np.testing.assert_allclose(np.asarray(matrices), np.tile(np.eye(9), (1, 64, 1, 1)), atol=1e-6)
