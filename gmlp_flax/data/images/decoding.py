"""Encoded images, and images of a program, to arrays uint8 [height, width, channels].

simplejpeg, which is faster, decodes JPEG files, and only the rows that are needed; Pillow decodes
all others and the files that simplejpeg refuses, to the same pixels. Images are turned upright by
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
_LONGEST_SIDE = 65_535  # as of JPEG files
_MOST_PIXELS = 89_478_485  # where Pillow begins to warn

_JPEG_COMPONENTS = {
    "L": 1,
    "RGB": 3,
}  # of the modes of JPEG files whose pixels are exactly Pillow's
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
        max_value: the 16-bit pixel that is white; larger ones are white too.

    Returns:
        uint8 [height, width, channels].

    Raises:
        DataError: the bytes are not an image, or a damaged one.
    """
    with open_image(data, name) as file:
        return pixels_of_file(file, data, channels, max_value=max_value)


def decoded(record: dict[str, Any], channels: int, max_value: int = WHITE) -> np.ndarray:
    """The pixels of a record {"image": encoded bytes or pixels, "name"}."""
    image = record["image"]
    if not isinstance(image, np.ndarray):
        return decode(image, record["name"], channels, max_value)
    return image if image.shape[2] == channels else pixels_of(image, channels)


def record_of(image: Any, channels: int) -> dict[str, Any]:
    """A record of an image to predict: the path of a file, a Pillow image, or an array
    (`pixels_of`).

    Raises:
        DataError: the file cannot be read, or the array is no image.
    """
    if isinstance(image, str | os.PathLike):
        data = files.read_small(image, IMAGE_BYTES)
        return {"image": data, "name": str(image), "label": 0}
    return {"image": pixels_of(image, channels), "name": "the array", "label": 0}


def write_image(image: Any, path: str, channels: int) -> None:
    """Writes an image, as `record_of` takes it, as PNG."""
    pixels = decoded(record_of(image, channels), channels)
    Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(path, "PNG")


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
        channels: 3 for RGB, 1 for grey: the other kind is converted, and transparent pixels become
            white.

    Raises:
        DataError: it is no such image.
    """
    if not isinstance(image, Image.Image):
        dtype = getattr(image, "dtype", type(image).__name__)
        shape = list(getattr(image, "shape", ()))
        with decode_errors(f"an image is {_EXPECTED}, not {dtype} {shape}", "convert it"):
            image = Image.fromarray(_whole_pixels(image))
    with decode_errors("the image cannot be converted", f"give {_EXPECTED}"):
        pixels = np.asarray(_in_mode(image, _MODES[channels], WHITE))
    return pixels.reshape(*pixels.shape[:2], channels)


def _whole_pixels(image: Any) -> np.ndarray:
    """An array of a program as uint8 [height, width] or [height, width, 3 or 4].

    Raises:
        ValueError, TypeError: its axes or values are others.
    """
    if isinstance(image, list | tuple):
        raise ValueError("a row of an image, or an image as lists")
    values = np.asarray(image)
    is_whole = values.dtype.kind in "iu"
    if not is_whole and values.dtype.kind != "b":
        # JAX's may be bfloat16, whose kind is not NumPy's.
        values = values.astype(np.float32, casting="same_kind")
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if not values.size or values.ndim < 2 or values.shape[2:] not in ((), (3,), (4,)):
        raise ValueError("other axes")
    least = values.min()
    most = values.max()
    if not 0 <= least <= most <= (255 if is_whole else 1):
        raise ValueError(f"its values go from {least} to {most}")
    if not is_whole:
        values = np.rint(255.0 * values)
    return values.astype(np.uint8)


@contextlib.contextmanager
def open_image(data: bytes, name: str) -> Iterator[Image.Image]:
    """Yields the file before its pixels are decoded; errors, also in the block, become a DataError
    with its name."""
    with decode_errors(f"image {name!r} cannot be decoded", "replace or remove it"):
        try:
            with Image.open(io.BytesIO(data)) as file:
                _check_size(file)
                yield file
        except UnidentifiedImageError as error:
            raise DataError(
                f"image {name!r} is in no format Pillow knows; replace or remove it"
            ) from error


def _check_size(file: Image.Image) -> None:
    if max(file.size) > _LONGEST_SIDE or file.width * file.height > _MOST_PIXELS:
        raise ValueError(
            f"{file.width} x {file.height} pixels, where there may be at most "
            f"{_LONGEST_SIDE:,} on a side and {_MOST_PIXELS:,} in all"
        )


def _orientation(file: Image.Image) -> int:
    """EXIF's number of the turn that an opened file needs; Pillow turns a TIFF by itself, and gives
    its turned size."""
    if file.format == "TIFF":
        return 1
    value = file.getexif().get(ExifTags.Base.Orientation)
    return value if isinstance(value, int) else 1


def upright_shape(file: Image.Image) -> tuple[int, int]:
    """(height, width) after EXIF orientation; orientations 5 to 8 swap the two."""
    width, height = file.size
    return (width, height) if 5 <= _orientation(file) <= 8 else (height, width)


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
        reduction: of a JPEG, 1, 2, 4 or 8: its size is divided by it.
        rows: only the first rows, by default all, are sure to be right.

    Returns:
        uint8 [height, width, channels].
    """
    if is_plain_jpeg(file, channels) and _orientation(file) == 1:
        # Pillow judges files that are damaged or of a rare kind.
        with contextlib.suppress(ValueError):
            needed = file.height if rows is None else rows
            return decode_jpeg(file, data, channels, reduction, needed)
    file.draft(None, (file.width // reduction, file.height // reduction))
    pixels = np.asarray(_in_mode(file, _MODES[channels], max_value))
    return pixels.reshape(*pixels.shape[:2], channels)


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
        raise ValueError("its pixels are no numbers of 8 or 16 bits, so their range is not known")
    if image.mode.startswith("I"):
        # Pillow would clip 16 bits to 255 instead of scaling them, and turns negatives of 8 bits
        # alone. Of PGM files, whose headers say which pixel is white, it has scaled them to WHITE.
        white = WHITE if is_portable else max_value
        wide = np.minimum(np.asarray(image).astype(np.int64), white)
        values = (wide * 255 // white).astype(np.uint8)
        image = Image.fromarray(255 - values if is_negative else values)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(background, image)
    if image.mode == "LAB":
        image = image.convert("RGB")  # Pillow has no way from LAB to grey
    return image.convert(mode)


def _is_negative_tiff(image: Image.Image) -> bool:
    """Whether 0 is white in a TIFF."""
    if image.format != "TIFF":
        return False
    return image.getexif().get(ExifTags.Base.PhotometricInterpretation) == 0


def _has_wide_colours(image: Image.Image) -> bool:
    """Whether an image that is not loaded yet has colours of 16 bits."""
    return not image.mode.startswith("I") and ";16" in str(getattr(image, "tile", ""))


def brightest_wide_pixel(file: Image.Image) -> int:
    """The largest pixel of a grey 16-bit image that is not loaded yet; 0 for other images, and for
    PGM files, whose headers say which pixel is white."""
    if not file.mode.startswith("I;16"):
        return 0
    return int(np.asarray(file).max())


def is_plain_jpeg(image: Image.Image, channels: int) -> bool:
    """Whether the header of an opened file says that it is a JPEG of which `decode_jpeg` gives
    Pillow's pixels."""
    # An MPO file, from a camera, is a JPEG followed by others.
    if image.format not in ("JPEG", "MPO"):
        return False
    # Colours become grey in another way.
    return _JPEG_COMPONENTS.get(image.mode, 4) <= channels


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
    shape = math.ceil(height / reduction), math.ceil(width / reduction), channels
    pixels = np.empty(shape, np.uint8)
    # Colours have half of the resolution, and their interpolation needs the row below.
    needed = _BLOCK * math.ceil((rows + 4 * reduction) / _BLOCK)
    offset = _height_offset(data, image) if needed < height else None
    part = pixels
    source: bytes | bytearray = data
    if offset is not None:
        part = pixels[: needed // reduction]
        source = bytearray(data)
        struct.pack_into(">H", source, offset, needed)
    try:
        simplejpeg.decode_jpeg(
            source,
            "RGB" if channels == 3 else "GRAY",
            buffer=part,
            min_height=part.shape[0],
            min_width=part.shape[1],
            min_factor=reduction,
        )
    except ValueError as error:
        # libjpeg reports only the first problem, and all rows are decoded before this one.
        if offset is None or not _REST.search(str(error)):
            raise
    return pixels


def _height_offset(data: bytes, image: Image.Image) -> int | None:
    """Where a baseline file's header has its height, in two bytes; None for other kinds of
    files."""
    components = _JPEG_COMPONENTS[image.mode]
    width, height = image.size
    # The frame's length, bits per sample, height and width.
    header = struct.pack(">HBHH", 8 + 3 * components, 8, height, width)
    frame = data.find(_FRAME + header)
    if frame < 0:
        return None
    scan = data.find(_SCAN, frame)
    if data.find(_RESTARTS, 0, scan) >= 0:
        return None
    return frame + 5
