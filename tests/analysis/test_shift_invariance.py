"""How close spatial matrices are to Toeplitz matrices, as a number and as images."""

import numpy as np
import pytest

from gmlp_flax.analysis import filters, shift_invariance
from gmlp_flax.analysis.shift_invariance import ShiftInvariance
from gmlp_flax.training import pretrained


def slow_share(weight, shape):
    """By its definition: each entry replaced by the mean of those at the same offset."""
    places = list(np.ndindex(*shape))
    at = {}
    for i, one in enumerate(places):
        for j, other in enumerate(places):
            at.setdefault(tuple(np.subtract(other, one)), []).append(weight[i, j])
    mean = np.mean(weight)
    return sum(len(entries) * (np.mean(entries) - mean) ** 2 for entries in at.values()) / np.sum(
        (weight - mean) ** 2
    )


@pytest.mark.parametrize("shape", [(12,), (3, 4), (1, 12)])
def test_share_is_that_of_the_definition(shape):
    weights = np.random.default_rng(0).standard_normal((3, 12, 12)) + np.eye(12)
    expected = [slow_share(weight, shape) for weight in weights]
    np.testing.assert_allclose(
        shift_invariance.toeplitz_share(weights, shape), expected, rtol=1e-12
    )


def test_equal_weights_are_toeplitz_and_a_constant_changes_nothing():
    noise = np.random.default_rng(2).standard_normal((1, 9, 9))
    share = shift_invariance.toeplitz_share(
        np.concatenate([noise, noise + 7, np.zeros((1, 9, 9))]), (9,)
    )
    np.testing.assert_allclose(share, [share[0], share[0], 1], rtol=1e-10)


def test_a_convolution_of_a_grid_is_one_there_alone():
    """As a matrix over patches in a row it is not Toeplitz: a step from the end of a row leads to
    the next row."""
    places = np.stack(np.unravel_index(np.arange(64), (8, 8)))
    rows, columns = places[:, None] - places[:, :, None] + 7
    convolution = np.random.default_rng(1).standard_normal((15, 15))[rows, columns]
    noise = np.random.default_rng(2).standard_normal((64, 64))
    share = shift_invariance.toeplitz_share(np.stack([convolution, noise]), (8, 8))
    assert share[0] == pytest.approx(1, abs=1e-9)
    assert share[1] == pytest.approx(shift_invariance.chance((8, 8)).noise, abs=0.02)
    assert shift_invariance.chance((8, 8)).noise == pytest.approx(224 / 4095)
    [flat] = shift_invariance.toeplitz_share(convolution[None], (64,))
    assert 0.3 < flat < 0.8
    assert shift_invariance.chance((64,)).noise == pytest.approx(2 / 64, rel=0.02)


def test_smooth_noise_has_a_larger_share_than_noise():
    """On 8 x 8 patches 29 %, 15 to 47; the same fields made slowly, and the same numbers in every
    call."""
    found = shift_invariance.chance((8, 8))
    assert found.smooth == pytest.approx(0.29, abs=0.01)
    assert found.low == pytest.approx(0.15, abs=0.02)
    assert found.high == pytest.approx(0.47, abs=0.03)
    assert shift_invariance.chance.__wrapped__((8, 8)) == found
    assert found.words().startswith("0.055 for noise, 0.2")
    far = np.arange(-6, 7)
    kernel = np.exp(-((far / 1.5) ** 2) / 2) / np.exp(-((far / 1.5) ** 2) / 2).sum()
    random = np.random.default_rng(5)
    shares = []
    for _ in range(60):
        field = random.standard_normal((8, 8, 8, 8))
        for axis in range(4):
            padded = np.pad(
                field, [(6, 6) if axis == other else (0, 0) for other in range(4)], mode="edge"
            )
            field = np.apply_along_axis(np.convolve, axis, padded, kernel, mode="valid")
        shares.append(slow_share(field.reshape(64, 64), (8, 8)))
    assert np.mean(shares) == pytest.approx(found.smooth, abs=0.04)


def test_every_checkpoint_of_a_run_is_read(text_run, image_run):
    """Those of the text have the constraint."""
    found = shift_invariance.shift_invariance(str(text_run))
    newest = pretrained.load(str(text_run), "latest")
    np.testing.assert_array_equal(found.weights, filters.matrices(newest))
    assert (list(found.shares), found.shape) == ([6, 12], (32,))
    np.testing.assert_allclose(list(found.shares.values()), np.ones((2, 2)), atol=1e-5)
    found = shift_invariance.shift_invariance(str(image_run))
    assert (list(found.shares), found.shape) == ([12], (4, 4))
    assert all(((share > 0) & (share < 1)).all() for share in found.shares.values())


def test_shares_over_steps_or_over_layers():
    """A single checkpoint has no curve over steps."""
    share = np.array([0.5, 0.75])
    weights = np.ones((2, 5, 5))
    [several] = shift_invariance.shares_chart(
        ShiftInvariance({1: share, 2: share / 2}, weights, (5,))
    ).panels
    assert [(each.name, each.x, each.y) for each in several.series] == [
        ("layer 1", [1, 2], [0.5, 0.25]),
        ("layer 2", [1, 2], [0.75, 0.375]),
    ]
    [one] = shift_invariance.shares_chart(ShiftInvariance({2: share}, weights, (5,))).panels
    assert [(each.name, each.x, each.y) for each in one.series] == [("step 2", [1, 2], [0.5, 0.75])]
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
    assert sum(bool(axis.images) and axis.axison for axis in figure.axes) == 7


def test_a_band_has_the_weights_beside_the_diagonal():
    """Row reach + offset, column i is W[i, i + offset]; a Toeplitz matrix has one number in each
    row."""
    weights = np.random.default_rng(3).standard_normal((2, 6, 6))
    band = shift_invariance.band(weights, 2)
    for offset in range(-2, 3):
        for token in range(6):
            expected = weights[:, token, token + offset] if 0 <= token + offset < 6 else np.nan
            np.testing.assert_array_equal(band[:, 2 + offset, token], np.broadcast_to(expected, 2))
    toeplitz = np.random.default_rng(4).standard_normal(11)[
        np.arange(6)[:, None] - np.arange(6) + 5
    ]
    assert np.all(np.nanstd(shift_invariance.band(toeplitz[None], 5), axis=-1) < 1e-12)
    figure = shift_invariance.draw_bands(weights)
    assert [axis.get_ylabel() for axis in figure.axes[:2]] == ["layer 1", "layer 2"]
    assert figure.axes[0].images[0].get_array().shape == (11, 6)
