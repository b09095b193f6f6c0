import io
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gmlp_flax.data.errors import DataError
from gmlp_flax.data.images import decode, evaluation_view, training_view


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def smooth(height: int, width: int) -> np.ndarray:
    small = Image.fromarray(noise(6, 8, 3))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


def test_decode_is_exact_for_lossless_files():
    pixels = noise(5, 7, 3)
    assert np.array_equal(decode(encoded(Image.fromarray(pixels)), "a.png"), pixels)
    gray = pixels[..., 0]
    assert np.array_equal(decode(encoded(Image.fromarray(gray)), "a.png", channels=1), gray[..., None])
    assert np.array_equal(decode(encoded(Image.fromarray(gray)), "a.png"), np.repeat(gray[..., None], 3, axis=2))


@pytest.mark.parametrize("mode, kind", [("CMYK", "JPEG"), ("P", "PNG"), ("P", "GIF"), ("1", "PNG"), ("YCbCr", "JPEG")])
@pytest.mark.parametrize("channels", [1, 3])
def test_decode_modes(mode, kind, channels):
    white = Image.new("RGB", (7, 5), "white").convert(mode)
    pixels = decode(encoded(white, kind), "a", channels=channels)
    assert pixels.shape == (5, 7, channels) and pixels.dtype == np.uint8
    assert pixels.min() > 250


def test_decode_scales_16_bits():
    wide = np.array([[0, 257 * 100, 65535]], np.uint16)
    assert decode(encoded(Image.fromarray(wide)), "a.png", channels=1).ravel().tolist() == [0, 100, 255]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparent_is_white(mode):
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 255))
    image = image.convert(mode) if mode != "PA" else image.quantize()
    assert decode(encoded(image), "a.png").tolist() == [[[255] * 3, [0] * 3]]


def test_exif_orientation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(encoded(Image.new("RGB", (7, 5)), "JPEG", exif=exif), "a.jpg").shape == (7, 5, 3)


def test_undecodable():
    with pytest.raises(DataError, match="^image 'a.jpg' is in no format Pillow knows; replace or remove it$"):
        decode(b"not an image", "a.jpg")
    whole = encoded(Image.fromarray(noise(50, 50, 3)), "JPEG")
    with pytest.raises(DataError, match="^image 'a.jpg' cannot be decoded .*truncated.*; replace or remove it$"):
        decode(whole[: len(whole) // 2], "a.jpg")


def test_decode_at_reduced_scale():
    data = encoded(Image.fromarray(smooth(300, 400)), "JPEG", quality=95)
    assert decode(data, "a.jpg", at_least=150).shape == (150, 200, 3)
    assert decode(data, "a.jpg", at_least=151).shape == (300, 400, 3)
    full, reduced = (evaluation_view(decode(data, "a.jpg", at_least=n), 64).astype(int) for n in (None, 150))
    assert abs(full - reduced).mean() < 1


def test_evaluation_view_is_resize_then_centre_crop():
    image = smooth(128, 192)
    resized = np.asarray(Image.fromarray(image).resize((96, 64), Image.Resampling.BICUBIC)).astype(int)
    view = evaluation_view(image, 56)
    assert view.shape == (56, 56, 3) and view.dtype == np.uint8
    assert abs(view - resized[4:60, 20:76]).max() <= 1


def test_views_leave_what_fits_alone():
    image = noise(8, 8, 1)
    assert evaluation_view(image, 8, resize_ratio=1) is image
    view = training_view(image, 8, np.random.default_rng(0), min_scale=1, flip=False)
    assert view.shape == image.shape and np.shares_memory(view, image) and np.array_equal(view, image)


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3]))
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
        view = training_view(image, 32, np.random.default_rng(seed)).astype(int)
        height, width = np.ptp(view[..., 0]) + 1, np.ptp(view[..., 1]) + 1
        areas.append(height * width / 200**2)
        assert 0.7 < width / height < 1.42
        mirrored.append(view[0, 0, 1] > view[0, -1, 1])
        centres.append(view[..., :2].mean())
    assert 0.07 < min(areas) < 0.12 and max(areas) > 0.85
    assert 0.4 < np.mean(mirrored) < 0.6
    assert np.std(centres) > 10


def test_training_view_switches():
    image = coordinates(100, 100)
    for seed in range(20):
        view = training_view(image, 50, np.random.default_rng(seed), flip=False, min_scale=0.9).astype(int)
        assert view[0, 0, 1] < view[0, -1, 1]
        assert np.ptp(view[..., 0]) * np.ptp(view[..., 1]) > 0.85 * 98**2


def test_training_view_falls_back_to_the_centre():
    view = training_view(coordinates(4, 200), 8, np.random.default_rng(0), flip=False, min_scale=1)
    assert abs(view[..., 1].mean() - 99.5) < 1


def test_training_view_is_a_function_of_the_generator():
    views = [training_view(noise(40, 50, 3), 16, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(views[0], views[1]) and not np.array_equal(views[0], views[2])


def test_real_photographs(shared_data):
    with tarfile.open(shared_data("images/imagenet_sample_100.tar")) as tar:
        for member in tar:
            image = decode(tar.extractfile(member).read(), member.name, at_least=512)
            assert evaluation_view(image, 224).shape == training_view(image, 224, np.random.default_rng(0)).shape
