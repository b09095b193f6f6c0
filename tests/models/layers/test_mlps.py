import pytest
from flax import nnx
from numpy.testing import assert_allclose

from gmlp_flax.models.layers import ChannelMLP, TokenMLP
from tests.models.reference import (
    channel_mlp,
    gelu_tanh,
    in_float64,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
    token_mlp,
)


@pytest.mark.parametrize(
    ("kind", "slow"),
    [
        pytest.param(ChannelMLP, channel_mlp, id="over channels"),
        pytest.param(TokenMLP, token_mlp, id="over tokens"),
    ],
)
@in_float64
def test_mlps_agree_with_loops(kind, slow):
    """With the other activation: blocks' own tests have gelu."""
    spec = small_spec(activation="gelu_tanh", d_ffn=7, d_spatial=7, block="mixer")
    module = randomized(lambda: kind(spec, nnx.Rngs(0)))
    x = normal(0, 2, 5, 6)
    expected = [slow(params_of(module), sample, gelu_tanh) for sample in x]
    assert_allclose(quick_jit(module)(x), expected, atol=1e-12)
