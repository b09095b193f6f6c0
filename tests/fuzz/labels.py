"""Random classes, brought by one source to train on and by another to score on: the order of the
classes, and the label of every example, are compared with a slow mapping by name. What is neither a
class nor the number of one must be refused."""

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
    """Examples as a source brings them.

    Attributes:
        source: of the table of sources.
        names: that the source knows, in its own order.
        labels: positions in `names`, in the order of the examples.
    """

    source: str
    names: list[str]
    labels: np.ndarray

    def bring(self, folder: Any) -> Any:
        """The data as a program or a disk has them."""
        images = sources.Images(self.names, self.labels)
        return sources.SOURCES[self.source](images, folder)

    def named(self) -> list[str]:
        """The name of each example; of numbers without names their digits."""
        if self.source == UNNAMED:
            return [str(label) for label in self.labels]
        return [composed(self.names[label]) for label in self.labels]

    def order(self) -> list[str]:
        """The classes of a model that is trained on them, by the documented rule."""
        if self.source in DECLARED:
            return [composed(name) for name in self.names]
        different = set(self.named())
        if all(name.isascii() and name.isdigit() for name in different):
            return sorted(different, key=int)
        return sorted(different)


def composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def draw(rng, names: list[str]) -> Examples:
    """Two or three examples of most of the names, from any source."""
    source = rng.choice(list(sources.SOURCES))
    names = rng.sample(names, len(names))
    count = rng.randint(2, len(names))
    labels = [label for label in range(count) for _ in range(rng.randint(2, 3))]
    rng.shuffle(labels)
    if source not in DECLARED:
        names = names[:count]
    return Examples(source, names, np.array(labels))


def make(folder):
    def check(rng):
        pool = rng.choice([NUMBERS, WORDS, NUMBERS + WORDS])
        names = rng.sample(pool, rng.randint(2, min(8, len(pool))))
        trained = draw(rng, names)
        known = trained.order()
        if len(known) < 2 or rng.random() < 0.2:
            known = list(
                dict.fromkeys([*map(composed, names), *map(composed, rng.sample(pool, 1))])
            )
        scored = draw(rng, known)
        for part in ("train", "heldout", "stored", "heldout_stored", "train_png", "heldout_png"):
            shutil.rmtree(folder / part, ignore_errors=True)
        config = sources.small_config()
        keys = examples.store(
            {"train": trained.bring(folder / "train")}, config, str(folder / "stored")
        )
        config.update_from_flattened_dict(keys)
        assets = ImageData(config, RunFiles()).assets()
        classes = trained.order()
        expected = [classes.index(name) if name in classes else -1 for name in scored.named()]
        case = (trained, scored, classes)
        try:
            found = labels_of(scored, assets, classes, folder)
        except UserError:
            assert -1 in expected or declares_others(scored, classes), ("refused", case)
            raise
        assert -1 not in expected, ("not refused", case)
        assert found == sorted(zip(levels(scored), expected, strict=True)), case

    return check


def declares_others(scored: Examples, classes: list[str]) -> bool:
    """Whether a source names a class that the model does not have, perhaps without an example."""
    return scored.source in DECLARED and not set(scored.order()) <= set(classes)


def levels(scored: Examples) -> list[int]:
    """The brightness of each image."""
    return sources.Images(scored.names, scored.labels).pixels[:, 0, 0, 0].tolist()


def labels_of(scored: Examples, assets, classes, folder) -> list[tuple[int, int]]:
    """The brightness and the label of each example, as an evaluation of a model with these classes
    reads them."""
    config = sources.small_config()
    target = str(folder / "heldout_stored")
    data = {"heldout": scored.bring(folder / "heldout")}
    keys = examples.store(data, config, target, classes)
    config.update_from_flattened_dict(keys)
    labelled = ImageData(config, RunFiles(local=assets)).labelled(HELDOUT)
    found = []
    for index in range(len(labelled)):
        example = labelled[index]
        found.append((int(np.asarray(example["image"]).flat[0]), int(example["label"])))
    return sorted(found)
