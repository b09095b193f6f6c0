"""The block of docs/results/feed_forward_order.py: published, and in the Mixer's order, it is our
blocks; its norm."""

import jax
import numpy as np
import pytest
from flax import nnx

from docs.results.feed_forward_order import FeedForwardOrder, RMSNorm
from gmlp_flax.models.blocks.feed_forward import FeedForwardBlock
from gmlp_flax.models.blocks.mixer import MixerBlock

SHAPE = dict(length=5, d_model=8, d_ffn=12, d_spatial=7, layers=1)


@pytest.mark.parametrize(
    ("block", "first", "norm"),
    [(FeedForwardBlock, False, "tokens"), (MixerBlock, True, "channels")],
)
def test_it_is_the_block_of_that_order(block, first, norm):
    own = FeedForwardOrder(
        FeedForwardOrder.spec(**SHAPE, token_mlp_first=first, token_norm=norm), nnx.Rngs(0)
    )
    ours = block(block.spec(**SHAPE), nnx.Rngs(1))
    keys = iter(jax.random.split(jax.random.key(3), 100))
    state = jax.tree.map(lambda leaf: jax.random.normal(next(keys), leaf.shape), nnx.state(ours))
    nnx.update(ours, state)
    nnx.update(own, state)
    x = jax.random.normal(jax.random.key(2), (2, 5, 8))
    np.testing.assert_allclose(own(x), ours(x), rtol=1e-5, atol=1e-5)


def test_a_norm_that_subtracts_no_mean():
    spec = FeedForwardOrder.spec(**SHAPE)
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32) + 1
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + spec.norm_eps)
    got = RMSNorm(spec, 5)(jax.numpy.asarray(x))
    np.testing.assert_allclose(got, expected, rtol=1e-5)
