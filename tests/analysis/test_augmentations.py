"""Sheets of augmented images: what is sampled and mixed, and the command."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from gmlp_flax.analysis import augmentations
from gmlp_flax.data import embedded
from gmlp_flax.errors import ConfigError
from tests import preloaded
from tests.training import tiny


@pytest.fixture
def data(tmp_path):
    config = tiny.image_config()
    config.data.update(flip=False, min_scale=1.0, eval_crop=1.0)
    _, data = tiny.open_task(config, tmp_path)
    return data


def digits_at(*positions: int) -> np.ndarray:
    """The embedded training digits at some positions."""
    examples = embedded.embedded_digits("train").examples
    return np.stack([examples[position]["image"] for position in positions])


def test_samples_without_augmentation_are_the_training_images(data):
    last = len(embedded.embedded_digits("train")) - 1
    views = augmentations.sampled(data, 3, 2)
    digits = digits_at(0, last // 2, last)
    assert views.shape == (3, 3, 8, 8, 1)
    for digit, views_of_digit in zip(digits, views, strict=True):
        for view in views_of_digit:
            assert_array_equal(view, digit)


def test_augmented_samples_follow_the_training_image_and_are_reproducible(data):
    plain = augmentations.sampled(data, 3, 2)
    data.config.augment.erasing = 1.0
    erased = augmentations.sampled(data, 3, 2)
    assert_array_equal(erased[:, 0], plain[:, 0])
    is_other_pixel = erased[:, 1:] != plain[:, 1:]
    is_other_image = is_other_pixel.any(axis=(2, 3, 4))
    assert is_other_image.all()
    repeated = augmentations.sampled(data, 3, 2)
    assert_array_equal(repeated, erased)


LEVELS = np.array([0, 50, 200, 250])


def flat_images() -> np.ndarray:
    """An image of each level."""
    images = [np.full((8, 8, 1), level, np.uint8) for level in LEVELS]
    return np.stack(images)


def test_images_are_not_mixed_by_default(data):
    assert augmentations.mixed(flat_images(), data.config) == []


@pytest.mark.slow
def test_mixed_images_follow_the_unmixed_ones(data):
    originals = flat_images()
    data.config.augment.update(mixup=0.8, cutmix=1.0)
    unmixed, mixup, cutmix = augmentations.mixed(originals, data.config)
    name, images, shares = unmixed
    assert name == "before mixing"
    assert images is originals
    assert (shares == 1).all()
    name, images, shares = mixup
    assert name == "mixup"
    check_means(images, shares)
    assert (images == images[:, :1, :1]).all()
    name, images, shares = cutmix
    assert name == "cutmix"
    check_means(images, shares)
    assert set(np.unique(images)) <= set(LEVELS)


def check_means(images, shares) -> None:
    """Fails unless each image has its share of its own level, and its partner the rest."""
    partners = np.roll(LEVELS, 2)
    expected = shares * LEVELS + (1 - shares) * partners
    means = images.mean(axis=(1, 2, 3))
    assert_allclose(means, expected, atol=0.5)


@pytest.mark.slow
def test_the_command_writes_a_sheet(tmp_path):
    out = tmp_path / "grid.png"
    flags = (
        "--images=2",
        "--samples=3",
        "--config.augment.auto=randaugment",
        "--config.augment.cutmix=1.0",
    )
    words = ("draw", "augmentations", "--config=configs/quickstart_image.py", f"--out={out}")
    result = preloaded.gmlp(*words, *flags)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"2 images, 3 samples of each: {out}\n", result.stderr
    with Image.open(out) as image:
        # Two rows of samples, one before and one after CutMix; four columns.
        assert image.size == (4 * 200, 4 * 230)


def test_configs_of_text_are_refused(tmp_path):
    config = tiny.text_config(tmp_path)
    with pytest.raises(ConfigError, match="config.task is 'masked_lm'"):
        augmentations.draw(config, "x.png", 1, 1)
