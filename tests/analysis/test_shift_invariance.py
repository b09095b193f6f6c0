"""How close spatial matrices are to Toeplitz matrices, as a number and as images."""

import collections

import numpy as np
import pytest

from gmlp_flax.analysis import filters, shift_invariance
from gmlp_flax.analysis.shift_invariance import ShiftInvariance
from gmlp_flax.training import pretrained


def slow_share(weight, shape):
    """By its definition: each entry replaced by the mean of those at the same offset."""
    places = list(np.ndindex(*shape))
    at_offset = collections.defaultdict(list)
    for i, place in enumerate(places):
        for j, other in enumerate(places):
            offset = tuple(np.subtract(other, place))
            at_offset[offset].append(weight[i, j])
    mean = np.mean(weight)
    explained = 0.0
    for entries in at_offset.values():
        explained += len(entries) * (np.mean(entries) - mean) ** 2
    return explained / np.square(weight - mean).sum()


@pytest.mark.parametrize("shape", [(12,), (3, 4), (1, 12)])
def test_share_is_that_of_the_definition(shape):
    weights = np.random.default_rng(0).standard_normal((3, 12, 12)) + np.eye(12)
    expected = [slow_share(weight, shape) for weight in weights]
    np.testing.assert_allclose(
        shift_invariance.toeplitz_share(weights, shape), expected, rtol=1e-12
    )


def test_a_constant_changes_nothing():
    noise = np.random.default_rng(2).standard_normal((9, 9))
    first, second = shift_invariance.toeplitz_share(np.stack([noise, noise + 7]), (9,))
    np.testing.assert_allclose(second, first, rtol=1e-10)


def test_equal_weights_are_toeplitz():
    share = shift_invariance.toeplitz_share(np.zeros((1, 9, 9)), (9,))
    np.testing.assert_allclose(share, [1], rtol=1e-10)


def grid_convolution() -> np.ndarray:
    """The matrix of a random convolution of 8 x 8 patches."""
    places = np.stack(np.unravel_index(np.arange(64), (8, 8)))
    rows, columns = places[:, None] - places[:, :, None] + 7
    kernel = np.random.default_rng(1).standard_normal((15, 15))
    return kernel[rows, columns]


def test_a_convolution_of_a_grid_is_one():
    noise = np.random.default_rng(2).standard_normal((64, 64))
    matrices = np.stack([grid_convolution(), noise])
    of_convolution, of_noise = shift_invariance.toeplitz_share(matrices, (8, 8))
    assert of_convolution == pytest.approx(1, abs=1e-9)
    expected = shift_invariance.chance((8, 8)).noise
    assert of_noise == pytest.approx(expected, abs=0.02)


def test_a_convolution_of_a_grid_is_none_of_a_row():
    """As a matrix over patches in a row it is not Toeplitz: a step from the end of a row leads to
    the next row."""
    [flat] = shift_invariance.toeplitz_share(grid_convolution()[None], (64,))
    assert 0.3 < flat < 0.8


def test_the_share_of_noise():
    assert shift_invariance.chance((8, 8)).noise == pytest.approx(224 / 4095)
    assert shift_invariance.chance((64,)).noise == pytest.approx(2 / 64, rel=0.02)


def smooth_field(random) -> np.ndarray:
    """Noise over pairs of 8 x 8 patches, smoothed along each axis."""
    places = np.arange(-6, 7)
    weights = np.exp(-((places / 1.5) ** 2) / 2)
    kernel = weights / weights.sum()
    field = random.standard_normal((8, 8, 8, 8))
    for axis in range(4):
        widths = [(0, 0)] * 4
        widths[axis] = (6, 6)
        padded = np.pad(field, widths, mode="edge")
        field = np.apply_along_axis(np.convolve, axis, padded, kernel, mode="valid")
    return field.reshape(64, 64)


def test_smooth_noise_has_a_larger_share_than_noise():
    """On 8 x 8 patches 29 %, 15 to 47; the same numbers in every call."""
    chance = shift_invariance.chance((8, 8))
    assert chance.smooth == pytest.approx(0.29, abs=0.01)
    assert chance.low == pytest.approx(0.15, abs=0.02)
    assert chance.high == pytest.approx(0.47, abs=0.03)
    assert shift_invariance.chance.__wrapped__((8, 8)) == chance
    assert chance.words().startswith("0.055 for noise, 0.2")


def test_shares_over_steps_or_over_layers():
    """A single checkpoint has no curve over steps."""
    share = np.array([0.5, 0.75])
    weights = np.ones((2, 5, 5))
    [several] = shift_invariance.shares_chart(
        ShiftInvariance({1: share, 2: share / 2}, weights, (5,))
    ).panels
    got = [(each.name, each.x, each.y) for each in several.series]
    assert got == [
        ("layer 1", [1, 2], [0.5, 0.25]),
        ("layer 2", [1, 2], [0.75, 0.375]),
    ]
    [one] = shift_invariance.shares_chart(ShiftInvariance({2: share}, weights, (5,))).panels
    got = [(each.name, each.x, each.y) for each in one.series]
    assert got == [("step 2", [1, 2], [0.5, 0.75])]
    assert one.x.label == "layer"
    assert one.references[0] == ("noise", 8 / 24)
    by_chance = shift_invariance.chance((5,))
    assert one.references[1:] == [
        ("smooth noise", by_chance.smooth),
        ("smooth noise, 97.5 %", by_chance.high),
    ]


def test_a_matrix_of_each_layer_is_drawn():
    weights = np.ones((7, 5, 5))
    figure = shift_invariance.figures(ShiftInvariance({1: np.ones(7)}, weights, (5,)))[
        "spatial_matrices"
    ]
    got = sum(bool(axis.images) and axis.axison for axis in figure.axes)
    assert got == 7


def test_the_share_of_smooth_noise_against_fields_that_are_made_slowly():
    random = np.random.default_rng(5)
    shares = [slow_share(smooth_field(random), (8, 8)) for _ in range(60)]
    expected = shift_invariance.chance((8, 8)).smooth
    assert np.mean(shares) == pytest.approx(expected, abs=0.04)


def test_every_checkpoint_of_a_run_of_text_is_read(text_run):
    """It has the constraint."""
    result = shift_invariance.shift_invariance(str(text_run))
    newest = pretrained.load(str(text_run), "latest")
    np.testing.assert_array_equal(result.weights, filters.matrices(newest))
    assert list(result.shares) == [6, 12]
    assert result.shape == (32,)
    shares = list(result.shares.values())
    np.testing.assert_allclose(shares, np.ones((2, 2)), atol=1e-5)


def test_every_checkpoint_of_a_run_of_images_is_read(image_run):
    result = shift_invariance.shift_invariance(str(image_run))
    assert list(result.shares) == [12]
    assert result.shape == (4, 4)
    for share in result.shares.values():
        assert ((share > 0) & (share < 1)).all()


def test_a_band_has_the_weights_beside_the_diagonal():
    """Row reach + offset, column i is W[i, i + offset]."""
    weights = np.random.default_rng(3).standard_normal((2, 6, 6))
    expected = np.full((2, 5, 6), np.nan)
    for offset in range(-2, 3):
        for token in range(max(0, -offset), min(6, 6 - offset)):
            expected[:, 2 + offset, token] = weights[:, token, token + offset]
    np.testing.assert_array_equal(shift_invariance.band(weights, 2), expected)


def test_the_band_of_a_toeplitz_matrix_has_one_number_in_each_row():
    taps = np.random.default_rng(4).standard_normal(11)
    offsets = np.arange(6)[:, None] - np.arange(6)
    band = shift_invariance.band(taps[offsets + 5][None], 5)
    assert np.all(np.nanstd(band, axis=-1) < 1e-12)


def test_bands_are_drawn_with_the_number_of_their_layer():
    weights = np.random.default_rng(3).standard_normal((2, 6, 6))
    first, second, *_ = shift_invariance.draw_bands(weights).axes
    assert first.get_ylabel() == "layer 1"
    assert second.get_ylabel() == "layer 2"
    assert first.images[0].get_array().shape == (11, 6)
