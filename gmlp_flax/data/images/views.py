"""The two views of an image that a model reads: for training and for evaluation.

Evaluation scales with Pillow. Training scales with OpenCV, whose result is close and takes a fifth
of the time.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.random import Generator
from PIL import Image

from gmlp_flax.data.images import decoding
from gmlp_flax.data.images.augment import Augmentation, augment
from gmlp_flax.data.images.boxes import Box, ImageArray, Size, random_place, random_sides

# An image with more pixels for each pixel of a view, in a direction, is averaged before it is
# blurred.
_COARSE = 64

# of the width and the height of a random crop
_LEAST_LOG_RATIO = math.log(3 / 4)
_MOST_LOG_RATIO = math.log(4 / 3)


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
    rng: Generator,
    *,
    size: Size,
    pixels: Pixels = Pixels(),
    crop: Crop = Crop(),
    augmentation: Augmentation = Augmentation(),
) -> dict[str, Any]:
    """Turns a record into {"image": uint8 [*size, channels], "label"} by a random crop and flip,
    then `augmentation`."""
    image = record["image"]
    if isinstance(image, np.ndarray):
        image = decoding.decoded(record, pixels.channels)
    name = record.get("name", "")
    view = training_view(image, size, rng, name, pixels, crop)
    augmented = augment(view, rng, augmentation)
    return {"image": augmented, "label": record["label"]}


def evaluation_example(
    record: dict[str, Any],
    *,
    size: Size,
    pixels: Pixels = Pixels(),
    eval_crop: float = 0.875,
    transform: str = "exact",
) -> dict[str, Any]:
    """The record without its name, and with a view of its image, made by one of `TRANSFORMS`: uint8
    [*size, channels]."""
    image = decoding.decoded(record, pixels.channels, pixels.max_value)
    make_view = TRANSFORMS[transform]
    view = make_view(image, size, eval_crop)
    example = {**record, "image": view}
    example.pop("name", None)
    return example


def exact_view(image: ImageArray, size: Size, resize_ratio: float = 0.875) -> ImageArray:
    """The centre of the image: its shorter side scaled to round(size / resize_ratio), then cropped
    to `size`.

    Pillow does both in one bicubic, antialiased resampling. `resize_ratio` is the fraction of the
    scaled image's side that is kept. If it is 1, an image of this size comes back unchanged.

    Args:
        image: uint8 [height, width, channels], 1 or 3 channels; [*size, channels] comes back.
        size: the view's (height, width).
        resize_ratio: in (0, 1].
    """
    height, width = image.shape[:2]
    out_height, out_width = size
    scaled_height = round(out_height / resize_ratio)
    scaled_width = round(out_width / resize_ratio)
    scale_down = scaled_height / height
    scale_across = scaled_width / width
    scale = max(scale_down, scale_across)
    # The shorter side's box may exceed the image by a rounding error.
    crop_height = min(out_height / scale, height)
    crop_width = min(out_width / scale, width)
    has_size = (height, width) == size
    is_whole = (crop_height, crop_width) == size
    if has_size and is_whole:
        return image
    top = (height - crop_height) / 2
    left = (width - crop_width) / 2
    bottom = top + crop_height
    right = left + crop_width
    box = (left, top, right, bottom)
    return _bicubic(image, size, box)


def timm_view(image: ImageArray, size: Size, resize_ratio: float) -> ImageArray:
    """`exact_view` with timm's pixels: the whole image is scaled, its sides
    floor(size / resize_ratio) and as many whole pixels as torchvision counts, and the crop begins
    at whole pixels."""
    height, width = image.shape[:2]
    out_height, out_width = size
    scaled_size = _timm_size(height, width, size, resize_ratio)
    scaled = _bicubic(image, scaled_size)
    scaled_height, scaled_width = scaled_size
    spare_height = scaled_height - out_height
    spare_width = scaled_width - out_width
    top = round(spare_height / 2)
    left = round(spare_width / 2)
    crop = Box(top, left, out_height, out_width)
    return scaled[crop.slices]


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
    scaled_height = round(height / ratio)
    scaled_width = round(width / ratio)
    return scaled_height, scaled_width


TRANSFORMS: dict[str, Callable[[ImageArray, Size, float], ImageArray]] = {
    "exact": exact_view,
    "timm": timm_view,
}


def _bicubic(image: ImageArray, size: Size, box: Any = None) -> ImageArray:
    """Pillow's bicubic, antialiased resampling of a box (left, top, right, bottom), by default of
    all, to `size`."""
    height, width = size
    channels = image.shape[2]
    pixels = image
    if channels == 1:
        pixels = image[..., 0]
    whole = Image.fromarray(pixels)
    pillow_size = (width, height)
    scaled = whole.resize(pillow_size, Image.Resampling.BICUBIC, box=box)
    view = np.asarray(scaled)
    return view.reshape(height, width, channels)


def training_view(
    image: ImageArray | bytes,
    size: Size,
    rng: Generator,
    name: str = "",
    pixels: Pixels = Pixels(),
    crop: Crop = Crop(),
) -> ImageArray:
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
        rng: the only source of randomness; the draws depend only on the image's height and width.
        name: the name of a file, for errors.
        pixels: how a file is decoded.
        crop: see above.

    Returns:
        uint8 [*size, channels].

    Raises:
        DataError: the bytes are not an image, or the image is damaged.
    """
    if isinstance(image, bytes):
        view = _view_of_file(image, size, rng, name, pixels, crop)
    else:
        view = _view_of_array(image, size, rng, crop)
    if crop.flip and rng.random() < 0.5:
        mirrored = cv2.flip(view, 1)
        return mirrored.reshape(view.shape)
    return view


def _view_of_file(
    data: bytes, size: Size, rng: Generator, name: str, pixels: Pixels, crop: Crop
) -> ImageArray:
    with decoding.open_image(data, name) as file:
        height, width = decoding.upright_shape(file)
        box = random_box(height, width, rng, crop.min_scale)
        cropped = _decode_crop(file, data, pixels, box, size)
        return _resize(cropped, size)


def _view_of_array(image: ImageArray, size: Size, rng: Generator, crop: Crop) -> ImageArray:
    height, width, _ = image.shape
    box = random_box(height, width, rng, crop.min_scale)
    cropped = image[box.slices]
    return _resize(cropped, size)


def random_box(height: int, width: int, rng: Generator, min_scale: float) -> Box:
    """The crop of torchvision's RandomResizedCrop, in pixels.

    After ten tries that do not fit, the largest crop at the centre with an allowed aspect ratio.
    """
    image_size = (height, width)
    image_area = height * width
    for _ in range(10):
        scale = rng.uniform(min_scale, 1.0)
        area = image_area * scale
        crop_size = random_sides(area, _LEAST_LOG_RATIO, _MOST_LOG_RATIO, rng)
        crop_height, crop_width = crop_size
        fits_down = 0 < crop_height <= height
        fits_across = 0 < crop_width <= width
        if fits_down and fits_across:
            return random_place(crop_size, image_size, rng)
    return _largest_box(height, width)


def _largest_box(height: int, width: int) -> Box:
    """The largest crop at the centre of an image with an allowed aspect ratio."""
    widest = round(height * 4 / 3)
    tallest = round(width * 4 / 3)
    crop_height = min(height, tallest)
    crop_width = min(width, widest)
    top = (height - crop_height) // 2
    left = (width - crop_width) // 2
    return Box(top, left, crop_height, crop_width)


def _decode_crop(
    file: Image.Image, data: bytes, pixels: Pixels, box: Box, size: Size
) -> ImageArray:
    """Decodes a file no finer and no further down than needed; cuts out `box`, in pixels of the
    image at full size."""
    # Read before decoding, after which Pillow reports the reduced size.
    full_height, full_width = decoding.upright_shape(file)
    reduction = _reduction(box.height, box.width, size)
    image = decoding.pixels_of_file(
        file, data, pixels.channels, reduction, box.bottom, pixels.max_value
    )
    decoded_height, decoded_width, _ = image.shape
    down = decoded_height / full_height
    across = decoded_width / full_width
    top = round(box.top * down)
    bottom = round(box.bottom * down)
    left = round(box.left * across)
    right = round(box.right * across)
    return image[top:bottom, left:right]


def _reduction(height: int, width: int, size: Size) -> int:
    """The largest reduction of a JPEG, 1, 2, 4 or 8, with which the crop has at least as many
    pixels as the view."""
    out_height, out_width = size
    # pixels for each pixel of the view
    down = height // out_height
    across = width // out_width
    spare = min(down, across)
    for reduction in (8, 4, 2):
        if reduction <= spare:
            return reduction
    return 1


def _resize(image: ImageArray, size: Size) -> ImageArray:
    """Scales an image: bicubic, antialiased by a Gaussian blur. On photographs, the result differs
    from Pillow's by about one grey level."""
    if image.shape[:2] == size:
        return image
    # OpenCV's own threads would compete with the pipeline's threads and processes.
    cv2.setNumThreads(1)
    averaged = _averaged(image, size)
    smooth = _smoothed(averaged, size)
    channels = image.shape[2]
    out_height, out_width = size
    out_size = (out_width, out_height)  # in OpenCV's order
    scaled = cv2.resize(smooth, out_size, interpolation=cv2.INTER_CUBIC)
    return scaled.reshape(out_height, out_width, channels)


def _smoothed(image: ImageArray, size: Size) -> ImageArray:
    """An image blurred by half a pixel of the view, less the blur of the image's own pixels."""
    height, width, _ = image.shape
    out_height, out_width = size
    blur_down = _blur(height, out_height)
    blur_across = _blur(width, out_width)
    kernel_width = _kernel_size(blur_across)
    kernel_height = _kernel_size(blur_down)
    return cv2.GaussianBlur(
        image,
        (kernel_width, kernel_height),
        blur_across,
        sigmaY=blur_down,
        borderType=cv2.BORDER_REPLICATE,
    )


def _averaged(image: ImageArray, size: Size) -> ImageArray:
    """An image with at most about _COARSE pixels for each pixel of a view, in each direction: the
    time that the blur takes grows with the square of a side."""
    height, width, channels = image.shape
    out_height, out_width = size
    coarse_height = _coarse_side(height, out_height)
    coarse_width = _coarse_side(width, out_width)
    is_coarse = coarse_height == height and coarse_width == width
    if is_coarse:
        return image
    coarse_size = coarse_width, coarse_height
    smaller = cv2.resize(image, coarse_size, interpolation=cv2.INTER_AREA)
    return smaller.reshape(coarse_height, coarse_width, channels)


def _coarse_side(pixels: int, out: int) -> int:
    most = _COARSE * out
    factor = max(1, pixels // most)
    return max(1, pixels // factor)


def _kernel_size(deviation: float) -> int:
    """The pixels of a Gaussian kernel: an odd number that covers the deviation on both sides."""
    return 2 * math.ceil(deviation) + 1


def _blur(pixels: int, out: int) -> float:
    """The standard deviation of the blur along a side, in pixels of the image."""
    ratio = pixels / out
    excess = ratio**2 - 1
    variance = max(excess, 0)
    return 0.5 * math.sqrt(variance)
