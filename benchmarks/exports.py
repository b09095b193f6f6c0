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
from gmlp_flax.benchmarks.timing import Row, measure, row
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
    data: Any = type(model.task).Data(config, RunFiles(inherited=model.task.files))
    examples = data.labelled(HELDOUT)
    if "image" in examples[0]:
        chosen = [examples[index] for index in range(len(examples))]
        images = np.stack([example["image"] for example in chosen])
        labels = np.array([example["label"] for example in chosen])
        return Questions({"image": images}, lambda logits: logits, labels)
    indices = range(min(len(examples), TEXTS))
    tokens = np.stack([examples[index]["tokens"] for index in indices])
    batch = {"tokens": tokens, "index": np.array(indices, np.int32)}
    masked = model.task.fixed_mask(batch, config.eval.seed)
    positions = np.asarray(masked.positions)
    is_counted = np.asarray(masked.weights) > 0

    def choose(logits: np.ndarray) -> np.ndarray:
        """The logits of the masked tokens."""
        at_positions = np.take_along_axis(logits, positions[..., None], axis=1)
        return at_positions[is_counted]

    answers = np.asarray(masked.targets)[is_counted]
    return Questions({"tokens": np.asarray(masked.inputs)}, choose, answers)


def random_questions(model: Model) -> Questions:
    """Noise, without right answers."""
    [(name, array)] = formats.input_shapes(model.task).items()
    _, *shape = array.shape
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (max(BATCHES), *shape))
    inputs = {name: noise.astype(array.dtype)}
    return Questions(inputs, lambda logits: logits, None)


def _rows(name: str, model: Model, questions: Questions, repeats: int) -> Iterator[Row]:
    """The rows of a model."""
    import onnxruntime

    stablehlo = formats.encode(model, "stablehlo")
    yield row(f"{name}: model.stablehlo", [len(stablehlo) / 1e6], "MB")
    runs: dict[str, Run] = {"JAX": _in_jax(model)}
    for precision in ONNX:
        content = formats.encode(model, precision)
        file = formats.FORMATS[precision].file
        yield row(f"{name}: {file}", [len(content) / 1e6], "MB")
        runs[file] = _in_onnx(onnxruntime.InferenceSession(content))
    if questions.answers is not None:
        yield from _answers(name, runs, questions)
    for batch in BATCHES:
        inputs = {key: values[:batch] for key, values in questions.inputs.items()}
        calls = {key: _call(run, inputs) for key, run in runs.items()}
        measured = measure(calls, repeats)
        for key, seconds in measured.items():
            milliseconds = [1000 * value for value in seconds]
            yield row(f"{name}, batch {batch}: {key}", milliseconds, "ms")


def _answers(name: str, runs: dict[str, Run], questions: Questions) -> Iterator[Row]:
    """How many answers are right, and how many are the same as JAX's."""
    reference = None
    for key, run in runs.items():
        logits = questions.choose(run(questions.inputs))
        chosen = logits.argmax(-1)
        accuracy = 100 * float(np.mean(chosen == questions.answers))
        yield row(f"{name}: {key}, accuracy", [accuracy], "%")
        if reference is None:
            reference = chosen
        else:
            same = 100 * float(np.mean(chosen == reference))
            yield row(f"{name}: {key}, the answers of JAX", [same], "%")


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
