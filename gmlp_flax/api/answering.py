"""Answers of a model to inputs as they come, one after the other."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gmlp_flax.errors import DataError, UserError
from gmlp_flax.tasks.generation import GeneratedText, Sampling
from gmlp_flax.tasks.prediction import PAUSE, Answer, Settings
from gmlp_flax.training.model import Model


def answers(
    model: Model,
    inputs: Iterable[Any],
    settings: Settings = Settings(),
    sampling: Sampling | None = None,
    report: Callable[[str], object] = lambda line: None,
) -> Iterator[Answer]:
    """Yields a model's answer to each input, in order; an input that cannot be read, or does not
    suit the model, has an error as its answer.

    Args:
        model: made or loaded.
        inputs: as in `tasks.prediction.Predictor.answers`.
        settings: how inputs are answered by a ranking.
        sampling: of a causal model, how texts are continued instead; None: they are not.
        report: called with a line on each text that was continued.
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
            made = predictor.generate(model.params, prompt, sampling)
        except UserError as error:
            yield Answer(prompt, [], error)
            continue
        seconds = time.perf_counter() - began
        yield Answer(prompt, [], None, predictor.note_of_prompt(made.prompt_tokens), made.text)
        report(_about(made, seconds, model.task.length))


def _about(made: GeneratedText, seconds: float, length: int) -> str:
    """A line on a text that a model whose sequences have some length has made."""
    rate = made.new_tokens / seconds
    line = f"{made.new_tokens} tokens in {seconds:.2f} s ({rate:,.0f} a second)"
    if made.ended:
        line += ", where the model ended the text"
    if made.windows > 1:
        line += f"; windows of {length} tokens read: {made.windows}"
    return line
