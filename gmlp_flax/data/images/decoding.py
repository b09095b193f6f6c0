"""Decodes images from files, or converts arrays and Pillow images, to uint8 [height, width,
channels].

simplejpeg, which is faster, decodes JPEG files, and only the rows that are needed. Pillow decodes
all other files, and those that simplejpeg refuses, to the same pixels. Images are turned upright by
EXIF, palettes and CMYK become RGB, and transparent pixels become white. 16-bit pixels are divided
by `max_value`.
"""

import contextlib
import io
import math
import os
import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import simplejpeg
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from gmlp_flax.data.images.stores import IMAGE_BYTES
from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import files

WHITE = 65_535  # the largest 16-bit pixel

_MODES = {1: "L", 3: "RGB"}
_LONGEST_SIDE = 65_535  # the limit of JPEG files
_MOST_PIXELS = 89_478_485  # above this, Pillow warns

# Modes of JPEG files that simplejpeg decodes to exactly Pillow's pixels.
_JPEG_COMPONENTS = {"L": 1, "RGB": 3}
_JPEG_COLOURS = {1: "GRAY", 3: "RGB"}  # simplejpeg's names
_BLOCK = 16  # a multiple of the rows that are coded together
# libjpeg's message if the file continues after the last row: it skipped bytes up to the end marker.
_REST = re.compile("extraneous bytes before marker 0xd9$")
_FRAME = b"\xff\xc0"  # the marker of a baseline file's height and width
_SCAN = b"\xff\xda"  # the marker of its pixels
# The marker of a file with restarts, and the length of its segment.
_RESTARTS = b"\xff\xdd\0\4"


def decode(data: bytes, name: str, channels: int = 3, max_value: int = WHITE) -> np.ndarray:
    """Decodes an image file of any format that Pillow reads, to Pillow's pixels.

    Args:
        data: the file's bytes.
        name: the file's name, for the error.
        channels: 3 for RGB, 1 for grey.
        max_value: the 16-bit pixel that is white; larger pixels are white too.

    Returns:
        uint8 [height, width, channels].

    Raises:
        DataError: the bytes are not an image, or the image is damaged.
    """
    with open_image(data, name) as file:
        return pixels_of_file(file, data, channels, max_value=max_value)


def decoded(record: dict[str, Any], channels: int, max_value: int = WHITE) -> np.ndarray:
    """The pixels of a record {"image": encoded bytes or pixels, "name"}."""
    image = record["image"]
    if not isinstance(image, np.ndarray):
        return decode(image, record["name"], channels, max_value)
    _, _, image_channels = image.shape
    if image_channels == channels:
        return image
    return pixels_of(image, channels)


def record_of(image: Any, channels: int) -> dict[str, Any]:
    """A record of an image to predict: the path of a file, a Pillow image, or an array
    (`pixels_of`).

    Raises:
        DataError: the file cannot be read, or the array is not an image.
    """
    if isinstance(image, str | os.PathLike):
        content: Any = files.read_small(image, IMAGE_BYTES)
        name = str(image)
    else:
        content = pixels_of(image, channels)
        name = "the array"
    return {"image": content, "name": name, "label": 0}


def write_image(image: Any, path: str, channels: int) -> None:
    """Writes an image as PNG; see `record_of` for the kinds of images."""
    record = record_of(image, channels)
    pixels = decoded(record, channels)
    if channels == 1:
        pixels = pixels[..., 0]
    plain_image = Image.fromarray(pixels)
    plain_image.save(path, "PNG")


_EXPECTED = (
    "a path, a Pillow image, or an array [height, width, 1, 3 or 4], whole numbers 0 to 255 or "
    "floats 0 to 1"
)


def pixels_of(image: Any, channels: int) -> np.ndarray:
    """A Pillow image, or an array of any usual type, as uint8 [height, width, channels].

    Args:
        image: an array is [height, width] or [height, width, 1, 3 (RGB) or 4 (with alpha)], of
            whole numbers from 0 to 255, of floats from 0 to 1, or of booleans. It may be JAX's or
            torch's.
        channels: 3 for RGB, 1 for grey. The other kind is converted, and transparent pixels become
            white.

    Raises:
        DataError: the image has another form.
    """
    if not isinstance(image, Image.Image):
        image = _image_of_array(image)
    with decode_errors("the image cannot be converted", f"give {_EXPECTED}"):
        converted = _in_mode(image, _MODES[channels], WHITE)
    return _with_channels(converted, channels)


def _image_of_array(array: Any) -> Image.Image:
    type_name = type(array).__name__
    dtype = getattr(array, "dtype", type_name)
    shape = getattr(array, "shape", ())
    axes = list(shape)
    with decode_errors(f"an image is {_EXPECTED}, not {dtype} {axes}", "convert it"):
        pixels = _whole_pixels(array)
        return Image.fromarray(pixels)


def _with_channels(image: Image.Image, channels: int) -> np.ndarray:
    """The pixels of an image in a mode of 8 bits: uint8 [height, width, channels]."""
    pixels = np.asarray(image)
    return pixels.reshape(image.height, image.width, channels)


def _whole_pixels(image: Any) -> np.ndarray:
    """The pixels in an array of any usual type: uint8 [height, width] or [height, width, 3 or 4].

    Raises:
        ValueError, TypeError: the array has other axes or values.
    """
    if isinstance(image, list | tuple):
        raise ValueError("a row of an image, or an image as lists")
    values = np.asarray(image)
    kind = values.dtype.kind
    is_whole = kind in "iu"
    if not is_whole and kind != "b":
        # JAX's may be bfloat16, whose kind is not NumPy's.
        values = values.astype(np.float32, casting="same_kind")
    values = _without_grey_axis(values)
    if is_whole:
        _require_range(values, 255)
        return values.astype(np.uint8)
    _require_range(values, 1)
    levels = np.rint(255.0 * values)
    return levels.astype(np.uint8)


def _without_grey_axis(values: np.ndarray) -> np.ndarray:
    """An image [height, width] or [height, width, 3 or 4]; raises ValueError for other axes."""
    if values.shape[2:] == (1,):
        values = values[..., 0]
    channels = values.shape[2:]
    has_rows = values.ndim >= 2
    has_channels = channels in ((), (3,), (4,))
    if not has_rows or not has_channels or not values.size:
        raise ValueError("other axes")
    return values


def _require_range(values: np.ndarray, limit: int) -> None:
    """Raises ValueError for a value below 0 or above a limit."""
    least = values.min()
    most = values.max()
    if not 0 <= least <= most <= limit:
        raise ValueError(f"its values go from {least} to {most}")


@contextlib.contextmanager
def open_image(data: bytes, name: str) -> Iterator[Image.Image]:
    """Yields the file before its pixels are decoded. Errors, also those in the block, become a
    DataError with the file's name."""
    with decode_errors(f"image {name!r} cannot be decoded", "replace or remove it"):
        if not data:
            raise DataError(f"image {name!r} is an empty file; replace or remove it")
        try:
            with Image.open(io.BytesIO(data)) as file:
                _check_size(file)
                yield file
        except UnidentifiedImageError as error:
            raise DataError(
                f"image {name!r} is in no format Pillow knows; replace or remove it"
            ) from error


def _check_size(file: Image.Image) -> None:
    width, height = file.size
    is_long = max(width, height) > _LONGEST_SIDE
    is_large = width * height > _MOST_PIXELS
    if is_long or is_large:
        raise ValueError(
            f"{width} x {height} pixels, where the limits are "
            f"{_LONGEST_SIDE:,} on a side and {_MOST_PIXELS:,} in all"
        )


def _orientation(file: Image.Image) -> int:
    """EXIF's number of the rotation that an opened file needs. Pillow rotates a TIFF by itself, and
    reports its rotated size."""
    if file.format == "TIFF":
        return 1
    exif = file.getexif()
    value = exif.get(ExifTags.Base.Orientation)
    if isinstance(value, int):
        return value
    return 1


def upright_shape(file: Image.Image) -> tuple[int, int]:
    """(height, width) after EXIF orientation; orientations 5 to 8 swap the two."""
    width, height = file.size
    orientation = _orientation(file)
    if 5 <= orientation <= 8:
        return width, height
    return height, width


def pixels_of_file(
    file: Image.Image,
    data: bytes,
    channels: int,
    reduction: int = 1,
    rows: int | None = None,
    max_value: int = WHITE,
) -> np.ndarray:
    """Upright pixels of an opened file.

    Args:
        file: as `open_image` yields it.
        data: the file's bytes.
        channels, max_value: see `decode`.
        reduction: 1, 2, 4 or 8: the size of a JPEG is divided by it.
        rows: how many of the first rows are needed, by default all; others may not be decoded.

    Returns:
        uint8 [height, width, channels].
    """
    if is_plain_jpeg(file, channels) and _orientation(file) == 1:
        needed = file.height if rows is None else rows
        # Pillow decides on files that are damaged or of a rare kind.
        with contextlib.suppress(ValueError):
            return decode_jpeg(file, data, channels, reduction, needed)
    smaller_width = file.width // reduction
    smaller_height = file.height // reduction
    file.draft(None, (smaller_width, smaller_height))
    converted = _in_mode(file, _MODES[channels], max_value)
    return _with_channels(converted, channels)


def _in_mode(image: Image.Image, mode: str, max_value: int) -> Image.Image:
    """The upright image in a mode of 8 bits; raises ValueError if its range is not known."""
    if max_value != WHITE and _has_wide_colours(image):
        raise ValueError(
            "its colours have 16 bits, of which Pillow keeps the upper 8: set data.max_value=65535"
        )
    is_negative = _is_negative_tiff(image)
    is_portable = image.format == "PPM"
    if _orientation(image) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode == "F" or (image.mode == "I" and not is_portable):
        raise ValueError("its pixels do not have 8 or 16 bits, so their range is not known")
    if image.mode.startswith("I"):
        # The header of a PGM file says which pixel is white, and Pillow has scaled it to WHITE.
        white = WHITE if is_portable else max_value
        image = _eight_bits(image, white, is_negative)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(background, image)
    if image.mode == "LAB":
        image = image.convert("RGB")  # Pillow has no way from LAB to grey
    return image.convert(mode)


def _eight_bits(image: Image.Image, white: int, is_negative: bool) -> Image.Image:
    """A grey image of 16 bits in 8 bits.

    Pillow would clip 16 bits to 255 instead of scaling them, and inverts only negatives of 8 bits.

    Args:
        image: in a mode of whole numbers.
        white: the pixel that is white; larger pixels are white too.
        is_negative: whether 0 is white.
    """
    pixels = np.asarray(image)
    wide = pixels.astype(np.int64)
    clipped = np.minimum(wide, white)
    scaled = clipped * 255 // white
    values = scaled.astype(np.uint8)
    if is_negative:
        values = 255 - values
    return Image.fromarray(values)


def _is_negative_tiff(image: Image.Image) -> bool:
    """Whether 0 is white in a TIFF."""
    if image.format != "TIFF":
        return False
    exif = image.getexif()
    return exif.get(ExifTags.Base.PhotometricInterpretation) == 0


def _has_wide_colours(image: Image.Image) -> bool:
    """Whether an image that is not loaded yet has colours of 16 bits."""
    tile = getattr(image, "tile", "")
    has_wide_tiles = ";16" in str(tile)
    return has_wide_tiles and not image.mode.startswith("I")


def brightest_wide_pixel(file: Image.Image) -> int:
    """The largest pixel of a grey 16-bit image that is not loaded yet. It is 0 for other images,
    and for PGM files, whose headers say which pixel is white."""
    if not file.mode.startswith("I;16"):
        return 0
    pixels = np.asarray(file)
    return int(pixels.max())


def is_plain_jpeg(image: Image.Image, channels: int) -> bool:
    """Whether an opened file, by its header, is a JPEG that `decode_jpeg` decodes to Pillow's
    pixels."""
    # An MPO file, from a camera, is a JPEG file followed by others.
    if image.format not in ("JPEG", "MPO"):
        return False
    # simplejpeg converts colours to grey in another way.
    components = _JPEG_COMPONENTS.get(image.mode, 4)
    return components <= channels


def decode_jpeg(
    image: Image.Image, data: bytes, channels: int, reduction: int, rows: int
) -> np.ndarray:
    """The pixels of the first `rows` rows of a file, at 1 / reduction of its size.

    A JPEG is decoded from the top. To stop early, a copy of the file with a smaller height in its
    header is decoded. Files other than a single baseline scan without restarts are decoded to the
    end.

    Args:
        image: the opened file; only its header is read.
        data: the file's bytes.
        channels: 3 for RGB, 1 for grey; `is_plain_jpeg` must accept it.
        reduction: 1, 2, 4 or 8.
        rows: the number of rows, of the image at full size.

    Returns:
        uint8 [ceil(height / reduction), ceil(width / reduction), channels]. Further rows have
        arbitrary values.

    Raises:
        ValueError: the file is damaged in these rows, or ends early.
    """
    width, height = image.size
    out_height = math.ceil(height / reduction)
    out_width = math.ceil(width / reduction)
    pixels = np.empty((out_height, out_width, channels), np.uint8)
    # Colours have half of the resolution, and their interpolation needs the row below.
    rows_read = rows + 4 * reduction
    blocks = math.ceil(rows_read / _BLOCK)
    needed = _BLOCK * blocks
    offset = None
    if needed < height:
        offset = _height_offset(data, image)
    if offset is None:
        _decode_into(pixels, data, reduction)
        return pixels
    shorter = bytearray(data)
    struct.pack_into(">H", shorter, offset, needed)
    needed_rows = needed // reduction
    first_rows = pixels[:needed_rows]
    try:
        _decode_into(first_rows, shorter, reduction)
    except ValueError as error:
        # libjpeg reports only the first problem, and all rows are decoded before this one.
        if not _REST.search(str(error)):
            raise
    return pixels


def _decode_into(pixels: np.ndarray, data: bytes | bytearray, reduction: int) -> None:
    """Decodes a JPEG file, at 1 / reduction of its size, into uint8 [height, width, channels]."""
    height, width, channels = pixels.shape
    simplejpeg.decode_jpeg(
        data,
        _JPEG_COLOURS[channels],
        buffer=pixels,
        min_height=height,
        min_width=width,
        min_factor=reduction,
    )


def _height_offset(data: bytes, image: Image.Image) -> int | None:
    """The offset of the height, two bytes, in the header of a baseline file; None for other kinds
    of files."""
    components = _JPEG_COMPONENTS[image.mode]
    width, height = image.size
    # The frame's length, bits per sample, height and width.
    length = 8 + 3 * components
    header = struct.pack(">HBHH", length, 8, height, width)
    frame = data.find(_FRAME + header)
    if frame < 0:
        return None
    scan = data.find(_SCAN, frame)
    if data.find(_RESTARTS, 0, scan) >= 0:
        return None
    return frame + 5
