"""Sheets with some images of each class: which are chosen, and the file."""

import numpy as np
from PIL import Image

from gmlp_flax.analysis import contact_sheet
from gmlp_flax.errors import ConfigError
from tests.data.images import image_files
from tests.failures import raised
from tests.training import tiny


def data_of(folder, counts):
    """The data of class folders with these numbers of images."""
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


def test_evenly_spaced_classes_are_chosen_with_five_images_each(tmp_path):
    counts = {f"class{number}": 12 for number in range(9)}
    data = data_of(tmp_path, counts)
    chosen = contact_sheet.chosen(data)
    assert list(chosen) == ["class0", "class2", "class4", "class6", "class8"]
    dataset = data.dataset("train")
    for name, indices in chosen.items():
        assert len(set(indices)) == 5
        for index in indices:
            label = dataset.labels[index]
            assert dataset.classes[label] == name


def test_classes_with_few_images_are_shown_whole(tmp_path):
    """One of three images is held out."""
    data = data_of(tmp_path, {"cat": 3, "dog": 30})
    chosen = contact_sheet.chosen(data)
    counts = {name: len(indices) for name, indices in chosen.items()}
    assert counts == {"cat": 2, "dog": 5}


def test_the_file_has_a_row_for_each_class(tmp_path):
    data = data_of(tmp_path, {"cat": 9, "dog": 9})
    path = tmp_path / "sheet.png"
    contact_sheet.write(data, str(path))
    sheet = Image.open(path)
    pixels = np.asarray(sheet.convert("L"))
    height, width = pixels.shape
    assert width > 2 * height  # five columns, two rows
    assert pixels.std() > 20


def test_tasks_without_images_are_refused(tmp_path):
    config = tiny.text_config(tmp_path)
    _, data = tiny.open_task(config, tmp_path / "run")
    assert "masked_lm" in raised(ConfigError, contact_sheet.write, data, str(tmp_path / "a.png"))
