"""JPEG files are decoded to Pillow's pixels, down to the last row that is needed."""

import io
import math

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from PIL import Image

from gmlp_flax.data.images import decoding
from tests.data.images import image_files
from tests.failures import raised

KINDS = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "grey": {"mode": "L"},
    "high quality": {"quality": 100, "optimize": True},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 4},
}


def encoded(height: int, width: int, mode: str = "RGB", **options) -> bytes:
    """Coarse and fine noise, so that an error is visible in any row."""
    seed = height * 1000 + width
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (5, 7, 3), np.uint8)
    blocks_image = Image.fromarray(blocks)
    coarse = blocks_image.resize((width, height))
    fine = rng.integers(-20, 21, (height, width, 3))
    levels = np.asarray(coarse) + fine
    pixels = levels.clip(0, 255)
    bytes_of_pixels = pixels.astype(np.uint8)
    image = Image.fromarray(bytes_of_pixels)
    if mode != "RGB":
        image = image.convert(mode)
    return image_files.encoded(image, "JPEG", **options)


def decoded(
    data: bytes, channels: int = 3, reduction: int = 1, rows: int | None = None
) -> np.ndarray:
    stream = io.BytesIO(data)
    with Image.open(stream) as image:
        assert decoding.is_plain_jpeg(image, channels)
        needed = image.height if rows is None else rows
        return decoding.decode_jpeg(image, data, channels, reduction, needed)


@given(
    st.sampled_from(list(KINDS)),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 200),
    st.integers(1, 90),
    st.floats(0, 1),
)
def test_requested_rows_are_those_of_the_whole_image(kind, reduction, height, width, share):
    options = KINDS[kind]
    data = encoded(height, width, **options)
    channels = 1 if kind == "grey" else 3
    rows = max(1, round(share * height))
    whole = decoded(data, channels, reduction, height)
    part = decoded(data, channels, reduction, rows)
    reduced_height = math.ceil(height / reduction)
    reduced_width = math.ceil(width / reduction)
    assert part.shape == (reduced_height, reduced_width, channels)
    assert whole.shape == part.shape
    # With the row that a crop's lower edge may be rounded up to.
    reduced_rows = math.ceil(rows / reduction)
    wanted = reduced_rows + 1
    assert_array_equal(part[:wanted], whole[:wanted])
    if reduction == 1:
        stream = io.BytesIO(data)
        with Image.open(stream) as image:
            expected = np.asarray(image)
        assert_array_equal(whole, expected.reshape(whole.shape))


def damaged(data: bytes, share: float, replacement: bytes) -> bytes:
    """Replaces bytes at a given share of the coded data, which follow the header."""
    start = data.index(b"\xff\xda")
    coded = len(data) - start
    position = start + int(coded * share)
    end = position + len(replacement)
    before = data[:position]
    return before + replacement + data[end:]


@pytest.mark.parametrize(("share", "rows"), [(0.3, 320), (0.3, 240), (0.8, 320)])
def test_damage_in_rows_that_are_read_is_noticed(share, rows):
    data = damaged(encoded(320, 240), share, b"\xff\xee")
    message = raised(ValueError, decoded, data, rows=rows)
    assert "Corrupt JPEG data" in message


def test_damage_below_the_requested_rows_is_ignored():
    data = encoded(320, 240)
    damaged_below = damaged(data, 0.8, bytes(40))
    found = decoded(damaged_below, rows=160)
    expected = decoded(data)
    assert_array_equal(found[:160], expected[:160])


@pytest.mark.parametrize("kept", [0.5, 0.9])
def test_truncated_files_are_always_noticed(kept):
    data = encoded(320, 240)
    length = int(len(data) * kept)
    start = data[:length]
    message = raised(ValueError, decoded, start, rows=32)
    assert "Premature end" in message


@pytest.mark.parametrize(
    ("kind", "heights"),
    [("4:2:0", [96]), ("grey", [96]), ("progressive", [320]), ("restarts", [320])],
)
def test_files_are_read_once_and_only_as_far_as_needed(kind, heights, monkeypatch):
    read = []
    plain = simplejpeg.decode_jpeg

    def watched(data, *arguments, **options):
        height, *_ = simplejpeg.decode_jpeg_header(data)
        read.append(height)
        return plain(data, *arguments, **options)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", watched)
    data = encoded(320, 240, **KINDS[kind])
    channels = 1 if kind == "grey" else 3
    decoded(data, channels, rows=90)
    assert read == heights


def test_thumbnails_of_the_same_height_are_not_the_image():
    """A camera's file may have a JPEG in its EXIF data. If that is as large as the image, Pillow
    decodes the file."""
    data = encoded(64, 48)
    thumbnail = encoded(64, 48, quality=1)
    length = (len(thumbnail) + 8).to_bytes(2, "big")
    segment = b"\xff\xe1" + length + b"Exif\0\0" + thumbnail
    before = data[:2]
    both = before + segment + data[2:]
    message = raised(ValueError, decoded, both, rows=10)
    assert "buffer is too small" in message
    found = decoding.decode(both, "a")
    expected = decoding.decode(data, "a")
    assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("mode", "channels", "expected"),
    [
        ("L", 1, True),
        ("L", 3, True),
        ("RGB", 3, True),
        ("RGB", 1, False),
        ("CMYK", 3, False),
    ],
)
def test_plain_jpeg_modes(mode, channels, expected):
    stream = io.BytesIO(encoded(8, 8, mode))
    with Image.open(stream) as image:
        assert decoding.is_plain_jpeg(image, channels) == expected


def test_png_files_are_not_plain_jpeg():
    stream = io.BytesIO(image_files.png(1))
    with Image.open(stream) as image:
        assert not decoding.is_plain_jpeg(image, 3)
