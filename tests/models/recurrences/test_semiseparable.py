"""Quasiseparable matrices against their definition, and scans against the matrices."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from gmlp_flax.models.matmul import matmul_flops
from gmlp_flax.models.recurrences import semiseparable
from gmlp_flax.models.recurrences.semiseparable import StateSpaceModel
from tests.models.reference import in_float64, normal, quick_jit


def model_of(seed, n, heads=4, groups=2, state=3, batch=2):
    """Steps of 0.01 to 1, and decays of other sizes."""
    of_heads = (batch, heads, n)
    of_groups = (batch, groups, n, state)
    step_logits = normal(seed, *of_heads)
    decay_logits = normal(seed + 1, *of_heads)
    model = StateSpaceModel(
        steps=np.exp(-np.abs(step_logits)),
        log_decays=-np.abs(decay_logits),
        b=normal(seed + 2, *of_groups),
        c=normal(seed + 3, *of_groups),
    )
    return jax.tree.map(jnp.asarray, model)


def entry(model, example, head, i, j):
    """Row i and column j of the model's matrix SS; j is at most i."""
    _, heads, _ = model.steps.shape
    _, groups, *_ = model.b.shape
    group = head * groups // heads
    column = model.b[example, group, j]
    row = model.c[example, group, i]
    step = model.steps[example, head, j]
    stop = i + 1
    between = model.log_decays[example, head, j + 1 : stop]
    decay = math.exp(between.sum())
    return (row @ column) * step * decay


def reversed_model(model):
    return jax.tree.map(lambda array: jnp.flip(array, 2), model)


@pytest.mark.parametrize("is_causal", [True, False])
@in_float64
def test_matrices_agree_with_their_definition(is_causal):
    """The forward model shifted down by a token, the backward one reversed and shifted up; 0 on the
    diagonal."""
    n = 6
    forward = model_of(0, n)
    backward = None if is_causal else model_of(9, n)
    matrices = semiseparable.rows(forward, backward)
    assert matrices.shape == (2, 4, n, n)
    in_reverse = None if is_causal else reversed_model(backward)
    expected = np.zeros(matrices.shape)
    indices = np.ndindex(matrices.shape)
    for example, head, i, j in indices:
        index = (example, head, i, j)
        if j < i:
            before = i - 1
            expected[index] = entry(forward, example, head, before, j)
        elif j > i and in_reverse is not None:
            row = n - 2 - i
            column = n - 1 - j
            expected[index] = entry(in_reverse, example, head, row, column)
    assert_allclose(matrices, expected, atol=1e-12)


@in_float64
def test_some_rows_are_those_of_the_whole_matrix():
    forward = model_of(0, 7)
    backward = model_of(9, 7)

    @quick_jit
    def three_rows(first):
        return semiseparable.rows(forward, backward, first, 3)

    whole = semiseparable.rows(forward, backward)
    assert_allclose(three_rows(2), whole[:, :, 2:5], atol=1e-12)


def documents_of(n):
    """Documents of different lengths, from 1; those of the second example end in padding."""
    documents = np.zeros((2, n), int)
    first, second = documents
    half = n // 2
    first[:half] = 1
    first[half : half + 1] = 2
    first[half + 1 :] = 3
    third = n // 3
    second[:third] = 1
    second[third : 2 * third] = 2
    return jnp.asarray(documents)


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 128, 300])
@pytest.mark.parametrize("by_document", [False, True])
@pytest.mark.parametrize("is_causal", [True, False])
@in_float64
def test_scans_are_products_with_the_matrix(n, by_document, is_causal):
    """In one chunk, two and five; gradients as well."""
    forward = model_of(0, n)
    backward = None if is_causal else model_of(9, n)
    numbers = normal(5, 2, 4, n, 3)
    v = jnp.asarray(numbers)
    documents = documents_of(n) if by_document else None

    def as_matrix(forward, backward, v):
        matrices = semiseparable.rows(forward, backward, documents=documents)
        return matrices @ v

    def as_scan(forward, backward, v):
        return semiseparable.mix(forward, backward, v, documents)

    def output_and_gradients(function):
        def loss(*inputs):
            y = function(*inputs)
            if documents is not None:
                is_text = (documents > 0)[:, None, :, None]
                y = jnp.where(is_text, y, 0)
            return jnp.sin(y).sum(), y

        gradient = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)
        differentiated = quick_jit(gradient)
        gradients, y = differentiated(forward, backward, v)
        return y, jax.tree.leaves(gradients)

    expected, expected_gradients = output_and_gradients(as_matrix)
    found, found_gradients = output_and_gradients(as_scan)
    assert_allclose(found, expected, atol=1e-11)
    for gradient, expected_gradient in zip(found_gradients, expected_gradients, strict=True):
        assert_allclose(gradient, expected_gradient, atol=1e-10)


@pytest.mark.slow
@in_float64
def test_underflowing_decays_give_no_nan():
    """exp(-800) is 0, and a quotient of two of them would be no number."""
    n = 200
    decays = jnp.full((2, 4, n), -800.0)
    forward = model_of(0, n)._replace(log_decays=decays)
    numbers = normal(5, 2, 4, n, 3)
    v = jnp.asarray(numbers)

    def loss(forward, v):
        return semiseparable.mix(forward, None, v).sum()

    differentiated = quick_jit(jax.grad(loss, argnums=(0, 1)))
    gradient = differentiated(forward, v)
    for leaf in jax.tree.leaves(gradient):
        assert np.isfinite(leaf).all()
    mixed = semiseparable.mix(forward, None, v)
    outputs = mixed[0, 0]
    values = v[0, 0]
    expected = []
    for token in range(n - 1):
        weight = entry(forward, 0, 0, token, token)
        expected.append(weight * values[token])
    assert_allclose(outputs[1:], expected, atol=1e-12)


def test_scans_cost_twice_as_much_for_twice_the_tokens():
    def flops(n):
        forward = model_of(0, n)
        v = jnp.ones((2, 4, n, 3))
        return matmul_flops(semiseparable.mix, forward, forward, v)

    assert flops(2048) == 2 * flops(1024)
