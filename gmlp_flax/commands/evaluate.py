"""Scores a checkpoint on held-out data.

    gmlp evaluate --workdir=runs/text --checkpoint=best
    gmlp evaluate --workdir=DIR [--checkpoint=latest|best|STEP] [--config.KEY=VALUE ...] [--predictions=FOLDER]

Prints one JSON object: `step`, `checkpoint` (its folder) and `eval`, the metrics over the run's held-out data. For the
latest checkpoint of a finished run these are the run's own final metrics, to the last bit.

Keys of the run's config may be changed for the evaluation: --config.data.heldout=tfds:imagenet2012 scores other data
of the same classes, --config.eval.real_labels=FILE adds ReaL accuracy, --config.eval.batch_size=N fits other devices.

--predictions=FOLDER also writes a finetuned model's predictions, as GLUE's and SQuAD's official scorers read them. If
the run keeps a running mean of its parameters, they are the predictions of the mean.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.commands import cli
from gmlp_flax.errors import DataError

if TYPE_CHECKING:
    from gmlp_flax.data.finetuning.squad import Question


SCORE_SQUAD = """Scores answers to SQuAD's questions as the official script does, to the last digit.

    gmlp score-squad dev-v2.0.json answers/predictions.json --null_odds=answers/null_odds.json

DATA is SQuAD's JSON, v1.1 or v2.0; PREDICTIONS is a JSON object of question id -> answer, "" for none. Either may be
compressed as .gz or .xz. Prints one JSON object: exact, f1 and total, the same for the questions with an answer
(HasAns_) and without (NoAns_), and missing_filled_with_empty, the number of questions without a prediction. With
--null_odds, a JSON object of question id -> odds of having no answer, also the best scores that a threshold on the odds
gives.
"""


def main(_argv: list[str], config: ConfigDict | None) -> None:
    """Prints the metrics of a checkpoint."""
    workdir = cli.required("workdir", "evaluate --workdir=DIR [--checkpoint=latest|best|STEP]")
    if config is not None:
        from gmlp_flax import config as config_lib

        config_lib.validate(config)
    with cli.among_processes():
        _evaluate(workdir, config)


def _evaluate(workdir: str, config: ConfigDict | None) -> None:
    from gmlp_flax.checkpoints.names import CHECKPOINTS
    from gmlp_flax.io import files
    from gmlp_flax.processes import distributed
    from gmlp_flax.training import evaluation, loading

    trained = loading.load(workdir, flags.FLAGS.checkpoint, config)
    size = trained.config.eval.batch_size or trained.config.batch_size
    trained.partition.check_batch(size, 1, "config.eval.batch_size")
    evaluator = evaluation.Evaluator(trained.task, trained.partition)
    metrics, outputs = evaluator(trained.params, trained.ema)
    if not distributed.is_first():
        return
    if flags.FLAGS.predictions:
        _write(trained.task.prediction_files(outputs), flags.FLAGS.predictions)
    checkpoint = os.path.join(files.absolute(workdir), CHECKPOINTS, str(trained.step))
    print(json.dumps({"step": trained.step, "checkpoint": checkpoint, "eval": metrics}))


def _write(files: dict[str, bytes], target: str) -> None:
    from gmlp_flax.checkpoints import run_folder

    if not files:
        cli.fail("--predictions is for tasks that write predictions: this run has none to write")
    run_folder.write_files(target, files, replace=True)
    print(f"wrote {', '.join(files)} to {target}", file=sys.stderr)


def run() -> None:
    """The command line."""
    flags.DEFINE_string("predictions", "", "A folder to write the predictions to, as official scorers read them.")
    cli.define_run_flags(checkpoint="latest")
    cli.define_multihost_flags()
    cli.run(main, config=cli.config_of_run)


def _by_id(path: str, kind: type | tuple[type, ...], what: str, questions: Sequence[Question]) -> dict[str, Any]:
    """A JSON object with a value per question id; raises DataError if it is none, or names other questions."""
    from gmlp_flax.data.finetuning import squad

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


def score_squad(argv: list[str]) -> None:
    """Prints the scores of answers."""
    from gmlp_flax.data.finetuning import squad, squad_metrics

    data, answers = argv[1:]
    questions = squad.read(data, "v2.0", check_spans=False)
    predictions = _by_id(answers, str, "answer, a string", questions)
    given = flags.FLAGS.null_odds
    odds = _by_id(given, (int, float), "odds, a number", questions) if given else None
    metrics = squad_metrics.evaluate(questions, predictions, odds, flags.FLAGS.na_prob_thresh)
    if odds is not None:
        metrics |= squad_metrics.best_thresholds(questions, predictions, odds)
    print(json.dumps(metrics, indent=1))


def run_score_squad() -> None:
    """The command line of `gmlp score-squad`."""
    flags.DEFINE_string("null_odds", "", "A JSON object of question id -> odds of having no answer.")
    flags.DEFINE_float("na_prob_thresh", 1.0, 'With --null_odds: odds above this count as the answer "".')
    cli.run(score_squad, "DATA PREDICTIONS", about=SCORE_SQUAD)
