"""The auto-encoder, whose last state alone gives the logits of all tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

from gmlp_flax.models import auto_encoder, blocks
from gmlp_flax.models.auto_encoder import AutoEncoder


def model(**options):
    spec = blocks.find("gmlp").spec(length=8, layers=2, d_model=16, d_ffn=32, **options)
    return AutoEncoder(spec, 12, nnx.Rngs(0))


@pytest.mark.slow
def test_logits_depend_only_on_the_last_state_and_the_position():
    auto_encoding = model()
    tokens = jnp.arange(8)[None] % 5
    logits = auto_encoding(tokens)
    assert logits.shape == (1, 8, 12)
    assert logits.dtype == jnp.float32
    states = auto_encoding.hidden(tokens)
    last_state = np.asarray(states[:, -1:])
    x = last_state + auto_encoder.sines(8, 16)
    x = apply_layer(auto_encoding.first_norm, auto_encoding.first, x)
    x = apply_layer(auto_encoding.second_norm, auto_encoding.second, x)
    expected = auto_encoding.head(auto_encoding.last_norm(x))
    assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def apply_layer(norm, linear, x):
    """One layer of the decoder."""
    product = norm(x) @ linear.kernel[...] + linear.bias[...]
    return jax.nn.gelu(product, approximate=False)


def test_sines_are_those_of_the_transformer_paper():
    positions = auto_encoder.sines(6, 4)
    for token, found in enumerate(positions):
        angles = np.array([token, token / 1e4])
        expected = np.concatenate([np.sin(angles), np.cos(angles)])
        assert_allclose(found, expected, rtol=1e-6)
    assert len(positions) == 6


def test_sines_of_odd_widths_end_with_zeros():
    positions = auto_encoder.sines(3, 5)
    assert positions.shape == (3, 5)
    assert not positions[:, 4].any()
