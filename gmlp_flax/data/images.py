"""Encoded images to arrays, and the two views of an image: one to train on, one to evaluate with.

JPEG files go through simplejpeg, which is faster; all others, and what it refuses, through Pillow. Evaluation scales
with Pillow, training with OpenCV: close to it, and five times as fast.
"""

import contextlib
import io
import math
from collections.abc import Iterator

import cv2
import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from gmlp_flax.data import jpeg
from gmlp_flax.data.errors import DataError

_MODES = {1: "L", 3: "RGB"}


def decode(data: bytes, name: str, channels: int = 3) -> np.ndarray:
    """Decodes an image file of any format Pillow reads, to Pillow's pixels.

    EXIF orientation is applied; palettes and CMYK become RGB, 16 bits become 8, and what is transparent becomes white.

    Args:
        data: the file's bytes.
        name: the file's name, for the error.
        channels: 3 for RGB, 1 for gray.

    Returns:
        uint8 [height, width, channels].

    Raises:
        DataError: the bytes are not an image, or a damaged one.
    """
    with _opened(data, name) as picture:
        return _pixels(picture, data, channels)


def evaluation_view(image: np.ndarray, size: int | tuple[int, int], resize_ratio: float = 0.875) -> np.ndarray:
    """The centre of the image: its shorter side scaled to round(size / resize_ratio), then cropped to `size`.

    Both in one bicubic resampling by Pillow, which is antialiased. Of an image that has the size already,
    `resize_ratio=1` gives it back unchanged.

    Args:
        image: uint8 [height, width, channels], 1 or 3 channels.
        size: the view's side, or its (height, width).
        resize_ratio: the part of the scaled image's side that is kept, in (0, 1].

    Returns:
        uint8 [*size, channels].
    """
    height, width, channels = image.shape
    out_height, out_width = _pair(size)
    scale = max(round(out_height / resize_ratio) / height, round(out_width / resize_ratio) / width)
    # The shorter side's box may exceed the image by a rounding error.
    crop_height, crop_width = min(out_height / scale, height), min(out_width / scale, width)
    top, left = (height - crop_height) / 2, (width - crop_width) / 2
    if (height, width) == (out_height, out_width) == (crop_height, crop_width):
        return image
    picture = Image.fromarray(image[..., 0] if channels == 1 else image)
    box = (left, top, left + crop_width, top + crop_height)
    pixels = np.asarray(picture.resize((out_width, out_height), Image.Resampling.BICUBIC, box=box))
    return pixels.reshape(out_height, out_width, channels)


def training_view(
    image: np.ndarray | bytes,
    size: int | tuple[int, int],
    rng: np.random.Generator,
    *,
    name: str = "",
    channels: int = 3,
    min_scale: float = 0.08,
    flip: bool = True,
) -> np.ndarray:
    """A random crop, scaled to `size` (bicubic), mirrored half of the time (Szegedy et al. 2015; torchvision).

    The crop covers `min_scale` to 1 of the image's area at an aspect ratio between 3/4 and 4/3. An image that has
    the size already and is square comes back unchanged with `min_scale=1, flip=False`.

    Of a file, the crop is drawn from the size in its header. Where the crop is at least 2, 4 or 8 times `size` in
    both directions, a JPEG is decoded at that fraction of its size, several times faster; the crop's edges then lie
    on whole pixels of the smaller picture. Otherwise a file and its decoded array give the same view. Below the crop
    most JPEGs are not read, and not found out if they are damaged there.

    Args:
        image: uint8 [height, width, channels], 1 or 3 channels; or an image file's bytes.
        size: the view's side, or its (height, width).
        rng: the only source of chance; what is drawn depends on the image's height and width alone.
        name, channels: of a file, as in `decode`.
        min_scale: the least part of the area, in (0, 1].
        flip: whether to mirror.

    Returns:
        uint8 [*size, channels].

    Raises:
        DataError: the bytes are not an image, or a damaged one.
    """
    size = _pair(size)
    if isinstance(image, bytes):
        with _opened(image, name) as picture:
            box = random_box(*_upright_shape(picture), rng, min_scale)
            crop = _cropped_file(picture, image, channels, box, size)
    else:
        top, left, height, width = random_box(*image.shape[:2], rng, min_scale)
        crop = image[top : top + height, left : left + width]
    view = _resized(crop, size)
    return cv2.flip(view, 1).reshape(view.shape) if flip and rng.random() < 0.5 else view


def random_box(height: int, width: int, rng: np.random.Generator, min_scale: float) -> tuple[int, int, int, int]:
    """The crop (top, left, height, width) of torchvision's RandomResizedCrop, in pixels of an image of that size.

    Ten tries, then the centre as far as its aspect ratio allows. Arguments as in `training_view`.
    """
    for _ in range(10):
        area = height * width * rng.uniform(min_scale, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(rng.integers(height - crop_height + 1))
            left = int(rng.integers(width - crop_width + 1))
            return top, left, crop_height, crop_width
    crop_width = min(width, round(height * 4 / 3))
    crop_height = min(height, round(width * 4 / 3))
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def _cropped_file(
    picture: Image.Image, data: bytes, channels: int, box: tuple[int, int, int, int], size: tuple[int, int]
) -> np.ndarray:
    """Decodes a file no finer and no further down than is needed; cuts out `box`, in pixels of the whole picture."""
    top, left, height, width = box
    reduction = max(n for n in (1, 2, 4, 8) if n == 1 or height >= n * size[0] and width >= n * size[1])
    full_height, full_width = _upright_shape(picture)
    pixels = _pixels(picture, data, channels, reduction, top + height)
    down, right = pixels.shape[0] / full_height, pixels.shape[1] / full_width
    return pixels[round(top * down) : round((top + height) * down), round(left * right) : round((left + width) * right)]


def _resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Bicubic, and antialiased by a Gaussian as wide as the shrinking asks: on photographs, a grey level off Pillow."""
    if image.shape[:2] == size:
        return image
    # OpenCV's own threads would only contend with those, and the processes, that the pipeline runs.
    cv2.setNumThreads(1)
    # Half a pixel of the view, beyond what the picture's own pixels blur.
    down, right = (0.5 * math.sqrt(max((n / out) ** 2 - 1, 0)) for n, out in zip(image.shape, size, strict=False))
    kernel = (2 * math.ceil(right) + 1, 2 * math.ceil(down) + 1)
    smooth = cv2.GaussianBlur(image, kernel, right, sigmaY=down, borderType=cv2.BORDER_REPLICATE)
    return cv2.resize(smooth, size[::-1], interpolation=cv2.INTER_CUBIC).reshape(*size, image.shape[2])


@contextlib.contextmanager
def _opened(data: bytes, name: str) -> Iterator[Image.Image]:
    """The picture before its pixels are read; what goes wrong inside, too, becomes a DataError with the file's name."""
    try:
        with Image.open(io.BytesIO(data)) as picture:
            yield picture
    except UnidentifiedImageError as error:
        raise DataError(f"image {name!r} is in no format Pillow knows; replace or remove it") from error
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"image {name!r} cannot be decoded ({error}); replace or remove it") from error


def _orientation(picture: Image.Image) -> int:
    return picture.getexif().get(ExifTags.Base.Orientation, 1)


def _upright_shape(picture: Image.Image) -> tuple[int, int]:
    """(height, width) after EXIF orientation, of which 5 to 8 lie on their sides."""
    return picture.size if 5 <= _orientation(picture) <= 8 else picture.size[::-1]


def _pixels(
    picture: Image.Image, data: bytes, channels: int, reduction: int = 1, rows: int | None = None
) -> np.ndarray:
    """Upright pixels of an opened file, uint8 [height, width, channels]; a JPEG's at 1 / reduction of its size.

    Below the first `rows` rows, all by default, they may be anything.
    """
    if jpeg.decodes(picture, channels) and _orientation(picture) == 1:
        # A damaged file, or one of a rare kind, is left for Pillow to judge.
        with contextlib.suppress(ValueError):
            return jpeg.decode(picture, data, channels, reduction, picture.height if rows is None else rows)
    picture.draft(None, (picture.width // reduction, picture.height // reduction))
    pixels = np.asarray(_in_mode(ImageOps.exif_transpose(picture), _MODES[channels]))
    return pixels.reshape(*pixels.shape[:2], channels)


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
