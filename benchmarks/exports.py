"""The benchmark's part `export`: size, speed and answers of models in the formats of `gmlp export`
(extras `onnx` and `stablehlo`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import gmlp_flax
from gmlp_flax import config as config_lib
from gmlp_flax.benchmarks.timing import Row, in_milliseconds, measure, row
from gmlp_flax.data.holdout import HELDOUT
from gmlp_flax.errors import require
from gmlp_flax.interop import formats
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.training.model import Model

SHIPPED = ("digits", "books_gmlp")  # their answers are right or wrong
RANDOM = ("gmlp_ti", "mixer_s32")  # from `create`: only their sizes and times mean something
ONNX = ("onnx", "onnx-float16", "onnx-int8")
BATCHES = (1, 32)
TEXTS = 128  # of a language model
Run = Callable[[dict[str, np.ndarray]], np.ndarray]  # inputs by name to logits


@dataclasses.dataclass(frozen=True)
class Questions:
    """The questions to a model.

    Attributes:
        inputs: by their names in the exported model, [examples, ...].
        choose: maps the model's logits [examples, ...] to those of each answer, [answers, classes].
        answers: the right answers, int [answers]; None if they are not known.
    """

    inputs: dict[str, np.ndarray]
    choose: Callable[[np.ndarray], np.ndarray]
    answers: np.ndarray | None


def bench_export(repeats: int, models: Sequence[str]) -> Iterator[Row]:
    """Megabytes, milliseconds and accuracy of models.

    Args:
        repeats: measurements of each time.
        models: names of `gmlp_flax.load` and `create`; empty for SHIPPED and RANDOM.
    """
    onnxruntime = require("onnxruntime", "this part", "onnx")
    onnxruntime.set_default_logger_severity(3)  # else it reports each product that it does not fold
    for name in models or (*SHIPPED, *RANDOM):
        if name in SHIPPED:
            model = gmlp_flax.load(name)
            questions = ask(model)
        else:
            model = gmlp_flax.create(name, classes=1000)
            questions = random_questions(model)
        yield from _rows(name, model, questions, repeats)


def ask(model: Model) -> Questions:
    """Held-out examples of the data that come with the package."""
    config = config_lib.mutable_copy(model.config)
    config.data.train = "embedded"
    files = RunFiles(inherited=model.task.files)
    data: Any = type(model.task).Data(config, files)
    examples = data.labelled(HELDOUT)
    if "image" in examples[0]:
        return _ask_for_classes(examples)
    return _ask_for_masked_tokens(model, examples, config.eval.seed)


def _ask_for_classes(examples: Any) -> Questions:
    """The classes of all images."""
    images = []
    labels = []
    for index in range(len(examples)):
        example = examples[index]
        images.append(example["image"])
        labels.append(example["label"])
    inputs = {"image": np.stack(images)}
    return Questions(inputs, lambda logits: logits, np.array(labels))


def _ask_for_masked_tokens(model: Model, examples: Any, seed: int) -> Questions:
    """The masked tokens of some texts."""
    indices = range(min(len(examples), TEXTS))
    texts = [examples[index]["tokens"] for index in indices]
    batch = {"tokens": np.stack(texts), "index": np.array(indices, np.int32)}
    task: Any = model.task  # MaskedLM
    masked = task.fixed_mask(batch, seed)
    positions = np.asarray(masked.positions)
    is_counted = np.asarray(masked.weights) > 0

    def choose(logits: np.ndarray) -> np.ndarray:
        """The logits of the masked tokens."""
        at_positions = np.take_along_axis(logits, positions[..., None], axis=1)
        return at_positions[is_counted]

    targets = np.asarray(masked.targets)
    inputs = {"tokens": np.asarray(masked.inputs)}
    return Questions(inputs, choose, targets[is_counted])


def random_questions(model: Model) -> Questions:
    """Noise, without right answers."""
    [(name, array)] = formats.input_shapes(model.task).items()
    _, *shape = array.shape
    rng = np.random.default_rng(0)
    size = (max(BATCHES), *shape)
    noise = rng.integers(0, 256, size)
    inputs = {name: noise.astype(array.dtype)}
    return Questions(inputs, lambda logits: logits, None)


def _rows(name: str, model: Model, questions: Questions, repeats: int) -> Iterator[Row]:
    """The rows of a model."""
    import onnxruntime

    stablehlo = formats.encode(model, "stablehlo")
    yield _size_row(f"{name}: model.stablehlo", stablehlo)
    runs: dict[str, Run] = {"JAX": _in_jax(model)}
    for precision in ONNX:
        content = formats.encode(model, precision)
        file = formats.FORMATS[precision].file
        yield _size_row(f"{name}: {file}", content)
        session = onnxruntime.InferenceSession(content)
        runs[file] = _in_onnx(session)
    if questions.answers is not None:
        yield from _answers(name, runs, questions)
    for batch in BATCHES:
        inputs = {}
        for key, values in questions.inputs.items():
            inputs[key] = values[:batch]
        calls = {key: _call(run, inputs) for key, run in runs.items()}
        for key, seconds in measure(calls, repeats).items():
            yield row(f"{name}, batch {batch}: {key}", in_milliseconds(seconds), "ms")


def _size_row(title: str, content: bytes) -> Row:
    """The size of a file."""
    megabytes = len(content) / 1e6
    return row(title, [megabytes], "MB")


def _answers(name: str, runs: dict[str, Run], questions: Questions) -> Iterator[Row]:
    """How many answers are right, and how many are the same as JAX's."""
    reference = None
    for key, run in runs.items():
        outputs = run(questions.inputs)
        logits = questions.choose(outputs)
        answers = logits.argmax(-1)
        accuracy = _percent_equal(answers, questions.answers)
        yield row(f"{name}: {key}, accuracy", [accuracy], "%")
        if reference is None:
            reference = answers
        else:
            same = _percent_equal(answers, reference)
            yield row(f"{name}: {key}, the answers of JAX", [same], "%")


def _percent_equal(answers: np.ndarray, expected: Any) -> float:
    """The percentage of answers that are the expected ones."""
    share = float(np.mean(answers == expected))
    return 100 * share


def _in_jax(model: Model) -> Run:
    forward = jax.jit(model.task.forward)

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        """The logits."""
        [array] = inputs.values()
        return np.asarray(forward(model.params, array))

    return run


def _in_onnx(session: Any) -> Run:
    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        """The logits."""
        [logits] = session.run([formats.OUTPUT], inputs)
        return logits

    return run


def _call(run: Run, inputs: dict[str, np.ndarray]) -> Callable[[], None]:
    def call() -> None:
        """One forward pass."""
        run(inputs)

    return call
