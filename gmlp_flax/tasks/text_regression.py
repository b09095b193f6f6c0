"""Regression on sentences and pairs: GLUE's STS-B, and a column of numbers of your own."""

import functools
import json
import math
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from scipy.stats import rankdata

from gmlp_flax.data.finetuning.glue import NUMBER_TASKS
from gmlp_flax.errors import DataError
from gmlp_flax.io import json_files
from gmlp_flax.options import Option
from gmlp_flax.tasks.base import (
    Baseline,
    Batch,
    Outputs,
    Shapes,
    Sums,
    Totals,
    model_keys,
    weighted_sum,
)
from gmlp_flax.tasks.text_classification import OWN, TextClassification
from gmlp_flax.tasks.vocabulary import Finetuning

SCALE_FILE = "scale.json"


class TextRegression(TextClassification):
    """Predicts a number for a sentence or pair; batches have "label" float32 [batch], not a number
    in test sets.

    The model is trained on (label - mean) / deviation of the training labels, which `scale.json`
    keeps, by the squared error; what it predicts is in the labels' own unit.
    """

    options = dict(TextClassification.options) | {
        "glue.task": Option(
            "stsb", "what is learned: GLUE's STS-B, or own data", (*NUMBER_TASKS, OWN)
        )
    }
    known = NUMBER_TASKS
    metrics = ("loss",)
    best = ("spearman", "max")
    heads = {SCALE_FILE: "head/"}
    predicts_numbers = True

    @classmethod
    def without_data(
        cls, config: ConfigDict, files: Mapping[str, bytes] = MappingProxyType({})
    ) -> Self:
        """See `Task`; the scale is 1 without its file."""
        task = super().without_data(config, files)
        if SCALE_FILE not in files:
            task.scale = 0.0, 1.0
        return task

    @functools.cached_property
    def scale(self) -> tuple[float, float]:
        """The mean and the standard deviation of the labels to train on; raises DataError if they
        are all the same, or the file of the run is damaged."""
        path, content = os.path.join(self.folder, SCALE_FILE), self.saved_file(SCALE_FILE)
        if content is not None:
            known = json_files.parse(content, path, dict)
        else:
            labels = self.sentences("train").labels.astype(np.float64)
            known = {"mean": float(labels.mean()), "deviation": float(labels.std())}
            if not known["deviation"]:
                raise DataError(
                    f"config.data.train: all {len(labels)} labels are {labels[0]}: nothing can be learned"
                )
        values: list[Any] = [known.get(name) for name in ("mean", "deviation")]
        if not all(isinstance(value, float | int) and math.isfinite(value) for value in values):
            advice = "expected a mean and a deviation; take it from the run's checkpoint again"
            raise DataError(f"{path} is damaged: {advice}")
        return values[0], values[1]

    def example_shapes(self) -> Shapes:
        return super().example_shapes() | {"label": ((), jnp.float32)}

    def notes(self) -> list[str]:
        """See `Finetuning`; the columns that were read, and the labels' range."""
        columns = " and ".join(repr(names[0]) for names in self.glue.texts)
        labels = (self.sentences(side).labels for side in ("train", "heldout"))
        known = (numbers[np.isfinite(numbers)] for numbers in labels)
        train, heldout = (
            f"{of.min():.4g} to {of.max():.4g}" if len(of) else "none" for of in known
        )
        numbers = f"numbers {self.glue.label[0]!r} from {train}, held out {heldout}"
        return [*Finetuning.notes(self), f"read: text {columns}, {numbers}"]

    def output(self, params: Any, batch: Batch, key: jax.Array | None) -> jax.Array:
        """The model's output, float32 [batch]: the label less the mean, in standard deviations."""
        return self.scores(params, batch, key)[:, 0]

    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        """The squared error."""
        mean, deviation = self.scale
        errors = jnp.square(
            self.output(params, batch, model_keys(batch)) - (batch["label"] - mean) / deviation
        )
        sums = {"loss": weighted_sum(errors, jnp.ones_like(errors))}
        return sums["loss"][0], sums

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """The squared error of the labelled examples, and the prediction for each, in the labels'
        unit, as "label"."""
        mean, deviation = self.scale
        predicted, known = self.output(params, batch, None), jnp.isfinite(batch["label"])
        errors = jnp.square(predicted - jnp.where(known, (batch["label"] - mean) / deviation, 0))
        sums = {
            "loss": weighted_sum(errors, batch["weight"] * known),
            "examples": weighted_sum(jnp.ones_like(errors), batch["weight"]),
        }
        return sums, {"label": predicted * deviation + mean}

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        return "spearman", "pearson", "loss"

    def summarize(self, sums: Totals, outputs: Outputs) -> dict[str, float]:
        """Correlations of Spearman and Pearson, 0 if all predictions are the same, and the mean
        squared error over the training labels' variance; examples without a label are left out."""
        labels, examples = self.sentences("heldout").labels, int(sums["examples"][1])
        known = np.isfinite(labels)
        counts: dict[str, float] = {"examples": examples}
        counts |= {"unlabelled": int((~known).sum())} if not known.all() else {}
        if not known.any():
            return counts
        pair = labels[known].astype(np.float64), np.asarray(outputs["label"], np.float64)[known]
        varied = all(np.ptp(values) > 0 for values in pair)
        pearson = [
            float(np.corrcoef(both)[0, 1]) if varied else 0.0
            for both in (pair, [*map(rankdata, pair)])
        ]
        return {
            "spearman": pearson[1],
            "pearson": pearson[0],
            "loss": sums["loss"][0] / sums["loss"][1],
        } | counts

    def baselines(self, sums: Totals) -> list[Baseline]:
        """The mean of the training labels for all examples, which correlates with nothing."""
        (mean, deviation), labels = self.scale, self.sentences("heldout").labels
        errors = np.square((labels[np.isfinite(labels)] - mean) / deviation)
        return (
            [Baseline("the mean of the labels", {"loss": float(errors.mean())})]
            if len(errors)
            else []
        )

    def label_text(self, label: Any) -> str:
        return f"{label:.6g}"

    def rank(self, params: Any, batch: Batch, top: int) -> Outputs:
        """See `Task`: the number itself, in the labels' unit."""
        mean, deviation = self.scale
        values = self.output(params, batch, None)[:, None, None] * deviation + mean
        return {"values": values, "indices": jnp.zeros(values.shape, jnp.int32)}

    def assets(self) -> dict[str, bytes]:
        """The tokenizer's file, and the scale."""
        scale = dict(zip(("mean", "deviation"), self.scale, strict=True))
        return Finetuning.assets(self) | {SCALE_FILE: json.dumps(scale).encode()}
