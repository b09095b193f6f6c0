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
from gmlp_flax.data.finetuning.windows import Windows

Predictions = Mapping[str, str]  # a question's id -> its answer

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


class _Candidates(NamedTuple):
    """The best starts, or the best ends, of each window of a question.

    Attributes:
        tokens: int [windows, n_best], tokens of the passage.
        is_inside: bool [windows, n_best], whether the window holds this token of the passage; else
            `tokens` means nothing.
        scores: float64 [windows, n_best].
    """

    tokens: np.ndarray
    is_inside: np.ndarray
    scores: np.ndarray


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

    Every start in a window is combined with every end in it. Spans are left out if they leave the
    passage, end before they start, or are longer than `max_answer` tokens, or if their start has
    more context in another window.
    """
    answers: list[list[Answer]] = []
    for number in range(len(windows.questions)):
        best: list[Answer] = []
        tokens = windows.spans(number)
        if len(tokens):
            spans = _possible_spans(windows, scores, number, max_answer)
            best = _best_answers(windows, number, spans, n_best)
        answers.append(best)
    return answers


def _possible_spans(windows: Windows, scores: SpanScores, number: int, max_answer: int) -> _Spans:
    """The spans of a question's passage that `find_answers` does not leave out."""
    starts = _candidates(windows, number, scores.start_positions, scores.start_scores)
    ends = _candidates(windows, number, scores.end_positions, scores.end_scores)
    widest = windows.widest(number)
    are_widest = _are_widest(starts.tokens, widest)
    may_start = starts.is_inside & are_widest

    # Each start with each end: [windows, starts, ends].
    first = starts.tokens[:, :, None]
    last = ends.tokens[:, None, :]
    lengths = last - first + 1
    is_long_enough = lengths >= 1
    is_short_enough = lengths <= max_answer
    is_start = may_start[:, :, None]
    is_end = ends.is_inside[:, None, :]
    is_possible = is_start & is_end & is_long_enough & is_short_enough
    window, start, end = np.nonzero(is_possible)
    start_scores = starts.scores[window, start]
    end_scores = ends.scores[window, end]
    return _Spans(
        first=starts.tokens[window, start],
        last=ends.tokens[window, end],
        scores=start_scores + end_scores,
    )


def _candidates(
    windows: Windows, number: int, positions: np.ndarray, scores: np.ndarray
) -> _Candidates:
    """A question's starts or ends; `positions` and `scores`, [windows, n_best], are those of all
    windows."""
    rows = windows.rows(number)
    begin = windows.begin[rows, None]
    size = windows.size[rows, None]
    offset = windows.passage_offset(rows.start)
    in_passage = positions[rows] - offset
    is_after_begin = in_passage >= 0
    is_before_end = in_passage < size
    return _Candidates(
        tokens=begin + in_passage,
        is_inside=is_after_begin & is_before_end,
        scores=scores[rows].astype(np.float64),
    )


def _are_widest(tokens: np.ndarray, widest: np.ndarray) -> np.ndarray:
    """Whether each window is the widest for its tokens: bool [windows, n_best].

    Args:
        tokens: int [windows, n_best], tokens of the passage.
        widest: see Windows.widest.
    """
    last = len(widest) - 1
    passage_tokens = np.clip(tokens, 0, last)
    widest_windows = widest[passage_tokens]
    numbers = np.arange(len(tokens))
    windows = numbers[:, None]
    return widest_windows == windows


def _best_answers(windows: Windows, number: int, spans: _Spans, n_best: int) -> list[Answer]:
    """The texts of the best spans, each with its best score."""
    context = windows.questions[number].context
    characters = windows.spans(number)
    starts = characters[spans.first, 0]
    stops = characters[spans.last, 1]
    best_first = np.argsort(-spans.scores, kind="stable")
    answers: dict[str, Answer] = {}
    for index in best_first:
        if len(answers) == n_best:
            break
        start = starts[index]
        stop = stops[index]
        text = context[start:stop].strip()
        is_blank = not text  # the tokens are only white space
        if is_blank or text in answers:
            continue
        score = float(spans.scores[index])
        answers[text] = Answer(text, score)
    return list(answers.values())


def null_scores(windows: Windows, null: np.ndarray) -> np.ndarray:
    """The score of having no answer, float64 [questions]: the lowest over a question's windows."""
    lowest = []
    for number in range(len(windows.questions)):
        rows = windows.rows(number)
        of_question = null[rows]
        lowest.append(of_question.min())
    return np.array(lowest, np.float64)


def null_odds(
    questions: Sequence[Question], answers: Sequence[Sequence[Answer]], nulls: np.ndarray
) -> dict[str, float]:
    """id -> the score of having no answer minus the best answer's score, in the form that the
    official script reads."""
    odds = {}
    for question, best, null in zip(questions, answers, nulls.tolist(), strict=True):
        odds_of_question = CERTAIN
        if best:
            odds_of_question = null - best[0].score
        odds[question.id] = odds_of_question
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
            null_score = float(nulls[number])
            no_answer = Answer("", null_score)
            best.append(no_answer)
        if not best:
            no_answer = Answer("", 0.0)
            best.append(no_answer)
        best.sort(key=lambda answer: -answer.score)
        lists[question.id] = _with_probabilities(best)
    return lists


def _with_probabilities(best: Sequence[Answer]) -> list[dict[str, Any]]:
    """Answers, best first, with the softmax of their scores."""
    scores = np.array([answer.score for answer in best])
    below_best = scores - scores[0]
    weights = np.exp(below_best)
    probabilities = weights / weights.sum()
    entries = []
    for answer, probability in zip(best, probabilities.tolist(), strict=True):
        entry = {
            "text": answer.text,
            "probability": probability,
            "score": answer.score,
        }
        entries.append(entry)
    return entries


def words(answer: str) -> list[str]:
    """The words of an answer: lower case, without ASCII punctuation and English articles."""
    lower_case = answer.lower()
    without_punctuation = lower_case.translate(_NO_PUNCTUATION)
    without_articles = _ARTICLES.sub(" ", without_punctuation)
    return without_articles.split()


def score(prediction: str, references: Iterable[str]) -> tuple[float, float]:
    """(exact match, F1) of a predicted answer, each 0 to 1 and the best over the references.

    F1 compares multisets of words. References without words do not count; if no other is left, the
    right answer is an answer without words.
    """
    predicted = words(prediction)
    all_words = map(words, references)
    wanted = [reference for reference in all_words if reference]
    if not wanted:
        wanted.append([])
    exact = 0.0
    f1 = 0.0
    for reference in wanted:
        is_exact = predicted == reference
        exact = max(exact, float(is_exact))
        f1_of_reference = _f1(predicted, reference)
        f1 = max(f1, f1_of_reference)
    return exact, f1


def _f1(predicted: list[str], reference: list[str]) -> float:
    """The harmonic mean of precision and recall; if either answer has no words, 1 if neither has
    any, else 0."""
    if not predicted or not reference:
        is_exact = predicted == reference
        return float(is_exact)
    shared = Counter(predicted) & Counter(reference)
    common = shared.total()
    if not common:
        return 0.0
    precision = common / len(predicted)
    recall = common / len(reference)
    total = precision + recall
    return 2 * precision * recall / total


def scores(questions: Sequence[Question], predictions: Predictions) -> np.ndarray:
    """Exact match and F1 for each question, 0 to 1, float64 [questions, 2]; a missing prediction
    counts as ""."""
    rows = []
    for question in questions:
        prediction = predictions.get(question.id, "")
        references = [text for text, _ in question.answers]
        row = score(prediction, references)
        rows.append(row)
    values = np.array(rows, np.float64)
    return values.reshape(-1, 2)


def evaluate(questions: Sequence[Question], predictions: Predictions) -> dict[str, float]:
    """The official script's results, in percent: exact, f1 and total, of all questions, of those
    with answers (HasAns), and of those without (NoAns).

    `missing_filled_with_empty` counts the questions without a prediction. Predictions for other ids
    are ignored.
    """
    values = scores(questions, predictions)
    impossible = [question.impossible for question in questions]
    is_impossible = np.array(impossible, bool)
    groups = {
        "HasAns": values[~is_impossible],
        "NoAns": values[is_impossible],
    }
    metrics = summary(values)
    for prefix, group in groups.items():
        if not len(group):
            continue
        metrics_of_group = summary(group)
        for name, value in metrics_of_group.items():
            metrics[f"{prefix}_{name}"] = value
    missing = [question.id for question in questions if question.id not in predictions]
    metrics["missing_filled_with_empty"] = len(missing)
    return metrics


def summary(values: np.ndarray) -> dict[str, float]:
    """Means, in percent, of the scores of at least one question, float64 [questions, 2]; and the
    number of questions."""
    # Summed one by one, as the official script does with Python's sum before 3.12, which now
    # compensates for rounding.
    running_sums = np.cumsum(values, axis=0)
    exact, f1 = running_sums[-1].tolist()
    total = len(values)
    return {
        "exact": 100.0 * exact / total,
        "f1": 100.0 * f1 / total,
        "total": total,
    }


def best_thresholds(
    questions: Sequence[Question], predictions: Predictions, odds: Mapping[str, float]
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
        # If no judged question is answered, the unanswerable ones are right. The threshold rises
        # from question to question.
        total = float(unanswerable)
        best_total = total
        best_threshold = 0.0
        gains_of_column = gains[:, column]
        for question, gain in zip(judged, gains_of_column.tolist(), strict=True):
            total += gain
            if total > best_total:
                best_total = total
                best_threshold = float(odds[question.id])
        metrics[f"best_{name}"] = 100.0 * best_total / len(questions)
        metrics[f"best_{name}_thresh"] = best_threshold
    return metrics


def _gains(questions: Sequence[Question], predictions: Predictions) -> np.ndarray:
    """How much exact match and F1 gain if a question is answered as predicted instead of by "":
    float64 [questions, 2]."""
    gains = scores(questions, predictions)
    for row, question in enumerate(questions):
        if question.impossible:  # "" was right already
            answer = predictions.get(question.id)
            gains[row] = -1.0 if answer else 0.0
    return gains
