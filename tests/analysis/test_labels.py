"""The places of the labels of points, on axes of 800 by 600 pixels from 0 to 1."""

import itertools

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_array_equal

from gmlp_flax.analysis import labels
from gmlp_flax.analysis.charts import Series
from gmlp_flax.analysis.drawing import DPI, style
from gmlp_flax.analysis.labels import Boxes, label_points
from gmlp_flax.analysis.looks import Look

LOOK = Look("#0072b2")


@pytest.fixture
def axis():
    with style():
        figure = Figure(figsize=(800 / DPI, 600 / DPI))
        axis = figure.add_axes((0, 0, 1, 1))
        axis.set(xlim=(0, 1), ylim=(0, 1))
        yield axis


def boxes_of(axis):
    """The box of each label in pixels: left, bottom, right, top."""
    return [text.get_window_extent().extents for text in axis.texts]


def points_at(*points, **options):
    """Unjoined points with labels."""
    x, y = zip(*points, strict=True)
    names = [f"model {number}" for number in range(len(points))]
    return Series("line", LOOK, x, y, labels=names, joined=False, **options)


def overlap(first, second):
    """Whether two boxes have a common point."""
    left, bottom, right, top = first
    other_left, other_bottom, other_right, other_top = second
    in_columns = left <= other_right and other_left <= right
    in_rows = bottom <= other_top and other_bottom <= top
    return in_columns and in_rows


def test_overlaps_are_counted_box_by_box():
    rng = np.random.default_rng(0)
    candidates = Boxes.around(rng.uniform(0, 20, (4, 3, 2)), 2.0)
    obstacles = Boxes.around(rng.uniform(0, 20, (7, 2)), 1.5)
    obstacle_boxes = np.concatenate([obstacles.low, obstacles.high], axis=1)
    expected = np.zeros((4, 3), int)
    for index in np.ndindex(4, 3):
        box = [*candidates.low[index], *candidates.high[index]]
        for obstacle in obstacle_boxes:
            if overlap(box, obstacle):
                expected[index] += 1
    counts = candidates.count_overlaps(obstacles)
    assert_array_equal(counts, expected)
    assert 0 < counts.sum() < 84


def test_a_label_is_above_its_point_if_there_is_room(axis):
    label_points(axis, [points_at((0.5, 0.5))])
    [(left, bottom, right, _)] = boxes_of(axis)
    middle = (left + right) / 2
    assert middle == pytest.approx(400, abs=1)
    assert bottom == pytest.approx(300 + labels.GAP, abs=1)


def test_a_label_stays_inside_the_axes(axis):
    """Above a point at the top there is no room."""
    label_points(axis, [points_at((0.5, 0.99))])
    [(_, _, _, top)] = boxes_of(axis)
    point = 0.99 * 600
    assert top == pytest.approx(point - labels.GAP, abs=1)


def test_labels_of_near_points_do_not_cover_each_other_nor_the_points(axis):
    places = [(0.5, 0.5), (0.52, 0.5), (0.5, 0.53), (0.52, 0.53)]
    label_points(axis, [points_at(*places)])
    boxes = boxes_of(axis)
    assert len(boxes) == 4
    for first, second in itertools.combinations(boxes, 2):
        assert not overlap(first, second)
    for x, y in places:
        column = 800 * x
        row = 600 * y
        for box in boxes:
            assert not overlap(box, (column, row, column, row))


def test_a_label_avoids_a_line_of_another_series(axis):
    """The line crosses the place above the point."""
    height = 0.54
    line = Series("other", LOOK, [0.0, 1.0], [height, height])
    label_points(axis, [points_at((0.5, 0.5)), line])
    [(_, bottom, _, top)] = boxes_of(axis)
    assert not bottom <= 600 * height <= top


def test_a_label_avoids_a_fitted_curve_and_ranges_over_seeds(axis):
    """A curve above the point and a bar through it leave the places on its left and right."""
    height = 0.54
    series = points_at(
        (0.5, 0.5), (0.9, 0.1), low=[0.3, 0.1], high=[0.7, 0.1], fit=[height, height]
    )
    label_points(axis, [series])
    first, *_ = boxes_of(axis)
    left, bottom, right, top = first
    assert not left <= 400 <= right
    assert not bottom <= 600 * height <= top


def test_series_without_labels_have_no_text(axis):
    label_points(axis, [Series("line", LOOK, [0.1], [0.1])])
    assert not axis.texts
