import numpy as np
import pytest

from gmlp_flax.data.images import augment
from gmlp_flax.data.images.augment import Augmentation
from tests.data.images.image_files import noise
from tests.timm_modules import timm_module

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EVERY = [
    Augmentation("autoaugment"),
    Augmentation("randaugment"),
    Augmentation(color_jitter=0.4),
    Augmentation(erasing=1.0),
    Augmentation("autoaugment", erasing=0.5, mean=MEAN, std=STD),
]


class Recorded:
    """A generator that keeps its draws."""

    def __init__(self, seed):
        self.rng, self.given = np.random.default_rng(seed), []

    def uniform(self, low, high):
        self.given.append(self.rng.uniform(low, high))
        return self.given[-1]

    def integers(self, most):
        self.given.append(self.rng.integers(most))
        return self.given[-1]

    def standard_normal(self, *arguments):
        return self.rng.standard_normal(*arguments)


def test_off_draws_nothing_and_gives_the_image_back():
    rng, pixels = np.random.default_rng(0), noise(24, 20, 3)
    assert augment.augment(pixels, rng, Augmentation()) is pixels
    assert rng.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("options", EVERY)
def test_a_function_of_image_and_draws(options, channels):
    pixels, found = noise(24, 20, channels), []
    before = pixels.copy()
    for seed in (0, *range(9)):
        # A view with negative strides, as a flip makes it.
        found.append(augment.augment(pixels[:, ::-1], np.random.default_rng(seed), options))
        assert found[-1].shape == pixels.shape and found[-1].dtype == np.uint8
    np.testing.assert_array_equal(pixels, before)
    np.testing.assert_array_equal(found[0], found[1])
    assert len({image.tobytes() for image in found}) > 2


def test_what_comes_into_view_has_the_mean_colour(monkeypatch):
    monkeypatch.setattr(augment, "IMAGENET_POLICY", ((("TranslateX", 1.0, 10),),))
    found = augment.augment(
        noise(20, 40, 3), np.random.default_rng(0), Augmentation("autoaugment", mean=MEAN)
    )
    edge = found[:, 0] if (found[:, 0] == found[0, 0]).all() else found[:, -1]
    assert edge.tolist() == [[124, 116, 104]] * 20


class Fixed:
    """Contrast by 1.3, then saturation by 0.6, then brightness by 0.8."""

    def __init__(self):
        self.factors = iter([1.3, 0.6, 0.8])

    def permutation(self, count):
        return [1, 2, 0]

    def uniform(self, low, high):
        assert (low, high) == (pytest.approx(0.6), pytest.approx(1.4))
        return next(self.factors)


def test_color_jitter():
    pixels = noise(24, 20, 3).clip(60, 180)
    luminance = np.array([0.299, 0.587, 0.114])
    x = pixels.astype(float)
    mean = round((x @ luminance).mean())
    x = (mean + 1.3 * (x - mean)).clip(0, 255)
    grey = (x @ luminance)[..., None]
    x = 0.8 * (grey + 0.6 * (x - grey))
    found = augment.color_jitter(pixels, Fixed(), 0.4)
    np.testing.assert_allclose(found, x, atol=3)


def test_erased_pixels_are_normal_once_normalised():
    """Mean and standard deviation of N(0, 1), except for rounding and for clipping to black and
    white."""
    options = Augmentation(erasing=1.0, mean=(0.5,), std=(0.1,))
    pixels = np.zeros((300, 300, 1), np.uint8)
    erased = np.stack(
        [augment.augment(pixels, np.random.default_rng(seed), options) for seed in range(4)]
    )
    inside = erased[erased > 0]
    normalised = (inside / 255 - 0.5) / 0.1
    assert normalised.mean() == pytest.approx(0, abs=0.02) and normalised.std() == pytest.approx(
        1, abs=0.02
    )


@pytest.mark.parametrize("seed", range(12))
def test_erased_where_timm_erases(seed, monkeypatch):
    """From the same draws; the image is narrow, so that some tries do not fit."""
    erasing = timm_module("data.random_erasing")
    import torch

    pixels, rng = np.zeros((200, 30, 3), np.uint8), Recorded(seed)
    ours = augment.random_erasing(pixels, rng, (0.5,) * 3, (0.1,) * 3)
    draws = iter(rng.given)
    monkeypatch.setattr(erasing.random, "uniform", lambda low, high: next(draws))
    monkeypatch.setattr(erasing.random, "randint", lambda low, high: next(draws))
    theirs = erasing.RandomErasing(probability=1.0, mode="pixel", device="cpu")(
        torch.zeros(3, 200, 30)
    )
    np.testing.assert_array_equal((ours > 0).any(-1), (theirs != 0).any(0).numpy())
    assert next(draws, None) is None


def test_share_of_erased_images():
    pixels, rng = noise(8, 8, 3), np.random.default_rng(0)
    changed = sum(
        augment.augment(pixels, rng, Augmentation(erasing=0.25)) is not pixels for _ in range(4000)
    )
    assert changed == pytest.approx(1000, abs=5 * 27)
