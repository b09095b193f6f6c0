import io

import numpy as np
import pytest
from PIL import Image

from gmlp_flax.data.images import examples
from gmlp_flax.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)


def png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize("image", [png(), PIXELS])
def test_an_image_of_the_models_size_is_read_as_it_is(image):
    record = {"image": image, "label": 3, "name": "a.png"}
    found = examples.evaluation_example(record, size=(6, 8), channels=3, eval_crop=1.0)
    np.testing.assert_array_equal(found["image"], PIXELS)
    assert found["label"] == 3


def test_without_crop_training_sees_the_image_or_its_mirror_image():
    square = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    record, size = {"image": square, "label": 1, "name": "a.png"}, {"size": (8, 8), "channels": 3, "min_scale": 1.0}
    mirrored = 0
    for seed in range(20):
        plain, flipped = (
            examples.training_example(record, np.random.default_rng(seed), flip=flip, **size)["image"]
            for flip in (False, True)
        )
        np.testing.assert_array_equal(plain, square)
        changed = not np.array_equal(flipped, square)
        np.testing.assert_array_equal(flipped, square[:, ::-1] if changed else square)
        mirrored += changed
    assert 3 < mirrored < 17


def test_what_a_user_gives(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(png())
    assert examples.record_of(path, 3) == {"image": png(), "name": str(path), "label": 0}
    assert examples.record_of(PIXELS, 3)["image"] is PIXELS
    for wrong in (PIXELS / 255, PIXELS[..., :1], PIXELS[..., 0]):
        with pytest.raises(DataError, match=r"an image is a path or an array uint8 \[height, width, 3\], not"):
            examples.record_of(wrong, 3)
