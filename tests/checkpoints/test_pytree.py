import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from gmlp_flax.checkpoints.pytree import checksum, from_dict, path_name, to_dict
from gmlp_flax.training.step import TrainState

TYPES = {"float32": np.uint32, "bfloat16": np.uint16, "int32": np.uint32, "uint16": np.uint16}
summed = jax.jit(checksum)


def example(ema):
    params = {"layer": {"kernel": jnp.arange(3.0), "bias": jnp.ones(())}}
    optimizer = optax.adamw(optax.constant_schedule(1e-3))
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        ema=params if ema else None,
        window={"loss": (jnp.zeros(()), jnp.ones(()))},
    )


def test_names_are_paths_of_the_values():
    leaves = jax.tree_util.tree_leaves_with_path(example(ema=True))
    names = [path_name(path) for path, _ in leaves]
    expected = {
        "step",
        "params/layer/kernel",
        "ema/layer/bias",
        "opt_state/0/mu/layer/kernel",
        "window/loss/1",
    }
    assert expected <= set(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("ema", [False, True])
def test_round_trip_keeps_structure_and_values(ema):
    state = example(ema)
    values = to_dict(state)
    assert ("ema" in values) is ema
    template = jax.eval_shape(lambda: example(ema))
    restored = from_dict(template, values)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    jax.tree.map(assert_array_equal, restored, state)


def arrays(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(scale=1e3, size=shape)
    dtype = ml_dtypes.bfloat16 if name == "bfloat16" else name
    return values.astype(dtype)


NAMES = st.sampled_from(sorted(TYPES))
SHAPES = st.sampled_from([(1,), (7,), (3, 4), (2, 3, 5)])
SEEDS = st.integers(0, 99)


@pytest.mark.slow
@pytest.mark.smoke
@given(NAMES, SHAPES, SEEDS, st.data())
@settings(max_examples=150)
def test_checksum_changes_with_any_bit(name, shape, seed, data):
    values = arrays(name, shape, seed)
    unsigned = TYPES[name]
    bits = values.copy().reshape(-1).view(unsigned)
    position = data.draw(st.integers(0, bits.size - 1))
    bit = data.draw(st.integers(0, 8 * bits.itemsize - 1))
    bits[position] ^= unsigned(1 << bit)
    changed = bits.view(values.dtype).reshape(shape)
    assert summed(values) != summed(changed)


PAIRS = st.lists(st.integers(0, 20), min_size=2, max_size=2, unique=True)


@given(NAMES, SEEDS, PAIRS)
def test_checksum_changes_with_order(name, seed, pair):
    values = arrays(name, (3, 7), seed)
    swapped = values.copy().reshape(-1)
    first, second = pair
    swapped[[first, second]] = swapped[[second, first]]
    is_same_checksum = summed(values) == summed(swapped.reshape(3, 7))
    are_equal_values = swapped[first] == swapped[second]
    assert is_same_checksum == are_equal_values


def test_checksum_distinguishes_zeros():
    zero = summed(jnp.array([0.0]))
    negative_zero = summed(jnp.array([-0.0]))
    two_zeros = summed(jnp.array([0.0, 0.0]))
    assert zero != negative_zero
    assert zero != two_zeros


def test_checksum_of_nan_is_reproducible():
    first = summed(jnp.array([jnp.nan]))
    second = summed(jnp.array([jnp.nan]))
    assert first == second
