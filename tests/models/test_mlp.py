import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.mlp import ChannelMLP
from tests.models.reference import gelu, gelu_tanh, in_float64, linear, normal, params_of, quick_jit, randomized
from tests.models.reference import small_spec


@pytest.mark.parametrize("name, function", [("gelu", gelu), ("gelu_tanh", gelu_tanh)])
@in_float64
def test_against_loops(name, function):
    module = randomized(lambda: ChannelMLP(small_spec(activation=name, d_ffn=7, gate="additive"), nnx.Rngs(0)))
    p, x = params_of(module), normal(0, 2, 5, 6)
    expected = [linear(p["proj_out"], function(linear(p["proj_in"], sample))) for sample in x]
    np.testing.assert_allclose(quick_jit(module)(x), expected, atol=1e-12)
