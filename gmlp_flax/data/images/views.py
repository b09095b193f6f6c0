"""The two views of an image, which a model reads: for training and for evaluation.

Evaluation scales with Pillow, training with OpenCV, whose result is close and takes a fifth of the
time.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy as np
from PIL import Image

from gmlp_flax.data.images import decoding
from gmlp_flax.data.images.augment import Augmentation, augment

Size = tuple[int, int]  # height and width
Box = tuple[int, int, int, int]  # top, left, height, width

# An image with more pixels for each pixel of a view, in a direction, is averaged before it is
# blurred.
_COARSE = 64


class Pixels(NamedTuple):
    """How files become pixels.

    Attributes:
        channels: 3 for RGB, 1 for grey.
        max_value: the 16-bit pixel that is white.
    """

    channels: int = 3
    max_value: int = decoding.WHITE


class Crop(NamedTuple):
    """How training crops an image.

    Attributes:
        min_scale: the least share of the image's area that a crop covers, in (0, 1].
        flip: whether half of the crops are mirrored.
    """

    min_scale: float = 0.08
    flip: bool = True


def training_example(
    record: dict[str, Any],
    rng: np.random.Generator,
    *,
    size: Size,
    pixels: Pixels = Pixels(),
    crop: Crop = Crop(),
    augmentation: Augmentation = Augmentation(),
) -> dict[str, Any]:
    """A record to {"image" uint8 [*size, channels], "label"}: random crop and flip, then
    `augmentation`."""
    image = record["image"]
    if isinstance(image, np.ndarray):
        image = decoding.decoded(record, pixels.channels)
    view = training_view(image, size, rng, record.get("name", ""), pixels, crop)
    return {"image": augment(view, rng, augmentation), "label": record["label"]}


def evaluation_example(
    record: dict[str, Any],
    *,
    size: Size,
    pixels: Pixels = Pixels(),
    eval_crop: float = 0.875,
    transform: str = "exact",
) -> dict[str, Any]:
    """A record, without its name, whose "image" is uint8 [*size, channels], as the view of
    `TRANSFORMS` makes it."""
    image = decoding.decoded(record, pixels.channels, pixels.max_value)
    view = TRANSFORMS[transform](image, size, eval_crop)
    others = {key: value for key, value in record.items() if key != "name"}
    return {**others, "image": view}


def exact_view(image: np.ndarray, size: Size, resize_ratio: float = 0.875) -> np.ndarray:
    """The centre of the image: its shorter side scaled to round(size / resize_ratio), then cropped
    to `size`.

    Pillow does both in one bicubic, antialiased resampling. An image of this size comes back
    unchanged if `resize_ratio`, the fraction of the scaled image's side that is kept, is 1.

    Args:
        image: uint8 [height, width, channels], 1 or 3 channels; [*size, channels] comes back.
        size: the view's (height, width).
        resize_ratio: in (0, 1].
    """
    height, width = image.shape[:2]
    out_height, out_width = size
    scaled_height = round(out_height / resize_ratio)
    scaled_width = round(out_width / resize_ratio)
    scale = max(scaled_height / height, scaled_width / width)
    # The shorter side's box may exceed the image by a rounding error.
    crop_height = min(out_height / scale, height)
    crop_width = min(out_width / scale, width)
    if (height, width) == size == (crop_height, crop_width):
        return image
    top = (height - crop_height) / 2
    left = (width - crop_width) / 2
    box = left, top, left + crop_width, top + crop_height
    return _bicubic(image, size, box)


def timm_view(image: np.ndarray, size: Size, resize_ratio: float) -> np.ndarray:
    """`exact_view` with timm's pixels: the whole image is scaled, its sides
    floor(size / resize_ratio) and as many whole pixels as torchvision counts, and the crop begins
    at whole pixels."""
    height, width = image.shape[:2]
    out_height, out_width = size
    scaled_height, scaled_width = _timm_size(height, width, size, resize_ratio)
    whole = _bicubic(image, (scaled_height, scaled_width))
    top = round((scaled_height - out_height) / 2)
    left = round((scaled_width - out_width) / 2)
    rows = slice(top, top + out_height)
    columns = slice(left, left + out_width)
    return whole[rows, columns]


def _timm_size(height: int, width: int, size: Size, resize_ratio: float) -> Size:
    """The size to which timm scales an image before it crops it."""
    out_height, out_width = size
    target_height = math.floor(out_height / resize_ratio)
    target_width = math.floor(out_width / resize_ratio)
    if target_height == target_width:
        shorter = min(height, width)
        scaled_height = int(target_height * height / shorter)
        scaled_width = int(target_width * width / shorter)
        return scaled_height, scaled_width
    down = height / target_height
    across = width / target_width
    ratio = min(down, across)
    return round(height / ratio), round(width / ratio)


TRANSFORMS: dict[str, Callable[[np.ndarray, Size, float], np.ndarray]] = {
    "exact": exact_view,
    "timm": timm_view,
}


def _bicubic(image: np.ndarray, size: Size, box: Any = None) -> np.ndarray:
    """Pillow's bicubic, antialiased resampling of a box (left, top, right, bottom), by default of
    all, to `size`."""
    height, width = size
    channels = image.shape[2]
    pixels = image[..., 0] if channels == 1 else image
    whole = Image.fromarray(pixels)
    scaled = whole.resize((width, height), Image.Resampling.BICUBIC, box=box)
    found = np.asarray(scaled)
    return found.reshape(height, width, channels)


def training_view(
    image: np.ndarray | bytes,
    size: Size,
    rng: np.random.Generator,
    name: str = "",
    pixels: Pixels = Pixels(),
    crop: Crop = Crop(),
) -> np.ndarray:
    """A random crop, scaled to `size` (bicubic), mirrored half of the time (Szegedy et al. 2015;
    torchvision).

    The crop covers `crop.min_scale` to 1 of the image's area, at an aspect ratio between 3/4 and
    4/3.

    If a JPEG file is given and the crop is at least 2, 4 or 8 times `size` in both directions, the
    file is decoded at that fraction of its size, which is several times faster; the crop's edges
    then lie on whole pixels of the smaller image. Otherwise a file and its decoded array give the
    same view. Damage below the crop is usually not noticed.

    Args:
        image: uint8 [height, width, channels], 1 or 3 channels; or an image file's bytes.
        size: the view's (height, width).
        rng: the only source of chance; the draws depend on the image's height and width alone.
        name: of a file, for errors.
        pixels: how a file is decoded.
        crop: see above.

    Returns:
        uint8 [*size, channels].

    Raises:
        DataError: the bytes are not an image, or a damaged one.
    """
    if isinstance(image, bytes):
        with decoding.open_image(image, name) as file:
            height, width = decoding.upright_shape(file)
            box = random_box(height, width, rng, crop.min_scale)
            view = _resize(_decode_crop(file, image, pixels, box, size), size)
    else:
        box = random_box(image.shape[0], image.shape[1], rng, crop.min_scale)
        top, left, height, width = box
        view = _resize(image[top : top + height, left : left + width], size)
    if crop.flip and rng.random() < 0.5:
        return cv2.flip(view, 1).reshape(view.shape)
    return view


def random_box(height: int, width: int, rng: np.random.Generator, min_scale: float) -> Box:
    """The crop of torchvision's RandomResizedCrop, in pixels.

    After ten tries that do not fit, the largest crop at the centre with an allowed aspect ratio.
    """
    least = math.log(3 / 4)
    most = math.log(4 / 3)
    for _ in range(10):
        area = height * width * rng.uniform(min_scale, 1.0)
        ratio = math.exp(rng.uniform(least, most))
        crop_width = round(math.sqrt(area * ratio))
        crop_height = round(math.sqrt(area / ratio))
        fits = crop_width <= width and crop_height <= height
        if fits and crop_width and crop_height:
            top = int(rng.integers(height - crop_height + 1))
            left = int(rng.integers(width - crop_width + 1))
            return top, left, crop_height, crop_width
    crop_width = min(width, round(height * 4 / 3))
    crop_height = min(height, round(width * 4 / 3))
    top = (height - crop_height) // 2
    left = (width - crop_width) // 2
    return top, left, crop_height, crop_width


def _decode_crop(
    file: Image.Image, data: bytes, pixels: Pixels, box: Box, size: Size
) -> np.ndarray:
    """Decodes a file no finer and no further down than needed; cuts out `box`, in pixels of the
    image at full size."""
    top, left, height, width = box
    bottom = top + height
    right = left + width
    spare = min(height // size[0], width // size[1])  # pixels for each pixel of the view
    reduction = max(factor for factor in (1, 2, 4, 8) if factor <= max(1, spare))
    full_height, full_width = decoding.upright_shape(file)
    image = decoding.pixels_of_file(
        file, data, pixels.channels, reduction, bottom, pixels.max_value
    )
    down = image.shape[0] / full_height
    across = image.shape[1] / full_width
    rows = slice(round(top * down), round(bottom * down))
    columns = slice(round(left * across), round(right * across))
    return image[rows, columns]


def _resize(image: np.ndarray, size: Size) -> np.ndarray:
    """Bicubic, antialiased by a Gaussian blur; on photographs, about one grey level from Pillow's
    result."""
    if image.shape[:2] == size:
        return image
    # OpenCV's own threads would compete with the pipeline's threads and processes.
    cv2.setNumThreads(1)
    image = _averaged(image, size)
    height, width, channels = image.shape
    out_height, out_width = size
    # Half a pixel of the view, less the blur of the image's own pixels.
    blur_down = _blur(height, out_height)
    blur_across = _blur(width, out_width)
    kernel = 2 * math.ceil(blur_across) + 1, 2 * math.ceil(blur_down) + 1
    smooth = cv2.GaussianBlur(
        image, kernel, blur_across, sigmaY=blur_down, borderType=cv2.BORDER_REPLICATE
    )
    scaled = cv2.resize(smooth, (out_width, out_height), interpolation=cv2.INTER_CUBIC)
    return scaled.reshape(out_height, out_width, channels)


def _averaged(image: np.ndarray, size: Size) -> np.ndarray:
    """An image with at most about _COARSE pixels for each pixel of a view, in each direction: the
    time that the blur takes grows with the square of a side."""
    height, width, channels = image.shape
    out_height, out_width = size
    coarse_height = _coarse_side(height, out_height)
    coarse_width = _coarse_side(width, out_width)
    if (coarse_height, coarse_width) == (height, width):
        return image
    coarse = coarse_width, coarse_height
    smaller = cv2.resize(image, coarse, interpolation=cv2.INTER_AREA)
    return smaller.reshape(coarse_height, coarse_width, channels)


def _coarse_side(pixels: int, out: int) -> int:
    factor = max(1, pixels // (_COARSE * out))
    return max(1, pixels // factor)


def _blur(pixels: int, out: int) -> float:
    """The standard deviation of the blur along a side, in pixels of the image."""
    return 0.5 * math.sqrt(max((pixels / out) ** 2 - 1, 0))
