"""Views of an image: random crops for training, the centre for evaluation."""

import math
import time
from unittest import mock

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from PIL import Image

from gmlp_flax.data.images import views
from gmlp_flax.data.images.augment import Augmentation
from gmlp_flax.data.images.decoding import decode
from gmlp_flax.data.images.views import Crop, Pixels, exact_view, timm_view, training_view
from tests.data.images.image_files import file_of, noise, smooth, turned, upright_pixels
from tests.failures import failure
from tests.timm_modules import timm_module

PIXELS = noise(6, 8, 3)
PNG = file_of(PIXELS)
WHOLE = Crop(min_scale=1, flip=False)


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def mean_difference(view: np.ndarray, other: np.ndarray) -> float:
    """The mean absolute difference of two images of uint8."""
    differences = view.astype(int) - other
    return float(np.abs(differences).mean())


def coordinates(height: int, width: int) -> np.ndarray:
    """An image whose first two channels are each pixel's row and column, at most 255."""
    image = np.zeros((height, width, 3), np.uint8)
    last_row = min(height - 1, 255)
    rows = np.linspace(0, last_row, height)
    last_column = min(width - 1, 255)
    columns = np.linspace(0, last_column, width)
    image[..., 0] = rows[:, None]
    image[..., 1] = columns
    return image


@pytest.mark.parametrize("image", [PNG, PIXELS])
def test_images_of_the_models_size_are_unchanged(image):
    record = {"image": image, "label": 3, "name": "a.png", "real": 5}
    for transform in views.TRANSFORMS:
        found = views.evaluation_example(record, size=(6, 8), eval_crop=1.0, transform=transform)
        assert_array_equal(found.pop("image"), PIXELS)
        assert found == {"label": 3, "real": 5}


@pytest.mark.parametrize("image", [PNG, PIXELS])
def test_views_of_colours_may_be_grey(image):
    record = {"image": image, "label": 3, "name": "a.png"}
    grey = Pixels(1)
    evaluated = views.evaluation_example(record, size=(6, 8), pixels=grey, eval_crop=1.0)
    view = evaluated["image"][..., 0]
    expected = Image.fromarray(PIXELS).convert("L")
    assert_array_equal(view, np.asarray(expected))
    trained = views.training_example(record, seeded(), size=(4, 4), pixels=grey)
    assert trained["image"].shape == (4, 4, 1)


def test_without_crop_training_sees_the_image_or_its_mirror_image():
    square = noise(8, 8, 3)
    record = {"image": square, "label": 1, "name": "a.png"}
    mirrored = 0
    for seed in range(20):
        plain = views.training_example(record, seeded(seed), size=(8, 8), crop=WHOLE)
        assert_array_equal(plain["image"], square)
        assert plain["label"] == 1
        crop = Crop(min_scale=1, flip=True)
        flipped = views.training_example(record, seeded(seed), size=(8, 8), crop=crop)
        view = flipped["image"]
        if not np.array_equal(view, square):
            assert_array_equal(view, square[:, ::-1])
            mirrored += 1
    assert 3 < mirrored < 17


def test_training_views_are_augmented():
    record = {"image": PIXELS, "label": 1, "name": "a.png"}
    erasing = Augmentation(erasing=1.0)
    found = views.training_example(record, seeded(), size=(6, 8), crop=WHOLE, augmentation=erasing)
    differs = found["image"] != PIXELS
    changed = differs.any(axis=2)
    assert 0 < changed.mean() < 0.5


def test_max_value_applies_to_both_views():
    wide = np.full((4, 4), 2000, np.uint16)
    record = {"image": file_of(wide), "label": 0, "name": "a"}
    pixels = Pixels(1, 4000)
    trained = views.training_example(record, seeded(), size=(4, 4), pixels=pixels)
    evaluated = views.evaluation_example(record, size=(4, 4), pixels=pixels)
    assert (trained["image"] == 127).all()
    assert (evaluated["image"] == 127).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_views_of_rotated_files_are_those_of_the_upright_image(kind, orientation):
    smooth_image = smooth(60, 90)
    exif = turned(orientation)
    data = file_of(smooth_image, kind, exif=exif)
    upright = upright_pixels(data)
    for seed in range(4):
        of_file = training_view(data, (48, 48), seeded(seed), "a")
        of_array = training_view(upright, (48, 48), seeded(seed))
        assert_array_equal(of_file, of_array)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("height", "width"), [(375, 500), (512, 512), (120, 90)])
def test_rotated_files_may_be_decoded_smaller(height, width, orientation):
    """Crops of a file are decoded at 1/2, 1/4 or 1/8 of their size if they are larger than the
    view, and have the same edges as crops of the upright pixels."""
    image = coordinates(height, width)
    exif = turned(orientation)
    data = file_of(image, "JPEG", exif=exif)
    upright = upright_pixels(data)
    crop = Crop(min_scale=0.5)
    for seed in range(4):
        of_file = training_view(data, (32, 32), seeded(seed), "a.jpg", crop=crop)
        of_array = training_view(upright, (32, 32), seeded(seed), crop=crop)
        file_places = of_file[..., :2]
        array_places = of_array[..., :2]
        assert mean_difference(file_places, array_places) < 6


@pytest.mark.parametrize(
    ("size", "reduction"),
    [
        ((10, 10), 8),
        ((12, 12), 8),
        ((13, 13), 4),
        ((25, 25), 4),
        ((26, 26), 2),
        ((50, 50), 2),
        ((51, 51), 1),
        ((50, 101), 1),
    ],
)
def test_only_crops_with_pixels_to_spare_are_decoded_smaller(monkeypatch, size, reduction):
    """With `min_scale=1`, the crop is the whole of a square image."""
    shapes = []
    plain = simplejpeg.decode_jpeg

    def watched(*arguments, **options):
        pixels = plain(*arguments, **options)
        shapes.append(pixels.shape)
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", watched)
    data = file_of(smooth(101, 101), "JPEG")
    training_view(data, size, seeded(), crop=WHOLE)
    side = math.ceil(101 / reduction)
    assert shapes == [(side, side, 3)]


SEEDS = st.integers(0, 10**6)
SIDES = st.integers(20, 250)


@given(SEEDS, SIDES, SIDES, st.sampled_from(["JPEG", "PNG"]), st.integers(1, 8))
def test_a_file_and_its_array_are_cropped_alike(seed, height, width, kind, orientation):
    """Except for half a pixel of a JPEG decoded smaller, at most 4 pixels at full size, and the
    loss of JPEG."""
    image = coordinates(height, width)
    data = file_of(image, kind, exif=turned(orientation))
    pixels = decode(data, "a")
    of_file = training_view(data, (24, 24), seeded(seed))
    of_array = training_view(pixels, (24, 24), seeded(seed))
    file_places = of_file[..., :2]
    array_places = of_array[..., :2]
    difference = mean_difference(file_places, array_places)
    assert difference < 6


VIEW_SIDES = st.integers(16, 64)


@given(st.integers(40, 500), st.floats(0.77, 1.3), VIEW_SIDES, VIEW_SIDES)
def test_training_views_are_near_pillows_bicubic(height, aspect, out_height, out_width):
    """For the whole image (min_scale 1, and an aspect ratio that a crop may have)."""
    width = round(height * aspect)
    image = smooth(height, width)
    size = (out_height, out_width)
    view = training_view(image, size, seeded(), crop=WHOLE)
    whole = Image.fromarray(image)
    resized = whole.resize((out_width, out_height), Image.Resampling.BICUBIC)
    difference = mean_difference(view, np.asarray(resized))
    # The largest seen is 7.3. Smaller images of this kind consist of edges, and reach 12.5.
    assert difference < 9


@pytest.mark.parametrize(("pixels", "out"), [(448, 64), (400, 224), (300, 224)])
def test_training_views_do_not_alias(pixels, out):
    """A checkerboard finer than the view can show becomes flat grey. Without antialiasing it would
    show a moire pattern."""
    image = np.zeros((pixels, pixels, 3), np.uint8)
    image[0::2, 1::2] = 255
    image[1::2, 0::2] = 255
    view = training_view(image, (out, out), seeded(), crop=WHOLE)
    inside = view[4:-4, 4:-4]
    assert inside.std() < 40


def test_the_exact_view_is_resized_then_cropped():
    image = smooth(128, 192)
    whole = Image.fromarray(image)
    resized = whole.resize((96, 64), Image.Resampling.BICUBIC)
    pixels = np.asarray(resized)
    expected = pixels[4:60, 20:76]
    view = exact_view(image, (56, 56))
    assert view.shape == (56, 56, 3)
    assert view.dtype == np.uint8
    differences = view.astype(int) - expected
    assert abs(differences).max() <= 1


ANY_SIDES = st.integers(1, 90)
SMALL_SIDES = st.integers(1, 40)
CHANNELS = st.sampled_from([1, 3])


@given(ANY_SIDES, ANY_SIDES, SMALL_SIDES, SMALL_SIDES, CHANNELS)
def test_views_have_the_requested_size(height, width, out_height, out_width, channels):
    image = noise(height, width, channels)
    size = (out_height, out_width)
    found = [
        exact_view(image, size),
        exact_view(image, size, resize_ratio=1),
        timm_view(image, size, 0.9),
        training_view(image, size, seeded(height)),
        training_view(image, size, seeded(width), crop=WHOLE),
    ]
    for view in found:
        assert view.shape == (*size, channels)
        assert view.dtype == np.uint8


def test_training_views_cover_scales_positions_and_mirrors():
    image = coordinates(200, 200)
    areas = []
    mirrored = []
    centres = []
    for seed in range(300):
        view = training_view(image, (32, 32), seeded(seed)).astype(int)
        rows = view[..., 0]
        columns = view[..., 1]
        height = np.ptp(rows) + 1
        width = np.ptp(columns) + 1
        area = height * width
        areas.append(area / 200**2)
        assert 0.7 < width / height < 1.42
        is_mirrored = columns[0, 0] > columns[0, -1]
        mirrored.append(is_mirrored)
        places = view[..., :2]
        centres.append(places.mean())
    assert 0.07 < min(areas) < 0.12
    assert max(areas) > 0.85
    assert 0.4 < np.mean(mirrored) < 0.6
    assert np.std(centres) > 10


LARGE_SIDES = st.integers(1, 300)


@given(LARGE_SIDES, LARGE_SIDES, SEEDS, st.floats(0.01, 1))
def test_crops_are_inside_the_image(height, width, seed, min_scale):
    box = views.random_box(height, width, seeded(seed), min_scale)
    top, left, crop_height, crop_width = box
    assert 0 <= top <= top + crop_height <= height
    assert 0 <= left <= left + crop_width <= width
    assert crop_height > 0
    assert crop_width > 0


class Recorded:
    """A generator that keeps its draws."""

    def __init__(self):
        self.rng = seeded(5)
        self.draws = []

    def uniform(self, low, high):
        draw = self.rng.uniform(low, high)
        self.draws.append(draw)
        return draw

    def integers(self, most):
        draw = int(self.rng.integers(most))
        self.draws.append(draw)
        return draw


def test_crops_are_timms(monkeypatch):
    """RandomResizedCrop, from the same draws; the image is wide, so that some tries do not fit."""
    transforms = timm_module("data.transforms")
    recorded = Recorded()
    boxes = []
    for _ in range(40):
        boxes.append(views.random_box(60, 200, recorded, 0.08))
    draws = iter(recorded.draws)

    def next_draw(low, high):
        return next(draws)

    monkeypatch.setattr(transforms.random, "uniform", next_draw)
    monkeypatch.setattr(transforms.random, "randint", next_draw)
    image = Image.new("RGB", (200, 60))
    draw = transforms.RandomResizedCropAndInterpolation.get_params
    expected = []
    for _ in range(40):
        expected.append(draw(image, (0.08, 1.0), (3 / 4, 4 / 3)))
    assert boxes == expected
    assert next(draws, None) is None


def test_crops_that_never_fit_are_the_centre():
    image = coordinates(4, 200)
    view = training_view(image, (8, 8), seeded(), crop=WHOLE)
    columns = view[..., 1]
    assert columns.mean() == pytest.approx(99.5, abs=1)


@pytest.mark.parametrize(
    "error",
    [
        NotImplementedError("flags 0"),
        RuntimeError("frame"),
        MemoryError(),
        TypeError("x"),
        cv2.error("dims"),
    ],
)
def test_all_errors_of_decoders_name_the_file(monkeypatch, error):
    resize = mock.Mock(side_effect=error)
    monkeypatch.setattr(cv2, "resize", resize)
    data = file_of(noise(30, 40, 3), "TIFF")
    message = failure(training_view, data, (8, 8), seeded(), "a.tiff")
    assert message.startswith("image 'a.tiff' ")


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (900, 40_000)])
def test_huge_sides_are_resized_quickly(size):
    """The blur alone would take minutes. A view of one colour stays that colour."""
    image = np.full((*size, 3), 200, np.uint8)
    begin = time.process_time()
    crop = Crop(min_scale=1.0)
    view = training_view(image, (8, 8), seeded(), crop=crop)
    assert (view == 200).all()
    taken = time.process_time() - begin
    assert taken < 20


@pytest.mark.parametrize("channels", [1, 3])
def test_timms_view_by_hand(channels):
    """The image is resized to whole pixels, and then cropped."""
    image = noise(40, 53, channels)
    found = timm_view(image, (24, 24), 0.9)
    whole = Image.fromarray(image.squeeze())
    resized = whole.resize((34, 26), Image.Resampling.BICUBIC)  # 34.45 x 26
    box = resized.crop((5, 1, 29, 25))
    cropped = np.asarray(box)
    expected = cropped.reshape(24, 24, channels)
    assert_array_equal(found, expected)
    exact = exact_view(image, (24, 24), 0.9)
    differences = found.astype(int) - exact
    assert abs(differences).max() > 1


@pytest.mark.parametrize("ratio", [0.875, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("size", [(24, 24), (32, 48), (7, 7)])
def test_timms_view_has_timms_pixels(ratio, size):
    """They are exactly the pixels of timm's own transform of a Pillow image."""
    factory = timm_module("data.transforms_factory")
    theirs = factory.transforms_imagenet_eval(
        size, crop_pct=ratio, interpolation="bicubic", use_prefetcher=True
    )
    shapes = [(40, 53), (97, 33), (33, 98), (24, 24), (5, 9), (301, 499)]
    for shape in shapes:
        image = noise(*shape, 3)
        their_view = theirs(Image.fromarray(image))
        channels_first = np.asarray(their_view)
        expected = np.moveaxis(channels_first, 0, -1)
        found = timm_view(image, size, ratio)
        assert_array_equal(found, expected, str(shape))
