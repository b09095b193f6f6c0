"""Scores a trained model on held-out data, and two trained models against each other."""

import os
from collections.abc import Collection
from typing import NamedTuple

from ml_collections import ConfigDict

from gmlp_flax.data.holdout import HELDOUT
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.processes import distributed
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.training import pretrained, record
from gmlp_flax.training.evaluation import Evaluator


def add_slices(config: ConfigDict) -> None:
    """Sets the key of a config that scores AR hits apart from all other tokens, see
    `tasks.recall_slices`; raises ConfigError if its task is not a language model."""
    if "recall_slices" not in config.eval:
        raise ConfigError(
            f"the task is {config.task}, which predicts no tokens of a text: slices are for the "
            "tasks masked_lm and causal_lm"
        )
    config.eval.recall_slices = True


class Scores(NamedTuple):
    """What a trained model scores on the held-out data of its config.

    Attributes:
        step: of the checkpoint.
        checkpoint: where it is.
        metrics: of its parameters and, named ema_..., of their running mean, if there is one.
        predictions: as official scorers read them, by file name, if they were requested.
    """

    step: int
    checkpoint: str
    metrics: dict[str, float]
    predictions: dict[str, bytes]


def evaluate_checkpoint(
    source: str | os.PathLike[str],
    checkpoint: str = "latest",
    *,
    config: ConfigDict | None = None,
    explicit: Collection[str] = (),
    predictions: bool = False,
) -> Scores:
    """Scores a trained model on the held-out data of its config, as `gmlp evaluate` does. All
    processes must call it.

    Args:
        source: as in `load`.
        checkpoint: as in `load`.
        config: replaces the model's own.
        explicit: the keys of the config that the user set. Held-out data that differ from the run's
            are refused unless one of these keys chooses them.
        predictions: whether to make a finetuned model's predictions, of the running mean of its
            parameters if it was kept.

    Raises:
        UserError: the model or the data cannot be read, the data differ from the run's, or the task
            has no predictions.
    """
    opened = pretrained.open_model(source, checkpoint)
    model = opened.load(config, unaveraged=True)
    batch_size = model.config.eval.batch_size or model.config.batch_size
    model.partition.check_batch(batch_size, 1, "config.eval.batch_size")
    run_files = RunFiles(opened.folder, local=opened.files)
    data = model.task.Data(model.config, run_files)
    for line in data.lines(HELDOUT):
        distributed.say(line)
    record.check_heldout(opened.folder, opened.config, data, explicit)
    evaluator = Evaluator(model.task, data, model.partition)
    if model.unaveraged is None:
        metrics, outputs = evaluator(model.params)
    else:
        metrics, outputs = evaluator(model.unaveraged, model.params)
    files: dict[str, bytes] = {}
    if predictions:
        files = model.task.prediction_files(outputs, data)
        if not files:
            raise RunError(
                f"the task {model.config.task} has no predictions to write: leave them out"
            )
    return Scores(opened.step, opened.where, metrics, files)
