"""Images that cannot be read: each is counted, logged once, and replaced by the next one that can be read."""

import hashlib
import itertools
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable

import numpy as np

from gmlp_flax.data.images.folders import ImageSource
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecord, check_limit

UNREAD = -1  # the label of an example that was replaced


class SharedBadRecords:
    """Counts the different bad records that this process and its worker processes meet, and stops at a limit.

    Picklable; copies count together, through a temporary folder with an empty file for each bad record. The folder is
    removed with the original. Each host of a run counts for itself.

    Args:
        limit: how many bad records may be skipped; the next one raises DataError.
    """

    def __init__(self, limit: int = 0):
        self.limit = limit
        self._folder = tempfile.mkdtemp(prefix="gmlp_flax_bad_records_")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def skip(self, message: str) -> None:
        """Counts a bad record, but only the first time it is met; `message` names file and record.

        Raises:
            DataError: the limit is exceeded.
        """
        mark = os.path.join(self._folder, hashlib.sha256(message.encode("utf-8", "surrogateescape")).hexdigest())
        is_new = True
        try:
            open(mark, "x").close()
        except FileExistsError:
            is_new = False
        except FileNotFoundError:  # the run is over, but this worker process still reads ahead
            return
        # Threads that exceed the limit at the same time have all counted their records, but none of these was skipped.
        check_limit(message, min(len(os.listdir(self._folder)) - 1, self.limit), 1, self.limit)
        if is_new:
            sys.stderr.write(f"skipped a bad record: {message}\n")  # one write: threads report at the same time


class ReadableExamples:
    """The transformed examples of a source; one that cannot be read is replaced by the next one that can.

    The replacement depends on the source alone, and it draws the same random numbers as if the first example had not
    been tried: batches stay a function of the seed and the step. As a source for data.pipeline, the items are indices;
    the methods `train` and `evaluate`, as the pipeline's transform, turn them into examples. Picklable.

    Args:
        source: read-only. An item that raises BadRecord is a bad record; DataError is an error of the whole source.
        transform: takes a record and, for training, a random generator; DataError means that it does not decode.
        bad: counts the bad records and limits their number.
    """

    def __init__(self, source: ImageSource, transform: Callable[..., dict], bad: SharedBadRecords):
        self.source, self.transform, self.bad = source, transform, bad

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict:
        return {"index": index}

    def __repr__(self) -> str:
        return repr(self.source)

    def train(self, item: dict, rng: np.random.Generator) -> dict:
        """The example at an index; raises DataError if there are more bad records than allowed."""
        return self._first_readable(item["index"], rng)[1]

    def evaluate(self, item: dict) -> dict:
        """As `train`, without chance; the label of an example that replaces another is UNREAD."""
        index, example = self._first_readable(item["index"])
        return example if index == item["index"] else {**example, "label": np.int32(UNREAD)}

    def _first_readable(self, start: int, *rng: np.random.Generator) -> tuple[int, dict]:
        """The first example from `start` on that can be read, and its index."""
        states = [generator.bit_generator.state for generator in rng]
        for index in itertools.chain(range(start, len(self)), range(start)):
            try:
                record = self.source[index]
            except BadRecord as error:
                self.bad.skip(f"{self.source.path}: {error}")
                continue
            try:
                return index, self.transform(record, *rng)
            except DataError as error:
                self.bad.skip(f"{self.source.path}: {error}")
            for generator, state in zip(rng, states, strict=True):
                generator.bit_generator.state = state
        raise DataError(f"{self.source!r}: not one of {len(self)} images can be read; check the files")
