"""Encoded images to arrays, and the two views of an image: one to train on, one to evaluate with."""

import io
import math

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from gmlp_flax.data.errors import DataError

_MODES = {1: "L", 3: "RGB"}


def decode(data: bytes, name: str, channels: int = 3, at_least: int | None = None) -> np.ndarray:
    """Decodes an image file of any format Pillow reads.

    EXIF orientation is applied; palettes and CMYK become RGB, 16 bits become 8, and what is transparent becomes white.

    Args:
        data: the file's bytes.
        name: the file's name, for the error.
        channels: 3 for RGB, 1 for gray.
        at_least: allows a JPEG to be decoded at 1/2, 1/4 or 1/8 of its size, several times faster, as long as its
            shorter side keeps this many pixels. Safe where the whole image is scaled down afterwards
            (`evaluation_view`); not for `training_view`, whose crops may be small.

    Returns:
        uint8 [height, width, channels].

    Raises:
        DataError: the bytes are not an image, or a damaged one.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            if at_least is not None:
                image.draft(None, (at_least, at_least))
            pixels = np.asarray(_in_mode(ImageOps.exif_transpose(image), _MODES[channels]))
    except UnidentifiedImageError as error:
        raise DataError(f"image {name!r} is in no format Pillow knows; replace or remove it") from error
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"image {name!r} cannot be decoded ({error}); replace or remove it") from error
    return pixels.reshape(*pixels.shape[:2], channels)


def evaluation_view(image: np.ndarray, size: int | tuple[int, int], resize_ratio: float = 0.875) -> np.ndarray:
    """The centre of the image: its shorter side scaled to round(size / resize_ratio), then cropped to `size`.

    Both in one bicubic resampling. Of an image that has the size already, `resize_ratio=1` gives it back unchanged.

    Args:
        image: uint8 [height, width, channels], 1 or 3 channels.
        size: the view's side, or its (height, width).
        resize_ratio: the part of the scaled image's side that is kept, in (0, 1].

    Returns:
        uint8 [*size, channels].
    """
    height, width = image.shape[:2]
    out_height, out_width = _pair(size)
    scale = max(round(out_height / resize_ratio) / height, round(out_width / resize_ratio) / width)
    # The shorter side's box may exceed the image by a rounding error.
    crop_height, crop_width = min(out_height / scale, height), min(out_width / scale, width)
    top, left = (height - crop_height) / 2, (width - crop_width) / 2
    return _resampled(image, (left, top, left + crop_width, top + crop_height), (out_height, out_width))


def training_view(
    image: np.ndarray,
    size: int | tuple[int, int],
    rng: np.random.Generator,
    *,
    min_scale: float = 0.08,
    flip: bool = True,
) -> np.ndarray:
    """A random crop, scaled to `size` (bicubic), mirrored half of the time (Szegedy et al. 2015; torchvision).

    The crop covers `min_scale` to 1 of the image's area at an aspect ratio between 3/4 and 4/3. An image that has
    the size already and is square comes back unchanged with `min_scale=1, flip=False`.

    Args:
        image: uint8 [height, width, channels], 1 or 3 channels.
        size: the view's side, or its (height, width).
        rng: the only source of chance.
        min_scale: the least part of the area, in (0, 1].
        flip: whether to mirror.

    Returns:
        uint8 [*size, channels].
    """
    # Cut as an array first: the pixels outside of the crop need not be handed to Pillow.
    crop = _random_crop(image, rng, min_scale)
    view = _resampled(crop, (0, 0, crop.shape[1], crop.shape[0]), _pair(size))
    return view[:, ::-1] if flip and rng.random() < 0.5 else view


def _random_crop(image: np.ndarray, rng: np.random.Generator, min_scale: float) -> np.ndarray:
    """The crop of torchvision's RandomResizedCrop: ten tries, then the centre as far as its aspect ratio allows."""
    height, width = image.shape[:2]
    for _ in range(10):
        area = height * width * rng.uniform(min_scale, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(rng.integers(height - crop_height + 1))
            left = int(rng.integers(width - crop_width + 1))
            break
    else:
        crop_width = min(width, round(height * 4 / 3))
        crop_height = min(height, round(width * 4 / 3))
        top, left = (height - crop_height) // 2, (width - crop_width) // 2
    return image[top : top + crop_height, left : left + crop_width]


def _resampled(image: np.ndarray, box: tuple[float, float, float, float], size: tuple[int, int]) -> np.ndarray:
    """Cuts `box` (left, top, right, bottom) out of the image and scales it to `size` in one resampling."""
    height, width, channels = image.shape
    if (height, width) == size and box == (0, 0, width, height):
        return image
    picture = Image.fromarray(image[..., 0] if channels == 1 else image)
    pixels = np.asarray(picture.resize(size[::-1], Image.Resampling.BICUBIC, box=box))
    return pixels.reshape(*size, channels)


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow would clip 16 bits to 255 where it should scale them.
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert(mode)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)
