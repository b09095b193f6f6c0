"""Steps of recurrences, softplus(logit + bias), at the start of training."""

import math

import jax
import jax.numpy as jnp
from jax import Array


def step_bias(
    key: Array, shape: tuple[int, ...], dtype: jnp.dtype, steps: tuple[float, float]
) -> Array:
    """Biases whose softplus is log-uniform in a range of steps, as in the code of Mamba (arXiv
    2312.00752).

    Args:
        key: a random key.
        shape: that of the result.
        dtype: that of the result.
        steps: the least and the largest step, above 0.
    """
    least, largest = steps
    low = math.log(least)
    high = math.log(largest)
    log_steps = jax.random.uniform(key, shape, dtype, low, high)
    drawn = jnp.exp(log_steps)
    # The inverse of softplus is log(exp(step) - 1), which is step + log(1 - exp(-step)).
    rest = -jnp.expm1(-drawn)  # 1 - exp(-step)
    log_rest = jnp.log(rest)
    return drawn + log_rest
