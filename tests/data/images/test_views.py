import functools
import io
import struct
import time
import zlib
from unittest import mock

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from gmlp_flax.data.images import views
from gmlp_flax.data.images.folders import ImageFolder
from gmlp_flax.data.images.views import decode, evaluation_view, look_into, training_view
from gmlp_flax.errors import DataError
from tests.data.images.image_files import encoded, noise
from tests.failures import raised
from tests.timm_modules import timm_module


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def smooth(height: int, width: int) -> np.ndarray:
    small = Image.fromarray(noise(6, 8, 3))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


def test_decode_is_exact_for_lossless_files():
    pixels = noise(5, 7, 3)
    assert np.array_equal(decode(encoded(Image.fromarray(pixels)), "a.png"), pixels)
    gray = pixels[..., 0]
    assert np.array_equal(
        decode(encoded(Image.fromarray(gray)), "a.png", channels=1), gray[..., None]
    )
    assert np.array_equal(
        decode(encoded(Image.fromarray(gray)), "a.png"), np.repeat(gray[..., None], 3, axis=2)
    )


@pytest.mark.parametrize(
    "mode, kind", [("CMYK", "JPEG"), ("P", "PNG"), ("P", "GIF"), ("1", "PNG"), ("YCbCr", "JPEG")]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_decode_modes(mode, kind, channels):
    white = Image.new("RGB", (7, 5), "white").convert(mode)
    pixels = decode(encoded(white, kind), "a", channels=channels)
    assert pixels.shape == (5, 7, channels) and pixels.dtype == np.uint8
    assert pixels.min() > 250


def test_decode_scales_16_bits():
    wide = np.array([[0, 257 * 100, 65535]], np.uint16)
    assert decode(encoded(Image.fromarray(wide)), "a.png", channels=1).ravel().tolist() == [
        0,
        100,
        255,
    ]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparent_is_white(mode):
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 255))
    image = image.convert(mode) if mode != "PA" else image.quantize()
    assert decode(encoded(image), "a.png").tolist() == [[[255] * 3, [0] * 3]]


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpegs_decode_to_pillows_pixels(mode, channels):
    data = encoded(Image.fromarray(smooth(33, 50)).convert(mode), "JPEG")
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert({1: "L", 3: "RGB"}[channels])).reshape(33, 50, channels)
    assert np.array_equal(decode(data, "a.jpg", channels), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_rotated_files_are_cropped_upright(orientation):
    data = encoded(Image.fromarray(smooth(120, 160)), "JPEG", exif=turned(orientation))
    with Image.open(io.BytesIO(data)) as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(decode(data, "a.jpg"), upright)
    views = [
        training_view(image, (32, 32), np.random.default_rng(3), name="a.jpg")
        for image in (data, upright)
    ]
    # Crops of a file are decoded at half their size if they are twice the view's size.
    assert abs(views[0].astype(int) - views[1]).mean() < 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_views_of_turned_files_are_those_of_the_upright_image(kind, orientation):
    """Pillow turns a TIFF, and its size, before it is asked to."""
    data = encoded(Image.fromarray(smooth(60, 90)), kind, exif=turned(orientation))
    with Image.open(io.BytesIO(data)) as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    assert (
        np.array_equal(decode(data, "a"), upright)
        and upright.shape[:2] == ((60, 90), (90, 60))[orientation > 4]
    )
    for seed in range(4):
        views = [
            training_view(image, (48, 48), np.random.default_rng(seed), name="a")
            for image in (data, upright)
        ]
        assert np.array_equal(*views)


def test_a_camera_file_of_several_images_is_its_first():
    first, second = (Image.fromarray(smooth(64, 80)), Image.new("RGB", (64, 80)))
    data = encoded(first, "MPO", save_all=True, append_images=[second])
    assert np.array_equal(decode(data, "a.mpo"), decode(encoded(first, "JPEG"), "a.jpg"))


REDUCTIONS = [
    ((n, n), r) for n, r in ((10, 8), (12, 8), (13, 4), (25, 4), (26, 2), (50, 2), (51, 1))
] + [((50, 101), 1)]


@pytest.mark.parametrize("size, reduction", REDUCTIONS)
def test_only_crops_with_pixels_to_spare_are_decoded_smaller(monkeypatch, size, reduction):
    """With `min_scale=1`, the crop is the whole of a square image."""
    shapes, whole = [], simplejpeg.decode_jpeg

    def watched(*arguments, **options):
        pixels = whole(*arguments, **options)
        shapes.append(pixels.shape)
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", watched)
    data = encoded(Image.fromarray(smooth(101, 101)), "JPEG")
    training_view(data, size, np.random.default_rng(0), min_scale=1, flip=False)
    assert shapes == [(-(-101 // reduction),) * 2 + (3,)]


@given(
    st.integers(0, 10**6),
    st.integers(20, 250),
    st.integers(20, 250),
    st.sampled_from(["JPEG", "PNG"]),
)
def test_a_file_and_its_array_are_cropped_alike(seed, height, width, kind):
    """Except for half a pixel of a JPEG decoded smaller, at most 4 pixels at full size, and the
    loss of JPEG."""
    data = encoded(Image.fromarray(coordinates(height, width)), kind)
    of_file, of_array = (
        training_view(image, (24, 24), np.random.default_rng(seed)).astype(int)
        for image in (data, decode(data, "a"))
    )
    assert abs(of_file - of_array)[..., :2].mean() < 6


@pytest.mark.parametrize("kept", [3, 100, 700, 0.5, 0.95])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"exif": turned(6)}])
def test_damaged_files_are_named_by_either_decoder(kept, options):
    whole = encoded(Image.fromarray(noise(50, 50, 3)), "JPEG", **options)
    data = whole[: kept if kept >= 1 else int(len(whole) * kept)]
    for act in (
        lambda: decode(data, "a.jpg"),
        lambda: training_view(data, (8, 8), np.random.default_rng(0), name="a.jpg"),
    ):
        with pytest.raises(
            DataError, match="^image 'a.jpg' (is in no|cannot be decoded).*; replace or remove it$"
        ):
            act()


def test_what_only_pillow_forgives_is_decoded_by_pillow():
    """Bytes before a marker are a warning of the JPEG library, at which simplejpeg gives up."""
    data = encoded(Image.fromarray(smooth(40, 40)), "JPEG")
    place = data.index(b"\xff\xdb")
    assert np.array_equal(
        decode(data[:place] + b"\0\0" + data[place:], "a.jpg"), decode(data, "a.jpg")
    )


@given(st.integers(40, 500), st.floats(0.77, 1.3), st.integers(16, 64), st.integers(16, 64))
def test_training_views_are_near_pillows_bicubic(height, aspect, out_height, out_width):
    """For the whole image (min_scale 1, and an aspect ratio that a crop may have)."""
    image = smooth(height, round(height * aspect))
    view = training_view(
        image, (out_height, out_width), np.random.default_rng(0), min_scale=1, flip=False
    )
    expected = np.asarray(
        Image.fromarray(image).resize((out_width, out_height), Image.Resampling.BICUBIC)
    )
    # The most seen is 7.3. Smaller images of this kind consist of edges, and differ by up to 12.5.
    assert abs(view.astype(int) - expected).mean() < 9


@pytest.mark.parametrize("pixels, out", [(448, 64), (400, 224), (300, 224)])
def test_training_views_do_not_alias(pixels, out):
    """A checkerboard finer than the view can show becomes flat grey; without antialiasing it would
    show a moire."""
    board = np.indices((pixels, pixels)).sum(0) % 2 * 255
    view = training_view(
        np.repeat(board[..., None], 3, -1).astype(np.uint8),
        (out, out),
        np.random.default_rng(0),
        min_scale=1,
        flip=False,
    )
    assert view.astype(float)[4:-4, 4:-4].std() < 40


def test_evaluation_view_is_resize_then_centre_crop():
    image = smooth(128, 192)
    resized = np.asarray(Image.fromarray(image).resize((96, 64), Image.Resampling.BICUBIC)).astype(
        int
    )
    view = evaluation_view(image, (56, 56))
    assert view.shape == (56, 56, 3) and view.dtype == np.uint8
    assert abs(view - resized[4:60, 20:76]).max() <= 1


@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([1, 3]),
)
def test_views_have_the_wanted_size(height, width, out_height, out_width, channels):
    image = noise(height, width, channels)
    size = (out_height, out_width)
    for view in (
        evaluation_view(image, size),
        evaluation_view(image, size, resize_ratio=1),
        training_view(image, size, np.random.default_rng(height)),
        training_view(image, size, np.random.default_rng(width), min_scale=1, flip=False),
    ):
        assert view.shape == (*size, channels) and view.dtype == np.uint8


def coordinates(height: int, width: int) -> np.ndarray:
    """An image whose first two channels are each pixel's row and column."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows, columns, 0 * rows], axis=-1).astype(np.uint8)


def test_training_view_covers_scales_positions_and_mirrors():
    image, areas, mirrored, centres = coordinates(200, 200), [], [], []
    for seed in range(300):
        view = training_view(image, (32, 32), np.random.default_rng(seed)).astype(int)
        height, width = np.ptp(view[..., 0]) + 1, np.ptp(view[..., 1]) + 1
        areas.append(height * width / 200**2)
        assert 0.7 < width / height < 1.42
        mirrored.append(view[0, 0, 1] > view[0, -1, 1])
        centres.append(view[..., :2].mean())
    assert 0.07 < min(areas) < 0.12 and max(areas) > 0.85
    assert 0.4 < np.mean(mirrored) < 0.6
    assert np.std(centres) > 10


def test_training_view_falls_back_to_the_centre():
    view = training_view(
        coordinates(4, 200), (8, 8), np.random.default_rng(0), flip=False, min_scale=1
    )
    assert abs(view[..., 1].mean() - 99.5) < 1


@pytest.mark.parametrize(
    "raised",
    [
        NotImplementedError("flags 0"),
        RuntimeError("frame"),
        MemoryError(),
        TypeError("x"),
        cv2.error("dims"),
    ],
)
def test_whatever_a_decoder_raises_names_the_file(monkeypatch, raised):
    monkeypatch.setattr(cv2, "resize", mock.Mock(side_effect=raised))
    data = encoded(Image.fromarray(noise(30, 40, 3)), "TIFF")
    with pytest.raises(
        DataError, match="^image 'a.tiff' cannot be decoded .*; replace or remove it$"
    ):
        training_view(data, (8, 8), np.random.default_rng(0), name="a.tiff")


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (900, 40_000)])
def test_huge_sides_take_no_longer(size):
    """The blur alone would take minutes. A view of one colour stays that colour."""
    image = np.full((*size, 3), 200, np.uint8)
    begin = time.process_time()
    assert np.all(training_view(image, (8, 8), np.random.default_rng(0), min_scale=1.0) == 200)
    assert time.process_time() - begin < 20


@pytest.mark.parametrize("size", [(70_000, 1), (9_500, 9_450)])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_more_pixels_than_any_camera_has(size):
    expected = f"{size[0]} x {size[1]} pixels, where there may be at most 65,535 on a side and 89,478,485 in all"
    assert f"'x' cannot be decoded ({expected})" in raised(
        DataError, decode, encoded(Image.new("1", size)), "x"
    )


@pytest.mark.parametrize(
    "pixels",
    [
        np.float32([[0, 1]]),
        np.int32([[0, 70_000]]),
        np.int32([[-1, 5]]),
        np.uint16([[0, 255]]),
        np.uint16([[300, 1023]]),
        np.uint16([[0, 4095]]),
        np.uint16([[0, 16383]]),
    ],
)
def test_pixels_of_an_unknown_range_are_refused(pixels):
    """They would be black or white; 8 to 14 bits in 16, as masks and medical images have them,
    would be dark."""
    known = r"so white may be (255|1,023|4,095|16,383) or 65,535"
    with pytest.raises(DataError, match=rf"of 8 or 16 bits, so their range|{known}"):
        decode(encoded(Image.fromarray(pixels), "TIFF"), "x.tiff")


def png_of_16_bits(pixels: np.ndarray) -> bytes:
    """A file that Pillow can read and not write, uint16 [height, width, channels], by the
    specification alone."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_colours_of_16_bits(channels, bits):
    pixels = np.full((2, 3, channels), 65535, np.uint16)  # opaque, where there is alpha
    pixels[..., : channels - 1 + channels % 2] = np.linspace(0, 2**bits - 1, 6).reshape(2, 3, 1)
    if bits < 16:
        with pytest.raises(DataError, match=f"so white may be {2**bits - 1:,} or 65,535"):
            decode(png_of_16_bits(pixels), "x.png")
    else:
        expected = np.repeat(pixels[..., :1] / 257, 3, axis=2)
        assert np.abs(decode(png_of_16_bits(pixels), "x.png") - expected).max() <= 1


@pytest.mark.parametrize(("brightest", "known"), [(65535, True), (16384, True), (16383, False)])
def test_a_dark_image_among_bright_ones(tmp_path, brightest, known):
    """The set says which value is white; a single image does not."""
    dark = np.array([[0, 3000]], np.uint16)
    for name, pixels in (
        ("a/0.png", dark),
        ("b/1.png", dark),
        ("b/2.png", dark + np.uint16(brightest - 3000)),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / name)
    source = ImageFolder(str(tmp_path)).of_split()
    assert look_into(source)[1] == known
    data, expected = source.read(0), [0, 3000 // 257]
    assert decode(data, "x", 1, dark=True).ravel().tolist() == expected
    transform = functools.partial(views.training_example, size=(1, 2), min_scale=1, flip=False)
    record = {"image": data, "name": "x", "label": 1}
    example = views.dark_example(record, np.random.default_rng(0), transform=transform, channels=1)
    assert example["image"].ravel().tolist() == expected
    assert "white may be 4,095 or 65,535" in raised(DataError, decode, data, "x", 1)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_a_negative_is_turned(kind):
    """TIFF's WhiteIsZero, as X-rays have it: Pillow turns those of 8 bits alone."""
    most = np.iinfo(kind).max
    pixels = np.linspace(0, most, 12).astype(kind).reshape(3, 4)
    data = bytearray(encoded(Image.fromarray(pixels), "TIFF"))
    entry = data.index(struct.pack("<HHIH", 262, 3, 1, 1))
    struct.pack_into("<H", data, entry + 8, 0)
    expected = 255 - pixels // (most // 255)
    assert np.array_equal(decode(bytes(data), "x.tif", channels=1)[..., 0], expected)


def test_images_of_several_frames_are_named(tmp_path):
    frames = [Image.new("L", (4, 4), grey) for grey in (0, 99, 200)]
    for kind, name in (("b", "one.png"), ("a", "pages.tif"), ("b", "moves.gif")):
        (tmp_path / kind).mkdir(exist_ok=True)
        frames[1].save(tmp_path / kind / name, save_all=name != "one.png", append_images=frames[2:])
    source = ImageFolder(str(tmp_path)).of_split()
    (line,), _ = look_into(source)
    assert "2 of 3 images looked into have several frames, such as ['a/pages.tif']" in line
    assert decode(source.read(0), "pages.tif").max() == 99, "the first"


TIMM_SIZES = [(24, 24), (32, 48), (7, 7)]  # height and width of the view
TIMM_IMAGES = [(40, 53), (97, 33), (33, 98), (24, 24), (5, 9), (301, 499)]


@pytest.mark.parametrize("channels", [1, 3])
def test_timms_view_by_pillow_alone(channels):
    """The whole image to whole pixels, then the crop: in two steps, as written down by hand."""
    image = noise(40, 53, channels)
    found = evaluation_view(image, (24, 24), 0.9, "timm")
    # 26 x 34.45
    whole = Image.fromarray(image.squeeze()).resize((34, 26), Image.Resampling.BICUBIC)
    expected = np.asarray(whole.crop((5, 1, 29, 25))).reshape(24, 24, channels)
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found.astype(int) - evaluation_view(image, (24, 24), 0.9)).max() > 1


@pytest.mark.parametrize("ratio", [0.875, 0.9, 0.95, 1.0])
def test_timms_view_has_timms_pixels(ratio):
    """No pixel differs from what timm's own transform makes of Pillow's image."""
    factory = timm_module("data.transforms_factory")
    for size in TIMM_SIZES:
        theirs = factory.transforms_imagenet_eval(
            size, crop_pct=ratio, interpolation="bicubic", use_prefetcher=True
        )
        for shape in TIMM_IMAGES:
            image = noise(*shape, 3)
            expected = np.moveaxis(np.asarray(theirs(Image.fromarray(image))), 0, -1)
            np.testing.assert_array_equal(
                evaluation_view(image, size, ratio, "timm"), expected, str((size, shape))
            )
