"""Answers of a trained model to single inputs, which threads prepare ahead of the device, in
batches of few shapes."""

from __future__ import annotations

import abc
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np

from gmlp_flax.data.pipeline import usable_cores
from gmlp_flax.errors import ConfigError, DataError, UserError
from gmlp_flax.tasks.generation import GeneratedText, Sampling, program_length

Candidates = list[tuple[str, float]]  # names with their probabilities, best first
Arrays = dict[str, Any]  # name -> array

# Among inputs: no other is ready yet, so that all answers are due.
PAUSE: Any = object()
# Batches that are made of inputs in a row, with those of similar lengths in one batch.
_WINDOW = 8


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
    text: str | None = None  # what continues the input, in place of predictions


class Settings(NamedTuple):
    """How inputs are answered.

    Attributes:
        top: how many candidates.
        batch_size: inputs that the model reads at once.
        truncate: whether a text that is too long is cut.
    """

    top: int = 5
    batch_size: int = 32
    truncate: bool = False


class Predictor(abc.ABC):
    """How a trained model of a task answers single inputs.

    Args:
        task: the model, and what it needs besides its parameters.

    Attributes:
        usage: how `gmlp predict` is given inputs: "< TEXT", or "IMAGE ...".
        suffixes: of the files of a folder that hold inputs, or are inputs.
        reads_tables: whether a table (.csv, .jsonl, .parquet, ...) holds inputs in its rows.
        array_rank: axes of an array of inputs that the model reads as it is, the batch's included.
    """

    usage: str = "INPUT ..."
    suffixes: Sequence[str] = ()
    reads_tables: bool = False
    array_rank: int = 2

    def __init__(self, task: Any):
        self.task = task

    @property
    def pad_id(self) -> int:
        """Fills up "tokens" of shorter examples to the length of others."""
        return 0

    # What a predictor of your own defines.

    @abc.abstractmethod
    def prepare(self, given: Any, truncate: bool = False) -> Prepared:
        """An input as the model reads it. It is called in threads.

        Raises:
            UserError: it cannot be read, or does not suit this model.
        """

    def scores(self, params: Any, batch: Arrays) -> jax.Array:
        """Logits of prepared examples, float32 [batch, predictions, names]; there may be more of
        both than are read."""
        raise ConfigError(f"{type(self).__name__} has `prepare` alone: define `scores` too")

    @property
    def names(self) -> Sequence[str]:
        """What is ranked by `scores`, in their order."""
        return self.task.class_names

    @abc.abstractmethod
    def encode(self, inputs: Sequence[Any]) -> Any:
        """Inputs as the arrays that `Task.forward` reads."""

    # What most have as it is.

    def rank(self, params: Any, batch: Arrays, top: int) -> Arrays:
        """What `read_answer` needs of a batch of prepared examples: here, the best probabilities
        and their indices."""
        scores = self.scores(params, batch)[..., : len(self.names)]
        most = min(top, scores.shape[-1])
        values, indices = jax.lax.top_k(jax.nn.softmax(scores), most)
        return {"values": values, "indices": indices}

    def read_answer(self, prepared: Prepared, outputs: list[Arrays], top: int) -> list[Candidates]:
        """The predictions of an input; its context, if it has one, is how many there are."""
        count = prepared.context or 1
        indices = outputs[0]["indices"][:count].tolist()
        values = outputs[0]["values"][:count].tolist()
        predictions = []
        for ranked, probabilities in zip(indices, values, strict=True):
            names = [self.names[index] for index in ranked]
            predictions.append(list(zip(names, probabilities, strict=True)))
        return predictions

    @functools.cache  # noqa: B019 - a predictor lives as long as its model
    def compiled_rank(self, top: int) -> Callable[[Any, Arrays], Arrays]:
        """`rank` as a compiled function of parameters and a batch."""
        return jax.jit(functools.partial(self.rank, top=top))

    def predict(
        self, params: Any, inputs: Iterable[Any], settings: Settings = Settings()
    ) -> list[list[Candidates]]:
        """A trained model's predictions.

        Returns:
            For each input, one list of candidates per prediction: a text with two masks has two.

        Raises:
            UserError: an input cannot be read, or does not suit this model.
        """
        predictions = []
        for answer in self.answers(params, inputs, settings):
            if answer.error:
                raise answer.error
            predictions.append(answer.predictions)
        return predictions

    def answers(
        self, params: Any, inputs: Iterable[Any], settings: Settings = Settings()
    ) -> Iterator[Answer]:
        """Yields a trained model's answer to each input, in order; an input that cannot be read, or
        does not suit this model, has an error as its answer.

        Args:
            params: of the model.
            inputs: as `prepare` takes them. After PAUSE among them, all answers are given before
                the next is asked for. A DataError in the place of an input is its own answer.
            settings: how they are answered.
        """
        return _Stream(self, params, settings).run(inputs)

    # Inputs of a program, and of a command line.

    def listed(self, inputs: Any) -> Iterable[Any]:
        """What a program gives as inputs: several, or one that stands for itself.

        Raises:
            DataError: one of them is none.
        """
        if isinstance(inputs, str | bytes | os.PathLike | Mapping):
            return [inputs]
        is_scalar = getattr(inputs, "ndim", None) == 0  # an array that cannot be iterated over
        if is_scalar or not isinstance(inputs, Iterable):
            return [inputs]
        return inputs

    @property
    def transform(self) -> Callable[[Any], np.ndarray] | None:
        """The preprocessing of an image, of predictors that read images; else None."""
        return None

    def paths_in(self, inputs: Any) -> list[str] | None:
        """The paths that a program gives as a folder or a pattern of files; None if it does not."""
        return None

    def table_columns(self, path: str, header: Sequence[str]) -> tuple[str, ...]:
        """The columns of a table that are an input, if the model reads tables; raises DataError if
        one is not in the header."""
        raise DataError(f"{path}: this model reads no tables: give one input on each line")

    def inputs_of_file(
        self, path: str, read_lines: Callable[[str, BinaryIO], Iterator[Any]]
    ) -> Iterator[Any]:
        """The inputs that a file holds, or is.

        Args:
            path: of the file.
            read_lines: reads those of an open file that holds one in each line, given its path.

        Raises:
            DataError: the file cannot be read.
        """
        yield path

    # Answers for people.

    def label(self, number: int) -> str:
        """What a prediction for an input is called, from 1: "" if there is only one."""
        return ""

    def format(self, answer: Answer) -> str:
        """An answer: the input, and a line for each prediction."""
        lines = [str(answer.input)]
        for number, candidates in enumerate(answer.predictions, start=1):
            label = self.label(number)
            start = f"  {label}: " if label else "  "
            lines.append(start + shown(candidates))
        return "\n".join(lines)


class GeneratingPredictor(Predictor):
    """Answers of a model that continues texts."""

    @abc.abstractmethod
    def generate(self, params: Any, prompt: str, sampling: Sampling) -> GeneratedText:
        """What a trained model writes after a prompt; raises RunError if the prompt does not suit
        it."""

    def note_of_prompt(self, tokens: int) -> str:
        """What to know of a prompt of some tokens, such as that it was cut; "" if nothing."""
        return ""


# What a terminal would follow, as text.
_CONTROLS = (*range(32), *range(127, 160))
_ESCAPES = {code: repr(chr(code))[1:-1] for code in _CONTROLS}


def shown(candidates: Candidates) -> str:
    """Candidates in one line: name and probability in percent."""
    parts = []
    for name, probability in candidates:
        text = name.strip().translate(_ESCAPES) or repr(name)
        parts.append(f"{text} {100 * probability:.1f}%")
    return "  ".join(parts)


class _Item(NamedTuple):
    """An input with what is known of its answer before the model has run."""

    prepared: Prepared
    answer: Answer


class _Row(NamedTuple):
    """An example, and the number of its item."""

    item: int
    example: Arrays

    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of its arrays."""
        return [array.shape for array in self.example.values()]


class _Batch(NamedTuple):
    """A batch that the device runs: the item of each of its examples, and its outputs."""

    items: list[int]
    outputs: Arrays


class _Stream:
    """Answers inputs one after the other, and holds few of them at a time, however many there are.

    A batch has `batch_size` examples, the last one repeated if there are fewer, or a single one.
    The predictor prepares inputs in threads; if it raises UserError, that is the answer.
    """

    def __init__(self, predictor: Predictor, params: Any, settings: Settings):
        self.predictor = predictor
        self.params = params
        self.settings = settings
        self.threads = usable_cores()

    def run(self, inputs: Iterable[Any]) -> Iterator[Answer]:
        """Yields the answer to each input, in order; at PAUSE, all that are due, before it asks for
        the next input."""
        window: list[Any] = []
        running: Iterator[Answer] = iter(())
        with ThreadPoolExecutor(self.threads) as pool:
            for given in itertools.chain(inputs, [PAUSE]):
                is_pause = given is PAUSE
                if not is_pause:
                    window.append(given)
                if is_pause or len(window) == _WINDOW * self.settings.batch_size:
                    items = self._prepare_all(window, pool)
                    started = self._start(items)  # runs while the next inputs are prepared
                    yield from running
                    window = []
                    running = self._answers(items, started)
                if is_pause:
                    yield from running

    def _prepare_all(self, inputs: list[Any], pool: ThreadPoolExecutor) -> list[_Item]:
        """Prepares inputs in threads, in about two parts for each."""
        size = max(1, math.ceil(len(inputs) / (2 * self.threads)))
        parts = [inputs[first : first + size] for first in range(0, len(inputs), size)]
        items: list[_Item] = []
        for part in pool.map(self._prepare, parts):
            items += part
        return items

    def _prepare(self, inputs: list[Any]) -> list[_Item]:
        items = []
        for given in inputs:
            try:
                if isinstance(given, DataError):
                    raise given
                prepared = self.predictor.prepare(given, truncate=self.settings.truncate)
                items.append(_Item(prepared, Answer(given, [], None, prepared.note)))
            except UserError as error:
                items.append(_Item(Prepared([]), Answer(given, [], error)))
        return items

    def _start(self, items: list[_Item]) -> list[_Batch]:
        """Has the device run all examples."""
        rows = []
        for number, item in enumerate(items):
            for example in item.prepared.examples:
                rows.append(_Row(number, example))
        rows.sort(key=_Row.shapes)
        batches = []
        size = self.settings.batch_size
        rank = self.predictor.compiled_rank(self.settings.top)
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            examples = [row.example for row in part]
            if len(part) > 1:
                examples += examples[-1:] * (size - len(part))
            batch = batch_of(examples, self.predictor.task.length, self.predictor.pad_id)
            numbers = [row.item for row in part]
            batches.append(_Batch(numbers, rank(self.params, batch)))
        return batches

    def _answers(self, items: list[_Item], batches: list[_Batch]) -> Iterator[Answer]:
        """Yields answers as soon as the batches up to them are done."""
        outputs: list[list[Arrays]] = [[] for _ in items]
        done = 0
        nothing = _Batch([], {})  # after it, inputs without an example are answered too
        for numbers, device_arrays in [*batches, nothing]:
            arrays = jax.device_get(device_arrays)
            for row, number in enumerate(numbers):
                example = {name: values[row] for name, values in arrays.items()}
                outputs[number].append(example)
            while done < len(items) and self._is_complete(items[done], outputs[done]):
                yield self._finished(items[done], outputs[done])
                done += 1

    def _is_complete(self, item: _Item, outputs: list[Arrays]) -> bool:
        return len(outputs) == len(item.prepared.examples)

    def _finished(self, item: _Item, outputs: list[Arrays]) -> Answer:
        if item.answer.error:
            return item.answer
        predictions = self.predictor.read_answer(item.prepared, outputs, self.settings.top)
        return item.answer._replace(predictions=predictions)


def batch_of(examples: list[Arrays], length: int, pad_id: int) -> Arrays:
    """Stacks examples. All arrays but images are filled up to a power of two, or `length`, the
    model's, as each length is a program to compile. What fills up "tokens" is `pad_id`, for others
    it is 0."""
    batch = {}
    for name, first in examples[0].items():
        arrays = [example[name] for example in examples]
        shape = np.max([array.shape for array in arrays], axis=0).astype(int)
        if first.dtype != np.uint8 and len(shape):
            shape[-1] = program_length(int(shape[-1]), length)
        filling = pad_id if name == "tokens" else 0
        batch[name] = np.full((len(arrays), *shape), filling, first.dtype)
        for row, array in enumerate(arrays):
            place = tuple(slice(size) for size in array.shape)
            batch[name][(row, *place)] = array
    return batch
