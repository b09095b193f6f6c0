"""Scores a checkpoint on held-out data.

    gmlp evaluate --workdir=runs/text --checkpoint=best
    gmlp evaluate --workdir=DIR [--checkpoint=latest|best|STEP] [--config.KEY=VALUE ...] [--predictions=FOLDER]

Prints one JSON object: `step`, `checkpoint` (its folder) and `eval`, the metrics over the run's held-out data. Keys of
the run's config may be changed: --config.data.heldout=tfds:imagenet2012 scores other data of the same classes,
--config.eval.real_labels=FILE adds ReaL accuracy. --predictions=FOLDER also writes a finetuned model's predictions, of
the running mean of its parameters if it keeps one, as GLUE's and SQuAD's official scorers read them.
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
from gmlp_flax.errors import DataError, RunError

if TYPE_CHECKING:
    from gmlp_flax.data.finetuning.squad import Question

SCORE_SQUAD = """Scores answers to SQuAD's questions as the official script does, to the last digit.

    gmlp score-squad dev-v2.0.json answers/predictions.json --null_odds=answers/null_odds.json

DATA is SQuAD's JSON, v1.1 or v2.0; PREDICTIONS is a JSON object of question id -> answer, "" for none; either may end
in .gz or .xz. Prints one JSON object: exact, f1 and total, of all questions, of those with an answer (HasAns_) and
without (NoAns_), and the number without a prediction. With --null_odds also the best scores of any threshold on them.
"""


def main(_argv: list[str], config: ConfigDict | None) -> None:
    """Prints the metrics of a checkpoint."""
    from gmlp_flax.training import pretrained

    workdir = pretrained.locate(cli.require("workdir"))
    if config is not None:
        from gmlp_flax import config as config_lib

        config_lib.validate(config)
    with cli.among_processes():
        from gmlp_flax.checkpoints import run_folder
        from gmlp_flax.checkpoints.names import CHECKPOINTS
        from gmlp_flax.processes import distributed
        from gmlp_flax.training import evaluation, loading, record

        cli.say(f"loading {workdir}")
        trained = loading.load(workdir, flags.FLAGS.checkpoint, config)
        size = trained.config.eval.batch_size or trained.config.batch_size
        trained.partition.check_batch(size, 1, "config.eval.batch_size")
        record.check_heldout(workdir, trained.task, sys.argv)
        cli.say("reading the held-out data, compiling and scoring")
        metrics, outputs = evaluation.Evaluator(trained.task, trained.partition)(trained.params, trained.ema)
        if not distributed.is_first():
            return
        if target := flags.FLAGS.predictions:
            if not (predictions := trained.task.prediction_files(outputs)):
                raise RunError("--predictions is for tasks that write predictions: this run has none to write")
            run_folder.write_files(target, predictions, replace=True)
            print(f"wrote {', '.join(predictions)} to {target}", file=sys.stderr)
        folder = () if pretrained.is_exported(workdir) else (CHECKPOINTS, str(trained.step))
        checkpoint = os.path.join(workdir, *folder)
        print(json.dumps({"step": trained.step, "checkpoint": checkpoint, "eval": metrics}))


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
    if not isinstance(values, dict):
        raise DataError(f"{path}: found {type(values).__name__}; expected an object of question id -> {what}")
    if wrong := [name for name, value in values.items() if not isinstance(value, kind) or value != value]:
        raise DataError(f"{path}, question {wrong[0]}: found {values[wrong[0]]!r}; expected {what}")
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
