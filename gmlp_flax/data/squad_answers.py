"""Scores of windows to answers: the best spans of a question, as text of its passage, and the score of having none.

This is how BERT answers SQuAD (Devlin et al. 2019, sections 4.2 and 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gmlp_flax.data.squad import Question
from gmlp_flax.data.squad_windows import Windows, widest_context

# The odds of having no answer where no span can be one: JSON has no infinity.
CERTAIN = float(np.finfo(np.float32).max)


class Answer(NamedTuple):
    """A span of the passage, as it stands there, and the sum of its start's and end's scores."""

    text: str
    score: float


class SpanScores(NamedTuple):
    """The best starts and ends of each window, best first, and the score of [CLS] as both.

    Attributes:
        start_scores, end_scores: float [windows, n_best].
        start_places, end_places: int [windows, n_best], places in the window.
        null: float [windows].
    """

    start_scores: np.ndarray
    start_places: np.ndarray
    end_scores: np.ndarray
    end_places: np.ndarray
    null: np.ndarray


def find_answers(windows: Windows, found: SpanScores, *, n_best: int, max_answer: int) -> list[list[Answer]]:
    """The best answers to each question, best first, no text twice.

    Every start of a window is combined with every end of it. What is left out: spans that leave the passage, end before
    they start or are longer than `max_answer` tokens, and those whose start has more context in another window.

    Args:
        windows: the questions' windows.
        found: their scores.
        n_best: answers to a question, at most; there may be none at all.
        max_answer: see above.
    """
    return [_answers(windows, found, number, n_best, max_answer) for number in range(len(windows.questions))]


def _answers(windows: Windows, found: SpanScores, number: int, n_best: int, max_answer: int) -> list[Answer]:
    of_question = windows.of_question(number)
    rows = slice(of_question.start, of_question.stop)
    begin, size, spans = windows.begin[rows, None], windows.size[rows, None], windows.spans(number)
    if not len(spans):
        return []
    offset = windows.passage_offset(of_question.start)
    starts, ends = found.start_places[rows] - offset, found.end_places[rows] - offset
    first, last = starts + begin, ends + begin
    owner = widest_context(begin[:, 0], size[:, 0], len(spans))[np.clip(first, 0, len(spans) - 1)]
    may_start = (starts >= 0) & (starts < size) & (owner == np.arange(len(begin))[:, None])
    may_end = (ends >= 0) & (ends < size)
    tokens = last[:, None, :] - first[:, :, None] + 1
    allowed = may_start[:, :, None] & may_end[:, None, :] & (tokens >= 1) & (tokens <= max_answer)
    window, start, end = np.nonzero(allowed)
    scores = found.start_scores[rows].astype(np.float64)[window, start] + found.end_scores[rows][window, end]
    answers: dict[str, float] = {}
    for i in np.argsort(-scores, kind="stable"):
        left, right = spans[first[window[i], start[i]], 0], spans[last[window[i], end[i]], 1]
        text = windows.questions[number].context[left:right]
        if text:  # none where the tokens are white space
            answers.setdefault(text, float(scores[i]))
        if len(answers) == n_best:
            break
    return [Answer(text, score) for text, score in answers.items()]


def null_scores(windows: Windows, null: np.ndarray) -> np.ndarray:
    """The score of having no answer, float64 [questions]: the least over a question's windows."""
    first = [windows.of_question(number).start for number in range(len(windows.questions))]
    return np.minimum.reduceat(null.astype(np.float64), first)


def null_odds(
    questions: Sequence[Question], answers: Sequence[Sequence[Answer]], nulls: np.ndarray
) -> dict[str, float]:
    """By how much the score of having no answer exceeds that of the best one; id -> odds, as official scorers take."""
    scores = (null - found[0].score if found else CERTAIN for null, found in zip(nulls.tolist(), answers, strict=True))
    return {question.id: odds for question, odds in zip(questions, scores, strict=True)}


def predictions(
    questions: Sequence[Question], answers: Sequence[Sequence[Answer]], odds: Mapping[str, float] | None = None,
    threshold: float = 0.0,
) -> dict[str, str]:
    """The best answer's text, "" where there is none or its odds exceed the threshold; id -> text, for scorers."""
    texts = {question.id: found[0].text if found else "" for question, found in zip(questions, answers, strict=True)}
    return texts if odds is None else {name: "" if odds[name] > threshold else text for name, text in texts.items()}


def n_best_lists(
    questions: Sequence[Question], answers: Sequence[Sequence[Answer]], nulls: np.ndarray | None = None
) -> dict[str, list[dict[str, object]]]:
    """id -> [{"text", "probability", "score"}], best first.

    Probabilities are over the list; with `nulls`, float [questions], "" for having no answer is among them.
    """
    lists = {}
    for number, question in enumerate(questions):
        found = [*answers[number], *([] if nulls is None else [Answer("", float(nulls[number]))])] or [Answer("", 0.0)]
        found.sort(key=lambda answer: -answer.score)
        shares = np.exp(np.array([answer.score for answer in found]) - found[0].score)
        shares /= shares.sum()
        lists[question.id] = [
            {"text": answer.text, "probability": share, "score": answer.score}
            for answer, share in zip(found, shares.tolist(), strict=True)
        ]
    return lists
