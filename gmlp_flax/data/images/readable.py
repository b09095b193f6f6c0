"""Images as examples for a model: transformed, and replaced if they cannot be read."""

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gmlp_flax.data.dataset import Dataset
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecord, BadRecords

UNREAD = -1  # the label of an example that was replaced


class ReadableExamples:
    """The transformed images of a data set. An image that cannot be read is replaced by the next
    one that can.

    The replacement depends only on the data, and it draws the same random numbers as if the first
    image had not been tried, so batches stay a function of the seed and the step. Picklable.

    Args:
        dataset: the images. An item that raises BadRecord is a bad record; DataError is an error of
            the data set.
        transform: takes a record {"image", "label", "name"} and, for training, a random generator.
            DataError means that the image cannot be decoded.
        bad: counts the bad records and limits their number.
    """

    def __init__(self, dataset: Dataset, transform: Callable[..., dict], bad: BadRecords):
        self.path = dataset.path
        self.images = dataset.examples
        self.labels = dataset.labels
        self.transform = transform
        self.bad = bad

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """An example for evaluation, with the label UNREAD if it replaces another.

        Raises:
            IndexError: there is no such example, which ends a loop over all.
        """
        positions = range(len(self))
        wanted = positions[index]
        position, example = self._first_readable(wanted, self.transform)
        if position != wanted:
            unread = np.int32(UNREAD)
            example = {**example, "label": unread}
        return example

    def train(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """An example for training; raises DataError if there are more bad records than allowed."""
        state = rng.bit_generator.state

        def transform(record: dict) -> dict:
            """The example, with the same random numbers for each record that is tried."""
            try:
                return self.transform(record, rng)
            except DataError:
                rng.bit_generator.state = state
                raise

        _, example = self._first_readable(index, transform)
        return example

    def _first_readable(
        self, start: int, transform: Callable[[dict], dict]
    ) -> tuple[int, dict[str, Any]]:
        """The position of the first image from `start` on that can be read, and its example."""
        from_start = range(start, len(self))
        before_start = range(start)
        for index in itertools.chain(from_start, before_start):
            try:
                record = self.record(index)
            except BadRecord as error:
                self._skip(error)
                continue
            try:
                return index, transform(record)
            except DataError as error:
                self._skip(error)
        raise DataError(f"{self.path!r}: none of {len(self)} images can be read; check the files")

    def record(self, index: int) -> dict[str, Any]:
        """The image at a position before `transform`, with its label; raises BadRecord."""
        record = self.images[index]
        if self.labels is None:
            return record
        label = self.labels[index]
        return {**record, "label": label}

    def _skip(self, error: Exception) -> None:
        message = f"{self.path}: {error}"
        if self.bad.skip(message):
            # one write: threads report at the same time
            sys.stderr.write(f"skipped a bad record: {message}\n")
