"""An encoder whose last state alone is decoded: MAD's task of compression."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from gmlp_flax.models.layers import LayerNorm, Linear
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.models.text import TextModel

LONGEST_WAVE = 10_000.0  # of the sines of positions, divided by 2 pi (Vaswani et al. 2017, 3.5)


def sines(tokens: int, d_model: int) -> np.ndarray:
    """Positions as sines and cosines of geometrically growing wavelengths, float32 [tokens,
    d_model]; of an odd width, the last channel is 0."""
    waves = d_model // 2
    last = max(waves - 1, 1)
    exponents = np.arange(waves) / last
    frequencies = LONGEST_WAVE**-exponents
    numbers = np.arange(tokens)
    angles = np.outer(numbers, frequencies)  # [tokens, waves]
    channels_left = d_model - 2 * waves
    zeros = np.zeros((tokens, channels_left))
    positions = np.concatenate([np.sin(angles), np.cos(angles), zeros], axis=1)
    return positions.astype(np.float32)


class AutoEncoder(TextModel):
    """Logits of all tokens from the state of the last one (MAD, arXiv 2403.17844; athms/mad-lab,
    mad/model/auto_encoder.py): to the state the sines of each position are added, and an MLP of two
    layers, each with a norm before it and a GELU behind, gives the logits of the token there.

    `embedding` are the options of `TextModel`.
    """

    def __init__(self, spec: BlockSpec, vocab_size: int, rngs: nnx.Rngs, **embedding: Any):
        super().__init__(spec, vocab_size, rngs, **embedding)
        width = spec.d_model
        self.first_norm = LayerNorm(spec, width)
        self.first = Linear(spec, width, width, rngs, activation=spec.activation)
        self.second_norm = LayerNorm(spec, width)
        self.second = Linear(spec, width, width, rngs, activation=spec.activation)
        self.last_norm = LayerNorm(spec, width)
        self.head = Linear(spec, width, vocab_size, rngs)

    def __call__(self, tokens: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """float32 logits [batch, tokens, vocab_size]; arguments as in `hidden`."""
        states = self.hidden(tokens, key)
        last = states[:, -1:]
        length = tokens.shape[1]
        table = sines(length, self.spec.d_model)
        positions = jnp.asarray(table, last.dtype)
        x = last + positions
        x = self.first_norm(x)
        x = self.first(x)
        x = self.second_norm(x)
        x = self.second(x)
        x = self.last_norm(x)
        precise = x.astype(self.spec.precise_dtype)
        return self.head(precise)
