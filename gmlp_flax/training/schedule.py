"""Learning rate over steps."""

from __future__ import annotations

import optax
from ml_collections import ConfigDict


def learning_rate(config: ConfigDict) -> optax.Schedule:
    """Linear warmup from 0 to the peak, then cosine or linear decay to 0 at the last step, or a constant rate."""
    peak, warmup = config.optimizer.learning_rate, min(config.optimizer.warmup, config.steps)
    decay_steps = max(config.steps - warmup, 1)
    after = {
        "cosine": optax.cosine_decay_schedule(peak, decay_steps),
        "linear": optax.linear_schedule(peak, 0.0, decay_steps),
        "constant": optax.constant_schedule(peak),
    }[config.optimizer.schedule]
    if warmup == 0:
        return after
    # The first step uses peak / warmup: a rate of 0 would change nothing.
    ramp = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([ramp, after], [warmup])
