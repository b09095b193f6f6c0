"""How near a spatial matrix is to Toeplitz, as a number."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.analysis import filters, shift_invariance
from gmlp_flax.errors import RunError
from gmlp_flax.models import toeplitz
from gmlp_flax.training import loading


def slow_share(weight):
    """By its definition: each entry replaced by the mean of its diagonal."""
    n = len(weight)
    means = {d: np.mean([weight[i, i + d] for i in range(n) if 0 <= i + d < n]) for d in range(1 - n, n)}
    replaced = [[means[j - i] for j in range(n)] for i in range(n)]
    return np.sum(np.square(replaced)) / np.sum(np.square(weight))


def test_share_is_that_of_the_definition():
    weights = np.random.default_rng(0).standard_normal((3, 9, 9)) + np.eye(9)
    expected = [slow_share(weight) for weight in weights]
    np.testing.assert_allclose(shift_invariance.toeplitz_share(weights), expected, rtol=1e-12)


def test_toeplitz_is_one_and_noise_is_little():
    taps = jnp.asarray(np.random.default_rng(1).standard_normal(2 * 64 - 1))
    noise = np.random.default_rng(2).standard_normal((64, 64))
    share = shift_invariance.toeplitz_share(np.stack([toeplitz.expand(taps), noise]))
    assert share[0] == pytest.approx(1, abs=1e-6)
    assert share[1] == pytest.approx(shift_invariance.noise_share(64), abs=0.02)
    assert shift_invariance.noise_share(64) == pytest.approx(2 / 64, rel=0.01)


def test_every_checkpoint_of_a_run_is_read(text_run):
    found, weights = shift_invariance.shares(str(text_run))
    np.testing.assert_array_equal(weights, filters.matrices(loading.load(str(text_run))))
    assert list(found) == [6, 12]
    for share in found.values():  # of a run with the constraint
        np.testing.assert_allclose(share, [1, 1], atol=1e-5)


def test_images_are_refused(image_run):
    with pytest.raises(RunError, match="is a run on images, whose tokens lie in a grid: give a run on text"):
        shift_invariance.shares(str(image_run))


def test_figures_of_matrices_and_of_shares_over_steps(tmp_path):
    weights = np.random.default_rng(0).standard_normal((7, 5, 5))
    share = shift_invariance.toeplitz_share(weights)
    paths = shift_invariance.draw({1: share, 2: share / 2}, weights, str(tmp_path))
    assert paths == [f"{tmp_path}/figures/{name}" for name in ("spatial_matrices.png", "toeplitz_share.png")]
    for path in paths:
        with open(path, "rb") as file:
            assert file.read(4) == b"\x89PNG"


def test_shares_over_steps_or_over_layers():
    """A single checkpoint has no curve over steps."""
    share = np.array([0.5, 0.75])
    [several] = shift_invariance.shares_chart({1: share, 2: share / 2}, 5).panels
    assert [(each.name, each.x, each.y) for each in several.series] == [
        ("layer 1", [1, 2], [0.5, 0.25]), ("layer 2", [1, 2], [0.75, 0.375]),
    ]
    [one] = shift_invariance.shares_chart({2: share}, 5).panels
    assert [(each.name, each.x, each.y) for each in one.series] == [("step 2", [1, 2], [0.5, 0.75])]
    assert one.x.label == "layer" and one.references == [("noise", 9 / 25)]
