"""Augmentation of a training image after crop and flip: AutoAugment, RandAugment or colour jitter; then erasing.

The order and the meaning of every option are timm's. The training step mixes images with each other.
"""

import math
from typing import NamedTuple

import numpy as np
from PIL import ImageEnhance

from gmlp_flax.data.images import auto_augment

_JITTERED = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


class Augmentation(NamedTuple):
    """Options of `augment`; the defaults do nothing.

    Attributes:
        auto: none, autoaugment or randaugment.
        randaugment_layers, randaugment_magnitude, randaugment_std: see `auto_augment.rand_augment`.
        color_jitter: see `color_jitter`; used only if `auto` is none.
        erasing: probability of `random_erasing`.
        mean, std: of the pixels, in 0 to 1, for each channel; further values are not used. The mean fills the areas
            that rotations and shifts uncover; both decide the values of erased pixels.
    """

    auto: str = "none"
    randaugment_layers: int = 2
    randaugment_magnitude: float = 9.0
    randaugment_std: float = 0.5
    color_jitter: float = 0.0
    erasing: float = 0.0
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


def augment(pixels: np.ndarray, rng: np.random.Generator, options: Augmentation) -> np.ndarray:
    """Augments an image, uint8 [height, width, channels] with 1 or 3 channels, to a new one, or the same if unchanged.

    `rng` is the only source of chance; options that are switched off draw nothing.
    """
    fill = tuple(min(255, round(255 * value)) for value in options.mean[: pixels.shape[2]])
    if options.auto == "autoaugment":
        pixels = auto_augment.auto_augment(pixels, rng, fill)
    elif options.auto == "randaugment":
        layers, magnitude, std = options.randaugment_layers, options.randaugment_magnitude, options.randaugment_std
        pixels = auto_augment.rand_augment(pixels, rng, fill, layers=layers, magnitude=magnitude, std=std)
    elif options.color_jitter:
        pixels = color_jitter(pixels, rng, options.color_jitter)
    if options.erasing and rng.random() < options.erasing:
        pixels = random_erasing(pixels, rng, options.mean, options.std)
    return pixels


def color_jitter(pixels: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """Changes brightness, contrast and saturation in random order, each by a factor within 1 ± strength, at least 0.

    This is torchvision's ColorJitter(strength, strength, strength) on Pillow images; hue stays. uint8 [height, width,
    channels] to the same.
    """
    for number in rng.permutation(len(_JITTERED)):
        pixels = auto_augment.enhance(pixels, _JITTERED[number], rng.uniform(max(0.0, 1 - strength), 1 + strength))
    return pixels


def random_erasing(
    pixels: np.ndarray, rng: np.random.Generator, mean: tuple[float, ...], std: tuple[float, ...]
) -> np.ndarray:
    """Fills one rectangle with noise: 2 % to a third of the area, its sides in a ratio of 0.3 to 1 / 0.3.

    Random erasing (Zhong et al. 2017) in timm's mode `pixel`, which draws normalised pixels from N(0, 1). Here pixels
    are not normalised yet: they become 255 * (mean + std * N(0, 1)), rounded and clipped to 0 to 255, with the mean and
    deviation of each channel in 0 to 1. After the stem's normalisation, only rounding and clipping differ from timm.

    `pixels` are uint8 [height, width, channels], as the copy; after ten rectangles that do not fit, they come back.
    """
    height, width, channels = pixels.shape
    limit = math.log(0.3)
    for _ in range(10):
        area = rng.uniform(0.02, 1 / 3) * height * width
        ratio = math.exp(rng.uniform(limit, -limit))
        rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if rows < height and columns < width:
            top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))
            noise = rng.standard_normal((rows, columns, channels), np.float32)
            noise = 255 * (np.array(mean[:channels], np.float32) + np.array(std[:channels], np.float32) * noise)
            pixels = pixels.copy()
            pixels[top : top + rows, left : left + columns] = noise.round().clip(0, 255)
            break
    return pixels
