"""SQuAD's official metrics, exact match and token F1, as the v2.0 script defines them; v1.1 gives the same."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gmlp_flax.data.finetuning.squad import Question

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def words(answer: str) -> list[str]:
    """The words of an answer: lower case, without ASCII punctuation and English articles."""
    return _ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split()


def score(prediction: str, references: Iterable[str]) -> tuple[float, float]:
    """(exact match, F1) of a predicted answer, each 0 to 1 and the best over the references.

    F1 compares multisets of words. References without words do not count; if no other is left, the right answer is an
    answer without words.
    """
    predicted = words(prediction)
    scores = [_pair(predicted, reference) for reference in map(words, references) if reference]
    exact, f1 = zip(*(scores or [_pair(predicted, [])]), strict=True)
    return max(exact), max(f1)


def _pair(predicted: list[str], reference: list[str]) -> tuple[float, float]:
    exact, common = float(predicted == reference), sum((Counter(predicted) & Counter(reference)).values())
    if not common:
        return exact, exact  # exact only if both are empty
    precision, recall = common / len(predicted), common / len(reference)
    return exact, 2 * precision * recall / (precision + recall)


def scores(questions: Sequence[Question], predictions: Mapping[str, str]) -> np.ndarray:
    """Exact match and F1 for each question, 0 to 1, float64 [questions, 2]; a missing prediction counts as ""."""
    pairs = [score(predictions.get(q.id, ""), (text for text, _ in q.answers)) for q in questions]
    return np.array(pairs, np.float64).reshape(-1, 2)


def evaluate(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """The official script's results, in percent: exact, f1 and total, of all questions, and with and without answers.

    `missing_filled_with_empty` counts the questions without a prediction. Predictions for other ids are ignored.
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
    """Means, in percent, of the scores of at least one question, float64 [questions, 2]; and the questions' number."""
    # Summed one by one, as the official script does with Python's sum before 3.12, which now compensates for rounding.
    exact, f1 = np.cumsum(values, axis=0)[-1]
    return {"exact": 100.0 * float(exact) / len(values), "f1": 100.0 * float(f1) / len(values), "total": len(values)}


def best_thresholds(
    questions: Sequence[Question], predictions: Mapping[str, str], odds: Mapping[str, float]
) -> dict[str, float]:
    """The results at the best threshold: best_exact and best_f1 in percent, best_exact_thresh and best_f1_thresh.

    Questions whose odds of having no answer exceed the threshold are answered by "", the others as predicted. As in the
    official script, the threshold is chosen on the same questions: an upper bound, not a score of the model.

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
