"""Image files are decoded to Pillow's pixels: upright, of 8 bits, without transparency."""

import io
import struct
import zlib

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from gmlp_flax.data.images import decoding
from gmlp_flax.data.images.decoding import decode
from gmlp_flax.data.images.views import Crop, Pixels, training_view
from tests.data.images.image_files import encoded, file_of, noise, smooth, turned, upright_pixels
from tests.failures import failure

PIXELS = noise(6, 8, 3)
PNG = file_of(PIXELS)
MODES = {1: "L", 3: "RGB"}


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "TGA", "JPEG2000"])
def test_lossless_files_have_exact_pixels(kind):
    data = file_of(PIXELS, kind)
    assert_array_equal(decode(data, "a"), PIXELS)


def test_grey_and_colour_images_are_converted():
    grey = PIXELS[..., 0]
    data = file_of(grey)
    one_channel = grey[..., None]
    assert_array_equal(decode(data, "a", channels=1), one_channel)
    three_channels = np.repeat(one_channel, 3, axis=2)
    assert_array_equal(decode(data, "a"), three_channels)
    luminance = PIXELS @ [0.299, 0.587, 0.114]
    of_colours = decode(PNG, "a", channels=1)
    assert_allclose(of_colours[..., 0], luminance, atol=1)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("CMYK", "JPEG"),
        ("CMYK", "TIFF"),
        ("P", "PNG"),
        ("P", "GIF"),
        ("1", "PNG"),
        ("1", "TIFF"),
        ("YCbCr", "JPEG"),
        ("LAB", "TIFF"),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("colour", "least", "most"), [("white", 250, 255), ("black", 0, 5)])
def test_other_modes_are_converted(mode, kind, channels, colour, least, most):
    image = Image.new("RGB", (7, 5), colour)
    if mode == "LAB":  # Pillow does not convert to it
        lightness = 255 if colour == "white" else 0
        image = Image.new("LAB", (7, 5), (lightness, 128, 128))
    data = encoded(image.convert(mode), kind)
    pixels = decode(data, "a", channels=channels)
    assert pixels.shape == (5, 7, channels)
    assert pixels.dtype == np.uint8
    lowest = pixels.min()
    highest = pixels.max()
    assert least <= lowest <= highest <= most


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparent_pixels_are_white(mode):
    opaque_black = (0, 0, 0, 255)
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), opaque_black)
    image = image.quantize() if mode == "PA" else image.convert(mode)
    pixels = decode(encoded(image), "a.png")
    assert pixels.tolist() == [[[255, 255, 255], [0, 0, 0]]]


def test_pixels_of_a_transparent_colour_are_white():
    """PNG's tRNS makes one grey or one colour transparent."""
    for mode, colour in (("L", 7), ("RGB", (7, 7, 7))):
        image = Image.new(mode, (1, 1), colour)
        data = encoded(image, transparency=colour)
        pixels = decode(data, "a.png")
        white = [[[255, 255, 255]]]
        assert pixels.tolist() == white


def test_half_transparent_pixels_are_blended_with_white():
    colour = np.array([100, 0, 200])
    opacity = 51 / 255
    image = Image.new("RGBA", (1, 1), (100, 0, 200, 51))
    expected = 255 - opacity * (255 - colour)
    pixels = decode(encoded(image), "a")
    assert_allclose(pixels.ravel(), expected, atol=1)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpegs_have_pillows_pixels(mode, channels):
    original = Image.fromarray(smooth(33, 50))
    data = encoded(original.convert(mode), "JPEG")
    with Image.open(io.BytesIO(data)) as image:
        converted = image.convert(MODES[channels])
        expected = np.asarray(converted)
    found = decode(data, "a.jpg", channels)
    assert_array_equal(found, expected.reshape(33, 50, channels))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_rotated_upright(kind, orientation):
    """Pillow turns a TIFF, and its size, before it is asked to."""
    pixels = smooth(60, 90)
    exif = turned(orientation)
    data = file_of(pixels, kind, exif=exif)
    expected = upright_pixels(data)
    is_on_its_side = orientation > 4
    upright_shape = (90, 60) if is_on_its_side else (60, 90)
    assert expected.shape[:2] == upright_shape
    assert_array_equal(decode(data, "a"), expected)
    with Image.open(io.BytesIO(data)) as file:
        assert decoding.upright_shape(file) == upright_shape


@pytest.mark.parametrize("value", [0, 9, 65_535])
def test_unknown_orientations_are_ignored(value):
    exif = Image.Exif()
    exif[0x0112] = value
    data = file_of(PIXELS, "PNG", exif=exif.tobytes())
    assert_array_equal(decode(data, "a"), PIXELS)


def test_the_first_image_of_a_camera_file_is_read():
    first = Image.fromarray(smooth(64, 80))
    second = Image.new("RGB", (64, 80))
    data = encoded(first, "MPO", save_all=True, append_images=[second])
    alone = encoded(first, "JPEG")
    found = decode(data, "a.mpo")
    assert_array_equal(found, decode(alone, "a"))


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP"])
def test_the_first_of_several_frames_is_read(kind):
    first = Image.new("L", (4, 4), 99)
    second = Image.new("L", (4, 4), 200)
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(first, kind, save_all=True, append_images=[second], **options)
    pixels = decode(data, "a")
    assert (pixels == 99).all()


DECODERS = [
    pytest.param({}, id="simplejpeg"),
    pytest.param({"progressive": True}, id="progressive"),
    pytest.param({"exif": turned(6)}, id="rotated"),
]


@pytest.mark.parametrize("kept", [3, 100, 700, 0.5, 0.95])
@pytest.mark.parametrize("options", DECODERS)
def test_damaged_files_are_named_by_either_decoder(kept, options):
    whole = file_of(noise(50, 50, 3), "JPEG", **options)
    kept_length = int(len(whole) * kept)
    length = kept if kept >= 1 else kept_length
    data = whole[:length]
    rng = np.random.default_rng(0)
    of_decode = failure(decode, data, "a.jpg")
    of_view = failure(training_view, data, (8, 8), rng, "a.jpg")
    assert of_decode.startswith("image 'a.jpg' ")
    assert of_view.startswith("image 'a.jpg' ")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no image",
        b"<svg></svg>",
        PNG[:30],
        b"\0" * 999,
        PNG[:-30],
    ],
)
def test_files_that_are_not_images_are_refused(data):
    message = failure(decode, data, "é\nx")
    assert message.startswith("image 'é\\nx' ")
    assert ("is an empty file" in message) == (not data)


def test_damage_that_pillow_ignores_is_ignored():
    """Bytes before a marker are a warning of the JPEG library, at which simplejpeg gives up."""
    data = file_of(smooth(40, 40), "JPEG")
    start = data.index(b"\xff\xdb")
    with_bytes = data[:start] + b"\0\0" + data[start:]
    found = decode(with_bytes, "a.jpg")
    assert_array_equal(found, decode(data, "a.jpg"))


@pytest.mark.parametrize("size", [(70_000, 1), (9_500, 9_450)])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_images_with_too_many_pixels_are_refused(size):
    data = encoded(Image.new("1", size))
    message = failure(decode, data, "x")
    width, height = size
    assert f"{width} x {height} pixels" in message
    assert "65,535 on a side and 89,478,485 in all" in message


def test_16_bit_pixels_are_scaled_to_8_bits():
    wide = np.array([[0, 257 * 100, 65_535]], np.uint16)
    for kind in ("PNG", "TIFF"):
        data = file_of(wide, kind)
        pixels = decode(data, "a", channels=1)
        assert pixels.ravel().tolist() == [0, 100, 255]


@pytest.mark.parametrize(
    ("max_value", "pixels", "expected"),
    [
        (4095, [[0, 2047], [4095, 65_535]], [0, 127, 255, 255]),
        (1, [[0, 1], [1, 0]], [0, 255, 255, 0]),
        (65_535, [[0, 256], [257, 65_535]], [0, 0, 1, 255]),
    ],
)
def test_max_value_is_the_16_bit_pixel_that_becomes_white(max_value, pixels, expected):
    wide = np.array(pixels, np.uint16)
    data = file_of(wide)
    found = decode(data, "a", 1, max_value)
    assert found.ravel().tolist() == expected
    rng = np.random.default_rng(0)
    whole = Crop(min_scale=1, flip=False)
    scaled = Pixels(1, max_value)
    view = training_view(data, (2, 2), rng, pixels=scaled, crop=whole)
    assert view.ravel().tolist() == expected


@pytest.mark.parametrize("white", [300, 1023, 4095, 65_535])
@pytest.mark.parametrize("max_value", [65_535, 4095])
def test_portable_greymaps_declare_what_is_white(white, max_value):
    levels = [0, white // 2, white]
    pixels = np.array(levels, ">u2")
    header = f"P5 3 1 {white}\n"
    data = header.encode() + pixels.tobytes()
    found = decode(data, "a.pgm", 1, max_value)
    assert_allclose(found.ravel(), [0, 127, 255], atol=1)


@pytest.mark.parametrize(
    "pixels", [np.float32([[0, 1]]), np.int32([[0, 70_000]]), np.int32([[-1, 5]])]
)
def test_pixels_of_an_unknown_range_are_refused(pixels):
    data = file_of(pixels, "TIFF")
    message = failure(decode, data, "x.tiff")
    assert "'x.tiff'" in message
    assert "8 or 16 bits" in message


def png_chunk(name: bytes, content: bytes) -> bytes:
    length = struct.pack(">I", len(content))
    checksum = zlib.crc32(name + content)
    packed_checksum = struct.pack(">I", checksum)
    return length + name + content + packed_checksum


def png_of_16_bits(pixels: np.ndarray) -> bytes:
    """A PNG of uint16 [height, width, channels], which Pillow can read but not write."""
    height, width, channels = pixels.shape
    colour_types = {1: 0, 2: 4, 3: 2, 4: 6}  # by the number of channels
    colour_type = colour_types[channels]
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    no_filter = b"\0"
    rows = b""
    for row in pixels.astype(">u2"):
        rows += no_filter + row.tobytes()
    content = b"\x89PNG\r\n\x1a\n"
    content += png_chunk(b"IHDR", header)
    content += png_chunk(b"IDAT", zlib.compress(rows))
    content += png_chunk(b"IEND", b"")
    return content


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_16_bit_colours_are_scaled_to_8_bits(channels):
    size = (2, 3, channels)
    pixels = np.full(size, 65_535, np.uint16)  # opaque, if there is alpha
    colours = 1 if channels < 3 else 3
    numbers = np.linspace(0, 65_535, 6)
    levels = numbers.reshape(2, 3, 1)
    pixels[..., :colours] = levels
    data = png_of_16_bits(pixels)
    grey = pixels[..., :1] / 257
    expected = np.repeat(grey, 3, axis=2)
    assert_allclose(decode(data, "x.png"), expected, atol=1)
    if channels > 1:  # Pillow keeps the upper 8 bits of these
        assert "max_value=65535" in failure(decode, data, "x.png", 3, 4095)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_negatives_are_inverted(kind):
    """TIFF's WhiteIsZero, as in X-rays. Pillow itself inverts only those of 8 bits."""
    most = np.iinfo(kind).max
    numbers = np.linspace(0, most, 12)
    pixels = numbers.astype(kind).reshape(3, 4)
    data = bytearray(file_of(pixels, "TIFF"))
    black_is_zero = struct.pack("<HHIH", 262, 3, 1, 1)
    entry = data.index(black_is_zero)
    struct.pack_into("<H", data, entry + 8, 0)
    levels = pixels // (most // 255)
    expected = 255 - levels
    found = decode(bytes(data), "x.tif", channels=1)
    assert_array_equal(found[..., 0], expected)


def test_brightest_wide_pixel_ignores_8_bit_images():
    wide = np.uint16([[3, 700]])
    narrow = np.uint8([[3, 200]])
    cases = ((wide, 700), (narrow, 0))
    for pixels, expected in cases:
        stream = io.BytesIO(file_of(pixels))
        with Image.open(stream) as file:
            assert decoding.brightest_wide_pixel(file) == expected


@pytest.mark.parametrize("image", [PNG, PIXELS])
def test_records_may_have_files_or_pixels(image):
    record = {"image": image, "name": "a.png"}
    colours = decoding.decoded(record, 3)
    assert_array_equal(colours, PIXELS)
    grey = decoding.decoded(record, 1)
    image = Image.fromarray(PIXELS).convert("L")
    expected = np.asarray(image)
    assert_array_equal(grey[..., 0], expected)


def test_images_to_predict_may_be_paths_or_arrays(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    record = decoding.record_of(path, 3)
    assert record == {"image": PNG, "name": str(path), "label": 0}
    record = decoding.record_of(str(path), 3)
    assert record["image"] == PNG
    record = decoding.record_of(PIXELS, 3)
    assert_array_equal(record["image"], PIXELS)
    directory = str(tmp_path)
    for missing in (str(tmp_path / "b.png"), directory, "a\0b.png"):
        failure(decoding.record_of, missing, 3)


def test_written_images_can_be_read(tmp_path):
    path = str(tmp_path / "a.png")
    for channels in (1, 3):
        decoding.write_image(PIXELS, path, channels)
        data = (tmp_path / "a.png").read_bytes()
        found = decode(data, path, channels)
        expected = decoding.pixels_of(PIXELS, channels)
        assert_array_equal(found, expected)


OPAQUE = np.full((6, 8, 1), 255, np.uint8)
RGBA = np.concatenate([PIXELS, OPAQUE], axis=2)
MIRRORED = PIXELS[:, ::-1]


@pytest.mark.parametrize(
    "image",
    [
        PIXELS,
        PIXELS.astype(np.int64),
        PIXELS.astype(np.uint16),
        PIXELS / 255,
        (PIXELS / 255).astype(np.float32),
        RGBA,
        MIRRORED[:, ::-1],
        np.asfortranarray(PIXELS),
        Image.fromarray(PIXELS),
        Image.fromarray(RGBA),
    ],
)
def test_arrays_and_pillow_images_become_pixels(image):
    found = decoding.pixels_of(image, 3)
    assert_array_equal(found, PIXELS)
    assert found.dtype == np.uint8


DIAGONAL = np.eye(3)


@pytest.mark.parametrize("image", [DIAGONAL.astype(bool), DIAGONAL, DIAGONAL[..., None]])
def test_grey_arrays_become_pixels(image):
    expected = 255 * DIAGONAL
    grey = decoding.pixels_of(image, 1)
    assert_array_equal(grey[..., 0], expected)
    colours = decoding.pixels_of(image, 3)
    assert_array_equal(colours[..., 2], expected)


def test_jax_arrays_become_pixels():
    import jax.numpy as jnp

    values = jnp.array([[0.0, 1.0]], jnp.bfloat16)
    pixels = decoding.pixels_of(values, 1)
    assert pixels.ravel().tolist() == [0, 255]


@pytest.mark.parametrize(
    "image",
    [
        PIXELS.astype(np.int32) - 300,
        PIXELS.astype(np.float32),
        PIXELS[None],
        PIXELS[0, 0],
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4, 5), np.uint8),
        np.zeros((3, 4, 5), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.array([[np.nan]]),
        np.array([[-0.1]]),
        np.array([[1.1]]),
        np.array([[256]]),
        np.array([["a"]]),
        np.array([[1j]]),
        np.array([[None]]),
        [[0, 1]],
        7,
        None,
        Image.new("F", (2, 2)),
        Image.new("I", (2, 2)),
    ],
)
def test_other_values_are_refused(image):
    failure(decoding.record_of, image, 3)
