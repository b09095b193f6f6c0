"""Scores of windows to answers, as in BERT's SQuAD (Devlin et al. 2019, sections 4.2 and 4.3), and
SQuAD's official metrics, exact match and token F1, as the v2.0 script defines them; v1.1 gives the
same.

An answer is a span of the passage; the score of [CLS] stands for having no answer.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gmlp_flax.data.finetuning.squad import Question, Windows, widest_context

# The odds of having no answer if there is no possible span: JSON has no infinity.
CERTAIN = float(np.finfo(np.float32).max)

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


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


def find_answers(
    windows: Windows, scores: SpanScores, *, n_best: int, max_answer: int
) -> list[list[Answer]]:
    """The best answers to each question, at most `n_best`, best first and without repeated texts;
    perhaps none.

    Every start in a window is combined with every end in it. Left out are spans that leave the
    passage, end before they start or are longer than `max_answer` tokens, and spans whose start has
    more context in another window.
    """
    return [
        _answers(windows, scores, number, n_best, max_answer)
        for number in range(len(windows.questions))
    ]


def _answers(
    windows: Windows, scores: SpanScores, number: int, n_best: int, max_answer: int
) -> list[Answer]:
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
    totals = (
        scores.start_scores[rows].astype(np.float64)[window, start]
        + scores.end_scores[rows][window, end]
    )
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
    """id -> the score of having no answer minus the best answer's score, in the form that the
    official script reads."""
    scores = (
        null - best[0].score if best else CERTAIN
        for null, best in zip(nulls.tolist(), answers, strict=True)
    )
    return {question.id: odds for question, odds in zip(questions, scores, strict=True)}


def predictions(
    questions: Sequence[Question],
    answers: Sequence[Sequence[Answer]],
    odds: Mapping[str, float] | None = None,
    threshold: float = 0.0,
) -> dict[str, str]:
    """id -> the best answer's text; "" if there is no answer, or if its odds of having none exceed
    the threshold."""
    texts = {
        question.id: best[0].text if best else ""
        for question, best in zip(questions, answers, strict=True)
    }
    return (
        texts
        if odds is None
        else {name: "" if odds[name] > threshold else text for name, text in texts.items()}
    )


def n_best_lists(
    questions: Sequence[Question],
    answers: Sequence[Sequence[Answer]],
    nulls: np.ndarray | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """id -> [{"text", "probability", "score"}], best first.

    Probabilities sum to 1 over a question's list. With `nulls`, float [questions], the list
    includes having no answer, as the text "".
    """
    lists = {}
    for number, question in enumerate(questions):
        best = [
            *answers[number],
            *([] if nulls is None else [Answer("", float(nulls[number]))]),
        ] or [Answer("", 0.0)]
        best.sort(key=lambda answer: -answer.score)
        shares = np.exp(np.array([answer.score for answer in best]) - best[0].score)
        shares /= shares.sum()
        lists[question.id] = [
            {"text": answer.text, "probability": share, "score": answer.score}
            for answer, share in zip(best, shares.tolist(), strict=True)
        ]
    return lists


def words(answer: str) -> list[str]:
    """The words of an answer: lower case, without ASCII punctuation and English articles."""
    return _ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split()


def score(prediction: str, references: Iterable[str]) -> tuple[float, float]:
    """(exact match, F1) of a predicted answer, each 0 to 1 and the best over the references.

    F1 compares multisets of words. References without words do not count; if no other is left, the
    right answer is an answer without words.
    """
    predicted = words(prediction)
    scores = [_pair(predicted, reference) for reference in map(words, references) if reference]
    exact, f1 = zip(*(scores or [_pair(predicted, [])]), strict=True)
    return max(exact), max(f1)


def _pair(predicted: list[str], reference: list[str]) -> tuple[float, float]:
    exact, common = (
        float(predicted == reference),
        sum((Counter(predicted) & Counter(reference)).values()),
    )
    if not common:
        return exact, exact  # exact only if both are empty
    precision, recall = common / len(predicted), common / len(reference)
    return exact, 2 * precision * recall / (precision + recall)


def scores(questions: Sequence[Question], predictions: Mapping[str, str]) -> np.ndarray:
    """Exact match and F1 for each question, 0 to 1, float64 [questions, 2]; a missing prediction
    counts as ""."""
    pairs = [score(predictions.get(q.id, ""), (text for text, _ in q.answers)) for q in questions]
    return np.array(pairs, np.float64).reshape(-1, 2)


def evaluate(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """The official script's results, in percent: exact, f1 and total, of all questions, and with
    and without answers.

    `missing_filled_with_empty` counts the questions without a prediction. Predictions for other ids
    are ignored.
    """
    values = scores(questions, predictions)
    answerable = np.array([not question.impossible for question in questions], bool)
    metrics = summary(values)
    for name, group in (("HasAns", answerable), ("NoAns", ~answerable)):
        if group.any():
            metrics |= {f"{name}_{key}": value for key, value in summary(values[group]).items()}
    missing = sum(question.id not in predictions for question in questions)
    return metrics | {"missing_filled_with_empty": missing}


def summary(values: np.ndarray) -> dict[str, float]:
    """Means, in percent, of the scores of at least one question, float64 [questions, 2]; and the
    questions' number."""
    # Summed one by one, as the official script does with Python's sum before 3.12, which now
    # compensates for rounding.
    exact, f1 = np.cumsum(values, axis=0)[-1]
    return {
        "exact": 100.0 * float(exact) / len(values),
        "f1": 100.0 * float(f1) / len(values),
        "total": len(values),
    }


def best_thresholds(
    questions: Sequence[Question], predictions: Mapping[str, str], odds: Mapping[str, float]
) -> dict[str, float]:
    """The results at the best threshold: best_exact and best_f1 in percent, best_exact_thresh and
    best_f1_thresh.

    Questions whose odds of having no answer exceed the threshold are answered by "", the others as
    predicted. As in the official script, the threshold is chosen on the same questions: an upper
    bound, not a score of the model.

    Args:
        questions: at least one.
        predictions: id -> answer.
        odds: id -> odds of having no answer; questions without odds are answered by "".
    """
    unanswerable = sum(question.impossible for question in questions)
    judged = sorted((q for q in questions if q.id in odds), key=lambda question: odds[question.id])
    gains = scores(judged, predictions)
    # For a question without an answer, "" was right already.
    for gain, question in zip(gains, judged, strict=True):
        if question.impossible:
            gain[:] = -1.0 if predictions.get(question.id) else 0.0
    totals = np.cumsum(np.concatenate([np.full((1, 2), unanswerable, np.float64), gains]), axis=0)
    best = totals.argmax(axis=0)
    metrics = {}
    for name, total, index in zip(("exact", "f1"), totals.T, best, strict=True):
        metrics[f"best_{name}"] = 100.0 * float(total[index]) / len(questions)
        metrics[f"best_{name}_thresh"] = float(odds[judged[index - 1].id]) if index else 0.0
    return metrics
