"""Learning rate over steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict


def learning_rate(config: ConfigDict) -> optax.Schedule:
    """Linear warmup from peak / warmup to the peak; then cosine or linear decay that would reach 0 one step after the
    last, a constant rate, or a decay with 1 / sqrt(step), whatever the number of steps (Vaswani et al. 2017, section
    5.3)."""
    peak, warmup = config.optimizer.learning_rate, config.optimizer.warmup
    if config.optimizer.schedule != "rsqrt":
        warmup = min(warmup, config.steps)
    decay_steps = max(config.steps - warmup, 1)
    after = {
        "cosine": optax.cosine_decay_schedule(peak, decay_steps),
        "linear": optax.linear_schedule(peak, 0.0, decay_steps),
        "constant": optax.constant_schedule(peak),
        "rsqrt": lambda since: peak * jax.lax.rsqrt(1 + jnp.asarray(since, jnp.float32) / max(warmup, 1)),
    }[config.optimizer.schedule]
    if warmup == 0:
        return after
    # The first step uses peak / warmup: a rate of 0 would change nothing.
    ramp = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([ramp, after], [warmup])
