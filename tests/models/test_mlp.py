import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.mlp import ChannelMLP, TokenMLP
from tests.models.reference import (
    gelu,
    gelu_tanh,
    in_float64,
    linear,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)


@pytest.mark.parametrize("name, function", [("gelu", gelu), ("gelu_tanh", gelu_tanh)])
@in_float64
def test_against_loops(name, function):
    module = randomized(lambda: ChannelMLP(small_spec(activation=name, d_ffn=7, gate="additive"), nnx.Rngs(0)))
    p, x = params_of(module), normal(0, 2, 5, 6)
    expected = [linear(p["proj_out"], function(linear(p["proj_in"], sample))) for sample in x]
    np.testing.assert_allclose(quick_jit(module)(x), expected, atol=1e-12)


@pytest.mark.parametrize("name, function", [("gelu", gelu), ("gelu_tanh", gelu_tanh)])
@in_float64
def test_over_tokens_against_loops(name, function):
    """Each channel's tokens as a vector, through both matrices."""
    module = randomized(lambda: TokenMLP(small_spec(activation=name, d_spatial=7), nnx.Rngs(0)))
    p, x = params_of(module), normal(0, 2, 5, 6)
    into, out = p["proj_in"], p["proj_out"]
    expected = np.empty_like(x)
    for sample in range(2):
        for channel in range(6):
            hidden = function(into["weight"] @ x[sample, :, channel] + into["bias"])
            expected[sample, :, channel] = out["weight"] @ hidden + out["bias"]
    np.testing.assert_allclose(quick_jit(module)(x), expected, atol=1e-12)
