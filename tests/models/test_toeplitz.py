import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models import toeplitz
from tests.failures import raised
from tests.models.reference import (
    count,
    in_float64,
    largest_array,
    normal,
    program,
    quick_jit,
    toeplitz_matrix,
)

EVERY_FORM = pytest.mark.parametrize("apply", toeplitz.FORMS.values(), ids=toeplitz.FORMS)
# Odd, even, powers of two and their neighbours; of blocks one, two and three.
LENGTHS = [1, 2, 8, 9, 17, 128, 129, 300]


def test_expanded_taps_agree_entry_by_entry():
    all_taps = [np.arange(1, 2 * n, dtype=np.float32) for n in range(1, 41)]

    @quick_jit
    def expand_all(all_taps):
        return [toeplitz.expand(taps) for taps in all_taps]

    matrices = expand_all(all_taps)
    for taps, matrix in zip(all_taps, matrices, strict=True):
        expected = toeplitz_matrix(taps)
        assert_array_equal(matrix, expected)


def sums_of_diagonals(matrix):
    """From the lower left corner to the upper right one."""
    n = len(matrix)
    sums = [np.trace(matrix, offset) for offset in range(1 - n, n)]
    return np.array(sums)


@pytest.mark.parametrize(
    "n",
    [
        toeplitz.BAND - 1,
        toeplitz.BAND,
        toeplitz.BAND + 1,
        3 * toeplitz.BAND,
        300,
    ],
)
@in_float64
def test_bands_are_the_expanded_matrix(n):
    """And the transpose sums each diagonal. A TPU's bands and a CPU's single one are the same
    matrix."""
    taps = normal(n, 2 * n - 1)
    d_matrix = normal(n + 1, n, n)

    @quick_jit
    def forms_and_transpose(taps):
        matrix, pullback = jax.vjp(toeplitz.expand, taps)
        on_tpu = toeplitz.in_bands(taps, toeplitz.BAND)
        on_cpu = toeplitz.in_bands(taps, n)
        [d_taps] = pullback(d_matrix)
        return (matrix, on_tpu, on_cpu), d_taps

    matrices, d_taps = forms_and_transpose(taps)
    expected = toeplitz_matrix(taps)
    for matrix in matrices:
        assert_array_equal(matrix, expected)
    assert_allclose(d_taps, sums_of_diagonals(d_matrix), atol=1e-11)


@pytest.mark.smoke
@EVERY_FORM
@pytest.mark.parametrize("n", LENGTHS)
@in_float64
def test_every_form_is_a_product_with_the_matrix(apply, n):
    """And has its gradients."""
    taps = normal(n, 2 * n - 1)
    x = normal(n + 1, 3, n, 4)
    g = normal(n + 2, 3, n, 4)
    w = toeplitz_matrix(taps)

    @quick_jit
    def value_and_gradients(taps, x, g):
        y, pullback = jax.vjp(apply, taps, x)
        return y, *pullback(g)

    y, d_taps, d_x = value_and_gradients(taps, x, g)
    d_w = np.einsum("bic,bjc->ij", g, x)
    assert y.dtype == jnp.float64
    assert_allclose(y, w @ x, atol=1e-10)
    assert_allclose(d_taps, sums_of_diagonals(d_w), atol=1e-10)
    assert_allclose(d_x, w.T @ g, atol=1e-10)


@EVERY_FORM
def test_bfloat16_products_are_accurate(apply):
    taps = normal(0, 25).astype(np.float32)
    numbers = normal(1, 2, 13, 4)
    x = jnp.asarray(numbers, jnp.bfloat16)
    y = quick_jit(apply)(taps, x)
    assert y.dtype == jnp.bfloat16
    exact_x = np.asarray(x, np.float64)
    expected = toeplitz_matrix(taps) @ exact_x
    float32_y = y.astype(jnp.float32)
    assert_allclose(float32_y, expected, rtol=0.02, atol=0.1)


def test_expand_neither_gathers_nor_scatters():
    def loss(taps):
        return jnp.sin(toeplitz.expand(taps)).sum()

    taps = jnp.ones(2 * 300 - 1)
    equations = program(toeplitz.expand, taps) + program(jax.grad(loss), taps)
    for equation in equations:
        name = equation.primitive.name
        for slow in ("gather", "scatter", "dynamic", "dot_general"):
            assert slow not in name


def gradient(form):
    """The gradients of the sum of squares of a product, by its taps and its input."""
    apply = toeplitz.FORMS[form]

    def sum_of_squares(taps, x):
        y = apply(taps, x)
        return (y**2).sum()

    return jax.grad(sum_of_squares, argnums=(0, 1))


def inputs_of(n: int) -> tuple:
    """Taps and an example of n tokens and two channels."""
    return jnp.ones(2 * n - 1), jnp.ones((1, n, 2))


def test_fft_never_holds_the_matrix():
    inputs = inputs_of(300)
    assert largest_array(gradient("fft"), *inputs) <= 1024 * 2
    assert count("dot_general", gradient("fft"), *inputs) == 0
    assert largest_array(gradient("direct"), *inputs) >= 300 * 300


def test_blocked_products_use_no_fft():
    assert count("fft", gradient("blocked"), *inputs_of(8192)) == 0


def test_memory_of_blocked_products_is_linear_in_n():
    small = largest_array(gradient("blocked"), *inputs_of(8192))
    large = largest_array(gradient("blocked"), *inputs_of(16384))
    assert large <= 2.05 * small
    assert large < 16384**2 / 20


def past_matrix(taps) -> np.ndarray:
    """The matrix of taps for the tokens up to each one."""
    future = np.zeros(len(taps) - 1, np.float32)
    return toeplitz_matrix(np.concatenate([taps, future]))


@pytest.mark.parametrize("n", LENGTHS)
def test_matrices_of_past_taps_are_triangular(n):
    taps = np.arange(1, n + 1, dtype=np.float32)
    expected = past_matrix(taps)
    past = expected[np.tril_indices(n)]
    assert (past > 0).all()
    assert (np.triu(expected, 1) == 0).all()
    expand = quick_jit(lambda taps: toeplitz.expand(toeplitz.pad_future(taps)))
    assert_array_equal(expand(taps), expected)


@pytest.mark.parametrize("n", LENGTHS)
def test_rows_of_past_taps_are_those_of_the_matrix(n):
    taps = np.arange(1, n + 1, dtype=np.float32)
    whole = past_matrix(taps)
    padded = toeplitz.pad_future(jnp.asarray(taps))
    for first in {0, n - 1, n // 2}:
        rows = toeplitz.rows(padded, first, n - first)
        assert_array_equal(rows, whole[first:])


def test_rows_do_not_hold_the_matrix():
    n = 300
    taps = jnp.ones(2 * n - 1)

    def three_rows(taps):
        return toeplitz.rows(taps, 5, 3)

    assert largest_array(three_rows, taps) == 3 * n


@pytest.mark.parametrize("platform", toeplitz.FASTEST)
def test_each_platform_has_a_fastest_form(monkeypatch, platform):
    longest_direct, form_beyond = toeplitz.FASTEST[platform]
    assert form_beyond in toeplitz.FORMS
    monkeypatch.setattr(toeplitz.sharding, "platform", lambda: platform)
    assert toeplitz.fastest_form(1) == "direct"
    assert toeplitz.fastest_form(longest_direct) == "direct"
    assert toeplitz.fastest_form(longest_direct + 1) == form_beyond


def test_exported_programs_do_not_use_the_fft_of_this_cpu():
    assert toeplitz.fastest_form(16384) == "fft"
    with toeplitz.sharding.portable():
        assert toeplitz.fastest_form(16384) == "blocked"


def test_cropped_taps_give_the_corner_of_the_matrix():
    n = 11
    m = 7
    taps = np.arange(1.0, 2 * n)
    cropped = toeplitz.expand(toeplitz.crop(taps, m))
    corner = toeplitz_matrix(taps)[:m, :m]
    assert_array_equal(cropped, corner)


def test_taps_cannot_be_cropped_to_more_tokens():
    message = raised(ValueError, toeplitz.crop, jnp.ones(9), 6)
    assert "cannot crop Toeplitz taps for 5 tokens to 6" in message


def test_the_length_is_that_of_the_tokens():
    assert toeplitz.length_of(jnp.ones(9)) == 5


@pytest.mark.parametrize("shape", [(8,), (3, 4), ()])
def test_taps_of_another_shape_are_refused(shape):
    message = r"taps have shape \(.*\): expected \[2n - 1\], an odd number"
    with pytest.raises(ValueError, match=message):
        toeplitz.length_of(jnp.ones(shape))
