import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.resize import resize_inputs, resize_tokens
from gmlp_flax.models.spatial import SpatialProjection
from tests.models.reference import (
    function_of,
    in_float64,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
    spatial,
)

KINDS = {"dense": {"spatial": "dense"}, "direct": {"toeplitz": "direct"}, "fft": {"toeplitz": "fft"}}


def projection(bias=0.0, **fields):
    return SpatialProjection(small_spec(**fields), bias, nnx.Rngs(0))


@pytest.mark.parametrize("kind", KINDS)
@in_float64
def test_against_loops(kind):
    f = randomized(lambda: projection(**KINDS[kind]))
    z = normal(0, 2, 5, 3)
    np.testing.assert_allclose(f(z), [spatial(params_of(f), sample) for sample in z], atol=1e-12)


@pytest.mark.parametrize("kind", ["direct", "fft"])
@pytest.mark.parametrize("tokens", [1, 4])
@in_float64
def test_toeplitz_takes_fewer_tokens(kind, tokens):
    f = randomized(lambda: projection(**KINDS[kind]))
    z = normal(0, 2, tokens, 3)
    np.testing.assert_allclose(f(z), [spatial(params_of(f), sample) for sample in z], atol=1e-12)


def test_other_numbers_of_tokens_are_refused():
    made_for = "the spatial projection was made for"
    for tokens in (4, 6):
        with pytest.raises(ValueError, match=f"{made_for} exactly 5 tokens and was given {tokens}"):
            projection(spatial="dense", dtype="float32")(jnp.ones((1, tokens, 2)))
    with pytest.raises(ValueError, match=f"{made_for} at most 5 tokens and was given 6"):
        projection(dtype="float32")(jnp.ones((1, 6, 2)))


@pytest.mark.parametrize("kind, shapes", [("dense", {"weight": (5, 5)}), ("direct", {"taps": (9,)})])
def test_starts_near_zero_with_one_bias_a_token(kind, shapes):
    f = projection(bias=1.0, dtype="float32", **KINDS[kind])
    params = params_of(f)
    assert {name: p.shape for name, p in params.items()} == shapes | {"bias": (5,)}
    (near_zero,) = (params[name] for name in shapes)
    assert 0 < np.abs(near_zero).max() < 1e-5 and (params["bias"] == 1).all()
    np.testing.assert_allclose(f(normal(0, 1, 5, 2).astype(np.float32)), 1, atol=1e-4)


@pytest.mark.parametrize("kind", ["dense", "direct"])
def test_the_standard_deviation_at_the_start(kind):
    params = params_of(projection(length=200, spatial_init_std=0.02, dtype="float32", **KINDS[kind]))
    near_zero = params["weight"] if kind == "dense" else params["taps"]
    np.testing.assert_allclose(near_zero.std(), 0.02, rtol=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16(kind):
    f = randomized(lambda: projection(dtype="bfloat16", **KINDS[kind]))
    z = jnp.asarray(normal(0, 2, 5, 3), jnp.bfloat16)
    assert f(z).dtype == jnp.bfloat16 and f.bias.dtype == jnp.float32
    expected = [spatial(params_of(f), np.asarray(sample).astype(np.float64)) for sample in z]
    np.testing.assert_allclose(f(z).astype(jnp.float32), expected, rtol=0.03, atol=0.03)


def resize(weight, bias, *grids, **options):
    """A dense projection for another resolution: W over the grids of its outputs and inputs, b over its one."""
    return tuple(resize_tokens(x, 0, *grids, **options) for x in (resize_inputs(weight, 1, *grids, **options), bias))


def smooth_projection(grid):
    """W and b sampled from smooth functions of the places of patches in the unit square."""
    rows, columns = ((np.arange(side) + 0.5) / side for side in grid)
    y, x = (axis.ravel() for axis in np.meshgrid(rows, columns, indexing="ij"))
    distance = (y[:, None] - y[None, :]) ** 2 + 0.5 * (x[:, None] - x[None, :] - 0.1) ** 2
    weight = np.exp(-3 * distance) * (1 + y[:, None] + 0.5 * x[None, :]) / len(y)
    return weight.astype(np.float32), (np.sin(2 * y) + x).astype(np.float32)


@pytest.mark.parametrize("grid, new_grid", [((10, 10), (14, 14)), ((10, 12), (13, 15)), ((12, 9), (9, 8))])
def test_resizing_a_smooth_projection_samples_it_elsewhere(grid, new_grid):
    weight, bias = resize(*map(jnp.asarray, smooth_projection(grid)), grid, new_grid)
    expected_weight, expected_bias = smooth_projection(new_grid)
    assert weight.shape == expected_weight.shape and bias.shape == expected_bias.shape
    largest = np.abs(expected_weight).max()
    assert np.abs(weight - expected_weight).max() < 0.06 * largest  # at the edges
    assert np.abs(weight - expected_weight).mean() < 0.01 * largest
    assert np.abs(bias - expected_bias).max() < 0.1 and np.abs(bias - expected_bias).mean() < 0.02


@pytest.mark.parametrize("new_grid", [(16, 16), (24, 24), (12, 12), (14, 20)])
def test_a_resized_projection_keeps_its_response_to_a_constant_image(new_grid):
    """To 3 % of the largest response, from 14 x 14 patches, for a W without any structure."""
    weight = jnp.asarray(normal(0, 196, 196), jnp.float32)
    resized, _ = resize(weight, jnp.zeros(196), (14, 14), new_grid)
    expected = jax.image.resize(weight.sum(1).reshape(14, 14), new_grid, "bicubic").ravel()
    assert np.abs(resized.sum(1) - expected).max() < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize("new_grid", [(4, 6), (7, 5), (3, 8)])
def test_a_mean_stays_a_mean(new_grid):
    """W whose every entry is 1 / n averages its inputs; resized, it averages the new ones."""
    new_n = new_grid[0] * new_grid[1]
    weight, bias = resize(jnp.full((12, 12), 1 / 12), jnp.ones(12), (3, 4), new_grid)
    np.testing.assert_allclose(weight, np.full((new_n, new_n), 1 / new_n), rtol=1e-5)
    np.testing.assert_allclose(bias, np.ones(new_n), rtol=1e-5)


def test_resizing_keeps_outputs_and_inputs_apart():
    """Outputs that differ by row of the grid, inputs that differ by column: each axis is interpolated on its own."""
    outputs, inputs = np.repeat([0.0, 1.0, 2.0], 2), np.tile([1.0, 3.0], 3)
    weight, _ = resize(
        jnp.asarray(np.outer(outputs, inputs), jnp.float32), jnp.zeros(6), (3, 2), (3, 4), method="linear"
    )
    new_inputs = np.tile([1.0, 1.5, 2.5, 3.0], 3) * 6 / 12
    np.testing.assert_allclose(weight, np.outer(np.repeat([0.0, 1.0, 2.0], 4), new_inputs), rtol=1e-5)


def test_resizing_to_the_same_grid_changes_nothing():
    weight, bias = (jnp.asarray(normal(seed, *shape)) for seed, shape in enumerate(((6, 6), (6,))))
    same_weight, same_bias = resize(weight, bias, (2, 3), (2, 3))
    np.testing.assert_array_equal(same_weight, weight)
    np.testing.assert_array_equal(same_bias, bias)


def test_resizing_checks_the_grid():
    weight, bias = jnp.ones((6, 6)), jnp.ones(6)
    for wrong in ((weight, bias, (2, 2)), (weight, jnp.ones(5), (2, 3)), (jnp.ones((6, 5)), bias, (2, 3))):
        with pytest.raises(ValueError, match="do not belong to a grid of"):
            resize(*wrong, (4, 4))


@in_float64
def test_the_gradient_of_a_cropped_projection_reaches_its_taps_alone():
    f = randomized(lambda: projection(length=6))
    state, call = function_of(f)
    gradient = quick_jit(jax.grad(lambda state, z: (call(state, z) ** 2).sum()))(state, normal(0, 1, 4, 2))
    gradient = jax.tree.map(np.asarray, nnx.to_pure_dict(gradient))
    assert (gradient["taps"][[0, 1, 9, 10]] == 0).all() and (gradient["taps"][2:9] != 0).all()
    assert (gradient["bias"][4:] == 0).all() and (gradient["bias"][:4] != 0).all()
