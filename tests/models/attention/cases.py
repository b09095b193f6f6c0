"""The narrow Transformer of the tests of attention, and its inputs."""

import jax.numpy as jnp
import numpy as np

from gmlp_flax.models import blocks

ROTARY = {"positions": "rotary", "local_rotary_theta": 100.0}


def transformer(length=24, **options):
    """A spec of a narrow Transformer."""
    sizes = {"layers": 2, "d_model": 16, "d_ffn": 24, "heads": 2}
    return blocks.find("transformer").spec(length=length, **sizes | options)


def normal(*shape, seed=0):
    """Normal numbers in float32."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)
