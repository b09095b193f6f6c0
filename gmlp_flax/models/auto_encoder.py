"""A model that decodes all tokens from one state of its encoder: MAD's compression task."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from gmlp_flax.models.layers import LayerNorm, Linear
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.models.text import TextModel

# The longest wave of the position encodings, in tokens and divided by 2 pi (Vaswani et al. 2017,
# section 3.5).
LONGEST_WAVE = 10_000.0


def sines(tokens: int, d_model: int) -> np.ndarray:
    """Positions as sines and cosines of geometrically growing wavelengths, float32 [tokens,
    d_model]: all sines first. If the width is odd, the last channel is 0."""
    waves = d_model // 2
    last = max(waves - 1, 1)
    numbers = np.arange(waves)
    exponents = numbers / last
    frequencies = LONGEST_WAVE**-exponents  # radians per token
    positions = np.arange(tokens)
    angles = np.outer(positions, frequencies)  # [tokens, waves]
    sines = np.sin(angles)
    cosines = np.cos(angles)
    channels_left = d_model - 2 * waves
    zeros = np.zeros((tokens, channels_left))
    table = np.concatenate([sines, cosines, zeros], axis=1)
    return table.astype(np.float32)


class AutoEncoder(TextModel):
    """Logits of all tokens from the state of the last one (MAD, arXiv 2403.17844; athms/mad-lab,
    mad/model/auto_encoder.py).

    For each position, its sines are added to the state, and an MLP gives the logits of the token
    there. The MLP has two layers, each with a norm before it and a GELU after it, and a normed head.
    `embedding` are the options of `TextModel`.
    """

    def __init__(self, spec: BlockSpec, vocab_size: int, rngs: nnx.Rngs, **embedding: Any):
        super().__init__(spec, vocab_size, rngs, **embedding)
        width = spec.d_model

        def make_layer() -> Linear:
            return Linear(spec, width, width, rngs, activation=spec.activation)

        self.first_norm = LayerNorm(spec, width)
        self.first = make_layer()
        self.second_norm = LayerNorm(spec, width)
        self.second = make_layer()
        self.last_norm = LayerNorm(spec, width)
        self.head = Linear(spec, width, vocab_size, rngs)

    def __call__(self, tokens: Array, key: Array | None = None) -> Array:
        """float32 logits [batch, tokens, vocab_size]; arguments as in `hidden`."""
        states = self.hidden(tokens, key)
        last = states[:, -1:]  # [batch, 1, d_model]
        length = tokens.shape[1]
        table = sines(length, self.spec.d_model)
        positions = jnp.asarray(table, last.dtype)
        x = last + positions  # [batch, tokens, d_model]
        x = self.first_norm(x)
        x = self.first(x)
        x = self.second_norm(x)
        x = self.second(x)
        x = self.last_norm(x)
        precise = x.astype(self.spec.precise_dtype)
        return self.head(precise)
