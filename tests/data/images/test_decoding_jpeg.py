"""JPEG files: Pillow's pixels, down to the rows that are needed."""

import io
import math

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
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
    """Noise, coarse and fine: an error shows in any row."""
    rng = np.random.default_rng(height * 1000 + width)
    blocks = rng.integers(0, 256, (5, 7, 3), np.uint8)
    coarse = Image.fromarray(blocks).resize((width, height))
    fine = rng.integers(-20, 21, (height, width, 3))
    levels = np.asarray(coarse) + fine
    pixels = levels.clip(0, 255).astype(np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    return image_files.encoded(image, "JPEG", **options)


def decoded(
    data: bytes, channels: int = 3, reduction: int = 1, rows: int | None = None
) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
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
def test_the_rows_asked_for_are_those_of_the_whole(kind, reduction, height, width, share):
    data = encoded(height, width, **KINDS[kind])
    channels = 1 if kind == "grey" else 3
    rows = max(1, round(share * height))
    whole = decoded(data, channels, reduction, height)
    part = decoded(data, channels, reduction, rows)
    shape = (math.ceil(height / reduction), math.ceil(width / reduction), channels)
    assert part.shape == whole.shape == shape
    # With the row that a crop's lower edge may be rounded up to.
    wanted = math.ceil(rows / reduction) + 1
    np.testing.assert_array_equal(part[:wanted], whole[:wanted])
    if reduction == 1:
        with Image.open(io.BytesIO(data)) as image:
            expected = np.asarray(image)
        np.testing.assert_array_equal(whole, expected.reshape(whole.shape))


def damaged(data: bytes, share: float, replacement: bytes) -> bytes:
    """Replaces bytes at a given share of the coded data, which follow the header."""
    start = data.index(b"\xff\xda")
    coded = len(data) - start
    position = start + int(coded * share)
    end = position + len(replacement)
    return data[:position] + replacement + data[end:]


@pytest.mark.parametrize(("share", "rows"), [(0.3, 320), (0.3, 240), (0.8, 320)])
def test_damage_is_noticed_where_it_is_read(share, rows):
    data = damaged(encoded(320, 240), share, b"\xff\xee")
    message = raised(ValueError, decoded, data, rows=rows)
    assert "Corrupt JPEG data" in message


def test_damage_below_is_not_read():
    data = encoded(320, 240)
    found = decoded(damaged(data, 0.8, bytes(40)), rows=160)
    expected = decoded(data)
    np.testing.assert_array_equal(found[:160], expected[:160])


@pytest.mark.parametrize("kept", [0.5, 0.9])
def test_a_file_that_ends_early_is_always_noticed(kept):
    data = encoded(320, 240)
    length = int(len(data) * kept)
    message = raised(ValueError, decoded, data[:length], rows=32)
    assert "Premature end" in message


@pytest.mark.parametrize(
    ("kind", "heights"),
    [("4:2:0", [96]), ("grey", [96]), ("progressive", [320]), ("restarts", [320])],
)
def test_files_are_read_once_and_no_further_than_needed(kind, heights, monkeypatch):
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


def test_a_thumbnail_of_the_same_height_is_not_taken_for_the_image():
    """A camera's file may have a JPEG in its EXIF data. If that is as large as the image, Pillow
    decodes the file."""
    data = encoded(64, 48)
    thumbnail = encoded(64, 48, quality=1)
    length = (len(thumbnail) + 8).to_bytes(2, "big")
    segment = b"\xff\xe1" + length + b"Exif\0\0" + thumbnail
    both = data[:2] + segment + data[2:]
    message = raised(ValueError, decoded, both, rows=10)
    assert "buffer is too small" in message
    np.testing.assert_array_equal(decoding.decode(both, "a"), decoding.decode(data, "a"))


@pytest.mark.parametrize(
    ("mode", "channels", "expected"),
    [("L", 1, True), ("L", 3, True), ("RGB", 3, True), ("RGB", 1, False), ("CMYK", 3, False)],
)
def test_files_whose_pixels_simplejpeg_gives(mode, channels, expected):
    data = encoded(8, 8, mode)
    with Image.open(io.BytesIO(data)) as image:
        assert decoding.is_plain_jpeg(image, channels) == expected
    other = io.BytesIO(image_files.png(1))
    with Image.open(other) as image:
        assert not decoding.is_plain_jpeg(image, channels)
