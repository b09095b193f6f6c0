import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.blocks.delta import DeltaBlock
from gmlp_flax.models.parameters import metadata
from tests.models import reference
from tests.models.reference import (
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
def test_a_causal_block_is_the_forward_pass_alone():
    module = block_of(causal=True, chunk=4)
    assert module.delta.backward is None
    x = normal(0, 2, 11, 6)
    expected = [reference.delta_block(params_of(module), sample) for sample in x]
    np.testing.assert_allclose(quick_jit(module)(x), expected, atol=1e-10)


@in_float64
def test_chunks_change_nothing():
    x = jnp.asarray(normal(0, 2, 11, 6))
    first, *others = (quick_jit(block_of(chunk=chunk))(x) for chunk in (1, 4, 64))
    assert np.abs(first - x).max() > 0.1
    for other in others:
        np.testing.assert_allclose(other, first, atol=1e-12)


@in_float64
def test_left_differs_from_right():
    """Each direction has gates and short convolutions of its own."""
    module = block_of()
    x = jnp.asarray(normal(0, 1, 7, 6))
    call = quick_jit(module)
    turned = jnp.flip(call(jnp.flip(x, axis=1)), axis=1)
    assert np.abs(turned - call(x)).max() > 1e-2


def test_start_is_as_published():
    """A uniform up to 16, steps from 0.001 to 0.1, and neither is decayed."""
    spec = DeltaBlock.spec(length=8, d_model=512, d_ffn=8, heads=256)
    module = DeltaBlock(spec, nnx.Rngs(0))
    direction = module.delta.forward
    rates = np.exp(direction.a_log[...])
    assert 0 < rates.min() < 1
    assert 15 < rates.max() <= 16
    steps = np.log1p(np.exp(direction.dt_bias[...]))
    assert steps.min() * 1.001 >= 0.001
    assert steps.max() <= 0.1001
    assert np.median(steps) == pytest.approx(0.01, rel=0.3)
    decayed = {path: known.decayed for path, known in metadata(module).items()}
    assert not decayed["delta/forward/a_log"]
    assert not decayed["delta/forward/dt_bias"]
    assert decayed["delta/proj_in/kernel"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 48}, "model.chunk is 48: expected a power of two"),
        ({"expand_k": 0.01}, "model.expand_k is 0.01, which leaves a head of 3 no channels"),
        ({"heads": 4}, "model.heads, 4, must divide it"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small_spec(block="delta", **options)
