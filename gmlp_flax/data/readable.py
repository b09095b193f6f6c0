"""Examples that cannot be read: counted, logged once, and replaced by the next one that can."""

import hashlib
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable

import numpy as np

from gmlp_flax.data.errors import DataError
from gmlp_flax.data.image_sources import ImageSource
from gmlp_flax.data.records import BadRecord, check_limit

UNREAD = -1  # the label of an example that was replaced


class SharedBadRecords:
    """Counts the different bad records that this process and its worker processes meet, and stops at a limit.

    Picklable; copies count together, through a temporary folder with an empty file for each bad record, which is
    removed with the original. The hosts of a run count each for itself.

    Args:
        limit: as many may be skipped; one more raises DataError.
    """

    def __init__(self, limit: int = 0):
        self.limit = limit
        self._folder = tempfile.mkdtemp(prefix="gmlp_flax_bad_records_")
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    @property
    def count(self) -> int:
        """How many different records were bad so far."""
        return len(os.listdir(self._folder))

    def skip(self, message: str) -> None:
        """Counts a bad record, once however often it is met; `message` names file and record.

        Raises:
            DataError: one too many.
        """
        mark = os.path.join(self._folder, hashlib.sha256(message.encode("utf-8", "surrogateescape")).hexdigest())
        try:
            open(mark, "x").close()
            first = True
        except FileExistsError:
            first = False
        except FileNotFoundError:  # the run is over; this is a worker process that reads ahead
            return
        # Threads that meet one too many at the same time have all counted theirs; none of those was skipped.
        check_limit(message, min(self.count - 1, self.limit), 1, self.limit)
        if first:
            print(f"skipped a bad record: {message}", file=sys.stderr, flush=True)

    def __getstate__(self) -> dict:
        return {key: value for key, value in self.__dict__.items() if key != "_remove"}


class Readable:
    """The examples of a source, transformed; in the place of one that cannot be read stands the next one that can.

    Which one that is depends on the source alone, and chance is drawn as if the first had not been tried: batches
    stay a function of the seed and the step. As a source for gmlp_flax.data.pipeline it gives places, which its own
    methods `train` and `evaluate`, as the pipeline's transform, turn into examples. Picklable.

    Args:
        source: read-only; an item that raises BadRecord is a bad record, DataError is an error of the whole source.
        transform: takes a record and, to train on it, a random generator; DataError means that it does not decode.
        bad: counts, and decides when it is enough.
        keep: entries of the records that examples have, too.
    """

    def __init__(
        self, source: ImageSource, transform: Callable[..., dict], bad: SharedBadRecords, keep: tuple[str, ...] = ()
    ):
        self.source, self.transform, self.bad, self.keep = source, transform, bad, keep
        self._known: set[int] = set()

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, place: int) -> dict:
        return {"place": place}

    def __repr__(self) -> str:
        return repr(self.source)

    def train(self, item: dict, rng: np.random.Generator) -> dict:
        """The example at a place; raises DataError where one bad record too many was met."""
        return self._first_from(item["place"], rng)[1]

    def evaluate(self, item: dict) -> dict:
        """As `train`, without chance; of an example that stands for another, the label is UNREAD."""
        place, example = self._first_from(item["place"])
        return example if place == item["place"] else {**example, "label": np.int32(UNREAD)}

    def _first_from(self, start: int, *rng: np.random.Generator) -> tuple[int, dict]:
        states = [generator.bit_generator.state for generator in rng]
        for place in (*range(start, len(self)), *range(start)):
            if place in self._known:
                continue
            try:
                return place, self._example(place, *rng)
            except BadRecord as error:
                self.bad.skip(f"{self.source.path}: {error}")
                self._known.add(place)
            for generator, state in zip(rng, states, strict=True):
                generator.bit_generator.state = state
        raise DataError(f"{self.source!r}: not one of {len(self)} images can be read; check the files")

    def _example(self, place: int, *rng: np.random.Generator) -> dict:
        record = self.source[place]
        try:
            example = self.transform(record, *rng)
        except DataError as error:
            raise BadRecord(str(error)) from error
        return {**example, **{name: record[name] for name in self.keep}}
