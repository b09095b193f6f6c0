"""What holds for the matrices of every structure."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.matrix_mixers.cases import EVERY, FAST, mixer, spec_of, with_form
from tests.models.reference import function_of, in_float64, normal, quick_jit


@pytest.mark.slow
@FAST
@pytest.mark.parametrize("mask", ["none", "padding", "documents"])
@in_float64
def test_the_fast_form_is_a_product_with_the_matrix(kind, computed, mask):
    """Outputs and gradients, for more tokens than a chunk of a scan has."""
    n = 150
    module = mixer(kind, computed, length=n)
    x = jnp.asarray(normal(0, 2, n, 6))
    masks = {
        "none": None,
        "padding": np.arange(n) < np.array([[n], [140]]),
        "documents": np.stack([np.repeat([1, 2], [60, 90]), np.repeat([1, 2, 0], [135, 9, 6])]),
    }
    padding_mask = None if mask == "none" else jnp.asarray(masks[mask])
    is_text = jnp.ones((2, n, 1)) if padding_mask is None else padding_mask[..., None] > 0
    results = []
    for form in ("direct", "fast"):
        state, call = function_of(with_form(module, form))

        def loss(state, x, call=call):
            y = jnp.where(is_text, call(state, x, padding_mask), 0)
            return jnp.sin(y).sum(), y

        gradients, y = quick_jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(state, x)
        results.append([y, *jax.tree.leaves(gradients)])
    for direct, fast in zip(*results, strict=True):
        scale = np.abs(direct).max()
        np.testing.assert_allclose(fast, direct, atol=1e-9 * scale)


@FAST
def test_the_fast_form_in_float32(kind, computed):
    """To 1e-5 of the largest output."""
    module = mixer(kind, computed, length=150, dtype="float32")
    x = jnp.asarray(normal(0, 2, 150, 6), jnp.float32)
    direct, fast = (quick_jit(with_form(module, form))(x) for form in ("direct", "fast"))
    np.testing.assert_allclose(fast, direct, atol=1e-5 * np.abs(direct).max())


@EVERY
def test_lengths(kind, computed):
    spec = spec_of(kind, computed)
    assert spec.supports_length(5)
    assert spec.supports_length(3)
    assert spec.supports_length(6) == computed
    absolute = dataclasses.replace(spec, positions="absolute")
    assert not absolute.supports_length(6)
