import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.blocks.bigs import BiGSBlock
from gmlp_flax.models.parameters import metadata
from gmlp_flax.models.recurrences.state_space import CHUNK
from tests.models import reference
from tests.models.reference import (
    by_example,
    function_of,
    in_float64,
    largest_array,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)


def block_of(**fields):
    spec = small_spec(**{"block": "bigs", "d_state": 4} | fields)
    return randomized(lambda: BiGSBlock(spec, nnx.Rngs(0)))


@pytest.mark.parametrize("state_spaces", [1, 3])
@in_float64
def test_causal_blocks_have_only_the_forward_direction(state_spaces):
    """In one piece, and chunk by chunk."""
    module = block_of(causal=True, state_spaces=state_spaces)
    assert module.backward is None
    for tokens in (5, CHUNK + 3):
        x = normal(0, 2, tokens, 6)
        expected = by_example(reference.bigs_block, params_of(module), x)
        assert_allclose(quick_jit(module)(x), expected, atol=1e-10)


@pytest.fixture(scope="module")
def fresh_block():
    spec = BiGSBlock.spec(length=8, d_model=256, d_ffn=8, state_spaces=256)
    return BiGSBlock(spec, nnx.Rngs(0))


def test_initial_modes_are_those_of_hippo(fresh_block):
    """And D is 1."""
    ssm = fresh_block.forward.ssm
    assert_array_equal(ssm.a_real[...], -0.5)
    assert ssm.a_imag.shape == (256, 64)
    assert (ssm.d[...] == 1).all()
    assert ssm.c[...].std() == pytest.approx(0.5**0.5, rel=0.02)


def test_initial_steps_are_from_0_01_to_1(fresh_block):
    steps = np.exp(fresh_block.forward.ssm.log_step[...])
    assert 0.01 <= steps.min() < 0.015
    assert 0.7 < steps.max() <= 1
    assert np.median(steps) == pytest.approx(0.1, rel=0.3)


def test_state_spaces_are_not_decayed(fresh_block):
    decayed = []
    for path, found in metadata(fresh_block).items():
        if "/ssm/" in path:
            decayed.append(found.decayed)
    assert decayed == [False] * 10


@pytest.mark.parametrize("causal", [False, True])
def test_one_state_space_per_channel_needs_no_matrix_per_channel(causal):
    tokens = 1024
    channels = 16
    spec = BiGSBlock.spec(
        length=tokens,
        d_model=channels,
        d_ffn=channels,
        state_spaces=channels,
        d_state=8,
        causal=causal,
    )
    module = nnx.eval_shape(lambda: BiGSBlock(spec, nnx.Rngs(0)))
    state, call = function_of(module)
    x = jax.ShapeDtypeStruct((1, tokens, channels), jnp.float32)
    matrices_of_chunks = 4 * channels * CHUNK**2
    assert largest_array(call, state, x) <= matrices_of_chunks
    assert matrices_of_chunks < channels * tokens**2 / 8


def test_state_spaces_must_divide_the_channels():
    with pytest.raises(ValueError, match="model.d_model is 6: model.state_spaces, 4, must divide"):
        small_spec(block="bigs", state_spaces=4)
