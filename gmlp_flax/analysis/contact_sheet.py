"""Some images of each class side by side, to check what was read."""

import numpy as np

from gmlp_flax.analysis import augmentations
from gmlp_flax.data.fingerprints import spread
from gmlp_flax.data.holdout import TRAIN
from gmlp_flax.errors import ConfigError
from gmlp_flax.tasks.data.base import TaskData
from gmlp_flax.tasks.data.images import ImageData

CLASSES = 5  # rows
IMAGES = 5  # of each class
LABELS_READ = 2000  # if the data have labels only in their examples


def write(data: TaskData, out: str) -> None:
    """Writes images to train on of some classes as a PNG file, a row for each class.

    Args:
        data: of image classification.
        out: the file.

    Raises:
        ConfigError: the data are not images.
        DataError: an image cannot be read, or the file cannot be written.
    """
    if not isinstance(data, ImageData):
        raise ConfigError(
            f"--preview draws images, and config.task is {data.config.task!r}: leave it out"
        )
    examples = data.labelled(TRAIN)
    rows = []
    indices_by_class = chosen(data)
    for name, indices in indices_by_class.items():
        images = [examples[index]["image"] for index in indices]
        words = [name] * len(images)
        rows.append(augmentations.Row(np.stack(images), words))
    augmentations.write_rows(rows, out)


def chosen(data: ImageData) -> dict[str, list[int]]:
    """Evenly spread classes that have examples, and evenly spread examples of each: class ->
    positions."""
    dataset = data.dataset(TRAIN)
    indices = np.arange(len(dataset))
    labels = dataset.labels
    if labels is None:
        indices = np.array(spread(len(dataset), LABELS_READ))
        read_labels = [dataset.examples[index]["label"] for index in indices]
        labels = np.array(read_labels)
    known_labels = labels[labels >= 0]
    present = np.unique(known_labels)
    by_class = {}
    for position in spread(len(present), CLASSES):
        label = present[position]
        name = dataset.classes[label]
        of_class = indices[labels == label]
        numbers = spread(len(of_class), IMAGES)
        by_class[name] = [int(of_class[number]) for number in numbers]
    return by_class
