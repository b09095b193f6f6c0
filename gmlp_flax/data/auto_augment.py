"""AutoAugment's ImageNet policy and RandAugment, through the operations of Pillow and, for geometry, OpenCV.

Magnitudes run from 0 to 10. What they mean, and how often signs and layers are drawn, is timm's definition, in which
the recipes of DeiT and of the published gMLP-S are written. Works on RGB and on grey pictures ("L").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image, ImageEnhance, ImageOps

MAX_MAGNITUDE = 10

# RandAugment draws an operation a layer, and then whether to apply it.
LAYER_PROBABILITY = 0.5

Fill = tuple[int, ...]


class Operation(NamedTuple):
    """One kind of change.

    Attributes:
        apply: (image, argument, colour of what comes into view) -> image.
        argument: the magnitude, from 0 to 1, -> the argument; None where there is none.
        signed: whether the argument's sign is drawn.
    """

    apply: Callable[[Image.Image, float, Fill], Image.Image]
    argument: Callable[[float], float] | None = None
    signed: bool = False


def _affine(matrix: Callable[[float, tuple[int, int]], tuple[float, ...]]) -> Callable:
    """Moves pixels by `matrix(argument, image size)`: output x, y comes from input a x + b y + c, d x + e y + f.

    Bilinear (timm draws that or bicubic), by OpenCV: four times as fast as Pillow, and about a grey level from it.
    """

    def apply(image: Image.Image, argument: float, fill: Fill) -> Image.Image:
        """The picture moved, of the same size; `fill` where nothing of it comes to lie."""
        a, b, c, d, e, f = matrix(argument, image.size)
        # Pillow's matrices, as these, count from a pixel's corner, OpenCV's from its centre.
        centred = np.array([[a, b, c + (a + b - 1) / 2], [d, e, f + (d + e - 1) / 2]])
        cv2.setNumThreads(1)  # the pipeline has its own
        moved = cv2.warpAffine(
            np.asarray(image), centred, image.size, flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderValue=fill
        )
        return Image.fromarray(moved)

    return apply


def _rotation(degrees: float, size: tuple[int, int]) -> tuple[float, ...]:
    """Counter-clockwise about the centre."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = size[0] / 2, size[1] / 2
    return cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y


def _enhance(enhancer: type) -> Operation:
    """Blends with the grey, black, flat or blurred picture: a factor of 0.1 to 1.9, where 1 changes nothing."""
    return Operation(lambda image, factor, _: enhancer(image).enhance(factor), lambda m: m * 1.8 + 0.1)


def _enhance_increasing(enhancer: type) -> Operation:
    """As `_enhance`, but further from 1, in either direction, the greater the magnitude."""
    return Operation(
        lambda image, change, _: enhancer(image).enhance(max(0.1, 1 + change)), lambda m: m * 0.9, signed=True
    )


def _posterize(image: Image.Image, bits: int, _: Fill) -> Image.Image:
    """Keeps the highest bits. Pillow's own refuses to keep none, which RandAugment's magnitude 10 asks for: black."""
    return _by_level(image, [level >> (8 - bits) << (8 - bits) for level in range(256)])


def _solarize(image: Image.Image, threshold: int, _: Fill) -> Image.Image:
    """Inverts the levels from the threshold on."""
    return ImageOps.solarize(image, threshold)


def _solarize_add(image: Image.Image, added: int, _: Fill) -> Image.Image:
    """Makes what is darker than 128 brighter."""
    return _by_level(image, [min(255, level + added) if level < 128 else level for level in range(256)])


def _by_level(image: Image.Image, table: list[int]) -> Image.Image:
    """Replaces every level of every channel by its entry."""
    return image.point(table * len(image.getbands()))


OPERATIONS = {
    "AutoContrast": Operation(lambda image, *_: ImageOps.autocontrast(image)),
    "Equalize": Operation(lambda image, *_: ImageOps.equalize(image)),
    "Invert": Operation(lambda image, *_: ImageOps.invert(image)),
    "Rotate": Operation(_affine(_rotation), lambda m: m * 30, signed=True),
    "ShearX": Operation(_affine(lambda a, _: (1, a, 0, 0, 1, 0)), lambda m: m * 0.3, signed=True),
    "ShearY": Operation(_affine(lambda a, _: (1, 0, 0, a, 1, 0)), lambda m: m * 0.3, signed=True),
    "TranslateX": Operation(_affine(lambda a, size: (1, 0, a * size[0], 0, 1, 0)), lambda m: m * 0.45, signed=True),
    "TranslateY": Operation(_affine(lambda a, size: (1, 0, 0, 0, 1, a * size[1])), lambda m: m * 0.45, signed=True),
    # Bits kept: AutoAugment keeps 4 to 8, more at a greater magnitude; RandAugment keeps 4 to 0, fewer.
    "Posterize": Operation(_posterize, lambda m: int(m * 4) + 4),
    "PosterizeIncreasing": Operation(_posterize, lambda m: 4 - int(m * 4)),
    "Solarize": Operation(_solarize, lambda m: int(m * 256)),
    "SolarizeIncreasing": Operation(_solarize, lambda m: 256 - int(m * 256)),
    "SolarizeAdd": Operation(_solarize_add, lambda m: int(m * 110)),
    "Color": _enhance(ImageEnhance.Color),
    "ColorIncreasing": _enhance_increasing(ImageEnhance.Color),
    "Contrast": _enhance(ImageEnhance.Contrast),
    "ContrastIncreasing": _enhance_increasing(ImageEnhance.Contrast),
    "BrightnessIncreasing": _enhance_increasing(ImageEnhance.Brightness),
    "Sharpness": _enhance(ImageEnhance.Sharpness),
    "SharpnessIncreasing": _enhance_increasing(ImageEnhance.Sharpness),
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


def apply(name: str, image: Image.Image, magnitude: float, rng: np.random.Generator, fill: Fill) -> Image.Image:
    """One operation; the same image may come back.

    Args:
        name: a key of OPERATIONS.
        image: mode RGB or L.
        magnitude: 0 to 10.
        rng: draws the sign, where there is one.
        fill: the colour of what comes into view, 0 to 255, one a channel.
    """
    operation, argument = OPERATIONS[name], 0.0
    if operation.argument is not None:
        argument = operation.argument(magnitude / MAX_MAGNITUDE)
    if operation.signed and rng.random() < 0.5:
        argument = -argument
    return operation.apply(image, argument, fill)


def auto_augment(image: Image.Image, rng: np.random.Generator, fill: Fill) -> Image.Image:
    """AutoAugment: one of the policy's 25 pairs, each of its two operations with its probability (see `apply`)."""
    for name, probability, magnitude in IMAGENET_POLICY[rng.integers(len(IMAGENET_POLICY))]:
        if rng.random() < probability:
            image = apply(name, image, magnitude, rng, fill)
    return image


def rand_augment(
    image: Image.Image, rng: np.random.Generator, fill: Fill, *, layers: int, magnitude: float, std: float
) -> Image.Image:
    """RandAugment (Cubuk et al. 2019), as timm's `rand-m9-n2-mstd0.5-inc1` with these defaults of DeiT's.

    Args:
        image, rng, fill: as in `apply`.
        layers: operations drawn, with replacement; each is applied with probability 0.5.
        magnitude: the mean severity, 0 to 10.
        std: of each operation's own severity, a normal draw cut off at 0 and 10.
    """
    for choice in rng.integers(len(RANDAUGMENT), size=layers):
        if rng.random() < LAYER_PROBABILITY:
            severity = min(max(rng.normal(magnitude, std), 0), MAX_MAGNITUDE)
            image = apply(RANDAUGMENT[choice], image, severity, rng, fill)
    return image
