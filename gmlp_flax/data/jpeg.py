"""JPEG files to arrays by simplejpeg: Pillow's pixels, faster, and no more rows of them than are wanted."""

from __future__ import annotations

import math
import re
import struct

import numpy as np
import simplejpeg
from PIL import Image

# By channels: simplejpeg's name of the colours, and the modes of JPEG files in which it gives exactly Pillow's pixels.
_COLOURS = {1: ("GRAY", ("L",)), 3: ("RGB", ("L", "RGB"))}
_COMPONENTS = {"L": 1, "RGB": 3}
_BLOCK = 16  # rows that are coded together, or a multiple of them
# What libjpeg says where the file goes on after the last row: that it skipped bytes up to the end's marker.
_REST = re.compile("extraneous bytes before marker 0xd9$")
_FRAME, _SCAN = b"\xff\xc0", b"\xff\xda"  # the markers of a baseline file's height and width, and of its pixels
_RESTARTS = b"\xff\xdd\0\4"  # the marker of a file with restarts, and the length of what follows


def decodes(picture: Image.Image, channels: int) -> bool:
    """Whether an opened file is a JPEG, as far as its header tells, of which `decode` gives Pillow's pixels."""
    # MPO, from cameras, is a JPEG with others behind it.
    return picture.format in ("JPEG", "MPO") and picture.mode in _COLOURS[channels][1]


def decode(picture: Image.Image, data: bytes, channels: int, reduction: int, rows: int) -> np.ndarray:
    """The pixels of the first `rows` rows of a file, at 1 / reduction of its size.

    A JPEG is read from the top. The rest of it is spared by a copy of the file whose header gives a smaller height:
    for the crops of `training_view`, a tenth of the time. What is not one baseline scan without restarts is read whole.

    Args:
        picture: the opened file, for its header alone.
        data: the file's bytes.
        channels: 3 for RGB, 1 for gray; one that `decodes` accepts.
        reduction: 1, 2, 4 or 8.
        rows: of the whole picture.

    Returns:
        uint8 [ceil(height / reduction), ceil(width / reduction), channels]. Rows below those asked for hold anything.

    Raises:
        ValueError: the file is damaged in those rows, or ends early.
    """
    width, height = picture.size
    pixels = np.empty((math.ceil(height / reduction), math.ceil(width / reduction), channels), np.uint8)
    # Colours, at half of the resolution, are interpolated from the row below as well.
    needed = _BLOCK * math.ceil((rows + 4 * reduction) / _BLOCK)
    place = _height_in(data, picture)
    if needed >= height or place is None:
        return _decode(data, channels, reduction, pixels)
    shorter = bytearray(data)
    struct.pack_into(">H", shorter, place, needed)
    try:
        _decode(shorter, channels, reduction, pixels[: needed // reduction])
    except ValueError as error:
        # It complains of the first thing that it finds, and by then all rows are there.
        if not _REST.search(str(error)):
            raise
    return pixels


def _decode(data: bytes | bytearray, channels: int, reduction: int, pixels: np.ndarray) -> np.ndarray:
    """Fills `pixels`."""
    height, width, _ = pixels.shape
    return simplejpeg.decode_jpeg(
        data, _COLOURS[channels][0], min_height=height, min_width=width, min_factor=reduction, buffer=pixels
    )


def _height_in(data: bytes, picture: Image.Image) -> int | None:
    """Where a baseline file's header has its height, as two bytes; none for files of other kinds."""
    components, (width, height) = _COMPONENTS[picture.mode], picture.size
    # A frame's length, bits a sample, height and width.
    frame = data.find(_FRAME + struct.pack(">HBHH", 8 + 3 * components, 8, height, width))
    if frame < 0 or data.find(_RESTARTS, 0, data.find(_SCAN, frame)) >= 0:
        return None
    return frame + 5
