"""The biases of steps against softplus and the range of steps."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose

from gmlp_flax.models.recurrences.steps import step_bias
from tests.models.reference import in_float64, softplus

LEAST = 1e-3
LARGEST = 0.1


@in_float64
def test_softplus_of_biases_gives_the_drawn_steps():
    """As drawn with the same key, and spread evenly over the logarithms of the range."""
    key = jax.random.key(0)
    shape = (4000,)
    biases = step_bias(key, shape, jnp.float64, (LEAST, LARGEST))
    steps = softplus(np.asarray(biases))
    log_steps = np.log(steps)
    low, high = np.log([LEAST, LARGEST])
    drawn = jax.random.uniform(key, shape, jnp.float64, low, high)
    assert_allclose(log_steps, drawn, atol=1e-11)
    counts, _ = np.histogram(log_steps, bins=4, range=(low, high))
    shares = counts / 4000
    assert_allclose(shares, 0.25, atol=0.03)


def test_small_steps_keep_their_precision_in_float32():
    """log(exp(step) - 1) would lose three digits of a step of 1e-3."""
    key = jax.random.key(1)
    bounds = (1e-4, 1.1e-4)
    biases = step_bias(key, (500,), jnp.float32, bounds)
    steps = softplus(np.asarray(biases, np.float64))
    low, high = np.log(bounds)
    log_steps = jax.random.uniform(key, (500,), jnp.float32, low, high)
    expected = np.exp(np.asarray(log_steps, np.float64))
    assert_allclose(steps, expected, rtol=3e-6)
