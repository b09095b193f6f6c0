"""Answers of a trained model to single inputs, which threads prepare ahead of the device, in
batches of few shapes."""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple, TypeVar

import jax
import numpy as np

from gmlp_flax.data.pipeline import usable_cores
from gmlp_flax.errors import ConfigError, DataError, UserError
from gmlp_flax.tasks.inference.generation import GeneratedText, program_length
from gmlp_flax.tasks.inference.sampling import Sampling

T = TypeVar("T")
Candidates = list[tuple[str, float]]  # names with their probabilities, best first
Arrays = dict[str, Any]  # name -> array

# Stands among inputs where the next one is not ready yet: all answers are due.
PAUSE: Any = object()
# This many batches of consecutive inputs are sorted by length, so that a batch has similar lengths.
_SORTED_BATCHES = 8
# A smaller batch is filled up to this many examples, a larger one to a power of two. Each size is a
# program to compile, so batches of up to 32 share one.
_LEAST_FILLED = 32


class Prepared(NamedTuple):
    """An input as a model reads it."""

    examples: list[Arrays]  # one or more; arrays without the batch's axis
    context: Any = None  # what else `Predictor.read_answer` needs
    note: str = ""  # what the user should know about it, such as that it was cut


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
        usage: how `gmlp predict` takes inputs: "< TEXT", or "IMAGE ...".
        suffixes: of the files of a folder that hold inputs, or are inputs.
        reads_tables: whether a table (.csv, .jsonl, .parquet, ...) holds inputs in its rows.
        array_rank: axes of an array of inputs that the model reads unchanged, with the batch axis.
    """

    usage: str = "INPUT ..."
    suffixes: Sequence[str] = ()
    reads_tables: bool = False
    array_rank: int = 2

    def __init__(self, task: Any):
        self.task = task

    @property
    def pad_id(self) -> int:
        """Pads the "tokens" of shorter examples."""
        return 0

    # What your own predictor defines.

    @abc.abstractmethod
    def prepare(self, value: Any, truncate: bool = False) -> Prepared:
        """An input as the model reads it. Threads call this method.

        Raises:
            UserError: it cannot be read, or does not suit this model.
        """

    def scores(self, params: Any, batch: Arrays) -> jax.Array:
        """Logits of prepared examples, float32 [batch, predictions, names]. Predictions and names
        may be padded; the padding is not read."""
        raise ConfigError(f"{type(self).__name__} has `prepare` alone: define `scores` too")

    @property
    def names(self) -> Sequence[str]:
        """What is ranked by `scores`, in their order."""
        return self.task.class_names

    @abc.abstractmethod
    def encode(self, inputs: Sequence[Any]) -> Any:
        """Inputs as the arrays that `Task.forward` reads."""

    # What most predictors do not change.

    def rank(self, params: Any, batch: Arrays, top: int) -> Arrays:
        """What `read_answer` needs from a batch of prepared examples: by default the best
        probabilities and their indices."""
        padded_scores = self.scores(params, batch)
        names = len(self.names)
        scores = padded_scores[..., :names]
        probabilities = jax.nn.softmax(scores)
        scored_names = scores.shape[-1]
        count = min(top, scored_names)
        values, indices = jax.lax.top_k(probabilities, count)
        return {"values": values, "indices": indices}

    def read_answer(self, prepared: Prepared, outputs: list[Arrays], top: int) -> list[Candidates]:
        """The predictions of an input: those of its first example, then those of the next. Its
        context, if it has one, is how many predictions each of its examples has; else one."""
        count = prepared.context or 1
        predictions = []
        for output in outputs:
            indices = output["indices"]
            values = output["values"]
            ranked_indices = indices[:count].tolist()
            ranked_values = values[:count].tolist()
            for ranked, probabilities in zip(ranked_indices, ranked_values, strict=True):
                names = [self.names[index] for index in ranked]
                candidates = list(zip(names, probabilities, strict=True))
                predictions.append(candidates)
        return predictions

    @functools.cache  # noqa: B019 - a predictor lives as long as its model
    def compiled_rank(self, top: int) -> Callable[[Any, Arrays], Arrays]:
        """`rank` as a compiled function of parameters and a batch."""
        rank = functools.partial(self.rank, top=top)
        return jax.jit(rank)

    def predict(
        self, params: Any, inputs: Iterable[Any], settings: Settings = Settings()
    ) -> list[list[Candidates]]:
        """A trained model's predictions.

        Returns:
            For each input, one list of candidates per prediction. A text with two masks has two.

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
        """Yields a trained model's answer to each input, in order. The answer to an input that
        cannot be read, or does not suit this model, is an error.

        Args:
            params: of the model.
            inputs: as `prepare` takes them. At a PAUSE among them, all answers that are due are
                yielded before the next input is read. A DataError in place of an input becomes the
                error of its answer.
            settings: how they are answered.
        """
        stream = _Stream(self, params, settings)
        return stream.run(inputs)

    # Inputs from a program, and from a command line.

    def listed(self, inputs: Any) -> Iterable[Any]:
        """The inputs that a program passes: several, or a single one.

        Raises:
            DataError: one of them is not an input.
        """
        if isinstance(inputs, str | bytes | os.PathLike | Mapping):
            return [inputs]
        is_scalar = getattr(inputs, "ndim", None) == 0  # an array that cannot be iterated over
        if is_scalar or not isinstance(inputs, Iterable):
            return [inputs]
        return inputs

    @property
    def transform(self) -> Callable[[Any], np.ndarray] | None:
        """The preprocessing of an image, for predictors that read images; else None."""
        return None

    def paths_in(self, inputs: Any) -> list[str] | None:
        """The paths in a folder, or of a pattern of files, that a program passes; None if it passes
        something else."""
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
            line = shown(candidates)
            label = self.label(number)
            if label:
                line = f"{label}: {line}"
            lines.append(f"  {line}")
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


# Control characters, which a terminal would act on, and the text to print for them.
_CONTROLS = (*range(32), *range(127, 160))
_ESCAPES = {code: repr(chr(code))[1:-1] for code in _CONTROLS}


def shown(candidates: Candidates) -> str:
    """Candidates in one line: name and probability in percent."""
    parts = []
    for name, probability in candidates:
        printable = name.strip().translate(_ESCAPES)
        text = printable or repr(name)
        parts.append(f"{text} {100 * probability:.1f}%")
    return "  ".join(parts)


@dataclasses.dataclass
class _Item:
    """An input on its way through the model.

    Attributes:
        prepared: its examples.
        answer: what is known of the answer before the model has run.
        outputs: of the model so far, one for each example.
    """

    prepared: Prepared
    answer: Answer
    outputs: list[Arrays] = dataclasses.field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether the model has run all examples."""
        return len(self.outputs) == len(self.prepared.examples)


class _Window(NamedTuple):
    """Some inputs, and whether all answers are due before the next input is read."""

    inputs: list[Any]
    is_due: bool


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

    A batch has `batch_size` examples or a single one. If there are fewer, the last example is
    repeated up to a power of two from `_LEAST_FILLED`. The predictor prepares inputs in threads. If
    it raises UserError, that is the answer.
    """

    def __init__(self, predictor: Predictor, params: Any, settings: Settings):
        self.predictor = predictor
        self.params = params
        self.settings = settings
        self.threads = usable_cores()

    def run(self, inputs: Iterable[Any]) -> Iterator[Answer]:
        """Yields the answer to each input, in order. At PAUSE, it yields all answers that are due
        before it reads the next input."""
        running: Iterator[Answer] = iter(())
        with ThreadPoolExecutor(self.threads) as pool:
            for window in self._windows(inputs):
                items = self._prepare_all(window.inputs, pool)
                started = self._start(items)  # runs while the next inputs are prepared
                yield from running
                running = self._answers(items, started)
                if window.is_due:
                    yield from running

    def _windows(self, inputs: Iterable[Any]) -> Iterator[_Window]:
        """Consecutive inputs, up to the next PAUSE or the end, or as many as are sorted together."""
        most = _SORTED_BATCHES * self.settings.batch_size
        window: list[Any] = []
        for value in itertools.chain(inputs, [PAUSE]):
            is_pause = value is PAUSE
            if not is_pause:
                window.append(value)
            if is_pause or len(window) == most:
                yield _Window(window, is_pause)
                window = []

    def _prepare_all(self, inputs: list[Any], pool: ThreadPoolExecutor) -> list[_Item]:
        """Prepares inputs in threads, about two parts in each."""
        part_count = 2 * self.threads
        inputs_of_part = math.ceil(len(inputs) / part_count)
        parts = _in_parts(inputs, max(1, inputs_of_part))
        items: list[_Item] = []
        for prepared_part in pool.map(self._prepare, parts):
            items += prepared_part
        return items

    def _prepare(self, inputs: list[Any]) -> list[_Item]:
        truncate = self.settings.truncate
        items = []
        for value in inputs:
            try:
                if isinstance(value, DataError):
                    raise value
                prepared = self.predictor.prepare(value, truncate=truncate)
                answer = Answer(value, [], note=prepared.note)
            except UserError as error:
                prepared = Prepared([])
                answer = Answer(value, [], error)
            items.append(_Item(prepared, answer))
        return items

    def _start(self, items: list[_Item]) -> list[_Batch]:
        """Starts all examples on the device, in batches of similar lengths."""
        rows = []
        for number, item in enumerate(items):
            for example in item.prepared.examples:
                rows.append(_Row(number, example))
        rows.sort(key=_Row.shapes)
        parts = _in_parts(rows, self.settings.batch_size)
        return [self._start_batch(part) for part in parts]

    def _start_batch(self, rows: list[_Row]) -> _Batch:
        """Starts a batch on the device; its last example is repeated to fill it."""
        predictor = self.predictor
        examples = [row.example for row in rows]
        count = len(examples)
        if count > 1:
            last = examples[-1]
            least = max(count, _LEAST_FILLED)
            filled = program_length(least, self.settings.batch_size)
            missing = filled - count
            examples += [last] * missing
        batch = batch_of(examples, predictor.task.length, predictor.pad_id)
        rank = predictor.compiled_rank(self.settings.top)
        outputs = rank(self.params, batch)
        item_numbers = [row.item for row in rows]
        return _Batch(item_numbers, outputs)

    def _answers(self, items: list[_Item], batches: list[_Batch]) -> Iterator[Answer]:
        """Yields answers as soon as the batches up to them are done."""
        done = 0
        no_batch = _Batch([], {})  # the last one, so that inputs without examples are answered too
        for batch in [*batches, no_batch]:
            _add_outputs(items, batch)
            while done < len(items):
                item = items[done]
                if not item.is_complete:
                    break
                yield self._answer(item)
                done += 1

    def _answer(self, item: _Item) -> Answer:
        if item.answer.error:
            return item.answer
        predictions = self.predictor.read_answer(item.prepared, item.outputs, self.settings.top)
        return item.answer._replace(predictions=predictions)


def _in_parts(values: list[T], size: int) -> list[list[T]]:
    """Consecutive parts of `size` values each; the last one may have fewer."""
    parts = []
    for first in range(0, len(values), size):
        stop = first + size
        parts.append(values[first:stop])
    return parts


def _add_outputs(items: list[_Item], batch: _Batch) -> None:
    """Waits for a batch, and gives each item the outputs of its examples."""
    arrays = jax.device_get(batch.outputs)
    for row, number in enumerate(batch.items):
        item = items[number]
        output = {name: values[row] for name, values in arrays.items()}
        item.outputs.append(output)


def batch_of(examples: list[Arrays], length: int, pad_id: int) -> Arrays:
    """Stacks examples. All arrays except images are padded to a power of two, or to `length`, the
    model's, because each length is a program to compile. "tokens" are padded with `pad_id`, other
    arrays with 0."""
    batch = {}
    for name in examples[0]:
        arrays = [example[name] for example in examples]
        shape = _padded_shape(arrays, length)
        fill_value = pad_id if name == "tokens" else 0
        batch[name] = _padded_stack(arrays, shape, fill_value)
    return batch


def _padded_shape(arrays: list[np.ndarray], length: int) -> list[int]:
    """The shape that all arrays of a name in a batch are padded to."""
    shapes = [array.shape for array in arrays]
    largest = np.max(shapes, axis=0)
    shape = largest.astype(int).tolist()
    first = arrays[0]
    is_image = first.dtype == np.uint8
    if shape and not is_image:
        longest = shape[-1]
        shape[-1] = program_length(longest, length)
    return shape


def _padded_stack(arrays: list[np.ndarray], shape: list[int], fill_value: int) -> np.ndarray:
    first = arrays[0]
    stack_shape = (len(arrays), *shape)
    stack = np.full(stack_shape, fill_value, first.dtype)
    for row, array in enumerate(arrays):
        corner = map(slice, array.shape)
        index = (row, *corner)
        stack[index] = array
    return stack
