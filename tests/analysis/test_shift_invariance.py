"""How close spatial matrices are to Toeplitz matrices, as a number and as images."""

import collections

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.analysis import filters, shift_invariance
from gmlp_flax.analysis.shift_invariance import ShiftInvariance
from gmlp_flax.training import pretrained


def slow_share(weight, shape):
    """The share by its definition: each entry is replaced by the mean of those at the same
    offset."""
    places = list(np.ndindex(*shape))
    at_offset = collections.defaultdict(list)
    for i, target in enumerate(places):
        for j, source in enumerate(places):
            offset = tuple(np.subtract(source, target))
            offset_weights = at_offset[offset]
            offset_weights.append(weight[i, j])
    mean = np.mean(weight)
    explained = 0.0
    for entries in at_offset.values():
        deviation = np.mean(entries) - mean
        explained += len(entries) * deviation**2
    squares = np.square(weight - mean)
    total = squares.sum()
    return explained / total


@pytest.mark.parametrize("shape", [(12,), (3, 4), (1, 12)])
def test_shares_match_the_definition(shape):
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((3, 12, 12))
    weights = noise + np.eye(12)
    expected = [slow_share(weight, shape) for weight in weights]
    shares = shift_invariance.toeplitz_share(weights, shape)
    assert_allclose(shares, expected, rtol=1e-12)


def test_an_added_constant_does_not_change_the_share():
    rng = np.random.default_rng(2)
    noise = rng.standard_normal((9, 9))
    shifted = noise + 7
    weights = np.stack([noise, shifted])
    first, second = shift_invariance.toeplitz_share(weights, (9,))
    assert_allclose(second, first, rtol=1e-10)


def test_equal_weights_are_toeplitz():
    weights = np.zeros((1, 9, 9))
    shares = shift_invariance.toeplitz_share(weights, (9,))
    assert_allclose(shares, [1], rtol=1e-10)


def grid_convolution() -> np.ndarray:
    """The matrix of a random convolution of 8 x 8 patches."""
    rng = np.random.default_rng(1)
    kernel = rng.standard_normal((15, 15))
    weights = np.zeros((64, 64))
    patches = list(np.ndindex(8, 8))
    for target, (row, column) in enumerate(patches):
        for source, (source_row, source_column) in enumerate(patches):
            down = source_row - row
            right = source_column - column
            kernel_row = down + 7
            kernel_column = right + 7
            weights[target, source] = kernel[kernel_row, kernel_column]
    return weights


def test_the_share_of_a_convolution_over_a_grid_is_one():
    rng = np.random.default_rng(2)
    noise = rng.standard_normal((64, 64))
    matrices = np.stack([grid_convolution(), noise])
    shares = shift_invariance.toeplitz_share(matrices, (8, 8))
    of_convolution, of_noise = shares
    by_chance = shift_invariance.chance((8, 8))
    assert of_convolution == pytest.approx(1, abs=1e-9)
    assert of_noise == pytest.approx(by_chance.noise, abs=0.02)


def test_a_convolution_over_a_grid_is_not_toeplitz_over_a_sequence():
    """A step from the end of a row leads to the next row."""
    matrices = grid_convolution()[None]
    [share] = shift_invariance.toeplitz_share(matrices, (64,))
    assert 0.3 < share < 0.8


def test_the_share_of_noise():
    grid = shift_invariance.chance((8, 8))
    sequence = shift_invariance.chance((64,))
    assert grid.noise == pytest.approx(224 / 4095)
    assert sequence.noise == pytest.approx(2 / 64, rel=0.02)


def smooth_field(random) -> np.ndarray:
    """Noise over pairs of 8 x 8 patches, smoothed along each axis."""
    places = np.arange(-6, 7)
    squares = (places / 1.5) ** 2
    weights = np.exp(-squares / 2)
    kernel = weights / weights.sum()
    field = random.standard_normal((8, 8, 8, 8))
    for axis in range(4):
        widths = [(0, 0)] * 4
        widths[axis] = (6, 6)
        padded = np.pad(field, widths, mode="edge")
        field = np.apply_along_axis(np.convolve, axis, padded, kernel, mode="valid")
    return field.reshape(64, 64)


def test_smooth_noise_has_a_larger_share_than_noise():
    """On 8 x 8 patches 29 %, 15 to 47. Every call gives the same numbers."""
    chance = shift_invariance.chance((8, 8))
    assert chance.smooth == pytest.approx(0.29, abs=0.01)
    assert chance.low == pytest.approx(0.15, abs=0.02)
    assert chance.high == pytest.approx(0.47, abs=0.03)
    assert shift_invariance.chance.__wrapped__((8, 8)) == chance
    assert chance.words().startswith("0.055 for noise, 0.2")


SHARE = np.array([0.5, 0.75])


def panel_of(shares):
    """The only panel of the chart of the shares at some steps."""
    result = ShiftInvariance(shares, np.ones((2, 5, 5)), (5,))
    [panel] = shift_invariance.shares_chart(result).panels
    return panel


def test_shares_of_several_checkpoints_are_curves_over_steps():
    shares = {1: SHARE, 2: SHARE / 2}
    first, second = panel_of(shares).series
    names = (first.name, second.name)
    assert names == ("layer 1", "layer 2")
    assert first.x == second.x == [1, 2]
    assert first.y == [0.5, 0.25]
    assert second.y == [0.75, 0.375]


def test_shares_of_one_checkpoint_are_a_curve_over_layers():
    panel = panel_of({2: SHARE})
    [series] = panel.series
    assert series.name == "step 2"
    assert series.x == [1, 2]
    assert series.y == [0.5, 0.75]
    assert panel.x.label == "layer"
    by_chance = shift_invariance.chance((5,))
    assert panel.references == [
        ("noise", 8 / 24),
        ("smooth noise", by_chance.smooth),
        ("smooth noise, 97.5 %", by_chance.high),
    ]


def test_a_matrix_of_each_layer_is_drawn():
    shares = {1: np.ones(7)}
    weights = np.ones((7, 5, 5))
    result = ShiftInvariance(shares, weights, (5,))
    figure = shift_invariance.figures(result)["spatial_matrices"]
    matrices = []
    for axis in figure.axes:
        if axis.images and axis.axison:
            matrices.append(axis)
    assert len(matrices) == 7


def test_the_share_of_smooth_noise_matches_slowly_smoothed_noise():
    random = np.random.default_rng(5)
    shares = []
    for _ in range(60):
        field = smooth_field(random)
        shares.append(slow_share(field, (8, 8)))
    by_chance = shift_invariance.chance((8, 8))
    assert np.mean(shares) == pytest.approx(by_chance.smooth, abs=0.04)


def test_every_checkpoint_of_a_run_of_text_is_read(text_run):
    """Its matrices are Toeplitz by construction."""
    result = shift_invariance.shift_invariance(str(text_run))
    newest = pretrained.load(str(text_run), "latest")
    assert_array_equal(result.weights, filters.matrices(newest))
    assert list(result.shares) == [6, 12]
    assert result.shape == (32,)
    shares = list(result.shares.values())
    ones = np.ones((2, 2))
    assert_allclose(shares, ones, atol=1e-5)


def test_every_checkpoint_of_a_run_of_images_is_read(image_run):
    result = shift_invariance.shift_invariance(str(image_run))
    assert list(result.shares) == [12]
    assert result.shape == (4, 4)
    for share in result.shares.values():
        assert ((share > 0) & (share < 1)).all()


def test_a_band_has_the_weights_near_the_diagonal():
    """Row reach + offset, column i is W[i, i + offset]."""
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((2, 6, 6))
    expected = np.full((2, 5, 6), np.nan)
    for offset in range(-2, 3):
        for token in range(6):
            source = token + offset
            if 0 <= source < 6:
                expected[:, 2 + offset, token] = weights[:, token, source]
    assert_array_equal(shift_invariance.band(weights, 2), expected)


def test_the_band_of_a_toeplitz_matrix_has_equal_weights_in_each_row():
    taps = np.random.default_rng(4).standard_normal(11)
    positions = np.arange(6)
    offsets = positions[:, None] - positions
    matrix = taps[offsets + 5]
    band = shift_invariance.band(matrix[None], 5)
    deviations = np.nanstd(band, axis=-1)
    assert np.all(deviations < 1e-12)


def test_bands_are_drawn_with_the_number_of_their_layer():
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((2, 6, 6))
    first, second, *_ = shift_invariance.draw_bands(weights).axes
    assert first.get_ylabel() == "layer 1"
    assert second.get_ylabel() == "layer 2"
    drawn = first.images[0].get_array()
    assert drawn.shape == (11, 6)
