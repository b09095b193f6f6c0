"""What holds for the matrices of every structure."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.models.matrix_mixers.cases import EVERY, FAST, mixer, spec_of, with_form
from tests.models.reference import function_of, in_float64, normal, quick_jit

N = 150
DOCUMENTS = np.zeros((2, N), int)
DOCUMENTS[0, :60] = 1
DOCUMENTS[0, 60:] = 2
DOCUMENTS[1, :135] = 1
DOCUMENTS[1, 135:144] = 2  # and six tokens of padding
MASKS = {
    "none": None,
    "padding": np.arange(N) < np.array([[N], [140]]),
    "documents": DOCUMENTS,
}


@pytest.mark.slow
@FAST
@pytest.mark.parametrize("mask", MASKS)
@in_float64
def test_fast_forms_are_products_with_the_matrix(kind, computed, mask):
    """Outputs and gradients, for more tokens than a chunk of a scan has."""
    module = mixer(kind, computed, length=N)
    x = jnp.asarray(normal(0, 2, N, 6))
    padding_mask = None
    is_text = jnp.ones((2, N, 1), bool)
    if mask != "none":
        padding_mask = jnp.asarray(MASKS[mask])
        is_text = padding_mask[..., None] > 0
    results = []
    for form in ("direct", "fast"):
        state, call = function_of(with_form(module, form))

        def loss(state, x, call=call):
            y = jnp.where(is_text, call(state, x, padding_mask), 0)
            return jnp.sin(y).sum(), y

        gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
        gradients, y = quick_jit(gradient)(state, x)
        results.append([y, *jax.tree.leaves(gradients)])
    of_direct, of_fast = results
    for direct, fast in zip(of_direct, of_fast, strict=True):
        scale = np.abs(direct).max()
        assert_allclose(fast, direct, atol=1e-9 * scale)


@FAST
def test_fast_forms_are_accurate_in_float32(kind, computed):
    """To 1e-5 of the largest output."""
    module = mixer(kind, computed, length=N, dtype="float32")
    x = jnp.asarray(normal(0, 2, N, 6), jnp.float32)
    direct = quick_jit(with_form(module, "direct"))(x)
    fast = quick_jit(with_form(module, "fast"))(x)
    scale = np.abs(direct).max()
    assert_allclose(fast, direct, atol=1e-5 * scale)


@EVERY
def test_computed_matrices_support_every_length(kind, computed):
    """Unless learned positions limit it; learned matrices have at most n tokens."""
    spec = spec_of(kind, computed)
    assert spec.supports_length(5)
    assert spec.supports_length(3)
    assert spec.supports_length(6) == computed
    absolute = dataclasses.replace(spec, positions="absolute")
    assert not absolute.supports_length(6)
