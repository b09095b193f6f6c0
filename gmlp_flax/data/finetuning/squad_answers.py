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

from gmlp_flax.data.finetuning.questions import Question
from gmlp_flax.data.finetuning.windows import Windows, widest_context

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


class _Spans(NamedTuple):
    """Spans of a question's passage, in tokens, and the sum of their start's and end's scores.

    Attributes:
        first, last: int [spans], the first and the last token of the passage.
        scores: float64 [spans].
    """

    first: np.ndarray
    last: np.ndarray
    scores: np.ndarray


def find_answers(
    windows: Windows, scores: SpanScores, *, n_best: int, max_answer: int
) -> list[list[Answer]]:
    """The best answers to each question, at most `n_best`, best first and without repeated texts;
    perhaps none.

    Every start in a window is combined with every end in it. Left out are spans that leave the
    passage, end before they start or are longer than `max_answer` tokens, and spans whose start has
    more context in another window.
    """
    answers: list[list[Answer]] = []
    for number in range(len(windows.questions)):
        if len(windows.spans(number)):
            spans = _possible_spans(windows, scores, number, max_answer)
            answers.append(_best_answers(windows, number, spans, n_best))
        else:
            answers.append([])
    return answers


def _possible_spans(windows: Windows, scores: SpanScores, number: int, max_answer: int) -> _Spans:
    """The spans of a question's passage that `find_answers` does not leave out."""
    members = windows.of_question(number)
    rows = slice(members.start, members.stop)
    begin = windows.begin[rows]
    size = windows.size[rows]
    passage_offset = windows.passage_offset(members.start)
    passage_tokens = len(windows.spans(number))

    # Tokens of the passage, and whether they are in the window: [windows, n_best].
    start_in_window = scores.start_positions[rows] - passage_offset
    end_in_window = scores.end_positions[rows] - passage_offset
    start_is_inside = (start_in_window >= 0) & (start_in_window < size[:, None])
    end_is_inside = (end_in_window >= 0) & (end_in_window < size[:, None])
    start_token = start_in_window + begin[:, None]
    end_token = end_in_window + begin[:, None]

    owner = widest_context(begin, size, passage_tokens)
    start_owner = owner[np.clip(start_token, 0, passage_tokens - 1)]
    is_owner = start_owner == np.arange(len(members))[:, None]
    may_start = start_is_inside & is_owner

    # Each start with each end: [windows, n_best, n_best].
    tokens = end_token[:, None, :] - start_token[:, :, None] + 1
    fits = (tokens >= 1) & (tokens <= max_answer)
    is_possible = may_start[:, :, None] & end_is_inside[:, None, :] & fits
    window, start, end = np.nonzero(is_possible)
    start_scores = scores.start_scores[rows].astype(np.float64)
    end_scores = scores.end_scores[rows].astype(np.float64)
    return _Spans(
        first=start_token[window, start],
        last=end_token[window, end],
        scores=start_scores[window, start] + end_scores[window, end],
    )


def _best_answers(windows: Windows, number: int, spans: _Spans, n_best: int) -> list[Answer]:
    """The texts of the best spans, each with its best score."""
    context = windows.questions[number].context
    characters = windows.spans(number)
    answers: dict[str, Answer] = {}
    for index in np.argsort(-spans.scores, kind="stable"):
        if len(answers) == n_best:
            break
        start = characters[spans.first[index], 0]
        stop = characters[spans.last[index], 1]
        text = context[start:stop]
        if text and text not in answers:  # empty if the tokens are only white space
            answers[text] = Answer(text, float(spans.scores[index]))
    return list(answers.values())


def null_scores(windows: Windows, null: np.ndarray) -> np.ndarray:
    """The score of having no answer, float64 [questions]: the lowest over a question's windows."""
    first = [windows.of_question(number).start for number in range(len(windows.questions))]
    return np.minimum.reduceat(null.astype(np.float64), first)


def null_odds(
    questions: Sequence[Question], answers: Sequence[Sequence[Answer]], nulls: np.ndarray
) -> dict[str, float]:
    """id -> the score of having no answer minus the best answer's score, in the form that the
    official script reads."""
    odds = {}
    for question, best, null in zip(questions, answers, nulls.tolist(), strict=True):
        if best:
            odds[question.id] = null - best[0].score
        else:
            odds[question.id] = CERTAIN
    return odds


def predictions(
    questions: Sequence[Question],
    answers: Sequence[Sequence[Answer]],
    odds: Mapping[str, float] | None = None,
    threshold: float = 0.0,
) -> dict[str, str]:
    """id -> the best answer's text; "" if there is no answer, or if its odds of having none exceed
    the threshold."""
    texts = {}
    for question, best in zip(questions, answers, strict=True):
        text = best[0].text if best else ""
        if odds is not None and odds[question.id] > threshold:
            text = ""
        texts[question.id] = text
    return texts


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
        best = list(answers[number])
        if nulls is not None:
            best.append(Answer("", float(nulls[number])))
        if not best:
            best.append(Answer("", 0.0))
        best.sort(key=lambda answer: -answer.score)
        lists[question.id] = _with_probabilities(best)
    return lists


def _with_probabilities(best: Sequence[Answer]) -> list[dict[str, Any]]:
    """Answers, of which the first has the highest score, with the softmax of their scores."""
    scores = np.array([answer.score for answer in best])
    weights = np.exp(scores - scores[0])
    probabilities = weights / weights.sum()
    entries = []
    for answer, probability in zip(best, probabilities.tolist(), strict=True):
        entries.append({"text": answer.text, "probability": probability, "score": answer.score})
    return entries


def words(answer: str) -> list[str]:
    """The words of an answer: lower case, without ASCII punctuation and English articles."""
    text = answer.lower().translate(_NO_PUNCTUATION)
    return _ARTICLES.sub(" ", text).split()


def score(prediction: str, references: Iterable[str]) -> tuple[float, float]:
    """(exact match, F1) of a predicted answer, each 0 to 1 and the best over the references.

    F1 compares multisets of words. References without words do not count; if no other is left, the
    right answer is an answer without words.
    """
    predicted = words(prediction)
    wanted = [reference for reference in map(words, references) if reference]
    exact = 0.0
    f1 = 0.0
    for reference in wanted or [[]]:
        exact = max(exact, float(predicted == reference))
        f1 = max(f1, _f1(predicted, reference))
    return exact, f1


def _f1(predicted: list[str], reference: list[str]) -> float:
    """The harmonic mean of precision and recall; of an answer without words, whether both are."""
    if not predicted or not reference:
        return float(predicted == reference)
    common = Counter(predicted) & Counter(reference)
    if not common:
        return 0.0
    precision = common.total() / len(predicted)
    recall = common.total() / len(reference)
    return 2 * precision * recall / (precision + recall)


def scores(questions: Sequence[Question], predictions: Mapping[str, str]) -> np.ndarray:
    """Exact match and F1 for each question, 0 to 1, float64 [questions, 2]; a missing prediction
    counts as ""."""
    values = np.zeros((len(questions), 2), np.float64)
    for row, question in enumerate(questions):
        prediction = predictions.get(question.id, "")
        references = [text for text, _ in question.answers]
        values[row] = score(prediction, references)
    return values


def evaluate(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """The official script's results, in percent: exact, f1 and total, of all questions, and with
    and without answers.

    `missing_filled_with_empty` counts the questions without a prediction. Predictions for other ids
    are ignored.
    """
    values = scores(questions, predictions)
    impossible = np.array([question.impossible for question in questions], bool)
    groups = {"HasAns": ~impossible, "NoAns": impossible}
    metrics = summary(values)
    for prefix, is_member in groups.items():
        if not is_member.any():
            continue
        for name, value in summary(values[is_member]).items():
            metrics[f"{prefix}_{name}"] = value
    missing = [question.id for question in questions if question.id not in predictions]
    metrics["missing_filled_with_empty"] = len(missing)
    return metrics


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
    judged = [question for question in questions if question.id in odds]
    judged.sort(key=lambda question: odds[question.id])
    gains = _gains(judged, predictions)
    metrics = {}
    for column, name in enumerate(("exact", "f1")):
        # Of answering none of the judged questions, the first one, the first two, ...
        totals = np.cumsum([unanswerable, *gains[:, column]])
        answered = int(totals.argmax())
        best = float(totals[answered])
        threshold = 0.0
        if answered:
            last = judged[answered - 1]
            threshold = float(odds[last.id])
        metrics[f"best_{name}"] = 100.0 * best / len(questions)
        metrics[f"best_{name}_thresh"] = threshold
    return metrics


def _gains(questions: Sequence[Question], predictions: Mapping[str, str]) -> np.ndarray:
    """What exact match and F1 gain where a question is answered as predicted, and not by "":
    float64 [questions, 2]."""
    gains = scores(questions, predictions)
    for row, question in enumerate(questions):
        if question.impossible:  # "" was right already
            is_answered = bool(predictions.get(question.id))
            gains[row] = -1.0 if is_answered else 0.0
    return gains
