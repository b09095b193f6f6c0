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


def test_samples(data):
    """Without augmentation, the training images themselves; with it, others, the same each time."""
    source = embedded.embedded_digits("train")
    views = augmentations.sampled(data, 3, 2)
    last = len(source) - 1
    expected = np.stack([source.examples[index]["image"] for index in (0, last // 2, last)])
    assert views.shape == (3, 3, 8, 8, 1)
    np.testing.assert_array_equal(views, np.repeat(expected[:, None], 3, axis=1))
    data.config.augment.erasing = 1.0
    erased = augmentations.sampled(data, 3, 2)
    np.testing.assert_array_equal(erased[:, 0], expected)
    assert (erased[:, 1:] != views[:, 1:]).any((2, 3, 4)).all()
    np.testing.assert_array_equal(augmentations.sampled(data, 3, 2), erased)


def test_mixed(data):
    views = np.stack([np.full((8, 8, 1), level, np.uint8) for level in (0, 50, 200, 250)])
    assert augmentations.mixed(views, data.config) == []
    data.config.augment.update(mixup=0.8, cutmix=1.0)
    rows = augmentations.mixed(views, data.config)
    (_, before, ones), (_, mixup, mixup_shares), (_, cutmix, cutmix_shares) = rows
    assert [name for name, *_ in rows] == ["before mixing", "mixup", "cutmix"]
    assert before is views
    assert (ones == 1).all()
    others = np.array([200, 250, 0, 50])
    for images, shares in ((mixup, mixup_shares), (cutmix, cutmix_shares)):
        means = shares * views[:, 0, 0, 0] + (1 - shares) * others
        np.testing.assert_allclose(images.mean((1, 2, 3)), means, atol=0.5)
    assert (mixup == mixup[:, :1, :1]).all()
    assert set(np.unique(cutmix)) <= {0, 50, 200, 250}


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
    assert (result.returncode, result.stdout) == (0, f"2 images, 3 samples of each: {out}\n"), (
        result.stderr
    )
    with Image.open(out) as image:
        # Two rows of samples, one before and one after CutMix; four columns.
        assert image.size == (4 * 200, 4 * 230)


def test_images_of_a_text_model_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="config.task is 'masked_lm'"):
        augmentations.draw(tiny.text_config(tmp_path), "x.png", 1, 1)
