import numpy as np
import pytest
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


def digits_at(*places: int) -> np.ndarray:
    """Some embedded digits to train on."""
    examples = embedded.embedded_digits("train").examples
    return np.stack([examples[place]["image"] for place in places])


def test_samples_without_augmentation_are_the_training_images(data):
    last = len(embedded.embedded_digits("train")) - 1
    views = augmentations.sampled(data, 3, 2)
    expected = digits_at(0, last // 2, last)
    assert views.shape == (3, 3, 8, 8, 1)
    np.testing.assert_array_equal(views, np.repeat(expected[:, None], 3, axis=1))


def test_samples_with_augmentation_are_others(data):
    """The same each time, beside the training images."""
    plain = augmentations.sampled(data, 3, 2)
    data.config.augment.erasing = 1.0
    erased = augmentations.sampled(data, 3, 2)
    np.testing.assert_array_equal(erased[:, 0], plain[:, 0])
    assert (erased[:, 1:] != plain[:, 1:]).any((2, 3, 4)).all()
    np.testing.assert_array_equal(augmentations.sampled(data, 3, 2), erased)


LEVELS = np.array([0, 50, 200, 250])


def flat_images() -> np.ndarray:
    """An image of each level."""
    return np.stack([np.full((8, 8, 1), level, np.uint8) for level in LEVELS])


def test_nothing_is_mixed_unless_the_config_says_so(data):
    assert augmentations.mixed(flat_images(), data.config) == []


def test_mixed(data):
    views = flat_images()
    data.config.augment.update(mixup=0.8, cutmix=1.0)
    unmixed, mixup, cutmix = augmentations.mixed(views, data.config)
    name, images, shares = unmixed
    assert name == "before mixing"
    assert images is views
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
    """Of each image and its partner, by the share of the image."""
    partners = np.roll(LEVELS, 2)
    means = shares * LEVELS + (1 - shares) * partners
    np.testing.assert_allclose(images.mean((1, 2, 3)), means, atol=0.5)


def test_command(tmp_path):
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


def test_images_of_a_text_model_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="config.task is 'masked_lm'"):
        augmentations.draw(tiny.text_config(tmp_path), "x.png", 1, 1)
