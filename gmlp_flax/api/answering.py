"""A model's answers to inputs as they arrive, one after the other."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gmlp_flax.errors import DataError, UserError
from gmlp_flax.tasks.inference.generation import GeneratedText
from gmlp_flax.tasks.inference.prediction import PAUSE, Answer, Settings
from gmlp_flax.tasks.inference.sampling import Sampling
from gmlp_flax.training.model import Model


def answers(
    model: Model,
    inputs: Iterable[Any],
    settings: Settings = Settings(),
    sampling: Sampling | None = None,
    report: Callable[[str], object] = lambda line: None,
) -> Iterator[Answer]:
    """Yields a model's answer to each input, in order. The answer to an input that cannot be read,
    or does not suit the model, is an error.

    Args:
        model: created or loaded.
        inputs: as in `tasks.inference.prediction.Predictor.answers`.
        settings: how a ranking answers inputs.
        sampling: how a causal model continues texts instead; None: it ranks.
        report: called with a line about each text that was continued.
    """
    if sampling is None:
        return model.predictor.answers(model.params, inputs, settings)
    return _continuations(model, inputs, sampling, report)


def _continuations(
    model: Model, inputs: Iterable[Any], sampling: Sampling, report: Callable[[str], object]
) -> Iterator[Answer]:
    predictor = model.predictor
    for prompt in inputs:
        if prompt is PAUSE:
            continue
        began = time.perf_counter()
        try:
            if isinstance(prompt, DataError):
                raise prompt
            generated = predictor.generate(model.params, prompt, sampling)
        except UserError as error:
            yield Answer(prompt, [], error)
            continue
        seconds = time.perf_counter() - began
        note = predictor.note_of_prompt(generated.prompt_tokens)
        yield Answer(prompt, [], note=note, text=generated.text)
        line = _summary(generated, seconds, model.task.length)
        report(line)


def _summary(generated: GeneratedText, seconds: float, length: int) -> str:
    """A line about a text that a model for sequences of some length has generated."""
    tokens = generated.new_tokens
    rate = tokens / seconds
    line = f"{tokens} tokens in {seconds:.2f} s ({rate:,.0f} a second)"
    if generated.ended:
        line += ", where the model ended the text"
    if generated.windows > 1:
        line += f"; windows of {length} tokens read: {generated.windows}"
    return line
