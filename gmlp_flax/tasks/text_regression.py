"""Regression on sentences and pairs: GLUE's STS-B, and a column of numbers of your own."""

import dataclasses
import functools
import json
import math
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its parts are imported when they are used
from ml_collections import ConfigDict

from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.finetuning.text_tasks import NUMBER_TASKS
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.errors import DataError
from gmlp_flax.io import json_files
from gmlp_flax.options import Option
from gmlp_flax.tasks.base import (
    Baseline,
    Batch,
    Files,
    Outputs,
    Shapes,
    Sums,
    Totals,
    example_count,
    weighted_sum,
)
from gmlp_flax.tasks.inference.prediction import Answer, Arrays
from gmlp_flax.tasks.labelled_text import (
    OPTIONS,
    OWN,
    LabelledText,
    LabelledTextData,
    LabelledTextPredictor,
    text_task,
)

SCALE_FILE = "scale.json"


class Scale(NamedTuple):
    """The labels to train on: the model predicts (label - mean) / deviation."""

    mean: float
    deviation: float


def read_scale(content: bytes, where: str) -> Scale:
    """The scale in a JSON file; raises DataError, with `where`, if it is damaged."""
    scale = json_files.parse(content, where, dict)
    mean = scale.get("mean")
    deviation = scale.get("deviation")
    if not _is_number(mean) or not _is_number(deviation) or deviation <= 0:
        raise DataError(
            f"{where} is damaged: expected a mean, and a deviation above 0; take it from the run's "
            "checkpoint again"
        )
    return Scale(mean, deviation)


def _is_number(value: Any) -> bool:
    """Whether a value of JSON is a finite number."""
    return type(value) in (float, int) and math.isfinite(value)


class TextRegressionData(LabelledTextData):
    """Texts with numbers; examples of test sets have NaN."""

    known = NUMBER_TASKS
    numbers = True

    @functools.cached_property
    def scale(self) -> Scale:
        """The mean and the standard deviation of the labels to train on; raises DataError if they
        are all the same, or the file of the run is damaged."""
        content = self.run_files.read(SCALE_FILE)
        if content is not None:
            where = self.run_files.path(SCALE_FILE)
            return read_scale(content, where)
        train = self.dataset(TRAIN)
        labels = train.labels.astype(np.float64)
        mean = float(labels.mean())
        deviation = float(labels.std())
        if not deviation:
            raise DataError(
                f"config.data.train: all {len(labels)} labels are {labels[0]}: give data with "
                "different ones"
            )
        return Scale(mean, deviation)

    def is_labelled(self, dataset: Dataset) -> np.ndarray:
        """See `LabelledTextData`."""
        return np.isfinite(dataset.labels)

    def assets(self) -> dict[str, bytes]:
        """See `TaskData`: the tokenizer, and the scale."""
        content = json.dumps(self.scale._asdict())
        return {**super().assets(), SCALE_FILE: content.encode()}

    def notes(self) -> list[str]:
        """See `TaskData`; the range of the labels too."""
        trained = self._range_of_labels(TRAIN)
        heldout = self._range_of_labels(HELDOUT)
        line = f"read: numbers from {trained}, held out {heldout}"
        return [line, *super().notes()]

    def _range_of_labels(self, role: str) -> str:
        dataset = self.dataset(role)
        labels = dataset.labels
        is_known = np.isfinite(labels)
        known = labels[is_known]
        if not len(known):
            return "none"
        lowest = known.min()
        highest = known.max()
        return f"{lowest:.4g} to {highest:.4g}"


class TextRegressionPredictor(LabelledTextPredictor):
    """Answers to a sentence or a pair: a number, in the labels' unit."""

    def rank(self, params: Any, batch: Arrays, top: int) -> Arrays:
        """See `Predictor`: the number itself."""
        numbers = self.task.predicted(params, batch)
        values = numbers[:, None, None]
        indices = jnp.zeros(values.shape, jnp.int32)
        return {"values": values, "indices": indices}

    @property
    def names(self) -> tuple[str, ...]:
        """See `Predictor`."""
        return self.task.text_task.labels

    def format(self, answer: Answer) -> str:
        """See `Predictor`."""
        [[(_, number)]] = answer.predictions
        return f"{answer.input}\n  {number:.4g}"


class TextRegression(LabelledText):
    """Predicts a number for a sentence or pair; batches have "label" float32 [batch], NaN in test
    sets.

    The model is trained by the squared error of (label - mean) / deviation. `scale.json` keeps the
    mean and the deviation of the training labels. What the model predicts is in the labels' unit.
    """

    options = OPTIONS | {
        "glue.task": Option(
            "stsb",
            "what is learned: GLUE's STS-B, or own data",
            (*NUMBER_TASKS, OWN),
            selects_data=True,
        )
    }
    Data: ClassVar = TextRegressionData
    Predictor: ClassVar = TextRegressionPredictor
    inheritance = dataclasses.replace(LabelledText.inheritance, heads={SCALE_FILE: "head/"})
    metrics = ("loss",)
    best = ("spearman", "max")

    def __init__(self, config: ConfigDict, files: Files = MappingProxyType({})):
        super().__init__(config, files)
        self.text_task = text_task(config, NUMBER_TASKS, numbers=True)
        self.scale = Scale(0.0, 1.0)
        if SCALE_FILE in files:
            content = files[SCALE_FILE]
            self.scale = read_scale(content, SCALE_FILE)

    def example_shapes(self) -> Shapes:
        """See `Task`."""
        shapes = super().example_shapes()
        number = ((), jnp.float32)
        return {**shapes, "label": number}

    def output(self, params: Any, batch: Batch, key: jax.Array | None) -> jax.Array:
        """The model's output, float32 [batch]: the label minus the mean, in standard
        deviations."""
        scores = self.scores(params, batch, key)  # [batch, 1]
        return scores[:, 0]

    def predicted(self, params: Any, batch: Batch) -> jax.Array:
        """What the model predicts, in the labels' unit: float32 [batch]."""
        output = self.output(params, batch, None)
        return self._in_unit(output)

    def _in_unit(self, output: jax.Array) -> jax.Array:
        """An output of the model in the labels' unit."""
        return output * self.scale.deviation + self.scale.mean

    def _scaled(self, labels: Any) -> Any:
        """Labels as the model predicts them: minus the mean, in standard deviations."""
        return (labels - self.scale.mean) / self.scale.deviation

    def sums(self, params: Any, batch: Batch, weights: jax.Array, key: jax.Array | None) -> Sums:
        """See `Task`: the squared error of the examples with a label."""
        output = self.output(params, batch, key)
        return self._sums_of_output(output, batch, weights)

    def _sums_of_output(self, output: jax.Array, batch: Batch, weights: jax.Array) -> Sums:
        labels = batch["label"]
        is_known = jnp.isfinite(labels)
        scaled = self._scaled(labels)
        targets = jnp.where(is_known, scaled, 0)
        errors = output - targets
        squares = jnp.square(errors)
        known_weights = weights * is_known
        return {"loss": weighted_sum(squares, known_weights)}

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """The squared error of the labelled examples, and the prediction for each, in the labels'
        unit, as "label"."""
        weights = batch["weight"]
        output = self.output(params, batch, None)
        sums = self._sums_of_output(output, batch, weights)
        sums["examples"] = example_count(weights)
        predicted = self._in_unit(output)
        return sums, {"label": predicted}

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        """See `Task`."""
        return "spearman", "pearson", "loss"

    def summarize(
        self, sums: Totals, outputs: Outputs, data: TextRegressionData
    ) -> dict[str, float]:
        """Correlations of Spearman and Pearson, 0 if all predictions are the same, and the mean
        squared error over the training labels' variance; examples without a label are left out."""
        heldout = data.dataset(HELDOUT)
        labels = heldout.labels
        is_known = np.isfinite(labels)
        _, examples = sums["examples"]
        counts: dict[str, float] = {"examples": int(examples)}
        if not is_known.all():
            is_unknown = ~is_known
            counts["unlabelled"] = int(is_unknown.sum())
        if not is_known.any():
            return counts
        known = labels[is_known]
        true = known.astype(np.float64)
        predictions = np.asarray(outputs["label"], np.float64)
        predicted = predictions[is_known]
        total, weight = sums["loss"]
        true_ranks = scipy.stats.rankdata(true)
        predicted_ranks = scipy.stats.rankdata(predicted)
        return {
            "spearman": correlation(true_ranks, predicted_ranks),
            "pearson": correlation(true, predicted),
            "loss": total / weight,
            **counts,
        }

    def baselines(self, sums: Totals, data: TextRegressionData) -> list[Baseline]:
        """The mean of the training labels for all examples, which correlates with nothing."""
        heldout = data.dataset(HELDOUT)
        labels = heldout.labels
        is_known = np.isfinite(labels)
        known = labels[is_known]
        if not len(known):
            return []
        scaled = self._scaled(known)
        squares = np.square(scaled)
        loss = float(squares.mean())
        return [Baseline("the mean of the labels", {"loss": loss})]

    def label_text(self, label: Any) -> str:
        """See `LabelledText`."""
        return f"{label:.6g}"


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's correlation of two arrays [examples]; 0 if one of them does not vary."""
    first_range = np.ptp(first)
    second_range = np.ptp(second)
    if not first_range or not second_range:
        return 0.0
    matrix = np.corrcoef(first, second)
    return float(matrix[0, 1])
