import jax
import jax.numpy as jnp
import numpy as np
import pytest

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

APPLY = pytest.mark.parametrize("apply", toeplitz.FORMS.values(), ids=toeplitz.FORMS)
# Odd, even, powers of two and their neighbours; of blocks one, two and three.
LENGTHS = [1, 2, 8, 9, 17, 128, 129, 300]


def test_expand_entry_by_entry():
    several = [np.arange(1, 2 * n, dtype=np.float32) for n in range(1, 41)]
    expand_all = quick_jit(lambda several: [toeplitz.expand(taps) for taps in several])
    for taps, matrix in zip(several, expand_all(several), strict=True):
        np.testing.assert_array_equal(matrix, toeplitz_matrix(taps))


@pytest.mark.parametrize(
    "n", [toeplitz.BAND - 1, toeplitz.BAND, toeplitz.BAND + 1, 3 * toeplitz.BAND, 300]
)
@in_float64
def test_expand_in_bands(n):
    """And the transpose, which sums each diagonal. A TPU's bands and a CPU's single one are the
    same matrix."""
    taps = normal(n, 2 * n - 1)
    d_w = normal(n + 1, n, n)

    @quick_jit
    def forms_and_transpose(taps):
        w, pullback = jax.vjp(toeplitz.expand, taps)
        return (w, toeplitz.in_bands(taps, toeplitz.BAND), toeplitz.in_bands(taps, n)), *pullback(
            d_w
        )

    forms, d_taps = forms_and_transpose(taps)
    for found in forms:
        np.testing.assert_array_equal(found, toeplitz_matrix(taps))
    np.testing.assert_allclose(
        d_taps, [np.trace(d_w, offset) for offset in range(1 - n, n)], atol=1e-11
    )


@pytest.mark.smoke
@APPLY
@pytest.mark.parametrize("n", LENGTHS)
@in_float64
def test_apply_and_its_gradients(apply, n):
    taps = normal(n, 2 * n - 1)
    x = normal(n + 1, 3, n, 4)
    g = normal(n + 2, 3, n, 4)
    w = toeplitz_matrix(taps)

    @quick_jit
    def value_and_gradients(taps, x, g):
        y, pullback = jax.vjp(apply, taps, x)
        return y, *pullback(g)

    y, d_taps, d_x = value_and_gradients(taps, x, g)
    products = np.einsum("bic,bjc->ij", g, x)
    expected_d_taps = [np.trace(products, offset) for offset in range(1 - n, n)]
    assert y.dtype == jnp.float64
    np.testing.assert_allclose(y, w @ x, atol=1e-10)
    np.testing.assert_allclose(d_taps, expected_d_taps, atol=1e-10)
    np.testing.assert_allclose(d_x, w.T @ g, atol=1e-10)


@APPLY
def test_apply_in_bfloat16_keeps_the_type_and_the_numbers(apply):
    taps = normal(0, 25).astype(np.float32)
    x = jnp.asarray(normal(1, 2, 13, 4), jnp.bfloat16)
    y = quick_jit(apply)(taps, x)
    assert y.dtype == jnp.bfloat16
    expected = toeplitz_matrix(taps) @ np.asarray(x).astype(np.float64)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, rtol=0.02, atol=0.1)


def test_expand_neither_gathers_nor_scatters():
    taps = jnp.ones(2 * 300 - 1)
    for function in (toeplitz.expand, jax.grad(lambda taps: jnp.sin(toeplitz.expand(taps)).sum())):
        names = {equation.primitive.name for equation in program(function, taps)}
        assert not [
            name for name in names if "gather" in name or "scatter" in name or "dynamic" in name
        ]
    assert "dot_general" not in names


def gradient(form):
    return jax.grad(lambda taps, x: (toeplitz.FORMS[form](taps, x) ** 2).sum(), argnums=(0, 1))


def inputs_of(n: int) -> tuple:
    """Taps and an example of n tokens and two channels."""
    return jnp.ones(2 * n - 1), jnp.ones((1, n, 2))


def test_fft_never_holds_the_matrix():
    inputs = inputs_of(300)
    assert largest_array(gradient("fft"), *inputs) <= 1024 * 2
    assert count("dot_general", gradient("fft"), *inputs) == 0
    assert largest_array(gradient("direct"), *inputs) >= 300 * 300


def test_blocks_are_matrix_products():
    assert count("fft", gradient("blocked"), *inputs_of(8192)) == 0


def test_blocks_grow_as_n():
    small = largest_array(gradient("blocked"), *inputs_of(8192))
    large = largest_array(gradient("blocked"), *inputs_of(16384))
    assert large <= 2.05 * small
    assert large < 16384**2 / 20


def past_matrix(taps) -> np.ndarray:
    """The matrix of taps for the tokens before each one, and itself."""
    future = np.zeros(len(taps) - 1, np.float32)
    return toeplitz_matrix(np.concatenate([taps, future]))


@pytest.mark.parametrize("n", LENGTHS)
def test_the_matrix_of_past_taps(n):
    taps = np.arange(1, n + 1, dtype=np.float32)
    whole = past_matrix(taps)
    expand = quick_jit(lambda taps: toeplitz.expand(toeplitz.pad_future(taps)))
    np.testing.assert_array_equal(expand(taps), whole)
    assert (whole[np.tril_indices(n)] > 0).all()
    assert (np.triu(whole, 1) == 0).all()


@pytest.mark.parametrize("n", LENGTHS)
def test_rows_of_the_matrix_of_past_taps(n):
    taps = np.arange(1, n + 1, dtype=np.float32)
    whole = past_matrix(taps)
    for first in {0, n - 1, n // 2}:
        rows = toeplitz.rows(toeplitz.pad_future(jnp.asarray(taps)), first, n - first)
        np.testing.assert_array_equal(rows, whole[first:])


def test_rows_do_not_hold_the_matrix():
    largest = largest_array(lambda taps: toeplitz.rows(taps, 5, 3), jnp.ones(2 * 300 - 1))
    assert largest == 3 * 300


def test_the_fastest_form_of_each_platform(monkeypatch):
    for platform, (most, beyond) in toeplitz.FASTEST.items():
        monkeypatch.setattr(toeplitz.sharding, "platform", lambda name=platform: name)
        assert [toeplitz.fastest_form(n) for n in (1, most, most + 1)] == [
            "direct",
            "direct",
            beyond,
        ]
        assert beyond in toeplitz.FORMS
    monkeypatch.undo()
    assert toeplitz.fastest_form(16384) == "fft"  # on this CPU
    with toeplitz.sharding.portable():
        assert toeplitz.fastest_form(16384) == "blocked"


def test_a_cropped_projection_is_a_corner():
    n = 11
    m = 7
    taps = np.arange(1.0, 2 * n)
    np.testing.assert_array_equal(
        toeplitz.expand(toeplitz.crop(taps, m)), toeplitz_matrix(taps)[:m, :m]
    )


def test_errors():
    taps = jnp.ones(9)
    assert "cannot crop Toeplitz taps for 5 tokens to 6" in raised(
        ValueError, toeplitz.crop, taps, 6
    )
    for shape in ((8,), (3, 4), ()):
        with pytest.raises(
            ValueError, match=r"taps have shape \(.*\): expected \[2n - 1\], an odd number"
        ):
            toeplitz.length_of(jnp.ones(shape))
    assert toeplitz.length_of(taps) == 5
