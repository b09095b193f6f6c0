"""With the other activation: blocks' own tests have gelu."""

import numpy as np
from flax import nnx

from gmlp_flax.models.mlp import ChannelMLP, TokenMLP
from tests.models.reference import gelu_tanh, in_float64, linear, normal, params_of, quick_jit, randomized, small_spec


@in_float64
def test_against_loops():
    spec, x = small_spec(activation="gelu_tanh", d_ffn=7, d_spatial=7, block="mixer"), normal(0, 2, 5, 6)
    channels, tokens = (randomized(lambda kind=kind: kind(spec, nnx.Rngs(0))) for kind in (ChannelMLP, TokenMLP))
    p, of = params_of(channels), params_of(tokens)
    expected = [linear(p["proj_out"], gelu_tanh(linear(p["proj_in"], sample))) for sample in x]
    np.testing.assert_allclose(quick_jit(channels)(x), expected, atol=1e-12)
    into, out, expected = of["proj_in"], of["proj_out"], np.empty_like(x)
    for sample, channel in np.ndindex(2, 6):
        hidden = gelu_tanh(into["weight"] @ x[sample, :, channel] + into["bias"])
        expected[sample, :, channel] = out["weight"] @ hidden + out["bias"]
    np.testing.assert_allclose(quick_jit(tokens)(x), expected, atol=1e-12)
