"""The gated delta rule in chunks against its recurrence, token by token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from gmlp_flax.models.recurrences import delta_rule
from gmlp_flax.models.recurrences.delta_rule import Inputs
from tests.models import reference
from tests.models.reference import in_float64, largest_array, quick_jit


def inputs_of(tokens, dtype=np.float64, repeated=False, heads=2):
    """Unit keys of 8 channels, values of 5; all keys equal if they are `repeated`."""
    random = np.random.default_rng(0)
    shape = (2, tokens, heads)
    keys = random.normal(size=(*shape, 8))
    if repeated:
        first_keys = keys[:, :1]
        keys = np.broadcast_to(first_keys, keys.shape)
    lengths = np.linalg.norm(keys, axis=-1, keepdims=True)
    inputs = Inputs(
        queries=random.normal(size=(*shape, 8)),
        keys=keys / lengths,
        values=random.normal(size=(*shape, 5)),
        log_decay=-random.exponential(0.05, size=shape),
        beta=random.uniform(size=shape),
    )
    return jax.tree.map(lambda array: jnp.asarray(array, dtype), inputs)


def tokens_of(inputs, tokens):
    """The inputs of a slice of the tokens."""
    return jax.tree.map(lambda array: array[:, tokens], inputs)


def in_chunks(inputs, chunk, **options):
    """The rule, compiled."""
    function = functools.partial(delta_rule.delta_rule, chunk=chunk)
    return quick_jit(function)(inputs, **options)


def by_recurrence(inputs):
    """[batch, tokens, heads, d], each head of each example by itself."""
    inputs = jax.tree.map(lambda array: np.asarray(array, np.float64), inputs)
    decay = np.exp(inputs.log_decay)
    batch, _, heads, _ = inputs.values.shape
    outputs = np.zeros(inputs.values.shape)
    for example, head in np.ndindex(batch, heads):
        index = (example, slice(None), head)
        outputs[index] = reference.delta_rule(
            inputs.queries[index],
            inputs.keys[index],
            inputs.values[index],
            decay[index],
            inputs.beta[index],
        )
    return outputs


@pytest.mark.parametrize("chunk", [1, 16, 64])
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@in_float64
def test_chunks_agree_with_the_recurrence(chunk, repeated, dtype):
    """In float32 too, also if all keys are equal: the hardest system of equations."""
    inputs = inputs_of(150, dtype, repeated)
    outputs, _ = in_chunks(inputs, chunk)
    atol = 1e-5 if dtype == "float32" else 1e-11
    assert_allclose(outputs, by_recurrence(inputs), atol=atol)


@in_float64
def test_states_replace_the_tokens_before():
    inputs = inputs_of(21)
    expected = by_recurrence(inputs)
    before = tokens_of(inputs, slice(13))
    after = tokens_of(inputs, slice(13, None))
    first, state = in_chunks(before, 4)
    later, _ = in_chunks(after, 8, state=state)
    expected_first = expected[:, :13]
    assert_allclose(first, expected_first, atol=1e-12)
    expected_later = expected[:, 13:]
    assert_allclose(later, expected_later, atol=1e-12)


@in_float64
def test_documents_start_with_an_empty_state():
    """Whether they end within a chunk or at its end."""
    inputs = inputs_of(21)
    documents = np.zeros((2, 21), np.int32)
    expected = []
    slices = [slice(5), slice(5, 8), slice(8, 21)]
    for number, tokens in enumerate(slices, 1):
        documents[:, tokens] = number
        alone = by_recurrence(tokens_of(inputs, tokens))
        expected.append(alone)
    jax_documents = jnp.asarray(documents)
    outputs, _ = in_chunks(inputs, 4, documents=jax_documents)
    joined = np.concatenate(expected, axis=1)
    assert_allclose(outputs, joined, atol=1e-12)


@in_float64
def test_inverses_times_their_matrix_are_the_identity():
    random = np.random.default_rng(0)
    numbers = random.normal(size=(3, 16, 16))
    lower = np.tril(numbers, -1)
    invert = quick_jit(delta_rule.inverted)
    inverse = invert(jnp.asarray(lower))
    identity = np.eye(16)
    matrix = identity + lower
    product = np.asarray(inverse) @ matrix
    expected = np.broadcast_to(identity, (3, 16, 16))
    assert_allclose(product, expected, atol=1e-9)


def test_gradients_are_finite_where_decays_are_strong():
    """A ratio of decays in the wrong order would overflow."""
    inputs = inputs_of(64, np.float32)
    strong = inputs._replace(log_decay=jnp.full_like(inputs.log_decay, -20.0))

    def loss(inputs):
        outputs, _ = delta_rule.delta_rule(inputs, 32)
        return jnp.square(outputs).sum()

    for gradient in quick_jit(jax.grad(loss))(strong):
        assert np.isfinite(gradient).all()


def test_memory_is_linear_in_the_tokens():
    """The gradient's memory too."""

    def loss(inputs):
        outputs, _ = delta_rule.delta_rule(inputs, 16)
        return outputs.sum()

    gradient = jax.grad(loss)
    short = largest_array(gradient, inputs_of(128, np.float32))
    long = largest_array(gradient, inputs_of(512, np.float32))
    assert long == 4 * short
