import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax.checkpoints.pytree import checksum, from_dict, path_name, to_dict
from gmlp_flax.training.step import TrainState

TYPES = {"float32": np.uint32, "bfloat16": np.uint16, "int32": np.uint32, "uint16": np.uint16}
summed = jax.jit(checksum)


def example(ema):
    params = {"layer": {"kernel": jnp.arange(3.0), "bias": jnp.ones(())}}
    optimizer = optax.adamw(optax.constant_schedule(1e-3))
    window = {"loss": (jnp.zeros(()), jnp.ones(()))}
    return TrainState(
        jnp.zeros((), jnp.int32), params, optimizer.init(params), params if ema else None, window
    )


def test_names_are_paths_of_the_values():
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(example(ema=True))]
    assert {
        "step",
        "params/layer/kernel",
        "ema/layer/bias",
        "opt_state/0/mu/layer/kernel",
        "window/loss/1",
    } <= set(names)
    assert len(set(names)) == len(names)


def test_round_trip_keeps_structure_and_values():
    for ema in (False, True):
        state = example(ema)
        values = to_dict(state)
        assert ("ema" in values) is ema
        back = from_dict(jax.eval_shape(lambda: example(ema)), values)  # noqa: B023
        assert jax.tree.structure(back) == jax.tree.structure(state)
        jax.tree.map(np.testing.assert_array_equal, back, state)


def arrays(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=shape) * 1e3
    return values.astype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@pytest.mark.smoke
@given(
    st.sampled_from(sorted(TYPES)),
    st.sampled_from([(1,), (7,), (3, 4), (2, 3, 5)]),
    st.integers(0, 99),
    st.data(),
)
@settings(max_examples=150)
def test_checksum_changes_with_any_bit(name, shape, seed, data):
    values = arrays(name, shape, seed)
    bits = values.copy().reshape(-1).view(TYPES[name])
    place = data.draw(st.integers(0, bits.size - 1))
    bits[place] ^= TYPES[name](1 << data.draw(st.integers(0, 8 * bits.itemsize - 1)))
    assert summed(values) != summed(bits.view(values.dtype).reshape(shape))


@given(st.sampled_from(sorted(TYPES)), st.integers(0, 99), st.data())
def test_checksum_changes_with_order(name, seed, data):
    values = arrays(name, (3, 7), seed)
    flat = values.copy().reshape(-1)
    one, other = data.draw(st.lists(st.integers(0, 20), min_size=2, max_size=2, unique=True))
    flat[[one, other]] = flat[[other, one]]
    got = summed(values) == summed(flat.reshape(3, 7))
    expected = flat[one] == flat[other]
    assert (got) == (expected)


def test_checksum_of_bits_that_compare_equal():
    assert summed(jnp.array([0.0])) != summed(jnp.array([-0.0]))
    assert summed(jnp.array([0.0, 0.0])) != summed(jnp.array([0.0]))
    got = summed(jnp.array([jnp.nan]))
    expected = summed(jnp.array([jnp.nan]))
    assert got == expected
