"""Random classes, from one source for training and from another for scoring.

The order of the classes and the label of every example are compared with a slow mapping by name.
What is neither a class nor the number of one must be refused.
"""

from __future__ import annotations

import dataclasses
import shutil
import unicodedata
from typing import Any

import numpy as np

from gmlp_flax.api import examples
from gmlp_flax.data.holdout import HELDOUT
from gmlp_flax.errors import UserError
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.tasks.data.images import ImageData
from tests.api import class_sources as sources

NUMBERS = [str(number) for number in (0, 1, 2, 3, 7, 9, 10, 11, 12, 100)]
WORDS = ["cat", "Dog", "zebra", "w10", "w9", "été", "e\u0301cole", "猫", "3 cats", "7a", "0.5"]
DECLARED = ("declared parquet", "datasets")
UNNAMED = "arrays of numbers"


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples of one source.

    Attributes:
        source: its name in the table of sources.
        names: the class names of the source, in its order.
        labels: positions in `names`, in the order of the examples.
    """

    source: str
    names: list[str]
    labels: np.ndarray

    def data(self, folder: Any) -> Any:
        """The data as a program passes them, or as files in the folder."""
        images = sources.Images(self.names, self.labels)
        return sources.SOURCES[self.source](images, folder)

    def named(self) -> list[str]:
        """The class name of each example; for numbers without names, their digits."""
        if self.source == UNNAMED:
            return [str(label) for label in self.labels]
        class_names = []
        for label in self.labels:
            class_names.append(composed(self.names[label]))
        return class_names

    def order(self) -> list[str]:
        """The classes of a model trained on these examples, by the documented rule."""
        if self.source in DECLARED:
            return [composed(name) for name in self.names]
        different = set(self.named())
        are_numbers = all(name.isascii() and name.isdigit() for name in different)
        if are_numbers:
            return sorted(different, key=int)
        return sorted(different)


def composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def draw(rng, names: list[str]) -> Examples:
    """Two or three examples of most of the names, from any source."""
    source = rng.choice(list(sources.SOURCES))
    names = rng.sample(names, len(names))
    count = rng.randint(2, len(names))
    labels = []
    for label in range(count):
        repeats = rng.randint(2, 3)
        labels += [label] * repeats
    rng.shuffle(labels)
    if source not in DECLARED:
        names = names[:count]
    return Examples(source, names, np.array(labels))


def make(folder):
    def check(rng):
        pools = [NUMBERS, WORDS, NUMBERS + WORDS]
        pool = rng.choice(pools)
        most = min(8, len(pool))
        names = rng.sample(pool, rng.randint(2, most))
        trained = draw(rng, names)
        names_to_score = trained.order()
        if len(names_to_score) < 2 or rng.random() < 0.2:
            other_names = names + rng.sample(pool, 1)
            different = {composed(name): None for name in other_names}
            names_to_score = list(different)
        scored = draw(rng, names_to_score)
        for part in ("train", "heldout", "stored", "heldout_stored", "train_png", "heldout_png"):
            shutil.rmtree(folder / part, ignore_errors=True)
        config = sources.small_config()
        data = {"train": trained.data(folder / "train")}
        stored = str(folder / "stored")
        keys = examples.store(data, config, stored)
        config.update_from_flattened_dict(keys)
        assets = ImageData(config, RunFiles()).assets()
        classes = trained.order()
        expected = []
        for name in scored.named():
            position = classes.index(name) if name in classes else -1
            expected.append(position)
        case = (trained, scored, classes)
        try:
            found = labels_of(scored, assets, classes, folder)
        except UserError:
            is_other = declares_other_classes(scored, classes)
            assert -1 in expected or is_other, ("refused", case)
            raise
        assert -1 not in expected, ("not refused", case)
        pairs = zip(levels(scored), expected, strict=True)
        assert found == sorted(pairs), case

    return check


def declares_other_classes(scored: Examples, classes: list[str]) -> bool:
    """Whether a source names a class that the model lacks, with or without examples of it."""
    known = set(classes)
    unknown = set(scored.order()) - known
    return scored.source in DECLARED and bool(unknown)


def levels(scored: Examples) -> list[int]:
    """The brightness of each image."""
    images = sources.Images(scored.names, scored.labels)
    return images.pixels[:, 0, 0, 0].tolist()


def labels_of(scored: Examples, assets, classes, folder) -> list[tuple[int, int]]:
    """The brightness and the label of each example, as an evaluation with these classes reads
    them."""
    config = sources.small_config()
    target = str(folder / "heldout_stored")
    data = {"heldout": scored.data(folder / "heldout")}
    keys = examples.store(data, config, target, classes)
    config.update_from_flattened_dict(keys)
    run_files = RunFiles(local=assets)
    labelled = ImageData(config, run_files).labelled(HELDOUT)
    found = []
    for index in range(len(labelled)):
        example = labelled[index]
        pixels = np.asarray(example["image"])
        level = pixels.flat[0]
        label = int(example["label"])
        found.append((int(level), label))
    return sorted(found)
