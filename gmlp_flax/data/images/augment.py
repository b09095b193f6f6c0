"""Augmentation of a training image after crop and flip: AutoAugment, RandAugment or colour jitter;
then erasing.

The order and the meaning of every option are timm's: the recipes of DeiT and of the published
gMLP-S use them. Magnitudes run from 0 to 10. Images are RGB or grey arrays, and operations give
Pillow's pixels, except for the geometric ones. The training step mixes images with each other.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.random import Generator
from PIL import Image, ImageEnhance

from gmlp_flax.data.images.boxes import Box, ImageArray, random_place, random_sides

_JITTERED = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
MAX_MAGNITUDE = 10

# RandAugment draws an operation for each layer, and applies it with this probability.
LAYER_PROBABILITY = 0.5

Fill = tuple[int, ...]

_LEVELS = np.arange(256)


class Augmentation(NamedTuple):
    """Options of `augment`; the defaults do nothing.

    Attributes:
        auto: none, autoaugment or randaugment.
        randaugment_layers: how many operations `rand_augment` draws.
        randaugment_magnitude, randaugment_std: the mean and the standard deviation of their
            magnitudes, which are normal and clipped to 0 to 10.
        color_jitter: see `color_jitter`; used only if `auto` is none.
        erasing: probability of `random_erasing`.
        mean, std: of the pixels, in 0 to 1, for each channel; further values are not used. The mean
            fills the areas that rotations and shifts uncover. Both decide the values of erased
            pixels.
    """

    auto: str = "none"
    randaugment_layers: int = 2
    randaugment_magnitude: float = 9.0
    randaugment_std: float = 0.5
    color_jitter: float = 0.0
    erasing: float = 0.0
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


class Operation(NamedTuple):
    """One operation on an image."""

    # (pixels, argument, colour of uncovered areas) -> pixels
    apply: Callable[[ImageArray, Any, Fill], ImageArray]
    # magnitude, scaled to 0 to 1 -> argument; None if there is no argument
    argument: Callable[[float], float] | None = None
    signed: bool = False  # whether the argument's sign is random


class Affine(NamedTuple):
    """A move of pixels: the output at (x, y) is the input at (a x + b y + c, d x + e y + f). The
    coordinates count from the corners of pixels, as Pillow's. The defaults move nothing."""

    a: float = 1
    b: float = 0
    c: float = 0
    d: float = 0
    e: float = 1
    f: float = 0

    def about_centres(self) -> np.ndarray:
        """OpenCV's matrix [2, 3], which counts from the centres of pixels."""
        a, b, c, d, e, f = self
        # The move of a centre, half a pixel from the corner.
        moved_right = (a + b - 1) / 2
        moved_down = (d + e - 1) / 2
        x_row = [a, b, c + moved_right]
        y_row = [d, e, f + moved_down]
        return np.array([x_row, y_row])


Move = Callable[[float, int, int], Affine]  # of the argument, and the image's height and width
Table = Callable[[Any], np.ndarray]
Enhancer = Callable[[Image.Image], Any]


def _by_move(move: Move) -> Callable:
    """Moves pixels by `move(argument, height, width)`.

    Bilinear (timm chooses at random between that and bicubic); pixels differ from Pillow's by about
    one grey level.
    """

    def apply(pixels: ImageArray, argument: float, fill: Fill) -> ImageArray:
        """The image after the move, of the same size; uncovered areas have the colour `fill`."""
        height, width, channels = pixels.shape
        affine = move(argument, height, width)
        if channels == 1:
            return _warp(pixels, affine, fill)
        # OpenCV moves four channels faster than three, to the same pixels.
        wide = cv2.cvtColor(pixels, cv2.COLOR_RGB2RGBA)
        moved = _warp(wide, affine, fill)
        return cv2.cvtColor(moved, cv2.COLOR_RGBA2RGB)

    return apply


def _warp(pixels: ImageArray, affine: Affine, fill: Fill) -> ImageArray:
    height, width, _ = pixels.shape
    size = (width, height)  # in OpenCV's order
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    matrix = affine.about_centres()
    return cv2.warpAffine(pixels, matrix, size, flags=flags, borderValue=fill)


def _rotation(degrees: float, height: int, width: int) -> Affine:
    """A counter-clockwise rotation about the centre."""
    angle = math.radians(degrees)
    cos = math.cos(angle)
    sin = math.sin(angle)
    centre_x = width / 2
    centre_y = height / 2
    # The centre does not move.
    right = centre_x - cos * centre_x + sin * centre_y
    down = centre_y - sin * centre_x - cos * centre_y
    return Affine(cos, -sin, right, sin, cos, down)


def _by_table(table: Table) -> Callable:
    """Replaces every level of every channel by its entry in `table(argument)`: numbers [256]."""

    def apply(pixels: ImageArray, argument: float, fill: Fill) -> ImageArray:
        """The image with other levels."""
        entries = table(argument)
        levels = _bytes(entries)
        return cv2.LUT(pixels, levels)

    return apply


def _by_histogram(table: Table) -> Operation:
    """Replaces every level of a channel by its entry in `table(histogram of the channel)`: both
    [256]."""

    def apply(pixels: ImageArray, *_: object) -> ImageArray:
        """The image with other levels."""
        channels = pixels.shape[2]
        tables = []
        for channel in range(channels):
            histogram = _histogram(pixels, channel)
            entries = table(histogram)
            tables.append(entries)
        by_channel = np.stack(tables, axis=-1)
        levels = _bytes(by_channel[None])
        return cv2.LUT(pixels, levels)

    return Operation(apply)


def _histogram(pixels: ImageArray, channel: int) -> np.ndarray:
    """The number of pixels of each level of a channel: int [256]."""
    counts = cv2.calcHist([pixels], [channel], None, [256], [0, 256])
    flat = counts.ravel()
    return flat.astype(int)


def _bytes(table: np.ndarray) -> np.ndarray:
    """Clips a table to 0 to 255 and drops fractions."""
    clipped = table.clip(0, 255)
    return clipped.astype(np.uint8)


def _contrast_table(counts: np.ndarray) -> np.ndarray:
    """Maps the darkest level that occurs to 0, and the brightest to 255."""
    present = np.flatnonzero(counts)
    low = present[0]
    high = present[-1]
    if low == high:
        return _LEVELS
    scale = 255.0 / (high - low)
    return _LEVELS * scale - low * scale  # in this order, as Pillow rounds


def _equalizing_table(counts: np.ndarray) -> np.ndarray:
    """Maps each level to the number of darker pixels, in units of a 255th of all pixels except the
    brightest."""
    present = np.flatnonzero(counts)
    brightest = present[-1]
    total = counts.sum()
    others = total - counts[brightest]
    step = others // 255
    if not step:
        return _LEVELS
    darker = counts.cumsum() - counts
    half_step = step // 2
    return (half_step + darker) // step


def _posterizing_table(bits: float) -> np.ndarray:
    """Keeps the highest bits of each level."""
    step = 2 ** (8 - bits)
    mask = int(256 - step)
    return _LEVELS & mask


def _solarizing_table(threshold: float) -> np.ndarray:
    """Inverts the levels from a threshold on."""
    is_below = threshold > _LEVELS
    inverted = 255 - _LEVELS
    return np.where(is_below, _LEVELS, inverted)


def _brightening_table(added: float) -> np.ndarray:
    """Makes the levels below 128 brighter."""
    is_dark = _LEVELS < 128
    brighter = _LEVELS + added
    return np.where(is_dark, brighter, _LEVELS)


def _inverted(pixels: ImageArray, *_: object) -> ImageArray:
    return ~pixels


def enhance(pixels: ImageArray, kind: Enhancer, factor: float) -> ImageArray:
    """One of Pillow's ImageEnhance of an image, uint8 [height, width, channels]: the factor 1
    changes nothing, 0 removes everything."""
    shape = pixels.shape
    if shape[2] == 1:
        pixels = pixels[..., 0]
    image = Image.fromarray(pixels)
    enhancer = kind(image)
    enhanced = enhancer.enhance(factor)
    values = np.asarray(enhanced)
    return values.reshape(shape)


def _enhancement(kind: Enhancer) -> Operation:
    """`enhance` by a factor of 0.1 to 1.9, where 1 changes nothing."""

    def apply(pixels: ImageArray, factor: float, fill: Fill) -> ImageArray:
        """The enhanced image."""
        return enhance(pixels, kind, factor)

    return Operation(apply, lambda m: m * 1.8 + 0.1)


def _increasing_enhancement(kind: Enhancer) -> Operation:
    """`enhance` by a factor that is further from 1 for a greater magnitude, in either direction."""

    def apply(pixels: ImageArray, change: float, fill: Fill) -> ImageArray:
        """The enhanced image."""
        factor = max(0.1, 1 + change)
        return enhance(pixels, kind, factor)

    return Operation(apply, lambda m: m * 0.9, signed=True)


_posterize = _by_table(_posterizing_table)
_solarize = _by_table(_solarizing_table)
_brighten = _by_table(_brightening_table)
_rotate = _by_move(_rotation)
_shear_x = _by_move(lambda slope, *_: Affine(b=slope))
_shear_y = _by_move(lambda slope, *_: Affine(d=slope))
_translate_x = _by_move(lambda share, height, width: Affine(c=share * width))
_translate_y = _by_move(lambda share, height, width: Affine(f=share * height))

OPERATIONS = {
    "AutoContrast": _by_histogram(_contrast_table),
    "Equalize": _by_histogram(_equalizing_table),
    "Invert": Operation(_inverted),
    "Rotate": Operation(_rotate, lambda m: m * 30, signed=True),
    "ShearX": Operation(_shear_x, lambda m: m * 0.3, signed=True),
    "ShearY": Operation(_shear_y, lambda m: m * 0.3, signed=True),
    "TranslateX": Operation(_translate_x, lambda m: m * 0.45, signed=True),
    "TranslateY": Operation(_translate_y, lambda m: m * 0.45, signed=True),
    # The highest bits to keep: in AutoAugment 4 to 8, more for a greater magnitude; in RandAugment
    # 4 to 0, fewer.
    "Posterize": Operation(_posterize, lambda m: int(m * 4) + 4),
    "PosterizeIncreasing": Operation(_posterize, lambda m: 4 - int(m * 4)),
    # The threshold: levels from there on are inverted.
    "Solarize": Operation(_solarize, lambda m: int(m * 256)),
    "SolarizeIncreasing": Operation(_solarize, lambda m: 256 - int(m * 256)),
    "SolarizeAdd": Operation(_brighten, lambda m: int(m * 110)),
    "Color": _enhancement(ImageEnhance.Color),
    "ColorIncreasing": _increasing_enhancement(ImageEnhance.Color),
    "Contrast": _enhancement(ImageEnhance.Contrast),
    "ContrastIncreasing": _increasing_enhancement(ImageEnhance.Contrast),
    "BrightnessIncreasing": _increasing_enhancement(ImageEnhance.Brightness),
    "Sharpness": _enhancement(ImageEnhance.Sharpness),
    "SharpnessIncreasing": _increasing_enhancement(ImageEnhance.Sharpness),
}

# Pairs of (operation, probability, magnitude): Cubuk et al. 2018 (arXiv 1805.09501), appendix,
# ImageNet. As printed there, some rows occur twice, some operations ignore their magnitude, and
# some probabilities are 0 or 1.
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

# RandAugment's operations, in the variants whose severity increases with the magnitude (timm's
# `inc1`).
RANDAUGMENT = (
    "AutoContrast",
    "Equalize",
    "Invert",
    "Rotate",
    "PosterizeIncreasing",
    "SolarizeIncreasing",
    "SolarizeAdd",
    "ColorIncreasing",
    "ContrastIncreasing",
    "BrightnessIncreasing",
    "SharpnessIncreasing",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
)


def apply(
    name: str, pixels: ImageArray, magnitude: float, rng: Generator, fill: Fill
) -> ImageArray:
    """Applies one of OPERATIONS.

    Args:
        name: the name of the operation.
        pixels: uint8 [height, width, channels], 1 or 3 channels; not changed.
        magnitude: 0 to 10.
        rng: draws the sign, if the operation has one.
        fill: the colour of uncovered areas, 0 to 255 for each channel.

    Returns:
        uint8 [height, width, channels].
    """
    operation = OPERATIONS[name]
    argument = 0.0
    if operation.argument is not None:
        scaled = magnitude / MAX_MAGNITUDE
        argument = operation.argument(scaled)
    if operation.signed and rng.random() < 0.5:
        argument = -argument
    cv2.setNumThreads(1)  # the pipeline has its own threads
    changed = operation.apply(pixels, argument, fill)
    return changed.reshape(pixels.shape)  # OpenCV drops the axis of a single channel


def auto_augment(pixels: ImageArray, rng: Generator, fill: Fill) -> ImageArray:
    """AutoAugment: draws a pair of IMAGENET_POLICY; each operation is applied with its probability
    (see `apply`)."""
    row = rng.integers(len(IMAGENET_POLICY))
    pair = IMAGENET_POLICY[row]
    for name, probability, magnitude in pair:
        if rng.random() < probability:
            pixels = apply(name, pixels, magnitude, rng, fill)
    return pixels


def rand_augment(
    pixels: ImageArray, rng: Generator, fill: Fill, options: Augmentation
) -> ImageArray:
    """RandAugment (Cubuk et al. 2019): draws operations with replacement; each is applied with
    probability 0.5 (see `apply`). The defaults are timm's `rand-m9-n2-mstd0.5-inc1`."""
    mean = options.randaugment_magnitude
    deviation = options.randaugment_std
    choices = rng.integers(len(RANDAUGMENT), size=options.randaugment_layers)
    for choice in choices:
        if rng.random() >= LAYER_PROBABILITY:
            continue
        drawn = rng.normal(mean, deviation)
        non_negative = max(drawn, 0)
        magnitude = min(non_negative, MAX_MAGNITUDE)
        name = RANDAUGMENT[choice]
        pixels = apply(name, pixels, magnitude, rng, fill)
    return pixels


def augment(pixels: ImageArray, rng: Generator, options: Augmentation) -> ImageArray:
    """Augments an image, uint8 [height, width, channels] with 1 or 3 channels. Returns a new image,
    or the same one if it is unchanged.

    `rng` is the only source of randomness. Options that are switched off draw nothing.
    """
    channels = pixels.shape[2]
    mean = options.mean[:channels]
    fill = _fill(mean)
    if options.auto == "autoaugment":
        pixels = auto_augment(pixels, rng, fill)
    elif options.auto == "randaugment":
        pixels = rand_augment(pixels, rng, fill, options)
    elif options.color_jitter:
        pixels = color_jitter(pixels, rng, options.color_jitter)
    if options.erasing and rng.random() < options.erasing:
        pixels = random_erasing(pixels, rng, options.mean, options.std)
    return pixels


def _fill(mean: tuple[float, ...]) -> Fill:
    """The colour of the mean, from 0 to 255 for each channel."""
    levels = []
    for value in mean:
        rounded = round(255 * value)
        level = min(255, rounded)
        levels.append(level)
    return tuple(levels)


def color_jitter(pixels: ImageArray, rng: Generator, strength: float) -> ImageArray:
    """Changes brightness, contrast and saturation in random order, each by a factor within 1 ±
    strength, at least 0.

    This is torchvision's ColorJitter(strength, strength, strength) on Pillow images. The hue stays.
    Both images are uint8 [height, width, channels].
    """
    least = max(0.0, 1 - strength)
    most = 1 + strength
    for number in rng.permutation(len(_JITTERED)):
        factor = rng.uniform(least, most)
        kind = _JITTERED[number]
        pixels = enhance(pixels, kind, factor)
    return pixels


def random_erasing(
    pixels: ImageArray, rng: Generator, mean: tuple[float, ...], std: tuple[float, ...]
) -> ImageArray:
    """Fills one rectangle with noise: 2 % to a third of the area, its sides in a ratio of 0.3 to 1
    / 0.3.

    Random erasing (Zhong et al. 2017) in timm's mode `pixel`, which draws normalized pixels from
    N(0, 1). Here pixels are not normalized yet: they become 255 * (mean + std * N(0, 1)), rounded
    and clipped to 0 to 255, with the mean and deviation of each channel in 0 to 1. After the stem's
    normalization, only rounding and clipping differ from timm.

    `pixels` are uint8 [height, width, channels], and so is the copy. After ten rectangles that do
    not fit, `pixels` come back.
    """
    height, width, channels = pixels.shape
    box = _random_box(height, width, rng)
    if box is None:
        return pixels
    shape = (box.height, box.width, channels)
    noise = rng.standard_normal(shape, np.float32)
    scale = np.array(std[:channels], np.float32)
    centre = np.array(mean[:channels], np.float32)
    values = 255 * (centre + scale * noise)
    rounded = values.round()
    levels = rounded.clip(0, 255)
    erased = pixels.copy()
    erased[box.slices] = levels
    return erased


def _random_box(height: int, width: int, rng: Generator) -> Box | None:
    """The rectangle to erase; None if ten random ones are too large for the image."""
    image_size = (height, width)
    limit = math.log(0.3)
    for _ in range(10):
        share = rng.uniform(0.02, 1 / 3)
        area = share * height * width
        columns, rows = random_sides(area, limit, -limit, rng)
        if rows < height and columns < width:
            return random_place((rows, columns), image_size, rng)
    return None
