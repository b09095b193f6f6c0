"""Records of images to what a model reads; one that cannot be read is counted, logged once, and replaced."""

import itertools
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from gmlp_flax.data.images import views
from gmlp_flax.data.images.augment import Augmentation, augment
from gmlp_flax.data.images.folders import IMAGE_BYTES, ImageSource
from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from gmlp_flax.io.records import BadRecord, BadRecords

UNREAD = -1  # the label of an example that was replaced


def training_example(
    record: dict, rng: np.random.Generator, *, augmentation: Augmentation = Augmentation(), **view: Any
) -> dict:
    """A record to {"image" uint8 [*size, channels], "label"}: random crop and flip, then `augmentation`.

    `view` are the options of `views.training_view`.
    """
    image = views.training_view(record["image"], rng=rng, name=record.get("name", ""), **view)
    return {"image": augment(image, rng, augmentation), "label": record["label"]}


def evaluation_example(
    record: dict, *, size: tuple[int, int], channels: int, eval_crop: float, transform: str = "exact"
) -> dict:
    """A record, without its name, whose "image" is uint8 [*size, channels], as `views.evaluation_view` makes it."""
    pixels = _decoded(record, channels)
    others = {key: value for key, value in record.items() if key != "name"}
    return others | {"image": views.evaluation_view(pixels, size, eval_crop, transform)}


def _decoded(record: dict, channels: int) -> np.ndarray:
    image = record["image"]
    return image if isinstance(image, np.ndarray) else views.decode(image, record["name"], channels)


def record_of(image: Any, channels: int) -> dict[str, Any]:
    """A record of an image to predict: the path of a file, a Pillow image, or an array (`views.pixels_of`).

    Raises:
        DataError: the file cannot be read, or the array is no image.
    """
    if isinstance(image, str | os.PathLike):
        return {"image": files.read_small(image, IMAGE_BYTES), "name": str(image), "label": 0}
    return {"image": views.pixels_of(image, channels), "name": "the array", "label": 0}


def write_image(image: Any, path: str, channels: int) -> None:
    """Writes an image, as `record_of` takes it, as PNG."""
    pixels = _decoded(record_of(image, channels), channels)
    Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(path, "PNG")


class ReadableExamples:
    """The transformed examples of a source; one that cannot be read is replaced by the next one that can.

    The replacement depends on the source alone, and it draws the same random numbers as if the first example had not
    been tried: batches stay a function of the seed and the step. Picklable.

    Args:
        source: read-only. An item that raises BadRecord is a bad record; DataError is an error of the whole source.
        transform: takes a record and, for training, a random generator; DataError means that it does not decode.
        bad: counts the bad records and limits their number.
    """

    def __init__(self, source: ImageSource, transform: Callable[..., dict], bad: BadRecords):
        self.source, self.transform, self.bad = source, transform, bad

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return repr(self.source)

    def __getitem__(self, index: int) -> dict:
        """An example for evaluation, with the label UNREAD if it replaces another; see also `train`."""
        found, example = self._first_readable(index)
        return example if found == index else {**example, "label": np.int32(UNREAD)}

    def train(self, index: int, rng: np.random.Generator) -> dict:
        """An example for training; raises DataError if there are more bad records than allowed."""
        return self._first_readable(index, rng)[1]

    def _first_readable(self, start: int, *rng: np.random.Generator) -> tuple[int, dict]:
        """The first example from `start` on that can be read, and its index."""
        states = [generator.bit_generator.state for generator in rng]
        for index in itertools.chain(range(start, len(self)), range(start)):
            try:
                record = self.source[index]
            except BadRecord as error:
                self._skip(error)
                continue
            try:
                return index, self.transform(record, *rng)
            except DataError as error:
                self._skip(error)
            for generator, state in zip(rng, states, strict=True):
                generator.bit_generator.state = state
        raise DataError(f"{self.source!r}: not one of {len(self)} images can be read; check the files")

    def _skip(self, error: Exception) -> None:
        if self.bad.skip(message := f"{self.source.path}: {error}"):
            sys.stderr.write(f"skipped a bad record: {message}\n")  # one write: threads report at the same time
