"""AutoAugment's ImageNet policy and RandAugment, on arrays: through OpenCV, with Pillow's pixels but for geometry.

Magnitudes run from 0 to 10. What they mean, and how often signs and layers are drawn, is timm's definition, in which
the recipes of DeiT and of the published gMLP-S are written. Works on RGB and on grey pictures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

MAX_MAGNITUDE = 10

# RandAugment draws an operation a layer, and then whether to apply it.
LAYER_PROBABILITY = 0.5

Fill = tuple[int, ...]

_LEVELS = np.arange(256)
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


class Operation(NamedTuple):
    """One kind of change.

    Attributes:
        apply: (pixels, argument, colour of what comes into view) -> pixels.
        argument: the magnitude, from 0 to 1, -> the argument; None where there is none.
        signed: whether the argument's sign is drawn.
    """

    apply: Callable[[np.ndarray, float, Fill], np.ndarray]
    argument: Callable[[float], float] | None = None
    signed: bool = False


def _affine(matrix: Callable[[float, tuple[int, int]], tuple[float, ...]]) -> Callable:
    """Moves pixels by `matrix(argument, (width, height))`: output x, y from input a x + b y + c, d x + e y + f.

    Bilinear (timm draws that or bicubic): several times as fast as Pillow, and about a grey level from it.
    """

    def apply(pixels: np.ndarray, argument: float, fill: Fill) -> np.ndarray:
        """The picture moved, of the same size; `fill` where nothing of it comes to lie."""
        size, colours = pixels.shape[1::-1], pixels.shape[2] == 3
        a, b, c, d, e, f = matrix(argument, size)
        # Pillow's matrices, as these, count from a pixel's corner, OpenCV's from its centre.
        centred = np.array([[a, b, c + (a + b - 1) / 2], [d, e, f + (d + e - 1) / 2]])
        # The same pixels in half the time: OpenCV moves four channels faster than three.
        wide = cv2.cvtColor(pixels, cv2.COLOR_RGB2RGBA) if colours else pixels
        moved = cv2.warpAffine(wide, centred, size, flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderValue=fill)
        return cv2.cvtColor(moved, cv2.COLOR_RGBA2RGB) if colours else moved

    return apply


def _rotation(degrees: float, size: tuple[int, int]) -> tuple[float, ...]:
    """Counter-clockwise about the centre."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = size[0] / 2, size[1] / 2
    return cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y


def _by_table(table: Callable[[float], np.ndarray]) -> Callable:
    """Replaces every level of every channel by its entry in `table(argument)`: integers [256]."""
    return lambda pixels, argument, _: cv2.LUT(pixels, _bytes(table(argument)))


def _posterize(pixels: np.ndarray, bits: int, _: Fill) -> np.ndarray:
    """Keeps the highest bits. Pillow's own refuses to keep none, which RandAugment's magnitude 10 asks for: black."""
    return pixels & np.uint8(256 - 2 ** (8 - bits))


_solarize = _by_table(lambda threshold: np.where(_LEVELS < threshold, _LEVELS, 255 - _LEVELS))


def _by_histogram(table: Callable[[np.ndarray], np.ndarray]) -> Callable:
    """Replaces every level of a channel by its entry in `table(pixels of each level)`: both [256]."""

    def apply(pixels: np.ndarray, *_: object) -> np.ndarray:
        """The picture with each channel's own table applied."""
        counts = (cv2.calcHist([pixels], [channel], None, [256], [0, 256]) for channel in range(pixels.shape[2]))
        tables = [table(count.ravel().astype(int)) for count in counts]
        return cv2.LUT(pixels, _bytes(np.stack(tables, axis=-1)[None]))

    return apply


def _bytes(table: np.ndarray) -> np.ndarray:
    """What lies beyond black and white is cut off, fractions as well."""
    return table.clip(0, 255).astype(np.uint8)


def _stretched(counts: np.ndarray) -> np.ndarray:
    """The darkest level that occurs becomes 0, the brightest 255."""
    low, high = counts.nonzero()[0][[0, -1]]
    if low == high:
        return _LEVELS
    scale = 255.0 / (high - low)
    return _LEVELS * scale - low * scale  # in this order, as Pillow rounds


def _equalized(counts: np.ndarray) -> np.ndarray:
    """Each level becomes the share of darker pixels, in steps of a 255th of all pixels but the brightest."""
    step = (counts.sum() - counts[counts.nonzero()[0][-1]]) // 255
    return (step // 2 + counts.cumsum() - counts) // step if step else _LEVELS


def black(pixels: np.ndarray) -> np.ndarray:
    """What brightness starts from. As the next three: uint8 [height, width, channels] to the same."""
    return np.zeros_like(pixels)


def flat(pixels: np.ndarray) -> np.ndarray:
    """What contrast starts from: the mean luminance everywhere."""
    return np.full_like(pixels, int(_luminance(pixels).mean() + 0.5))


def grey(pixels: np.ndarray) -> np.ndarray:
    """What colour starts from: each pixel's luminance in all its channels."""
    return cv2.merge([_luminance(pixels)] * pixels.shape[2])


def smooth(pixels: np.ndarray) -> np.ndarray:
    """What sharpness starts from: blurred by Pillow's filter SMOOTH, which leaves the outermost pixels as they are."""
    blurred, inside = pixels.copy(), np.s_[1:-1, 1:-1]
    blurred[inside] = cv2.filter2D(pixels, -1, _SMOOTH).reshape(pixels.shape)[inside]
    return blurred


def _luminance(pixels: np.ndarray) -> np.ndarray:
    """[height, width], as Pillow rounds it: OpenCV's is a level off here and there."""
    return np.asarray(Image.fromarray(pixels).convert("L")) if pixels.shape[2] == 3 else pixels[..., 0]


def enhanced(pixels: np.ndarray, start: Callable[[np.ndarray], np.ndarray], factor: float) -> np.ndarray:
    """From `start(pixels)` towards the picture, and beyond it where `factor`, of at least 0, is greater than 1.

    Pillow's ImageEnhance. uint8 [height, width, channels] to the same.
    """
    # As if they were grey, which spares Pillow a copy of each.
    images = [Image.fromarray(array.reshape(len(array), -1)) for array in (start(pixels), pixels)]
    return np.asarray(Image.blend(*images, factor)).reshape(pixels.shape)


def _enhance(start: Callable[[np.ndarray], np.ndarray]) -> Operation:
    """By a factor of 0.1 to 1.9, where 1 changes nothing."""
    return Operation(lambda pixels, factor, _: enhanced(pixels, start, factor), lambda m: m * 1.8 + 0.1)


def _enhance_increasing(start: Callable[[np.ndarray], np.ndarray]) -> Operation:
    """As `_enhance`, but further from 1, in either direction, the greater the magnitude."""
    return Operation(
        lambda pixels, change, _: enhanced(pixels, start, max(0.1, 1 + change)), lambda m: m * 0.9, signed=True
    )


OPERATIONS = {
    "AutoContrast": Operation(_by_histogram(_stretched)),
    "Equalize": Operation(_by_histogram(_equalized)),
    "Invert": Operation(lambda pixels, *_: ~pixels),
    "Rotate": Operation(_affine(_rotation), lambda m: m * 30, signed=True),
    "ShearX": Operation(_affine(lambda a, _: (1, a, 0, 0, 1, 0)), lambda m: m * 0.3, signed=True),
    "ShearY": Operation(_affine(lambda a, _: (1, 0, 0, a, 1, 0)), lambda m: m * 0.3, signed=True),
    "TranslateX": Operation(_affine(lambda a, size: (1, 0, a * size[0], 0, 1, 0)), lambda m: m * 0.45, signed=True),
    "TranslateY": Operation(_affine(lambda a, size: (1, 0, 0, 0, 1, a * size[1])), lambda m: m * 0.45, signed=True),
    # Bits kept: AutoAugment keeps 4 to 8, more at a greater magnitude; RandAugment keeps 4 to 0, fewer.
    "Posterize": Operation(_posterize, lambda m: int(m * 4) + 4),
    "PosterizeIncreasing": Operation(_posterize, lambda m: 4 - int(m * 4)),
    # Thresholds, from which on levels are inverted.
    "Solarize": Operation(_solarize, lambda m: int(m * 256)),
    "SolarizeIncreasing": Operation(_solarize, lambda m: 256 - int(m * 256)),
    # What is darker than 128 becomes brighter.
    "SolarizeAdd": Operation(
        _by_table(lambda added: np.where(_LEVELS < 128, _LEVELS + added, _LEVELS)), lambda m: int(m * 110)
    ),
    "Color": _enhance(grey),
    "ColorIncreasing": _enhance_increasing(grey),
    "Contrast": _enhance(flat),
    "ContrastIncreasing": _enhance_increasing(flat),
    "BrightnessIncreasing": _enhance_increasing(black),
    "Sharpness": _enhance(smooth),
    "SharpnessIncreasing": _enhance_increasing(smooth),
}

# (operation, probability, magnitude) twice: Cubuk et al. 2018 (arXiv 1805.09501), appendix, ImageNet. Some rows occur
# twice, some magnitudes belong to operations without one, and two probabilities are 0 or 1: so it was printed.
IMAGENET_POLICY = (
    (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 5)),
    (("Equalize", 0.8, 8), ("Equalize", 0.6, 3)),
    (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
    (("Equalize", 0.4, 7), ("Solarize", 0.2, 4)),
    (("Equalize", 0.4, 4), ("Rotate", 0.8, 8)),
    (("Solarize", 0.6, 3), ("Equalize", 0.6, 7)),
    (("Posterize", 0.8, 5), ("Equalize", 1.0, 2)),
    (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
    (("Equalize", 0.6, 8), ("Posterize", 0.4, 6)),
    (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
    (("Rotate", 0.4, 9), ("Equalize", 0.6, 2)),
    (("Equalize", 0.0, 7), ("Equalize", 0.8, 8)),
    (("Invert", 0.6, 4), ("Equalize", 1.0, 8)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
    (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
    (("Sharpness", 0.4, 7), ("Invert", 0.6, 8)),
    (("ShearX", 0.6, 5), ("Equalize", 1.0, 9)),
    (("Color", 0.4, 0), ("Equalize", 0.6, 3)),
    (("Equalize", 0.4, 7), ("Solarize", 0.2, 4)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 5)),
    (("Invert", 0.6, 4), ("Equalize", 1.0, 8)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Equalize", 0.8, 8), ("Equalize", 0.6, 3)),
)

# What RandAugment draws from: the kinds whose severity increases with the magnitude (timm's `inc1`).
RANDAUGMENT = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "PosterizeIncreasing", "SolarizeIncreasing", "SolarizeAdd",
    "ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing", "SharpnessIncreasing", "ShearX", "ShearY",
    "TranslateX", "TranslateY",
)


def apply(name: str, pixels: np.ndarray, magnitude: float, rng: np.random.Generator, fill: Fill) -> np.ndarray:
    """One operation.

    Args:
        name: a key of OPERATIONS.
        pixels: uint8 [height, width, channels], 1 or 3 channels; not changed.
        magnitude: 0 to 10.
        rng: draws the sign, where there is one.
        fill: the colour of what comes into view, 0 to 255, one a channel.

    Returns:
        uint8, of the same shape.
    """
    operation, argument = OPERATIONS[name], 0.0
    if operation.argument is not None:
        argument = operation.argument(magnitude / MAX_MAGNITUDE)
    if operation.signed and rng.random() < 0.5:
        argument = -argument
    cv2.setNumThreads(1)  # the pipeline has its own
    # OpenCV drops the axis of a single channel.
    return operation.apply(pixels, argument, fill).reshape(pixels.shape)


def auto_augment(pixels: np.ndarray, rng: np.random.Generator, fill: Fill) -> np.ndarray:
    """AutoAugment: one of the policy's 25 pairs, each of its two operations with its probability (see `apply`)."""
    for name, probability, magnitude in IMAGENET_POLICY[rng.integers(len(IMAGENET_POLICY))]:
        if rng.random() < probability:
            pixels = apply(name, pixels, magnitude, rng, fill)
    return pixels


def rand_augment(
    pixels: np.ndarray, rng: np.random.Generator, fill: Fill, *, layers: int, magnitude: float, std: float
) -> np.ndarray:
    """RandAugment (Cubuk et al. 2019), as timm's `rand-m9-n2-mstd0.5-inc1` with these defaults of DeiT's.

    Args:
        pixels, rng, fill: as in `apply`.
        layers: operations drawn, with replacement; each is applied with probability 0.5.
        magnitude: the mean severity, 0 to 10.
        std: of each operation's own severity, a normal draw cut off at 0 and 10.
    """
    for choice in rng.integers(len(RANDAUGMENT), size=layers):
        if rng.random() < LAYER_PROBABILITY:
            severity = min(max(rng.normal(magnitude, std), 0), MAX_MAGNITUDE)
            pixels = apply(RANDAUGMENT[choice], pixels, severity, rng, fill)
    return pixels
