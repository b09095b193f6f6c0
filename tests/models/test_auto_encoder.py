"""The auto-encoder: all of a text goes through the state of its last token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models import auto_encoder, blocks
from gmlp_flax.models.auto_encoder import AutoEncoder


def model(**options):
    spec = blocks.find("gmlp").spec(length=8, layers=2, d_model=16, d_ffn=32, **options)
    return AutoEncoder(spec, 12, nnx.Rngs(0))


@pytest.mark.slow
def test_logits_depend_on_the_last_state_and_the_position_alone():
    made = model()
    tokens = jnp.arange(8)[None] % 5
    logits = made(tokens)
    assert logits.shape == (1, 8, 12)
    assert logits.dtype == jnp.float32
    last = np.asarray(made.hidden(tokens)[:, -1:])
    x = last + auto_encoder.sines(8, 16)
    for norm, layer in ((made.first_norm, made.first), (made.second_norm, made.second)):
        product = norm(x) @ layer.kernel[...] + layer.bias[...]
        x = jax.nn.gelu(product, approximate=False)
    expected = made.head(made.last_norm(x))
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_sines_are_those_of_the_transformers_paper():
    positions = auto_encoder.sines(6, 4)
    for token in range(6):
        expected = [np.sin(token), np.sin(token / 1e4), np.cos(token), np.cos(token / 1e4)]
        np.testing.assert_allclose(positions[token], expected, rtol=1e-6)
    assert auto_encoder.sines(3, 5).shape == (3, 5)
    assert not auto_encoder.sines(3, 5)[:, 4].any()
