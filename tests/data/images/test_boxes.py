"""Rectangles in an image."""

import math

import numpy as np
import pytest

from gmlp_flax.data.images import boxes
from gmlp_flax.data.images.boxes import Box


def test_slices_of_a_box():
    box = Box(top=1, left=2, height=3, width=4)
    image = np.arange(60).reshape(6, 10)
    assert box.bottom == 4
    assert box.right == 6
    np.testing.assert_array_equal(
        image[box.slices], [[12, 13, 14, 15], [22, 23, 24, 25], [32, 33, 34, 35]]
    )


def test_a_random_place_is_any_that_fits():
    rng = np.random.default_rng(0)
    places = {boxes.random_place((2, 3), (4, 4), rng) for _ in range(200)}
    tops_and_lefts = {(box.top, box.left) for box in places}
    assert tops_and_lefts == {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)}
    got = {(box.height, box.width) for box in places}
    assert got == {(2, 3)}


@pytest.mark.parametrize("log_ratio", [0.0, 0.5])
def test_sides_have_the_area_and_the_ratio(log_ratio):
    first, second = boxes.random_sides(1e6, log_ratio, log_ratio, np.random.default_rng(0))
    assert first * second == pytest.approx(1e6, rel=2e-3)
    assert math.log(second / first) == pytest.approx(log_ratio, abs=2e-3)
