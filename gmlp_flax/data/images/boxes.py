"""Arrays of images, and rectangles in them, in whole pixels."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

ImageArray = np.ndarray  # uint8 [height, width, channels]
Size = tuple[int, int]  # height and width


class Box(NamedTuple):
    """A rectangle in an image."""

    top: int
    left: int
    height: int
    width: int

    @property
    def bottom(self) -> int:
        """The first row below the box."""
        return self.top + self.height

    @property
    def right(self) -> int:
        """The first column to the right of the box."""
        return self.left + self.width

    @property
    def slices(self) -> tuple[slice, slice]:
        """The rows and columns of the box, to index an image [height, width, ...]."""
        rows = slice(self.top, self.bottom)
        columns = slice(self.left, self.right)
        return rows, columns


def random_place(size: Size, image_size: Size, rng: Generator) -> Box:
    """A box of a size, which fits into the image, anywhere in it."""
    height, width = size
    image_height, image_width = image_size
    last_top = image_height - height
    last_left = image_width - width
    top = rng.integers(last_top + 1)
    left = rng.integers(last_left + 1)
    return Box(int(top), int(left), height, width)


def random_sides(
    area: float, least_log_ratio: float, most_log_ratio: float, rng: Generator
) -> Size:
    """The sides of a box of an area, in pixels, whose ratio has a uniform logarithm: the shorter
    one first if the logarithm is positive."""
    log_ratio = rng.uniform(least_log_ratio, most_log_ratio)
    ratio = math.exp(log_ratio)
    first_square = area / ratio
    second_square = area * ratio
    first = math.sqrt(first_square)
    second = math.sqrt(second_square)
    return round(first), round(second)
