import numpy as np
from flax import nnx

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


@in_float64
def test_mlps_against_loops():
    """With the other activation: blocks' own tests have gelu."""
    spec = small_spec(activation="gelu_tanh", d_ffn=7, d_spatial=7, block="mixer")
    x = normal(0, 2, 5, 6)
    channels, tokens = (
        randomized(lambda kind=kind: kind(spec, nnx.Rngs(0))) for kind in (ChannelMLP, TokenMLP)
    )
    for module, slow in ((channels, channel_mlp), (tokens, token_mlp)):
        expected = [slow(params_of(module), sample, gelu_tanh) for sample in x]
        np.testing.assert_allclose(quick_jit(module)(x), expected, atol=1e-12)
