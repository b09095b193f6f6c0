"""Classification of sentences and of pairs: GLUE's tasks (SST-2 and MNLI: paper, section 4),
SNLI, Long Range Arena's texts, and your own labelled text."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from gmlp_flax.data import checks, classes
from gmlp_flax.data.classes import UNLABELLED
from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.finetuning.text_tasks import CLASS_TASKS
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.options import Option
from gmlp_flax.tasks.base import (
    Baseline,
    Batch,
    Files,
    Outputs,
    Sums,
    Totals,
    weighted_sum,
)
from gmlp_flax.tasks.data import names_in
from gmlp_flax.tasks.labelled_text import (
    OPTIONS,
    OWN,
    LabelledText,
    LabelledTextData,
    text_task,
)

LABELS_FILE = "labels.json"
STAND_IN_CLASSES = ("0", "1")  # of own data that are not known


def matthews(examples: int, positives: int, predicted: int, true_positives: int) -> float:
    """Matthews's correlation, from the numbers of examples that are positive, are predicted to be,
    and both.

    It is 0 if all examples are, or are predicted to be, of one class.
    """
    spread = positives * (examples - positives) * predicted * (examples - predicted)
    if not spread:
        return 0.0
    return (examples * true_positives - positives * predicted) / spread**0.5


def f1(examples: int, positives: int, predicted: int, true_positives: int) -> float:
    """Harmonic mean of precision and recall, counted as in `matthews`; 0 if nothing is positive or
    predicted to be."""
    if not positives + predicted:
        return 0.0
    return 2 * true_positives / (positives + predicted)


SCORES = {"matthews": matthews, "f1": f1}
PARTS = {"accuracy": 0, "accuracy_mm": 1}  # metric -> the part of the held-out data (MNLI has two)
# The sums that the scores take, in their order.
COUNTS = ("positives", "predicted_positives", "true_positives")


class TextClassificationData(LabelledTextData):
    """Texts with classes; examples of test sets have the label UNLABELLED."""

    known = CLASS_TASKS

    @functools.cached_property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes: of own data, the run folder's, else the training data's."""
        published = self.text_task.labels
        if published:
            return published
        return self.run_files.names(LABELS_FILE) or self.dataset(TRAIN).classes

    def with_labels(self, dataset: Dataset, role: str) -> Dataset:
        """See `LabelledTextData`; a note names the classes that are not held out."""
        if self.is_own:
            dataset = self._in_order(dataset, role)
        if role == HELDOUT:
            return dataset.with_notes(*checks.check_heldout_classes(dataset))
        return dataset

    def _in_order(self, dataset: Dataset, role: str) -> Dataset:
        """Own data with the classes of the run, or of the training data."""
        is_known = bool(self.run_files.names(LABELS_FILE))
        if role == TRAIN and not is_known:
            classes.require_several(dataset)
            return dataset
        where = self.run_files.path(LABELS_FILE) if is_known else self.dataset(TRAIN).path
        return classes.in_order(dataset, self.classes, where, partial=True)

    @classmethod
    def label_column(cls, config: ConfigDict) -> str:
        """See `TaskData`."""
        return text_task(config, CLASS_TASKS).label[0]

    def assets(self) -> dict[str, bytes]:
        """See `TaskData`: the tokenizer, and the names of the classes."""
        labels = {"task": self.config.glue.task, "labels": self.classes}
        return {**super().assets(), LABELS_FILE: json.dumps(labels, indent=1).encode()}

    def notes(self) -> list[str]:
        """See `TaskData`."""
        train = self.dataset(TRAIN)
        lines = [
            *checks.check_classes(train),
            *super().notes(),
            checks.check_contradictions(train),
        ]
        return [line for line in lines if line]


class TextClassification(LabelledText):
    """Predicts the class of a sentence or pair; batches have "label" int32 [batch] as well,
    UNLABELLED in test sets."""

    options = OPTIONS | {
        "glue.task": Option(
            "sst2",
            "what is learned: a task of GLUE, SNLI, one on long texts, or own data",
            (*CLASS_TASKS, OWN),
            selects_data=True,
        )
    }
    Data: ClassVar = TextClassificationData
    inheritance = dataclasses.replace(LabelledText.inheritance, heads={LABELS_FILE: "head/"})
    best = ("accuracy", "max")
    percent = dict.fromkeys(("accuracy", "accuracy_mm", "f1"), 100.0)

    def __init__(self, config: ConfigDict, files: Files = MappingProxyType({})):
        super().__init__(config, files)
        self.text_task = text_task(config, CLASS_TASKS)
        if not self.text_task.labels:
            names = STAND_IN_CLASSES
            if LABELS_FILE in files:
                names = names_in(files[LABELS_FILE], LABELS_FILE)
            self.text_task = dataclasses.replace(self.text_task, labels=names)

    @property
    def class_names(self) -> Sequence[str]:
        """See `Task`."""
        return self.text_task.labels

    def sums(self, params: Any, batch: Batch, weights: jax.Array, key: jax.Array | None) -> Sums:
        """See `Task`: cross-entropy and hits of the examples with a label."""
        return self._scored(self.scores(params, batch, key), batch, weights)

    def _scored(self, logits: jax.Array, batch: Batch, weights: jax.Array) -> Sums:
        labels = batch["label"]
        known = weights * (labels != UNLABELLED)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
        hits = logits.argmax(-1) == labels
        return {"loss": weighted_sum(losses, known), "accuracy": weighted_sum(hits, known)}

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """Loss and hits of the labelled examples, and the predicted "label" of each; MNLI has two
        accuracies.

        For Matthews's correlation and F1, also how many are positive (of class 1), are predicted to
        be, and both.
        """
        labels = batch["label"]
        weights = batch["weight"]
        logits = self.scores(params, batch, None)
        predicted = logits.argmax(-1).astype(jnp.int32)
        known = weights * (labels != UNLABELLED)
        sums = self._scored(logits, batch, weights)
        for name, part in PARTS.items():
            sums[name] = weighted_sum(predicted == labels, known * (batch["part"] == part))
        sums["examples"] = weighted_sum(jnp.ones_like(weights), weights)
        if self.text_task.scores:
            counted = (labels == 1, predicted == 1, (labels == 1) & (predicted == 1))
            for name, hits in zip(COUNTS, counted, strict=True):
                sums[name] = weighted_sum(hits, known)
        return sums, {"label": predicted}

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        """The task's scores; a task with two held-out parts has two accuracies."""
        mismatched = ["accuracy_mm"] if len(self.text_task.submission) == 2 else []
        return "accuracy", "loss", *mismatched, *self.text_task.scores

    def summarize(self, sums: Totals, outputs: Outputs, data: Any) -> dict[str, float]:
        """Accuracy (of MNLI matched, and mismatched as `accuracy_mm`), loss, and what else GLUE
        reports of the task.

        Examples without a label are left out; `unlabelled` tells how many there are.
        """
        metrics: dict[str, float] = {}
        for name in (*PARTS, "loss"):
            total, weight = sums[name]
            if weight:
                metrics[name] = total / weight
        examples = int(sums["examples"][1])
        labelled = int(sums["loss"][1])
        if labelled:
            counts = [int(sums[name][0]) for name in COUNTS if name in sums]
            for name in self.text_task.scores:
                metrics[name] = SCORES[name](labelled, *counts)
        metrics["examples"] = examples
        if examples > labelled:
            metrics["unlabelled"] = examples - labelled
        return metrics

    def baselines(self, sums: Totals, data: TextClassificationData) -> list[Baseline]:
        """One label for all examples: the most frequent one of the held-out data, in each part of
        it."""
        heldout = data.dataset(HELDOUT)
        parts = np.array([row.part for row in heldout.examples.rows])
        metrics = {}
        for name, part in PARTS.items():
            labels = heldout.labels[(parts == part) & (heldout.labels != UNLABELLED)]
            if len(labels):
                metrics[name] = float(np.bincount(labels).max()) / len(labels)
        return [Baseline("the most frequent label", metrics)] if metrics else []

    def label_text(self, label: Any) -> str:
        """See `LabelledText`."""
        if self.text_task.names_submitted:
            return self.text_task.labels[label]
        return super().label_text(label)
