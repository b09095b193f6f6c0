import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

from gmlp_flax.models.blocks.delta import DeltaBlock
from gmlp_flax.models.parameters import metadata
from tests.models import reference
from tests.models.reference import (
    by_example,
    in_float64,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)


def block_of(**fields):
    spec = small_spec(**{"block": "delta"} | fields)
    return randomized(lambda: DeltaBlock(spec, nnx.Rngs(0)))


@in_float64
def test_causal_blocks_have_only_the_forward_pass():
    module = block_of(causal=True, chunk=4)
    assert module.delta.backward is None
    x = normal(0, 2, 11, 6)
    expected = by_example(reference.delta_block, params_of(module), x)
    assert_allclose(quick_jit(module)(x), expected, atol=1e-10)


@in_float64
def test_outputs_do_not_depend_on_the_chunk():
    x = jnp.asarray(normal(0, 2, 11, 6))
    expected = quick_jit(block_of(chunk=1))(x)
    assert np.abs(expected - x).max() > 0.1
    for chunk in (4, 64):
        y = quick_jit(block_of(chunk=chunk))(x)
        assert_allclose(y, expected, atol=1e-12)


@in_float64
def test_the_two_directions_differ():
    """Each has its own gates and short convolutions."""
    call = quick_jit(block_of())
    x = jnp.asarray(normal(0, 1, 7, 6))
    of_reversed = call(jnp.flip(x, axis=1))
    difference = jnp.flip(of_reversed, axis=1) - call(x)
    assert np.abs(difference).max() > 1e-2


@pytest.fixture(scope="module")
def fresh_block():
    spec = DeltaBlock.spec(length=8, d_model=512, d_ffn=8, heads=256)
    return DeltaBlock(spec, nnx.Rngs(0))


def test_initial_rates_are_uniform_up_to_16(fresh_block):
    rates = np.exp(fresh_block.delta.forward.a_log[...])
    assert 0 < rates.min() < 1
    assert 15 < rates.max() <= 16


def test_initial_steps_are_from_0_001_to_0_1(fresh_block):
    biases = np.asarray(fresh_block.delta.forward.dt_bias[...])
    steps = reference.softplus(biases)
    assert steps.min() * 1.001 >= 0.001
    assert steps.max() <= 0.1001
    assert np.median(steps) == pytest.approx(0.01, rel=0.3)


def test_rates_and_steps_are_not_decayed(fresh_block):
    found = metadata(fresh_block)
    assert not found["delta/forward/a_log"].decayed
    assert not found["delta/forward/dt_bias"].decayed
    assert found["delta/proj_in/kernel"].decayed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 48}, "model.chunk is 48: expected a power of two"),
        ({"expand_k": 0.01}, "model.expand_k is 0.01, which leaves a head of 3 no channels"),
        ({"heads": 4}, "model.heads, 4, must divide it"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small_spec(block="delta", **options)
