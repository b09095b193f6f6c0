import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from gmlp_flax.models import depthwise
from tests.models import reference
from tests.models.reference import in_float64, largest_array, normal, quick_jit

WIDTHS = pytest.mark.parametrize(
    "width",
    [1, 2, 3, pytest.param(8, marks=pytest.mark.slow), pytest.param(13, marks=pytest.mark.slow)],
)


@pytest.mark.smoke
@WIDTHS
@in_float64
def test_against_sums(width):
    """Centered, causal, and read from the first token on; also kernels wider than the tokens."""
    x = normal(0, 2, 7, 3)
    kernel = normal(1, width, 3)
    for before in {0, (width - 1) // 2, width - 1}:
        found = quick_jit(depthwise.convolve, static_argnums=2)(x, kernel, before)
        expected = [reference.depthwise(kernel, sample, before) for sample in x]
        np.testing.assert_allclose(found, expected, atol=1e-12)


@WIDTHS
@in_float64
def test_gradients(width):
    """Once and twice, in forward and reverse mode, against differences."""

    def function(x, kernel):
        return jnp.sin(depthwise.convolve(x, kernel, (width - 1) // 2)).sum()

    check_grads(function, (normal(0, 2, 7, 3), normal(1, width, 3)), order=2, modes=["fwd", "rev"])


@in_float64
def test_all_forms_are_the_same_sum():
    """And so are their gradients. One form is for CPUs, another is transposed."""
    x = normal(0, 2, 4, 11, 3)
    kernel = normal(1, 5, 3)
    y, pullback = jax.vjp(depthwise.sum_of_slices, x, kernel)
    expected = (y, *pullback(jnp.cos(y)))
    assert y.shape == (2, 4, 7, 3)
    for form in (depthwise.sum_of_pads, depthwise.sum_in_a_loop, depthwise.convolve_valid):
        y, pullback = jax.vjp(form, x, kernel)
        found = (y, *pullback(jnp.cos(y)))
        for array, expected_array in zip(found, expected, strict=True):
            np.testing.assert_allclose(array, expected_array, atol=1e-12)


@WIDTHS
@in_float64
def test_documents_are_convolved_one_by_one(width):
    """Outputs and gradients. Padding is a document too."""
    documents = jnp.asarray([[1, 1, 1, 2, 2, 2, 2], [1, 2, 3, 3, 3, 0, 0]])
    x = jnp.asarray(normal(0, 2, 7, 3))
    kernel = jnp.asarray(normal(1, width, 3))
    before = (width - 1) // 2

    def together(x, kernel):
        return depthwise.convolve(x, kernel, before, documents)

    def one_by_one(x, kernel):
        total = jnp.zeros_like(x)
        for document in range(4):
            is_visible = (documents == document)[..., None]
            visible = jnp.where(is_visible, x, 0)
            convolved = depthwise.convolve(visible, kernel, before)
            total = total + jnp.where(is_visible, convolved, 0)
        return total

    def outputs_and_gradients(function):
        y, pullback = jax.vjp(function, x, kernel)
        return y, *pullback(jnp.cos(y))

    found, expected = quick_jit(
        lambda: (outputs_and_gradients(together), outputs_and_gradients(one_by_one))
    )()
    for array, expected_array in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, expected_array, atol=1e-12)


@pytest.mark.slow
def test_sums_of_bfloat16_are_rounded_once():
    """31 entries that add up to 31 / 16, which bfloat16 has, where a sum in bfloat16 would not
    arrive."""
    x = jnp.full((1, 31, 1), 1 + 1 / 128, jnp.bfloat16)
    kernel = jnp.full((31, 1), 1 / 16 + 2.0**-13)
    y = depthwise.convolve(x, kernel, 15)
    assert y.dtype == jnp.bfloat16
    expected = jnp.bfloat16(31 * (1 + 1 / 128) * (1 / 16 + 2.0**-13))
    assert y[0, 15, 0] == expected
    one_document = jnp.ones((1, 31), jnp.int32)
    np.testing.assert_array_equal(depthwise.convolve(x, kernel, 15, one_document), y)
    gradient = jax.grad(lambda kernel: depthwise.convolve(x, kernel, 15).sum())(kernel)
    assert gradient.dtype == jnp.float32


def test_memory_grows_as_the_tokens():
    """No array holds more than the padded tokens, forward or backward."""
    for tokens in (64, 256):
        x = jnp.ones((2, tokens, 3))
        kernel = jnp.ones((31, 3))

        def loss(x, kernel):
            return depthwise.convolve(x, kernel, 15).sum()

        gradient = jax.grad(loss, argnums=(0, 1))
        assert largest_array(gradient, x, kernel) == 2 * (tokens + 60) * 3


def test_padded_tokens_at_a_distance():
    """Beyond the ends and in other documents there are zeros."""
    x = normal(0, 1, 5, 3)
    documents = np.array([[1, 1, 2, 2, 0]])
    within_document = np.zeros_like(x)
    within_document[0, [1, 3]] = x[0, [0, 2]]
    for before, after in ((1, 0), (2, 3)):
        padded = depthwise.pad_tokens(x, before, after)
        np.testing.assert_array_equal(padded.at(0), np.float32(x))
        expected = np.concatenate([np.zeros((1, 1, 3)), x[:, :-1]], axis=1)
        np.testing.assert_array_equal(padded.at(-1), np.float32(expected))
        padded = depthwise.pad_tokens(x, before, after, documents)
        np.testing.assert_array_equal(padded.at(-1), np.float32(within_document))
    later = depthwise.pad_tokens(x, 0, 2).at(2)
    np.testing.assert_array_equal(later[0, :3], np.float32(x[0, 2:]))
    assert not later[0, 3:].any()


def test_fresh_kernels_are_uniform():
    """Within 1 / sqrt(width), as PyTorch's: a standard deviation of 1 / sqrt(3 width)."""
    kernel = depthwise.uniform_kernel(jax.random.key(0), 4, 5000, jnp.float32)
    assert kernel.shape == (4, 5000)
    assert 0.499 < np.abs(kernel).max() <= 0.5
    np.testing.assert_allclose(kernel.std(), 12**-0.5, rtol=0.02)
    np.testing.assert_allclose(kernel.mean(), 0, atol=0.01)
