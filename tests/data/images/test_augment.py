"""Augmentation, compared with the pixels and frequencies of timm."""

import collections
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from gmlp_flax.data.images import augment
from gmlp_flax.data.images.augment import IMAGENET_POLICY, OPERATIONS, RANDAUGMENT, Augmentation
from tests.data.images.image_files import noise
from tests.timm_modules import timm_module

FILL = (124, 116, 104)
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
MOVING = {"Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"}
TIMM_SUFFIXES = {"Posterize": "Original", "TranslateX": "Rel", "TranslateY": "Rel"}
EVERY = [
    Augmentation("autoaugment"),
    Augmentation("randaugment"),
    Augmentation(color_jitter=0.4),
    Augmentation(erasing=1.0),
    Augmentation("autoaugment", erasing=0.5, mean=MEAN, std=STD),
]


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class Coin:
    """A generator with a known coin: below 0.5, the sign is negated."""

    def __init__(self, negative):
        self.negative = negative

    def random(self):
        return 0.1 if self.negative else 0.9


class Recorded:
    """A generator that keeps its draws."""

    def __init__(self, seed):
        self.rng = seeded(seed)
        self.draws = []

    def uniform(self, low, high):
        draw = self.rng.uniform(low, high)
        self.draws.append(draw)
        return draw

    def integers(self, most):
        draw = self.rng.integers(most)
        self.draws.append(draw)
        return draw

    def standard_normal(self, *arguments):
        return self.rng.standard_normal(*arguments)


def as_image(pixels):
    is_grey = pixels.shape[2] == 1
    return Image.fromarray(pixels[..., 0] if is_grey else pixels)


def smooth_image(height, width):
    """A smooth image that is dark on the left, so that every operation changes it."""
    small = as_image(noise(5, 6, 3))
    size = (width, height)
    image = small.resize(size, Image.Resampling.BICUBIC)
    shares = np.linspace(0.1, 0.9, width)
    ramp = shares[:, None]
    pixels = np.asarray(image) * ramp
    return pixels.astype(np.uint8)


@pytest.fixture(scope="module")
def timm():
    return timm_module("data.auto_augment")


def timm_name(name):
    return name + TIMM_SUFFIXES.get(name, "")


def apply_timms(timm, name, image, magnitude, negative):
    """The pixels of timm's operation on an image."""
    hparams = {"img_mean": FILL, "interpolation": Image.Resampling.BILINEAR}
    timms_name = timm_name(name)
    operation = timm.AugmentOp(timms_name, prob=1.0, magnitude=magnitude, hparams=hparams)
    coin = 0.9 if negative else 0.1
    with mock.patch.object(timm.random, "random", return_value=coin):
        return np.asarray(operation(image))


SIDE = st.integers(1, 20)
SHAPES = st.tuples(SIDE, SIDE, st.sampled_from([1, 3]))
LEVELS = st.integers(0, 255)
# Few colours fill most of the image, so that some levels are rare and some channels have one level.
FILLS = st.sampled_from([0, 7, 200, 255])
IMAGES = hnp.arrays(np.uint8, SHAPES, elements=LEVELS, fill=FILLS)
MAGNITUDES = st.sampled_from([0, 2, 4.7, 5, 8, 9, 9.9])


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - MOVING))
@given(pixels=IMAGES, magnitude=MAGNITUDES, negative=st.booleans())
@settings(max_examples=60)
def test_levels_are_timms(timm, name, pixels, magnitude, negative):
    coin = Coin(negative)
    image = as_image(pixels)
    found = augment.apply(name, pixels, magnitude, coin, ())
    expected = apply_timms(timm, name, image, magnitude, negative)
    assert_array_equal(found, expected.reshape(pixels.shape))


@pytest.mark.parametrize("name", sorted(MOVING))
@pytest.mark.parametrize(
    ("magnitude", "negative"), [(2, False), (4.7, True), (9, False), (9.9, True)]
)
def test_geometric_operations_are_close_to_timms(timm, name, magnitude, negative):
    """Within one grey level, or more at the fill's border, which OpenCV blends."""
    pixels = smooth_image(160, 224)
    coin = Coin(negative)
    found = augment.apply(name, pixels, magnitude, coin, FILL).astype(int)
    image = as_image(pixels)
    expected = apply_timms(timm, name, image, magnitude, negative)
    differences = np.abs(found - expected)
    assert np.mean(differences <= 1) > 0.9
    assert differences.mean() < 2


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_grey_images_are_treated_as_three_equal_channels(name):
    """Operations on colours have no effect on grey."""
    pixels = smooth_image(32, 40)
    grey = pixels[..., :1]
    colours = np.repeat(grey, 3, axis=2)
    coin = Coin(False)
    of_grey = augment.apply(name, grey, 8, coin, (9,))
    of_colours = augment.apply(name, colours, 8, coin, (9, 9, 9))
    levels = of_grey[..., 0]
    second_channel = of_colours[..., 1].astype(int)
    assert_allclose(levels, second_channel, atol=1)


FOUR_LEVELS = np.uint8([[[0], [100], [130], [255]]])


@pytest.mark.parametrize(
    ("name", "magnitude", "expected"),
    [
        ("Invert", 0, [255, 155, 125, 0]),
        ("Solarize", 5, [0, 100, 125, 0]),
        ("SolarizeIncreasing", 5, [0, 100, 125, 0]),
        ("SolarizeAdd", 10, [110, 210, 130, 255]),
        ("Posterize", 0, [0, 96, 128, 240]),
        ("PosterizeIncreasing", 10, [0, 0, 0, 0]),
        ("AutoContrast", 0, [0, 100, 130, 255]),
    ],
)
def test_levels_by_hand(name, magnitude, expected):
    coin = Coin(False)
    found = augment.apply(name, FOUR_LEVELS, magnitude, coin, (0,))
    assert found.ravel().tolist() == expected


def test_translation_by_hand():
    one_pixel = 10 / 0.45 / 4
    moved = augment.apply("TranslateX", FOUR_LEVELS, one_pixel, Coin(False), (7,))
    assert moved.ravel().tolist() == [100, 130, 255, 7]


def test_the_policy_is_timms(timm):
    policy = timm.auto_augment_policy("original", timm._HPARAMS_DEFAULT)
    for ours, theirs in zip(IMAGENET_POLICY, policy, strict=True):
        for operation, expected in zip(ours, theirs, strict=True):
            name, probability, magnitude = operation
            assert timm_name(name) == expected.name
            assert probability == expected.prob
            assert magnitude == expected.magnitude


def test_operations_of_randaugment_are_timms(timm):
    rand = timm.rand_augment_transform("rand-m9-n2-mstd0.5-inc1", dict(timm._HPARAMS_DEFAULT))
    names = [timm_name(name) for name in RANDAUGMENT]
    assert names == [op.name for op in rand.ops]
    assert rand.num_layers == 2
    assert Augmentation().randaugment_layers == 2
    for op in rand.ops:
        assert op.prob == augment.LAYER_PROBABILITY
        assert op.magnitude == 9
        assert op.magnitude_std == 0.5


@pytest.fixture
def applied(monkeypatch):
    """Records (name, magnitude) of each call of `augment.apply`."""
    seen = []

    def record(name, pixels, magnitude, rng, fill):
        seen.append((name, magnitude))
        return pixels

    monkeypatch.setattr(augment, "apply", record)
    return seen


def test_autoaugment_has_the_frequencies_of_its_policy(applied):
    draws = 20_000
    rng = seeded()
    for _ in range(draws):
        augment.auto_augment(None, rng, FILL)
    expected = collections.Counter()
    for pair in IMAGENET_POLICY:
        for name, probability, magnitude in pair:
            share = probability / 25
            expected[name, magnitude] += share * draws
    found = collections.Counter(applied)
    possible = set()
    for entry, count in expected.items():
        if count:
            possible.add(entry)
    assert possible == found.keys()
    for entry, count in expected.items():
        error = abs(found[entry] - count)
        standard_deviation = max(count, 1) ** 0.5
        assert error < 5 * standard_deviation, entry


def test_randaugment_draws_operations_evenly_and_severities_normally(applied):
    draws = 20_000
    rng = seeded()
    for _ in range(draws):
        augment.rand_augment(None, rng, FILL, Augmentation())
    names = [name for name, _ in applied]
    expected = draws / 15
    for name in RANDAUGMENT:
        occurrences = names.count(name)
        error = abs(occurrences - expected)
        assert error < 5 * expected**0.5
    # A normal distribution of mean 9 and deviation 1/2, clipped at 10.
    severities = np.array([magnitude for _, magnitude in applied])
    median = np.median(severities)
    assert median == pytest.approx(9, abs=0.02)
    assert severities.max() == 10
    clipped = np.mean(severities == 10)
    assert clipped == pytest.approx(0.02275, abs=0.004)
    below_one_deviation = np.mean(severities < 8.5)
    assert below_one_deviation == pytest.approx(0.1587, abs=0.01)


def test_randaugment_uses_its_options(applied):
    options = Augmentation("randaugment", 5, 0.0, 3.0)
    for seed in range(400):
        pixels = noise(2, 2, 3)
        augment.augment(pixels, seeded(seed), options)
    mean = 400 * 5 / 2  # five layers, each used in half of the draws
    variance = 400 * 5 / 4
    tolerance = 5 * variance**0.5
    assert len(applied) == pytest.approx(mean, abs=tolerance)
    severities = np.array([magnitude for _, magnitude in applied])
    assert severities.min() == 0
    clipped = np.mean(severities == 0)
    assert clipped == pytest.approx(0.5, abs=0.08)


def test_without_augmentation_the_image_is_returned_and_nothing_is_drawn():
    rng = seeded()
    untouched_rng = seeded()
    pixels = noise(24, 20, 3)
    assert augment.augment(pixels, rng, Augmentation()) is pixels
    assert rng.random() == untouched_rng.random()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("options", EVERY)
def test_augmentation_depends_on_image_and_seed_only(options, channels):
    pixels = noise(24, 20, channels)
    before = pixels.copy()
    flipped = pixels[:, ::-1]  # a view with negative strides
    found = []
    for seed in (0, *range(9)):
        image = augment.augment(flipped, seeded(seed), options)
        assert image.shape == pixels.shape
        assert image.dtype == np.uint8
        found.append(image)
    assert_array_equal(pixels, before)
    assert_array_equal(found[0], found[1])
    different = {image.tobytes() for image in found}
    assert len(different) > 2


def test_uncovered_pixels_have_the_mean_colour(monkeypatch):
    translation = ("TranslateX", 1.0, 10)
    monkeypatch.setattr(augment, "IMAGENET_POLICY", ((translation,),))
    options = Augmentation("autoaugment", mean=MEAN)
    pixels = noise(20, 40, 3)
    found = augment.augment(pixels, seeded(), options)
    left = found[:, 0]
    right = found[:, -1]
    is_left_uniform = (left == left[0]).all()
    edge = left if is_left_uniform else right
    assert edge.tolist() == [[124, 116, 104]] * 20


class Fixed:
    """Contrast by 1.3, then saturation by 0.6, then brightness by 0.8."""

    def __init__(self):
        self.factors = iter([1.3, 0.6, 0.8])

    def permutation(self, count):
        return [1, 2, 0]

    def uniform(self, low, high):
        assert low == pytest.approx(0.6)
        assert high == pytest.approx(1.4)
        return next(self.factors)


def test_color_jitter_by_hand():
    pixels = noise(24, 20, 3).clip(60, 180)
    luminance = np.array([0.299, 0.587, 0.114])
    original = pixels.astype(float)
    mean = round((original @ luminance).mean())
    contrasted = mean + 1.3 * (original - mean)
    contrasted = contrasted.clip(0, 255)
    grey = (contrasted @ luminance)[..., None]
    saturated = grey + 0.6 * (contrasted - grey)
    expected = 0.8 * saturated
    found = augment.color_jitter(pixels, Fixed(), 0.4)
    assert_allclose(found, expected, atol=3)


def test_strong_jitter_never_inverts():
    class Least:
        def permutation(self, count):
            return range(count)

        def uniform(self, low, high):
            return low

    found = augment.color_jitter(noise(4, 4, 3), Least(), 2.5)
    assert found.max() == 0


def test_erased_pixels_are_normally_distributed():
    """They have mean 0 and deviation 1, except for rounding and clipping to black and white."""
    options = Augmentation(erasing=1.0, mean=(0.5,), std=(0.1,))
    pixels = np.zeros((300, 300, 1), np.uint8)
    images = []
    for seed in range(4):
        images.append(augment.augment(pixels, seeded(seed), options))
    levels = np.stack(images)
    erased = levels[levels > 0] / 255
    normalized = (erased - 0.5) / 0.1
    assert normalized.mean() == pytest.approx(0, abs=0.02)
    assert normalized.std() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("seed", range(12))
def test_erased_boxes_are_timms(seed, monkeypatch):
    """From the same draws; the image is narrow, so that some tries do not fit."""
    erasing = timm_module("data.random_erasing")
    import torch

    pixels = np.zeros((200, 30, 3), np.uint8)
    rng = Recorded(seed)
    mean = (0.5, 0.5, 0.5)
    std = (0.1, 0.1, 0.1)
    ours = augment.random_erasing(pixels, rng, mean, std)
    draws = iter(rng.draws)

    def next_draw(low, high):
        return next(draws)

    monkeypatch.setattr(erasing.random, "uniform", next_draw)
    monkeypatch.setattr(erasing.random, "randint", next_draw)
    erase = erasing.RandomErasing(probability=1.0, mode="pixel", device="cpu")
    zeros = torch.zeros(3, 200, 30)
    theirs = erase(zeros).numpy()
    is_erased = (ours > 0).any(axis=-1)
    expected = (theirs != 0).any(axis=0)
    assert_array_equal(is_erased, expected)
    assert next(draws, None) is None


def test_share_of_erased_images():
    pixels = noise(8, 8, 3)
    rng = seeded()
    options = Augmentation(erasing=0.25)
    changed = 0
    for _ in range(4000):
        found = augment.augment(pixels, rng, options)
        if found is not pixels:
            changed += 1
    standard_deviation = 27
    assert changed == pytest.approx(1000, abs=5 * standard_deviation)


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1)])
def test_images_too_small_to_erase_are_unchanged(size):
    pixels = noise(*size, 3)
    for seed in range(20):
        found = augment.random_erasing(pixels, seeded(seed), MEAN, STD)
        assert_array_equal(found, pixels)
