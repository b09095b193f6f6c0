import numpy as np
from flax import nnx
from numpy.testing import assert_allclose

from gmlp_flax.models.blocks.mixer import MixerBlock
from tests.models.reference import (
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
    spec = small_spec(**{"block": "mixer", "d_spatial": 4} | fields)
    return MixerBlock(spec, nnx.Rngs(0))


def silenced(module, branch):
    """The block with one of its MLPs adding 0."""
    out = getattr(module, branch).proj_out
    for name in ("kernel", "weight", "bias"):
        if hasattr(out, name):
            parameter = getattr(out, name)
            parameter[...] = np.zeros(parameter.shape)
    return module


@in_float64
def test_mlp_over_tokens_reads_each_channel_of_the_normed_input():
    """The norm is over channels: a number that is added to all channels of a token changes only
    what the branch is added to."""
    module = silenced(randomized(block), "mlp")
    call = quick_jit(module)
    p = params_of(module)
    x = normal(0, 5, 6)
    normed = layer_norm(p["token_norm"], x)
    expected = x + token_mlp(p["token_mlp"], normed)
    [found] = call(x[None])
    assert_allclose(found, expected, atol=1e-10)
    shift = normal(1, 5, 1)
    [shifted] = call((x + shift)[None])
    assert_allclose(shifted, expected + shift, atol=1e-4)  # except for the epsilon


@in_float64
def test_mlp_over_channels_mixes_no_tokens():
    call = quick_jit(silenced(randomized(block), "token_mlp"))
    x = normal(0, 1, 5, 6)
    other = x.copy()
    other[:, 2] = 7.0
    difference = np.abs(call(x) - call(other))
    is_changed = difference.max(axis=(0, 2)) > 0
    assert is_changed.tolist() == [False, False, True, False, False]


def test_both_mlps_have_their_own_widths():
    """d_spatial counts the hidden numbers of a channel, d_ffn those of a token."""
    params = params_of(block(dtype="float32"))
    token_mlp = params["token_mlp"]
    mlp = params["mlp"]
    assert token_mlp["proj_in"]["weight"].shape == (4, 5)
    assert token_mlp["proj_out"]["weight"].shape == (5, 4)
    assert mlp["proj_in"]["kernel"].shape == (6, 8)
    assert mlp["proj_out"]["kernel"].shape == (8, 6)
    assert params["token_norm"]["scale"].shape == (6,)
