"""Quasiseparable matrices, entry by entry, and scans against them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.models.matmul import matmul_flops
from gmlp_flax.models.recurrences import semiseparable
from gmlp_flax.models.recurrences.semiseparable import StateSpaceModel
from tests.models.reference import in_float64, normal, quick_jit


def model_of(seed, n, heads=4, groups=2, state=3, batch=2):
    """Steps of 0.01 to 1, and decays of other sizes."""
    steps = np.exp(-np.abs(normal(seed, batch, heads, n)))
    log_decays = -np.abs(normal(seed + 1, batch, heads, n))
    b = normal(seed + 2, batch, groups, n, state)
    c = normal(seed + 3, batch, groups, n, state)
    return StateSpaceModel(*map(jnp.asarray, (steps, log_decays, b, c)))


def entry(model, example, head, i, j):
    """Row i and column j of the model's matrix SS; j is at most i."""
    heads = model.steps.shape[1]
    group = head * model.b.shape[1] // heads
    decay = sum(model.log_decays[example, head, k] for k in range(j + 1, i + 1))
    product = model.c[example, group, i] @ model.b[example, group, j]
    return product * model.steps[example, head, j] * math.exp(decay)


def backwards(model):
    return StateSpaceModel(*(np.flip(array, 2) for array in model))


@pytest.mark.parametrize("is_causal", [True, False])
@in_float64
def test_entries_of_a_matrix(is_causal):
    """The forward model shifted down by a token, the backward one reversed and shifted up; 0 on the
    diagonal."""
    n = 6
    forward = model_of(0, n)
    backward = None if is_causal else model_of(9, n)
    found = semiseparable.rows(forward, backward)
    assert found.shape == (2, 4, n, n)
    for example, head, i, j in np.ndindex(found.shape):
        expected = 0.0
        if j < i:
            expected = entry(forward, example, head, i - 1, j)
        elif j > i and backward is not None:
            expected = entry(backwards(backward), example, head, n - 2 - i, n - 1 - j)
        np.testing.assert_allclose(found[example, head, i, j], expected, atol=1e-12)


@in_float64
def test_some_rows_are_those_of_the_whole_matrix():
    forward = model_of(0, 7)
    backward = model_of(9, 7)
    whole = semiseparable.rows(forward, backward)
    some = quick_jit(lambda first: semiseparable.rows(forward, backward, first, 3))(2)
    np.testing.assert_allclose(some, whole[:, :, 2:5], atol=1e-12)


def documents_of(n):
    """Documents of different lengths, from 1; those of the second example end in padding."""
    first = np.repeat([1, 2, 3], [n // 2, 1, n - n // 2 - 1])
    second = np.repeat([1, 2, 0], [n // 3, n // 3, n - 2 * (n // 3)])
    return jnp.asarray(np.stack([first, second]))


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 128, 300])
@pytest.mark.parametrize("by_document", [False, True])
@pytest.mark.parametrize("is_causal", [True, False])
@in_float64
def test_a_scan_is_a_product_with_the_matrix(n, by_document, is_causal):
    """In one chunk, two and five; gradients as well."""
    forward = model_of(0, n)
    backward = None if is_causal else model_of(9, n)
    v = jnp.asarray(normal(5, 2, 4, n, 3))
    documents = documents_of(n) if by_document else None

    def as_matrix(forward, backward, v):
        return semiseparable.rows(forward, backward, documents=documents) @ v

    def as_scan(forward, backward, v):
        return semiseparable.mix(forward, backward, v, documents)

    outputs = []
    gradients = []
    for function in (as_matrix, as_scan):

        def loss(*inputs, function=function):
            y = function(*inputs)
            if documents is not None:
                y = jnp.where((documents > 0)[:, None, :, None], y, 0)
            return jnp.sin(y).sum(), y

        gradient, y = quick_jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(
            forward, backward, v
        )
        outputs.append(y)
        gradients.append(gradient)
    np.testing.assert_allclose(*outputs, atol=1e-11)
    for found, expected in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.slow
@in_float64
def test_decays_that_underflow_have_no_nan():
    """exp(-800) is 0, and a quotient of two of them would be no number."""
    n = 200
    forward = model_of(0, n)._replace(log_decays=jnp.full((2, 4, n), -800.0))
    v = jnp.asarray(normal(5, 2, 4, n, 3))

    def loss(forward, v):
        return semiseparable.mix(forward, None, v).sum()

    gradient = quick_jit(jax.grad(loss, argnums=(0, 1)))(forward, v)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    found = semiseparable.mix(forward, None, v)
    near = [entry(forward, 0, 0, i, i) * v[0, 0, i] for i in range(n - 1)]
    np.testing.assert_allclose(found[0, 0, 1:], near, atol=1e-12)


def test_a_scan_costs_twice_as_much_for_twice_the_tokens():
    def flops(n):
        forward = model_of(0, n)
        v = jnp.ones((2, 4, n, 3))
        return matmul_flops(semiseparable.mix, forward, forward, v)

    assert flops(2048) == 2 * flops(1024)
