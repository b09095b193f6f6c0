"""Encoded images to arrays, and the two views of an image, which a model reads: for training and
for evaluation.

simplejpeg, which is faster, decodes JPEG files, and only the rows that are needed; Pillow decodes
all others and the files that simplejpeg refuses, to the same pixels.
Evaluation scales with Pillow, training with OpenCV, whose result is close and takes a fifth of the
time.
"""

import contextlib
import io
import math
import os
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
import simplejpeg
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from gmlp_flax.data import fingerprints
from gmlp_flax.data.images.augment import Augmentation, augment
from gmlp_flax.data.images.folders import IMAGE_BYTES, ImageSource
from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import files

_MODES = {1: "L", 3: "RGB"}
_SIDE, _PIXELS = 65_535, 89_478_485  # as of JPEG files, and as where Pillow begins to warn
_WHITE = (255, 1023, 4095, 16383)  # in 16 bits, of 8 bits, and of the 10, 12 or 14 of a sensor
# an image with more pixels for each pixel of a view, in a direction, is averaged before it is
# blurred
_COARSE = 64
_COMPONENTS = {"L": 1, "RGB": 3}  # of the modes of JPEG files whose pixels are exactly Pillow's
_BLOCK = 16  # a multiple of the rows that are coded together
# libjpeg's message if the file continues after the last row: it skipped bytes up to the end marker.
_REST = re.compile("extraneous bytes before marker 0xd9$")
# the markers of a baseline file's height and width, and of its pixels
_FRAME, _SCAN = b"\xff\xc0", b"\xff\xda"
_RESTARTS = b"\xff\xdd\0\4"  # the marker of a file with restarts, and the length of its segment


def training_example(
    record: dict,
    rng: np.random.Generator,
    *,
    augmentation: Augmentation = Augmentation(),
    **view: Any,
) -> dict:
    """A record to {"image" uint8 [*size, channels], "label"}: random crop and flip, then
    `augmentation`.

    `view` are the options of `training_view`.
    """
    image = training_view(record["image"], rng=rng, name=record.get("name", ""), **view)
    return {"image": augment(image, rng, augmentation), "label": record["label"]}


def evaluation_example(
    record: dict,
    *,
    size: tuple[int, int],
    channels: int,
    eval_crop: float,
    transform: str = "exact",
) -> dict:
    """A record, without its name, whose "image" is uint8 [*size, channels], as `evaluation_view`
    makes it."""
    pixels = _decoded(record, channels)
    others = {key: value for key, value in record.items() if key != "name"}
    return others | {"image": evaluation_view(pixels, size, eval_crop, transform)}


def dark_example(
    record: dict, *rng: np.random.Generator, transform: Callable[..., dict], channels: int
) -> dict:
    """`transform` of a record whose image may be `dark`, see `decode`."""
    return transform(record | {"image": _decoded(record, channels, dark=True)}, *rng)


def _decoded(record: dict, channels: int, dark: bool = False) -> np.ndarray:
    image = record["image"]
    return image if isinstance(image, np.ndarray) else decode(image, record["name"], channels, dark)


def look_into(source: ImageSource) -> tuple[list[str], bool]:
    """Opens a few images: a line if some are animated or have several pages; and whether white is
    known to be 65,535 in 16 bits, as one of them is brighter than fewer bits allow."""
    looked, several, most = fingerprints.spread(len(source)), [], 0
    for i in looked:
        with contextlib.suppress(Exception), Image.open(io.BytesIO(source.content(i))) as file:
            # MPO: of a camera, with thumbnails
            if file.format != "MPO" and getattr(file, "is_animated", False):
                several.append(source[i]["name"])
            most = most if most > _WHITE[-1] else _most_of_16_bits(file)
    shown = f"note: {len(several)} of {len(looked)} images looked into have several frames, such as {several[:1]}"
    return [f"{shown}: the first is read"] * bool(several), most > _WHITE[-1]


def record_of(image: Any, channels: int) -> dict[str, Any]:
    """A record of an image to predict: the path of a file, a Pillow image, or an array
    (`pixels_of`).

    Raises:
        DataError: the file cannot be read, or the array is no image.
    """
    if isinstance(image, str | os.PathLike):
        return {"image": files.read_small(image, IMAGE_BYTES), "name": str(image), "label": 0}
    return {"image": pixels_of(image, channels), "name": "the array", "label": 0}


def write_image(image: Any, path: str, channels: int) -> None:
    """Writes an image, as `record_of` takes it, as PNG."""
    pixels = _decoded(record_of(image, channels), channels)
    Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(path, "PNG")


def decode(data: bytes, name: str, channels: int = 3, dark: bool = False) -> np.ndarray:
    """Decodes an image file of any format that Pillow reads, to Pillow's pixels.

    EXIF orientation is applied, palettes and CMYK become RGB, 16 bits become 8, and transparent
    pixels become white.

    Args:
        data: the file's bytes.
        name: the file's name, for the error.
        channels: 3 for RGB, 1 for grey.
        dark: whether 16 bits may be so dark that white may be that of 8, 10, 12 or 14 bits, as
            others are brighter.

    Returns:
        uint8 [height, width, channels].

    Raises:
        DataError: the bytes are not an image, or a damaged one.
    """
    with _open_image(data, name) as file:
        return _pixels(file, data, channels, dark=dark)


def pixels_of(image: Any, channels: int) -> np.ndarray:
    """A Pillow image, or an array of any usual type, as uint8 [height, width, channels].

    Args:
        image: an array is [height, width] or [height, width, 1, 3 (RGB) or 4 (with alpha)], of
            whole numbers from 0 to 255, of floats from 0 to 1, or of booleans. It may be JAX's or
            torch's.
        channels: 3 for RGB, 1 for grey: the other kind is converted, and transparent pixels become
            white.

    Raises:
        DataError: it is no such image.
    """
    expected = "a path, a Pillow image, or an array [height, width, 1, 3 or 4], whole numbers 0 to 255 or floats 0 to 1"
    if not isinstance(image, Image.Image):
        shown = f"{getattr(image, 'dtype', type(image).__name__)} {[*getattr(image, 'shape', ())]}"
        with decode_errors(f"an image is {expected}, not {shown}", "convert it"):
            if isinstance(image, list | tuple):
                raise ValueError("a row of an image, or an image as lists")
            values = np.asarray(image)  # JAX's may be bfloat16, of a kind of its own
            values = (
                values
                if (kind := values.dtype.kind) in "biu"
                else values.astype(np.float32, casting="same_kind")
            )
            values = values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values
            if not values.size or values.shape[2:] not in ((), (3,), (4,)) or values.ndim < 2:
                raise ValueError("other axes")
            if not 0 <= values.min() <= values.max() <= (255 if kind in "iu" else 1):
                raise ValueError(f"its values go from {values.min()} to {values.max()}")
            image = Image.fromarray(
                (values if kind in "iu" else np.rint(255.0 * values)).astype(np.uint8)
            )
    with decode_errors("the image cannot be converted", f"give {expected}"):
        pixels = np.asarray(_in_mode(image, _MODES[channels]))
    return pixels.reshape(*pixels.shape[:2], channels)


def evaluation_view(
    image: np.ndarray, size: tuple[int, int], resize_ratio: float = 0.875, transform: str = "exact"
) -> np.ndarray:
    """The centre of the image: its shorter side scaled to round(size / resize_ratio), then cropped
    to `size`.

    Pillow does both in one bicubic, antialiased resampling. An image of this size comes back
    unchanged if `resize_ratio`, the fraction of the scaled image's side that is kept, is 1. For
    `transform="timm"` see `timm_view`.

    Args:
        image: uint8 [height, width, channels], 1 or 3 channels; [*size, channels] comes back.
        size: the view's (height, width).
        resize_ratio: in (0, 1].
    """
    if transform == "timm":
        return timm_view(image, size, resize_ratio)
    (height, width), (out_height, out_width) = image.shape[:2], size
    scale = max(round(out_height / resize_ratio) / height, round(out_width / resize_ratio) / width)
    # The shorter side's box may exceed the image by a rounding error.
    crop_height, crop_width = min(out_height / scale, height), min(out_width / scale, width)
    top, left = (height - crop_height) / 2, (width - crop_width) / 2
    if (height, width) == (out_height, out_width) == (crop_height, crop_width):
        return image
    return _bicubic(image, size, (left, top, left + crop_width, top + crop_height))


def timm_view(image: np.ndarray, size: tuple[int, int], resize_ratio: float) -> np.ndarray:
    """`evaluation_view` with timm's pixels: the whole image is scaled, its sides floor(size /
    resize_ratio) and as many whole pixels as torchvision counts, and the crop begins at whole
    pixels."""
    (height, width), targets = image.shape[:2], [math.floor(side / resize_ratio) for side in size]
    if targets[0] == targets[1]:
        scaled = [int(targets[0] * side / min(height, width)) for side in (height, width)]
    else:
        ratio = min(height / targets[0], width / targets[1])
        scaled = [round(side / ratio) for side in (height, width)]
    top, left = (round((side - out) / 2) for side, out in zip(scaled, size, strict=True))
    return _bicubic(image, (scaled[0], scaled[1]))[top : top + size[0], left : left + size[1]]


def _bicubic(image: np.ndarray, size: tuple[int, int], box: Any = None) -> np.ndarray:
    """Pillow's bicubic, antialiased resampling of a box (left, top, right, bottom), by default of
    all, to `size`."""
    whole = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    pixels = np.asarray(whole.resize((size[1], size[0]), Image.Resampling.BICUBIC, box=box))
    return pixels.reshape(*size, image.shape[2])


def training_view(
    image: np.ndarray | bytes,
    size: tuple[int, int],
    rng: np.random.Generator,
    *,
    name: str = "",
    channels: int = 3,
    min_scale: float = 0.08,
    flip: bool = True,
) -> np.ndarray:
    """A random crop, scaled to `size` (bicubic), mirrored half of the time (Szegedy et al. 2015;
    torchvision).

    The crop covers `min_scale` to 1 of the image's area, at an aspect ratio between 3/4 and 4/3.

    If a JPEG file is given and the crop is at least 2, 4 or 8 times `size` in both directions, the
    file is decoded at that fraction of its size, which is several times faster; the crop's edges
    then lie on whole pixels of the smaller image. Otherwise a file and its decoded array give the
    same view. Damage below the crop is usually not noticed.

    Args:
        image: uint8 [height, width, channels], 1 or 3 channels; or an image file's bytes.
        size: the view's (height, width).
        rng: the only source of chance; the draws depend on the image's height and width alone.
        name, channels: of a file, as in `decode`.
        min_scale: in (0, 1].
        flip: whether to mirror.

    Returns:
        uint8 [*size, channels].

    Raises:
        DataError: the bytes are not an image, or a damaged one.
    """
    if isinstance(image, bytes):
        with _open_image(image, name) as file:
            box = random_box(*_upright_shape(file), rng, min_scale)
            view = _resize(_decode_crop(file, image, channels, box, size), size)
    else:
        top, left, height, width = random_box(image.shape[0], image.shape[1], rng, min_scale)
        view = _resize(image[top : top + height, left : left + width], size)
    return cv2.flip(view, 1).reshape(view.shape) if flip and rng.random() < 0.5 else view


def random_box(
    height: int, width: int, rng: np.random.Generator, min_scale: float
) -> tuple[int, int, int, int]:
    """The crop (top, left, height, width) of torchvision's RandomResizedCrop, in pixels.

    After ten tries that do not fit, the largest crop at the centre with an allowed aspect ratio.
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


def _decode_crop(
    file: Image.Image,
    data: bytes,
    channels: int,
    box: tuple[int, int, int, int],
    size: tuple[int, int],
) -> np.ndarray:
    """Decodes a file no finer and no further down than needed; cuts out `box`, in pixels of the
    image at full size."""
    top, left, height, width = box
    reduction = max(
        n for n in (1, 2, 4, 8) if n == 1 or (height >= n * size[0] and width >= n * size[1])
    )
    full_height, full_width = _upright_shape(file)
    pixels = _pixels(file, data, channels, reduction, top + height)
    down, right = pixels.shape[0] / full_height, pixels.shape[1] / full_width
    return pixels[
        round(top * down) : round((top + height) * down),
        round(left * right) : round((left + width) * right),
    ]


def _resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Bicubic, antialiased by a Gaussian blur; on photographs, about one grey level from Pillow's
    result."""
    if image.shape[:2] == size:
        return image
    # OpenCV's own threads would compete with the pipeline's threads and processes.
    cv2.setNumThreads(1)
    height, width = (
        max(1, n // max(1, n // (_COARSE * out))) for n, out in zip(image.shape, size, strict=False)
    )
    # the time that the blur takes grows with the square of a side
    if (height, width) != image.shape[:2]:
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA).reshape(
            height, width, -1
        )
    # Half a pixel of the view, less the blur of the image's own pixels.
    down, right = (
        0.5 * math.sqrt(max((n / out) ** 2 - 1, 0))
        for n, out in zip(image.shape, size, strict=False)
    )
    kernel = (2 * math.ceil(right) + 1, 2 * math.ceil(down) + 1)
    smooth = cv2.GaussianBlur(image, kernel, right, sigmaY=down, borderType=cv2.BORDER_REPLICATE)
    return cv2.resize(smooth, size[::-1], interpolation=cv2.INTER_CUBIC).reshape(
        *size, image.shape[2]
    )


@contextlib.contextmanager
def _open_image(data: bytes, name: str) -> Iterator[Image.Image]:
    """Yields the file before its pixels are decoded; errors, also in the block, become a DataError
    with its name."""
    with decode_errors(f"image {name!r} cannot be decoded", "replace or remove it"):
        try:
            with Image.open(io.BytesIO(data)) as file:
                if max(file.size) > _SIDE or file.width * file.height > _PIXELS:
                    most = f"at most {_SIDE:,} on a side and {_PIXELS:,} in all"
                    raise ValueError(
                        f"{file.width} x {file.height} pixels, where there may be {most}"
                    )
                yield file
        except UnidentifiedImageError as error:
            raise DataError(
                f"image {name!r} is in no format Pillow knows; replace or remove it"
            ) from error


def _orientation(file: Image.Image) -> int:
    """EXIF's number of the turn that an opened file needs; Pillow turns a TIFF by itself, and gives
    its turned size."""
    value = 1 if file.format == "TIFF" else file.getexif().get(ExifTags.Base.Orientation)
    return value if isinstance(value, int) else 1


def _upright_shape(file: Image.Image) -> tuple[int, int]:
    """(height, width) after EXIF orientation; orientations 5 to 8 swap the two."""
    width, height = file.size
    return (width, height) if 5 <= _orientation(file) <= 8 else (height, width)


def _pixels(
    file: Image.Image,
    data: bytes,
    channels: int,
    reduction: int = 1,
    rows: int | None = None,
    dark: bool = False,
) -> np.ndarray:
    """Upright pixels of an opened file, uint8 [height, width, channels]; of a JPEG, at 1 /
    reduction of its size.

    Only the first `rows` rows, by default all, are sure to be right.
    """
    if is_plain_jpeg(file, channels) and _orientation(file) == 1:
        # Pillow judges files that are damaged or of a rare kind.
        with contextlib.suppress(ValueError):
            return decode_jpeg(
                file, data, channels, reduction, file.height if rows is None else rows
            )
    file.draft(None, (file.width // reduction, file.height // reduction))
    pixels = np.asarray(_in_mode(file, _MODES[channels], dark))
    return pixels.reshape(*pixels.shape[:2], channels)


def _in_mode(image: Image.Image, mode: str, dark: bool = False) -> Image.Image:
    """The upright image in a mode of 8 bits; raises ValueError if it is not known which value is
    white."""
    kind, most = image.format, _most_of_16_bits(image)
    is_negative = (
        kind == "TIFF" and image.getexif().get(ExifTags.Base.PhotometricInterpretation) == 0
    )
    if (white := next((white for white in _WHITE if 0 < most <= white), 0)) and not dark:
        unknown = (
            f"none of its 16-bit pixels is above {white:,}, so white may be {white:,} or 65,535"
        )
        raise ValueError(f"{unknown}: save it in 8 bits")
    # which would copy all
    image = image if _orientation(image) == 1 else ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        if image.mode == "F" or (image.mode == "I" and kind != "PPM"):
            raise ValueError(
                "its pixels are no numbers of 8 or 16 bits, so their range is not known"
            )
        # Pillow would clip 16 bits to 255 instead of scaling them, and turns negatives of 8 bits
        # alone.
        values = (np.asarray(image) // 257).astype(np.uint8)
        image = Image.fromarray(255 - values if is_negative else values)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert(mode)


def _most_of_16_bits(image: Image.Image) -> int:
    """The highest of the 16-bit pixels of an image that is not loaded yet; 0 if they have other
    types. Of colours, Pillow keeps the upper 8 bits."""
    is_grey = image.mode.startswith("I;16")
    if not is_grey and ";16" not in str(getattr(image, "tile", "")):
        return 0
    pixels = np.asarray(image)
    return (
        int(pixels.max())
        if is_grey
        else 256 * int(pixels[..., : -1 if "A" in image.mode else None].max()) + 255
    )


def is_plain_jpeg(image: Image.Image, channels: int) -> bool:
    """Whether the header of an opened file says that it is a JPEG of which `decode_jpeg` gives
    Pillow's pixels."""
    # An MPO file, from a camera, is a JPEG followed by others. Colours become grey in another way.
    return image.format in ("JPEG", "MPO") and _COMPONENTS.get(image.mode, 4) <= channels


def decode_jpeg(
    image: Image.Image, data: bytes, channels: int, reduction: int, rows: int
) -> np.ndarray:
    """The pixels of the first `rows` rows of a file, at 1 / reduction of its size.

    A JPEG is decoded from the top. To stop early, a copy of the file is decoded whose header gives
    a smaller height. Files other than a single baseline scan without restarts are decoded to the
    end.

    Args:
        image: the opened file, for its header alone.
        data: the file's bytes.
        channels: 3 for RGB, 1 for grey; one that `is_plain_jpeg` accepts.
        reduction: 1, 2, 4 or 8.
        rows: of the image at full size.

    Returns:
        uint8 [ceil(height / reduction), ceil(width / reduction), channels]. Further rows have
        arbitrary values.

    Raises:
        ValueError: the file is damaged in these rows, or ends early.
    """
    width, height = image.size
    pixels = np.empty(
        (math.ceil(height / reduction), math.ceil(width / reduction), channels), np.uint8
    )
    # Colours have half of the resolution, and their interpolation needs the row below.
    needed = _BLOCK * math.ceil((rows + 4 * reduction) / _BLOCK)
    offset = _height_offset(data, image) if needed < height else None
    part, source = pixels, data
    if offset is not None:
        part, source = pixels[: needed // reduction], bytearray(data)
        struct.pack_into(">H", source, offset, needed)
    sizes: dict[str, Any] = dict(
        min_height=len(part), min_width=part.shape[1], min_factor=reduction
    )
    try:
        simplejpeg.decode_jpeg(source, "RGB" if channels == 3 else "GRAY", buffer=part, **sizes)
    except ValueError as error:
        # libjpeg reports only the first problem, and all rows are decoded before this one.
        if offset is None or not _REST.search(str(error)):
            raise
    return pixels


def _height_offset(data: bytes, image: Image.Image) -> int | None:
    """Where a baseline file's header has its height, in two bytes; None for other kinds of
    files."""
    components, (width, height) = _COMPONENTS[image.mode], image.size
    # The frame's length, bits per sample, height and width.
    frame = data.find(_FRAME + struct.pack(">HBHH", 8 + 3 * components, 8, height, width))
    if frame < 0 or data.find(_RESTARTS, 0, data.find(_SCAN, frame)) >= 0:
        return None
    return frame + 5
