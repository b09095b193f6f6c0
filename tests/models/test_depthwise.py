import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models import depthwise
from tests.models import reference
from tests.models.reference import in_float64, largest_array, normal, quick_jit

WIDTHS = pytest.mark.parametrize(
    "width",
    [
        1,
        2,
        3,
        pytest.param(8, marks=pytest.mark.slow),
        pytest.param(13, marks=pytest.mark.slow),
    ],
)


def output_and_gradients(form, x, kernel):
    """The output of a form, and the gradients of the sum of its sines."""
    y, pullback = jax.vjp(form, x, kernel)
    return y, *pullback(jnp.cos(y))


def assert_all_close(arrays, expected):
    for array, expected_array in zip(arrays, expected, strict=True):
        assert_allclose(array, expected_array, atol=1e-12)


@pytest.mark.smoke
@WIDTHS
@in_float64
def test_convolutions_agree_with_sums(width):
    """Centered, causal, and read from the first token on; also kernels wider than the tokens."""
    x = normal(0, 2, 7, 3)
    kernel = normal(1, width, 3)
    convolve = quick_jit(depthwise.convolve, static_argnums=2)
    centre = (width - 1) // 2
    for before in {0, centre, width - 1}:
        expected = []
        for sample in x:
            expected.append(reference.depthwise(kernel, sample, before))
        found = convolve(x, kernel, before)
        assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    "width",
    [
        pytest.param(1, marks=pytest.mark.slow),
        2,
        pytest.param(3, marks=pytest.mark.slow),
        pytest.param(8, marks=pytest.mark.nightly),
        pytest.param(13, marks=pytest.mark.nightly),
    ],
)
@in_float64
def test_gradients_agree_with_differences(width):
    """Once and twice, in forward and reverse mode."""
    x = normal(0, 2, 7, 3)
    kernel = normal(1, width, 3)
    before = (width - 1) // 2

    def function(x, kernel):
        y = depthwise.convolve(x, kernel, before)
        return jnp.sin(y).sum()

    check_grads(function, (x, kernel), order=2, modes=["fwd", "rev"])


@pytest.mark.parametrize(
    "form",
    [
        depthwise.sum_of_pads,
        depthwise.sum_in_a_loop,
        depthwise.convolve_valid,
    ],
)
@in_float64
def test_all_forms_are_the_same_sum(form):
    """With the same gradients. One form is for CPUs, another is transposed."""
    x = normal(0, 2, 4, 11, 3)
    kernel = normal(1, 5, 3)
    expected = output_and_gradients(depthwise.sum_of_slices, x, kernel)
    y, *_ = expected
    assert y.shape == (2, 4, 7, 3)
    assert_all_close(output_and_gradients(form, x, kernel), expected)


@WIDTHS
@in_float64
def test_documents_are_convolved_one_by_one(width):
    """Outputs and gradients. Padding is a document too."""
    rows = [[1, 1, 1, 2, 2, 2, 2], [1, 2, 3, 3, 3, 0, 0]]
    documents = jnp.asarray(rows)
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

    compiled = quick_jit(output_and_gradients, static_argnums=0)
    found = compiled(together, x, kernel)
    expected = compiled(one_by_one, x, kernel)
    assert_all_close(found, expected)


@pytest.mark.slow
def test_sums_of_bfloat16_are_rounded_once():
    """31 products that add up to 31 / 16, which bfloat16 can represent, but which a sum in bfloat16
    would not reach."""
    number = 1 + 1 / 128
    entry = 1 / 16 + 2.0**-13
    x = jnp.full((1, 31, 1), number, jnp.bfloat16)
    kernel = jnp.full((31, 1), entry)
    y = depthwise.convolve(x, kernel, 15)
    assert y.dtype == jnp.bfloat16
    middle = y[0, 15, 0]
    assert middle == jnp.bfloat16(31 * number * entry)
    one_document = jnp.ones((1, 31), jnp.int32)
    of_document = depthwise.convolve(x, kernel, 15, one_document)
    assert_array_equal(of_document, y)

    def total(kernel):
        return depthwise.convolve(x, kernel, 15).sum()

    gradient = jax.grad(total)(kernel)
    assert gradient.dtype == jnp.float32


@pytest.mark.parametrize("tokens", [64, 256])
def test_memory_is_linear_in_the_tokens(tokens):
    """No array holds more than the padded tokens, forward or backward."""
    x = jnp.ones((2, tokens, 3))
    kernel = jnp.ones((31, 3))

    def loss(x, kernel):
        return depthwise.convolve(x, kernel, 15).sum()

    gradient = jax.grad(loss, argnums=(0, 1))
    padded_tokens = tokens + 60
    largest = largest_array(gradient, x, kernel)
    assert largest == 2 * padded_tokens * 3


X = np.float32(normal(0, 1, 5, 3))


@pytest.mark.parametrize(("before", "after"), [(1, 0), (2, 3)])
def test_padded_tokens_give_the_token_before(before, after):
    """Before the first token there are zeros."""
    earlier = np.zeros_like(X)
    before_last = X[:, :-1]
    earlier[:, 1:] = before_last
    padded = depthwise.pad_tokens(X, before, after)
    assert_array_equal(padded.at(0), X)
    assert_array_equal(padded.at(-1), earlier)


@pytest.mark.parametrize(("before", "after"), [(1, 0), (2, 3)])
def test_padded_tokens_give_zeros_for_other_documents(before, after):
    documents = np.array([[1, 1, 2, 2, 0]])
    earlier = np.zeros_like(X)
    earlier[:, 1] = X[:, 0]
    earlier[:, 3] = X[:, 2]
    padded = depthwise.pad_tokens(X, before, after, documents)
    assert_array_equal(padded.at(-1), earlier)


def test_padded_tokens_give_zeros_after_the_last_token():
    later = np.zeros_like(X)
    later[:, :3] = X[:, 2:]
    padded = depthwise.pad_tokens(X, 0, 2)
    assert_array_equal(padded.at(2), later)


def test_fresh_kernels_are_uniform():
    """Within 1 / sqrt(width), as PyTorch's: a standard deviation of 1 / sqrt(3 width)."""
    key = jax.random.key(0)
    kernel = depthwise.uniform_kernel(key, 4, 5000, jnp.float32)
    assert kernel.shape == (4, 5000)
    largest = np.abs(kernel).max()
    assert 0.499 < largest <= 0.5
    deviation = kernel.std()
    assert_allclose(deviation, 12**-0.5, rtol=0.02)
    assert_allclose(kernel.mean(), 0, atol=0.01)
