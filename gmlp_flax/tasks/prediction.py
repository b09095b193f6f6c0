"""Predictions for a stream of inputs, which threads prepare ahead of the device, in batches of few
shapes."""

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from gmlp_flax.data.pipeline import usable_cores
from gmlp_flax.errors import DataError, UserError

Candidates = list[tuple[str, float]]  # names with their probabilities, best first
Arrays = dict[str, Any]  # name -> array

PAUSE: Any = object()  # among inputs: no other is ready yet, so that all answers are due
_WINDOW = 8  # batches that are made of inputs in a row, with those of similar lengths in one batch


class Prepared(NamedTuple):
    """An input as a model reads it."""

    examples: list[Arrays]  # one or more; arrays without the batch's axis
    context: Any = None  # what else its answer is read from
    note: str = ""  # what the user should know of it, such as that it was cut


class Answer(NamedTuple):
    """What a model answers to one input."""

    input: Any  # as it was given
    predictions: list[Candidates]  # one list of candidates per prediction; [] with an error
    error: UserError | None = None  # why there is none
    note: str = ""  # see `Prepared`
    text: str | None = None  # which continues the input, in the place of predictions


class Stream(NamedTuple):
    """Answers inputs one after the other, and holds few of them at a time, however many there are.

    A batch has `batch_size` examples, the last one repeated if there are fewer, or a single one.
    The task prepares inputs in threads; if it raises DataError or RunError, that is the answer. See
    `Task.predict_stream` for the others.
    """

    task: Any
    params: Any
    top: int
    batch_size: int
    truncate: bool

    def __call__(self, inputs: Iterable[Any]) -> Iterator[Answer]:
        """Yields the answer to each input, in order; at PAUSE, all that are due, before it asks for
        the next input. A DataError in the place of an input is its own answer."""
        window, running, threads = [], iter(()), usable_cores()
        with ThreadPoolExecutor(threads) as pool:
            for given in itertools.chain(inputs, [PAUSE]):
                window += [] if given is PAUSE else [given]
                if given is PAUSE or len(window) == _WINDOW * self.batch_size:
                    size = -(-len(window) // (2 * threads)) or 1
                    parts = [window[first : first + size] for first in range(0, len(window), size)]
                    items = [item for part in pool.map(self._prepare, parts) for item in part]
                    started = self._start(items)  # the device runs them while the next are prepared
                    yield from running
                    window, running = [], self._answers(items, started)
                if given is PAUSE:
                    yield from running

    def _prepare(self, inputs: list[Any]) -> list[tuple[Prepared, Answer]]:
        """Inputs with what is known of their answers before the model has run."""
        items = []
        for given in inputs:
            try:
                if isinstance(given, DataError):
                    raise given
                prepared = self.task.prepare(given, truncate=self.truncate)
                items.append((prepared, Answer(given, [], None, prepared.note)))
            except UserError as error:
                items.append((Prepared([]), Answer(given, [], error)))
        return items

    def _start(self, items: list[tuple[Prepared, Answer]]) -> list[tuple[list[int], Arrays]]:
        """Has the device run all examples. Returns batches: the item of each of their examples, and
        the outputs."""
        rows = [
            (number, example)
            for number, (prepared, _) in enumerate(items)
            for example in prepared.examples
        ]
        rows.sort(key=lambda row: [array.shape for array in row[1].values()])
        batches = []
        for first in range(0, len(rows), self.batch_size):
            part = rows[first : first + self.batch_size]
            examples = [example for _, example in part]
            examples += examples[-1:] * (self.batch_size - len(part) if len(part) > 1 else 0)
            batch = batch_of(examples, self.task.length, self.task.pad_id)
            outputs = self.task.compiled_rank(self.top)(self.params, batch)
            batches.append(([number for number, _ in part], outputs))
        return batches

    def _answers(
        self, items: list[tuple[Prepared, Answer]], batches: list[tuple[list[int], Arrays]]
    ) -> Iterator[Answer]:
        """Yields answers as soon as the batches up to them are done."""
        outputs, done = [[] for _ in items], 0
        for numbers, arrays in [*batches, ([], {})]:
            arrays = jax.device_get(arrays)
            for row, number in enumerate(numbers):
                outputs[number].append({name: values[row] for name, values in arrays.items()})
            while done < len(items) and len(outputs[done]) == len(items[done][0].examples):
                prepared, answer = items[done]
                if not answer.error:
                    answer = answer._replace(
                        predictions=self.task.read_answer(prepared, outputs[done], self.top)
                    )
                yield answer
                done += 1


def batch_of(examples: list[Arrays], length: int, pad_id: int) -> Arrays:
    """Stacks examples. All arrays but images are filled up to a power of two, or `length`, the
    model's, as each length is a program to compile. What fills up "tokens" is `pad_id`, for others
    it is 0."""
    batch = {}
    for name, first in examples[0].items():
        arrays = [example[name] for example in examples]
        shape = np.max([array.shape for array in arrays], 0).astype(int)
        if first.dtype != np.uint8:
            shape[-1:] = [min(length, 1 << (int(size) - 1).bit_length()) for size in shape[-1:]]
        batch[name] = np.full((len(arrays), *shape), pad_id if name == "tokens" else 0, first.dtype)
        for row, array in enumerate(arrays):
            batch[name][row, *map(slice, array.shape)] = array
    return batch
