import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

from gmlp_flax.models.blocks.feed_forward import FeedForwardBlock
from tests.models.reference import (
    channel_mlp,
    in_float64,
    layer_norm,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
    token_mlp,
)


def block(**fields):
    spec = small_spec(**{"block": "feed_forward", "d_spatial": 20} | fields)
    return FeedForwardBlock(spec, nnx.Rngs(0))


@in_float64
def test_mlp_over_channels_comes_first():
    """The other order, the Mixer's, gives other numbers."""
    module = randomized(block)
    p = params_of(module)
    x = normal(0, 5, 6)

    def over_channels(x):
        normed = layer_norm(p["mlp_norm"], x)
        return x + channel_mlp(p["mlp"], normed)

    def over_tokens(x):
        normed = layer_norm(p["token_norm"], x.T)
        return x + token_mlp(p["token_mlp"], normed.T)

    [found] = quick_jit(module)(x[None])
    assert_allclose(found, over_tokens(over_channels(x)), atol=1e-10)
    difference = found - over_channels(over_tokens(x))
    assert np.abs(difference).max() > 1e-2


@in_float64
def test_norm_before_the_mlp_over_tokens_is_over_tokens():
    """A number that is added to all tokens of a channel changes only what the branch is added
    to."""
    module = randomized(block)
    out = module.mlp.proj_out
    out.kernel[...] = np.zeros(out.kernel.shape)
    out.bias[...] = np.zeros(out.bias.shape)
    x = normal(0, 1, 5, 6)
    shift = normal(1, 6)
    shifted = quick_jit(module)(x + shift)
    assert_allclose(shifted, quick_jit(module)(x) + shift, atol=1e-10)


@pytest.mark.slow
def test_parameters_have_the_shapes_of_channels_or_tokens():
    """The norm over tokens has n scales and biases."""
    params = params_of(block(dtype="float32"))
    token_norm = params["token_norm"]
    assert token_norm["scale"].shape == (5,)
    assert token_norm["bias"].shape == (5,)
    assert params["mlp_norm"]["scale"].shape == (6,)
    assert params["token_mlp"]["proj_in"]["weight"].shape == (20, 5)
    assert params["mlp"]["proj_in"]["kernel"].shape == (6, 8)
