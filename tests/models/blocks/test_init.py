"""What all blocks have in common."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.checkpoints.pytree import path_name
from gmlp_flax.models.blocks import BLOCKS
from tests.models.blocks.calls import add, branches
from tests.models.reference import function_of, in_float64, normal, quick_jit, randomized, small_spec

TRANSFORMER = {"block": "transformer", "heads": 3}
CASES = {
    "gmlp": {"block": "gmlp"},
    "amlp": {"block": "gmlp", "d_attn": 3},
    "mixer": {"block": "mixer", "d_spatial": 4},
    "resmlp": {"block": "resmlp"},
    "feed_forward": {"block": "feed_forward", "d_spatial": 20},
    "transformer": TRANSFORMER,
    "relative": TRANSFORMER | {"positions": "relative"},
    "relative in buckets": TRANSFORMER | {"positions": "relative", "relative_buckets": 4},
    "relative_only": TRANSFORMER | {"positions": "relative_only"},
    "relative_only in buckets": TRANSFORMER | {"positions": "relative_only", "relative_buckets": 6},
    "fnet": {"block": "fnet", "norm": "pre"},
    "fnet_hybrid": {"block": "fnet_hybrid", "norm": "pre"},
    **{
        name: {"block": "synthesizer", "synthesizer": name}
        for name in (
            "random",
            "factorized_random",
            "dense",
            "factorized_dense",
            "random+attention",
            "dense+factorized_random",
        )
    },
    "external_attention": {"block": "external_attention"},
    "external_attention over memory": {"block": "external_attention", "memory_softmax": "memory"},
    "lightweight": {"block": "convolution"},
    "dynamic": {"block": "convolution", "convolution": "dynamic"},
}
# A softmax over tokens does not see what is added to all of them. The paper's convolution has this bias too.
WITHOUT_EFFECT = {"external_attention": ("mixing_norm/bias", "external/proj_in/bias")}
EVERY = pytest.mark.parametrize("name", CASES)


def block(name, **fields):
    fields = CASES[name] | fields
    return BLOCKS[fields["block"]](small_spec(**fields), nnx.Rngs(0))


def test_every_block_is_here():
    assert {fields["block"] for fields in CASES.values()} == set(BLOCKS)


@EVERY
@in_float64
def test_each_branch_goes_through_the_residual_of_its_caller(name):
    """Each starts from the sum of all before it."""
    module, x = randomized(lambda: block(name)), normal(0, 1, 5, 6)
    y, found = branches(module, x)
    assert len(found) == (1 if CASES[name]["block"] == "gmlp" else 2)
    for shortcut, branch in found:
        np.testing.assert_allclose(shortcut, x, atol=1e-14)
        assert np.abs(branch).max() > 0.1
        x = x + branch
    np.testing.assert_allclose(y, x, atol=1e-14)


@EVERY
@in_float64
def test_gradients_are_finite_and_reach_every_parameter(name):
    state, call = function_of(randomized(lambda: block(name)))
    gradient = quick_jit(jax.grad(lambda state, x: (call(state, x, add) ** 2).sum()))(state, normal(0, 2, 5, 6))
    for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(gradient)):
        reached = path_name(path) not in WITHOUT_EFFECT.get(name, ())
        assert np.isfinite(leaf).all() and (np.abs(leaf).max() > 1e-6) == reached, path


@EVERY
def test_bfloat16_is_near_float32(name):
    rough, exact = (
        randomized(lambda dtype=dtype: block(name, dtype=dtype), std=0.3) for dtype in ("bfloat16", "float32")
    )
    x = jnp.asarray(normal(0, 2, 5, 6), jnp.bfloat16)
    y = quick_jit(lambda x: rough(x, add))(x)
    expected = quick_jit(lambda x: exact(x, add))(x.astype(jnp.float32))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.06)


@pytest.mark.parametrize("tokens", [1, 4, 6])
@pytest.mark.parametrize("name", ["mixer", "resmlp", "feed_forward"])
def test_other_numbers_of_tokens_are_refused(name, tokens):
    """Though the stack's norm over tokens would fail on them, and a single token would be broadcast."""
    with pytest.raises(ValueError, match=f"the layer over tokens was made for exactly 5 tokens and was given {tokens}"):
        block(name, dtype="float32")(jnp.ones((1, tokens, 6)), add)
