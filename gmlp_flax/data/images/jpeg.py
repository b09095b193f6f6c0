"""JPEG files to arrays by simplejpeg: the same pixels as Pillow's, but faster, and only the rows that are needed."""

import math
import re
import struct
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

_COMPONENTS = {"L": 1, "RGB": 3}  # of the modes of JPEG files whose pixels are exactly Pillow's
_BLOCK = 16  # a multiple of the rows that are coded together
# libjpeg's message if the file continues after the last row: it skipped bytes up to the end marker.
_REST = re.compile("extraneous bytes before marker 0xd9$")
_FRAME, _SCAN = b"\xff\xc0", b"\xff\xda"  # the markers of a baseline file's height and width, and of its pixels
_RESTARTS = b"\xff\xdd\0\4"  # the marker of a file with restarts, and the length of its segment


def can_decode(image: Image.Image, channels: int) -> bool:
    """Whether the header of an opened file says that it is a JPEG of which `decode` gives Pillow's pixels."""
    # An MPO file, from a camera, is a JPEG followed by others. Colours become grey in another way.
    return image.format in ("JPEG", "MPO") and _COMPONENTS.get(image.mode, 4) <= channels


def decode(image: Image.Image, data: bytes, channels: int, reduction: int, rows: int) -> np.ndarray:
    """The pixels of the first `rows` rows of a file, at 1 / reduction of its size.

    A JPEG is decoded from the top. To stop early, a copy of the file is decoded whose header gives a smaller height.
    Files other than a single baseline scan without restarts are decoded to the end.

    Args:
        image: the opened file, for its header alone.
        data: the file's bytes.
        channels: 3 for RGB, 1 for grey; one that `can_decode` accepts.
        reduction: 1, 2, 4 or 8.
        rows: of the image at full size.

    Returns:
        uint8 [ceil(height / reduction), ceil(width / reduction), channels]. Further rows have arbitrary values.

    Raises:
        ValueError: the file is damaged in these rows, or ends early.
    """
    width, height = image.size
    pixels = np.empty((math.ceil(height / reduction), math.ceil(width / reduction), channels), np.uint8)
    # Colours have half of the resolution, and their interpolation needs the row below.
    needed = _BLOCK * math.ceil((rows + 4 * reduction) / _BLOCK)
    offset = _height_offset(data, image) if needed < height else None
    part, source = pixels, data
    if offset is not None:
        part, source = pixels[: needed // reduction], bytearray(data)
        struct.pack_into(">H", source, offset, needed)
    sizes: dict[str, Any] = dict(min_height=len(part), min_width=part.shape[1], min_factor=reduction)
    try:
        simplejpeg.decode_jpeg(source, "RGB" if channels == 3 else "GRAY", buffer=part, **sizes)
    except ValueError as error:
        # libjpeg reports only the first problem, and all rows are decoded before this one.
        if offset is None or not _REST.search(str(error)):
            raise
    return pixels


def _height_offset(data: bytes, image: Image.Image) -> int | None:
    """Where a baseline file's header has its height, in two bytes; None for other kinds of files."""
    components, (width, height) = _COMPONENTS[image.mode], image.size
    # The frame's length, bits per sample, height and width.
    frame = data.find(_FRAME + struct.pack(">HBHH", 8 + 3 * components, 8, height, width))
    if frame < 0 or data.find(_RESTARTS, 0, data.find(_SCAN, frame)) >= 0:
        return None
    return frame + 5
