"""Labels of points: each is placed on the side of its point where it covers the least of other
labels, points and lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gmlp_flax.analysis.charts import Series
from gmlp_flax.analysis.drawing import DPI, POINTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

SIZE = 5.5  # points
GAP = 8  # pixels from a point to its label
MARKER = 4  # pixels from the middle of a marker to its side
SAMPLE = 6  # pixels from one point of a line to the next where labels look for lines
# The sides of a point: above, below, right, left; then between them.
SIDES = (
    (0, 1),
    (0, -1),
    (1, 0),
    (-1, 0),
    (1, 1),
    (-1, 1),
    (1, -1),
    (-1, -1),
)
# The costs of covering one of these.
LABEL_COST = 20
POINT_COST = 10
OUTSIDE_COST = 10
LINE_COST = 1
ROUNDS = 4  # in which all labels are placed again


class Boxes(NamedTuple):
    """Boxes in pixels.

    Attributes:
        low: x and y of their lower left corners, [..., 2].
        high: x and y of their upper right corners, [..., 2].
    """

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def around(
        cls,
        points: np.ndarray,
        margin: np.ndarray | float,
    ) -> Boxes:
        """Boxes around points [..., 2], with a margin in pixels to each side."""
        low = points - margin
        high = points + margin
        return cls(low, high)

    def at(self, index: int) -> Boxes:
        """The boxes with an index on the first axis."""
        low = self.low[index]
        high = self.high[index]
        return Boxes(low, high)

    def without(self, index: int) -> Boxes:
        """The boxes with another index on the first axis."""
        low = np.delete(self.low, index, axis=0)
        high = np.delete(self.high, index, axis=0)
        return Boxes(low, high)

    def choose(self, sides: np.ndarray) -> Boxes:
        """The boxes of one side for each label, [labels], out of [labels, sides]."""
        labels = np.arange(len(sides))
        low = self.low[labels, sides]
        high = self.high[labels, sides]
        return Boxes(low, high)

    def count_overlaps(self, others: Boxes) -> np.ndarray:
        """How many of other boxes [others] each of these boxes [...] overlaps: [...]."""
        low = np.expand_dims(self.low, axis=-2)
        high = np.expand_dims(self.high, axis=-2)
        starts_before = low <= others.high
        ends_after = high >= others.low
        overlaps = np.all(starts_before & ends_after, axis=-1)
        return overlaps.sum(axis=-1)


def label_points(axis: Axes, lines: Sequence[Series]) -> None:
    """Labels the points of axes whose layout is final."""
    texts = []
    points = []
    for series in lines:
        pixels = _pixels(axis, series.x, series.y)
        for index, label in enumerate(series.labels):
            text = _centred_text(axis, series, index, label)
            texts.append(text)
            points.append(pixels[index])
    if not texts:
        return
    sizes = [text.get_window_extent().size for text in texts]
    centres = _centres_of_places(np.array(points), np.array(sizes))
    halves = np.expand_dims(sizes, axis=1) / 2
    places = Boxes.around(centres, halves)
    sides = _choose(places, _costs(places, axis, lines))
    for number, text in enumerate(texts):
        chosen = centres[number, sides[number]]
        offset = (chosen - points[number]) * POINTS / DPI
        text.set_position(offset)


def _centred_text(
    axis: Axes,
    series: Series,
    index: int,
    label: str,
) -> Text:
    """A label in the middle of a point."""
    point = (series.x[index], series.y[index])
    return axis.annotate(
        label,
        point,
        xytext=(0, 0),
        textcoords="offset points",
        fontsize=SIZE,
        color=series.look.text,
        ha="center",
        va="center",
        in_layout=False,
    )


def _pixels(
    axis: Axes,
    x: Sequence[float],
    y: Sequence[float],
) -> np.ndarray:
    """The pixels at which points are drawn, [points, 2]."""
    points = np.column_stack([x, y])
    return axis.transData.transform(points)


def _centres_of_places(points: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The centres of labels of some sizes [points, 2] on each side of their points [points, 2]:
    [points, sides, 2]."""
    distances = sizes / 2 + GAP
    moves = np.expand_dims(distances, axis=1) * SIDES
    origins = np.expand_dims(points, axis=1)
    return origins + moves


def _costs(
    places: Boxes,
    axis: Axes,
    lines: Sequence[Series],
) -> np.ndarray:
    """The cost of what each place of a label covers, besides other labels.

    Args:
        places: boxes [labels, sides].
        axis: the axes of the labels.
        lines: the series that are drawn in them.

    Returns:
        [labels, sides].
    """
    inside = axis.bbox
    is_below = places.low < inside.p0
    is_above = places.high > inside.p1
    is_outside = np.any(is_below | is_above, axis=-1)
    costs = np.where(is_outside, OUTSIDE_COST, 0)
    for series in lines:
        pixels = _pixels(axis, series.x, series.y)
        markers = Boxes.around(pixels, MARKER)
        costs += POINT_COST * places.count_overlaps(markers)
        for corners in _strokes(axis, series):
            samples = _sampled(corners)
            specks = Boxes.around(samples, 0)
            costs += LINE_COST * places.count_overlaps(specks)
    return costs


def _strokes(axis: Axes, series: Series) -> list[np.ndarray]:
    """The corners of each line of a series, [corners, 2]."""
    strokes = []
    if series.joined:
        line = _pixels(axis, series.x, series.y)
        strokes.append(line)
    if series.fit:
        curve = _pixels(axis, series.x, series.fit)
        strokes.append(curve)
    if series.low:
        lowest = _pixels(axis, series.x, series.low)
        highest = _pixels(axis, series.x, series.high)
        bars = np.stack([lowest, highest], axis=1)
        strokes.extend(bars)
    return strokes


def _sampled(corners: np.ndarray) -> np.ndarray:
    """Points on a line through corners [corners, 2], SAMPLE pixels from each other."""
    steps = np.diff(corners, axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    at_corners = np.append(0.0, np.cumsum(lengths))  # distances from the start of the line
    end = at_corners[-1] + SAMPLE
    at = np.arange(0, end, SAMPLE)
    x, y = corners.T
    sampled_x = np.interp(at, at_corners, x)
    sampled_y = np.interp(at, at_corners, y)
    return np.column_stack([sampled_x, sampled_y])


def _choose(places: Boxes, costs: np.ndarray) -> np.ndarray:
    """Chooses a side for each label so that they cover each other least.

    Args:
        places: boxes [labels, sides].
        costs: of each place, whatever the others are, [labels, sides].

    Returns:
        The index of each label's side, [labels].
    """
    sides = costs.argmin(axis=1)
    for _ in range(ROUNDS):
        for label in range(len(sides)):
            others = places.choose(sides).without(label)
            covered = places.at(label).count_overlaps(others)
            total = costs[label] + LABEL_COST * covered
            sides[label] = total.argmin()
    return sides
