"""Scores answers to SQuAD's questions as the official script does, to the last digit.

    gmlp score-squad dev-v2.0.json answers/predictions.json --null_odds=answers/null_odds.json

DATA is SQuAD's JSON, v1.1 or v2.0; PREDICTIONS is a JSON object of question id -> answer, "" for none. Either may be
compressed as .gz or .xz. Prints one JSON object: exact, f1 and total, the same for the questions with an answer
(HasAns_) and without (NoAns_), and missing_filled_with_empty, the number of questions without a prediction. With
--null_odds, a JSON object of question id -> odds of having no answer, also the best scores that a threshold on the odds
gives.
"""

from __future__ import annotations

import json
from typing import Any

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.data.finetuning import squad, squad_metrics
from gmlp_flax.errors import DataError


def by_id(path: str, kind: type | tuple[type, ...], what: str, questions: list[squad.Question]) -> dict[str, Any]:
    """A JSON object with a value per question id; raises DataError if it is none, or names other questions."""
    values = squad.read_json(path)
    expected = f"expected an object of question id -> {what}"
    if not isinstance(values, dict):
        raise DataError(f"{path}: found {type(values).__name__}; {expected}")
    for name, value in values.items():
        if not isinstance(value, kind) or isinstance(value, bool) or value != value:
            what = "NaN" if value != value else type(value).__name__
            raise DataError(f"{path}, question {name}: found {what}; {expected}")
    if not any(question.id in values for question in questions):
        raise DataError(f"{path}: none of its {len(values)} ids is a question of DATA; give the file made for it")
    return values


def main(argv: list[str]) -> None:
    """Prints the scores."""
    data, answers = argv[1:]
    questions = squad.read(data, "v2.0", check_spans=False)
    predictions = by_id(answers, str, "answer, a string", questions)
    given = flags.FLAGS.null_odds
    odds = by_id(given, (int, float), "odds, a number", questions) if given else None
    metrics = squad_metrics.evaluate(questions, predictions, odds, flags.FLAGS.na_prob_thresh)
    if odds is not None:
        metrics |= squad_metrics.tuned(questions, predictions, odds)
    print(json.dumps(metrics, indent=1))


def run() -> None:
    """The command line."""
    flags.DEFINE_string("null_odds", "", "A JSON object of question id -> odds of having no answer.")
    flags.DEFINE_float("na_prob_thresh", 1.0, 'With --null_odds: odds above this count as the answer "".')
    cli.run(main, "DATA PREDICTIONS")
