"""The block of docs/results/feed_forward_order.py equals the package's blocks in the published order
and in the Mixer's."""

import jax
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

from docs.results.feed_forward_order import FeedForwardOrder, RMSNorm
from gmlp_flax.models.blocks.feed_forward import FeedForwardBlock
from gmlp_flax.models.blocks.mixer import MixerBlock

SHAPE = dict(length=5, d_model=8, d_ffn=12, d_spatial=7, layers=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "first", "norm"),
    [(FeedForwardBlock, False, "tokens"), (MixerBlock, True, "channels")],
)
def test_each_order_equals_its_block(block, first, norm):
    spec = FeedForwardOrder.spec(**SHAPE, token_mlp_first=first, token_norm=norm)
    ordered = FeedForwardOrder(spec, nnx.Rngs(0))
    reference = block(block.spec(**SHAPE), nnx.Rngs(1))
    state = random_like(nnx.state(reference))
    nnx.update(reference, state)
    nnx.update(ordered, state)
    x = jax.random.normal(jax.random.key(2), (2, 5, 8))
    assert_allclose(ordered(x), reference(x), rtol=1e-5, atol=1e-5)


def random_like(state):
    """Normally distributed parameters of the same shapes."""
    leaves, structure = jax.tree.flatten(state)
    keys = jax.random.split(jax.random.key(3), len(leaves))
    drawn = []
    for key, leaf in zip(keys, leaves, strict=True):
        drawn.append(jax.random.normal(key, leaf.shape))
    return jax.tree.unflatten(structure, drawn)


def test_rms_norm_subtracts_no_mean():
    spec = FeedForwardOrder.spec(**SHAPE)
    noise = np.random.default_rng(0).standard_normal((3, 5))
    x = np.float32(noise) + 1
    mean_square = (x**2).mean(-1, keepdims=True)
    root_mean_square = np.sqrt(mean_square + spec.norm_eps)
    norm = RMSNorm(spec, 5)
    y = norm(jax.numpy.asarray(x))
    assert_allclose(y, x / root_mean_square, rtol=1e-5)
