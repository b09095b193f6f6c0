"""Some images of each class side by side: which are chosen, and the file."""

import numpy as np
import pytest
from PIL import Image

from gmlp_flax.analysis import contact_sheet
from gmlp_flax.errors import ConfigError
from tests.data.images import image_files
from tests.failures import raised
from tests.training import tiny


def data_of(folder, counts):
    """Class folders with so many images each."""
    seed = 0
    contents = {}
    for name, count in counts.items():
        for number in range(count):
            contents[f"{name}/{number}.png"] = image_files.png(seed)
            seed += 1
    image_files.make_folder(folder / "photos", contents)
    config = tiny.image_config()
    config.data.train = str(folder / "photos")
    _, data = tiny.open_task(config, folder / "run")
    return data


def test_evenly_spread_images_of_evenly_spread_classes(tmp_path):
    counts = {f"class{number}": 12 for number in range(9)}
    data = data_of(tmp_path, counts)
    chosen = contact_sheet.chosen(data)
    assert list(chosen) == ["class0", "class2", "class4", "class6", "class8"]
    labels = data.dataset("train").labels
    classes = data.dataset("train").classes
    for name, indices in chosen.items():
        assert len(set(indices)) == 5
        assert {classes[labels[index]] for index in indices} == {name}


def test_classes_with_few_images_are_shown_whole(tmp_path):
    data = data_of(tmp_path, {"cat": 3, "dog": 30})
    assert {name: len(indices) for name, indices in contact_sheet.chosen(data).items()} == {
        "cat": 2,  # one is held out
        "dog": 5,
    }


def test_the_file_has_a_row_for_each_class(tmp_path):
    data = data_of(tmp_path, {"cat": 9, "dog": 9})
    contact_sheet.write(data, str(tmp_path / "sheet.png"))
    pixels = np.asarray(Image.open(tmp_path / "sheet.png").convert("L"))
    height, width = pixels.shape
    assert width > 2 * height  # five columns, two rows
    assert pixels.std() > 20


@pytest.mark.parametrize("task", ["masked_lm"])
def test_text_has_no_images(tmp_path, task):
    config = tiny.text_config(tmp_path)
    _, data = tiny.open_task(config, tmp_path / "run")
    assert task in raised(ConfigError, contact_sheet.write, data, str(tmp_path / "a.png"))
