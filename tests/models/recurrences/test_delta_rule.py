"""The gated delta rule in chunks against its recurrence, token by token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.models.recurrences import delta_rule
from gmlp_flax.models.recurrences.delta_rule import Inputs
from tests.models import reference
from tests.models.reference import in_float64, largest_array, quick_jit


def inputs_of(tokens, dtype=np.float64, repeated=False, heads=2):
    """Unit keys of 8 channels, values of 5; all keys equal if they are `repeated`."""
    random = np.random.default_rng(0)
    keys = random.normal(size=(2, tokens, heads, 8))
    if repeated:
        keys = np.broadcast_to(keys[:, :1], keys.shape)
    keys = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    numbers = Inputs(
        queries=random.normal(size=(2, tokens, heads, 8)),
        keys=keys,
        values=random.normal(size=(2, tokens, heads, 5)),
        log_decay=-random.exponential(0.05, size=(2, tokens, heads)),
        beta=random.uniform(size=(2, tokens, heads)),
    )
    return Inputs(*(jnp.asarray(array, dtype) for array in numbers))


def in_chunks(inputs, chunk, **options):
    """The rule, compiled."""
    return quick_jit(functools.partial(delta_rule.delta_rule, chunk=chunk))(inputs, **options)


def by_recurrence(inputs):
    """[batch, tokens, heads, d], each head of each example by itself."""
    q, k, v, log_decay, beta = (np.asarray(array, np.float64) for array in inputs)
    outputs = np.zeros(v.shape)
    for example, head in np.ndindex(len(q), q.shape[2]):
        at = (example, slice(None), head)
        outputs[at] = reference.delta_rule(q[at], k[at], v[at], np.exp(log_decay[at]), beta[at])
    return outputs


@pytest.mark.parametrize("chunk", [1, 16, 64])
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@in_float64
def test_chunks_give_what_the_recurrence_gives(chunk, repeated, dtype):
    """In float32 too, also if all keys are equal: the hardest system of equations."""
    inputs = inputs_of(150, dtype, repeated)
    found, _ = in_chunks(inputs, chunk)
    atol = 1e-5 if dtype == "float32" else 1e-11
    np.testing.assert_allclose(found, by_recurrence(inputs), atol=atol)


@in_float64
def test_a_state_stands_for_the_tokens_before():
    inputs = inputs_of(21)
    expected = by_recurrence(inputs)
    before = Inputs(*(array[:, :13] for array in inputs))
    after = Inputs(*(array[:, 13:] for array in inputs))
    first, state = in_chunks(before, 4)
    later, _ = in_chunks(after, 8, state=state)
    np.testing.assert_allclose(first, expected[:, :13], atol=1e-12)
    np.testing.assert_allclose(later, expected[:, 13:], atol=1e-12)


@in_float64
def test_documents_begin_anew():
    """Whether they end within a chunk or at its end."""
    inputs = inputs_of(21)
    ends = [0, 5, 8, 21]
    documents = np.zeros((2, 21), np.int32)
    expected = []
    for number in range(3):
        part = slice(ends[number], ends[number + 1])
        documents[:, part] = number + 1
        expected.append(by_recurrence(Inputs(*(array[:, part] for array in inputs))))
    found, _ = in_chunks(inputs, 4, documents=jnp.asarray(documents))
    np.testing.assert_allclose(found, np.concatenate(expected, axis=1), atol=1e-12)


@in_float64
def test_inverse():
    lower = np.tril(np.random.default_rng(0).normal(size=(3, 16, 16)), -1)
    found = np.asarray(quick_jit(delta_rule.inverted)(jnp.asarray(lower)))
    product = found @ (np.eye(16) + lower)
    expected = np.broadcast_to(np.eye(16), (3, 16, 16))
    np.testing.assert_allclose(product, expected, atol=1e-9)


def test_gradients_are_finite_where_decays_are_strong():
    """A ratio of decays in the wrong order would overflow."""
    inputs = inputs_of(64, np.float32)
    strong = inputs._replace(log_decay=jnp.full_like(inputs.log_decay, -20.0))

    def loss(inputs):
        outputs, _ = delta_rule.delta_rule(inputs, 32)
        return jnp.square(outputs).sum()

    for gradient in quick_jit(jax.grad(loss))(strong):
        assert np.isfinite(gradient).all()


def test_memory_grows_with_the_tokens():
    """The gradient's memory too."""

    def loss(inputs):
        outputs, _ = delta_rule.delta_rule(inputs, 16)
        return outputs.sum()

    sizes = [largest_array(jax.grad(loss), inputs_of(tokens, np.float32)) for tokens in (128, 512)]
    assert sizes[1] == 4 * sizes[0]
