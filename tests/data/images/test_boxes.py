"""Rectangles in an image."""

import math

import numpy as np
import pytest

from gmlp_flax.data.images import boxes
from gmlp_flax.data.images.boxes import Box


def test_slices_select_the_pixels_of_a_box():
    box = Box(top=1, left=2, height=3, width=4)
    image = np.arange(60).reshape(6, 10)
    assert box.bottom == 4
    assert box.right == 6
    inside = image[box.slices]
    assert inside.tolist() == [[12, 13, 14, 15], [22, 23, 24, 25], [32, 33, 34, 35]]


def test_random_places_are_all_that_fit():
    rng = np.random.default_rng(0)
    corners = set()
    for _ in range(200):
        box = boxes.random_place((2, 3), (4, 4), rng)
        assert box.height == 2
        assert box.width == 3
        corners.add((box.top, box.left))
    assert corners == {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)}


@pytest.mark.parametrize("log_ratio", [0.0, 0.5])
def test_sides_have_the_area_and_the_ratio(log_ratio):
    rng = np.random.default_rng(0)
    first, second = boxes.random_sides(1e6, log_ratio, log_ratio, rng)
    area = first * second
    ratio = second / first
    assert area == pytest.approx(1e6, rel=2e-3)
    assert math.log(ratio) == pytest.approx(log_ratio, abs=2e-3)
