"""Scores of windows to answers, as in BERT's SQuAD (Devlin et al. 2019, sections 4.2 and 4.3).

An answer is a span of the passage; the score of [CLS] stands for having no answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gmlp_flax.data.finetuning.squad import Question
from gmlp_flax.data.finetuning.squad_windows import Windows, widest_context

# The odds of having no answer if there is no possible span: JSON has no infinity.
CERTAIN = float(np.finfo(np.float32).max)


class Answer(NamedTuple):
    """The text of a span of the passage, and the sum of its start's and end's scores."""

    text: str
    score: float


class SpanScores(NamedTuple):
    """The best starts and ends of each window, best first, and the score of having no answer.

    Attributes:
        start_scores, end_scores: float [windows, n_best].
        start_positions, end_positions: int [windows, n_best], positions in the window.
        null: float [windows], the score of [CLS] as both start and end.
    """

    start_scores: np.ndarray
    start_positions: np.ndarray
    end_scores: np.ndarray
    end_positions: np.ndarray
    null: np.ndarray


def find_answers(windows: Windows, scores: SpanScores, *, n_best: int, max_answer: int) -> list[list[Answer]]:
    """The best answers to each question, at most `n_best`, best first and without repeated texts; perhaps none.

    Every start in a window is combined with every end in it. Left out are spans that leave the passage, end before they
    start or are longer than `max_answer` tokens, and spans whose start has more context in another window.
    """
    return [_answers(windows, scores, number, n_best, max_answer) for number in range(len(windows.questions))]


def _answers(windows: Windows, scores: SpanScores, number: int, n_best: int, max_answer: int) -> list[Answer]:
    of_question = windows.of_question(number)
    rows = slice(of_question.start, of_question.stop)
    begin, size, spans = windows.begin[rows, None], windows.size[rows, None], windows.spans(number)
    if not len(spans):
        return []
    offset = windows.passage_offset(of_question.start)
    starts, ends = scores.start_positions[rows] - offset, scores.end_positions[rows] - offset
    first, last = starts + begin, ends + begin
    owner = widest_context(begin[:, 0], size[:, 0], len(spans))[np.clip(first, 0, len(spans) - 1)]
    may_start = (starts >= 0) & (starts < size) & (owner == np.arange(len(begin))[:, None])
    may_end = (ends >= 0) & (ends < size)
    tokens = last[:, None, :] - first[:, :, None] + 1
    allowed = may_start[:, :, None] & may_end[:, None, :] & (tokens >= 1) & (tokens <= max_answer)
    window, start, end = np.nonzero(allowed)
    totals = scores.start_scores[rows].astype(np.float64)[window, start] + scores.end_scores[rows][window, end]
    answers: dict[str, float] = {}
    for i in np.argsort(-totals, kind="stable"):
        left, right = spans[first[window[i], start[i]], 0], spans[last[window[i], end[i]], 1]
        text = windows.questions[number].context[left:right]
        if text:  # empty if the tokens are only white space
            answers.setdefault(text, float(totals[i]))
        if len(answers) == n_best:
            break
    return [Answer(text, score) for text, score in answers.items()]


def null_scores(windows: Windows, null: np.ndarray) -> np.ndarray:
    """The score of having no answer, float64 [questions]: the lowest over a question's windows."""
    first = [windows.of_question(number).start for number in range(len(windows.questions))]
    return np.minimum.reduceat(null.astype(np.float64), first)


def null_odds(
    questions: Sequence[Question], answers: Sequence[Sequence[Answer]], nulls: np.ndarray
) -> dict[str, float]:
    """id -> the score of having no answer minus the best answer's score, in the form that the official script reads."""
    scores = (null - best[0].score if best else CERTAIN for null, best in zip(nulls.tolist(), answers, strict=True))
    return {question.id: odds for question, odds in zip(questions, scores, strict=True)}


def predictions(
    questions: Sequence[Question],
    answers: Sequence[Sequence[Answer]],
    odds: Mapping[str, float] | None = None,
    threshold: float = 0.0,
) -> dict[str, str]:
    """id -> the best answer's text; "" if there is no answer, or if its odds of having none exceed the threshold."""
    texts = {question.id: best[0].text if best else "" for question, best in zip(questions, answers, strict=True)}
    return texts if odds is None else {name: "" if odds[name] > threshold else text for name, text in texts.items()}


def n_best_lists(
    questions: Sequence[Question], answers: Sequence[Sequence[Answer]], nulls: np.ndarray | None = None
) -> dict[str, list[dict[str, Any]]]:
    """id -> [{"text", "probability", "score"}], best first.

    Probabilities sum to 1 over a question's list. With `nulls`, float [questions], the list includes having no answer,
    as the text "".
    """
    lists = {}
    for number, question in enumerate(questions):
        best = [*answers[number], *([] if nulls is None else [Answer("", float(nulls[number]))])] or [Answer("", 0.0)]
        best.sort(key=lambda answer: -answer.score)
        shares = np.exp(np.array([answer.score for answer in best]) - best[0].score)
        shares /= shares.sum()
        lists[question.id] = [
            {"text": answer.text, "probability": share, "score": answer.score}
            for answer, share in zip(best, shares.tolist(), strict=True)
        ]
    return lists
