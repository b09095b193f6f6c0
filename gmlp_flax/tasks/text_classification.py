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
    example_count,
    weighted_sum,
)
from gmlp_flax.tasks.data.base import names_in
from gmlp_flax.tasks.labelled_text import (
    OPTIONS,
    OWN,
    LabelledText,
    LabelledTextData,
    text_task,
)

LABELS_FILE = "labels.json"
STAND_IN_CLASSES = ("0", "1")  # of your own data, while its classes are not known


def matthews(examples: int, positives: int, predicted: int, true_positives: int) -> float:
    """Matthews's correlation, from the numbers of examples that are positive, are predicted to be,
    and both.

    It is 0 if all examples are, or are predicted to be, of one class.
    """
    negatives = examples - positives
    predicted_negatives = examples - predicted
    spread = positives * negatives * predicted * predicted_negatives
    if not spread:
        return 0.0
    covariance = examples * true_positives - positives * predicted
    return covariance / spread**0.5


def f1(examples: int, positives: int, predicted: int, true_positives: int) -> float:
    """Harmonic mean of precision and recall, counted as in `matthews`; 0 if nothing is positive or
    predicted to be."""
    total = positives + predicted
    if not total:
        return 0.0
    return 2 * true_positives / total


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
        run_classes = self.run_files.names(LABELS_FILE)
        return run_classes or self.dataset(TRAIN).classes

    def with_labels(self, dataset: Dataset, role: str) -> Dataset:
        """See `LabelledTextData`; a note names the classes that are not held out."""
        if self.is_own:
            dataset = self._in_order(dataset, role)
        if role != HELDOUT:
            return dataset
        notes_on_size = checks.check_heldout_size(dataset)
        notes_on_classes = checks.check_heldout_classes(dataset)
        return dataset.with_notes(*notes_on_size, *notes_on_classes)

    def _in_order(self, dataset: Dataset, role: str) -> Dataset:
        """Own data with the classes of the run, or of the training data."""
        if self.run_files.names(LABELS_FILE):
            where = self.run_files.path(LABELS_FILE)
        elif role == TRAIN:
            classes.require_several(dataset)
            return dataset
        else:
            where = self.dataset(TRAIN).name
        return classes.in_order(dataset, self.classes, where, partial=True)

    @classmethod
    def label_column(cls, config: ConfigDict) -> str:
        """See `TaskData`."""
        task = text_task(config, CLASS_TASKS)
        return task.label[0]

    def assets(self) -> dict[str, bytes]:
        """See `TaskData`: the tokenizer, and the names of the classes."""
        assets = super().assets()
        labels = {"task": self.config.glue.task, "labels": self.classes}
        content = json.dumps(labels, indent=1)
        return {**assets, LABELS_FILE: content.encode()}

    def notes(self) -> list[str]:
        """See `TaskData`."""
        train = self.dataset(TRAIN)
        lines = [
            *checks.check_classes(train),
            *super().notes(),
            checks.check_contradictions(train),
        ]
        return [line for line in lines if line]


def _counts_of_positives(labels: jax.Array, predicted: jax.Array, weights: jax.Array) -> Sums:
    """The COUNTS of a batch."""
    is_positive = labels == 1
    is_predicted = predicted == 1
    return {
        "positives": weighted_sum(is_positive, weights),
        "predicted_positives": weighted_sum(is_predicted, weights),
        "true_positives": weighted_sum(is_positive & is_predicted, weights),
    }


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
                content = files[LABELS_FILE]
                names = names_in(content, LABELS_FILE)
            self.text_task = dataclasses.replace(self.text_task, labels=names)

    @property
    def class_names(self) -> Sequence[str]:
        """See `Task`."""
        return self.text_task.labels

    def sums(self, params: Any, batch: Batch, weights: jax.Array, key: jax.Array | None) -> Sums:
        """See `Task`: cross-entropy and hits of the examples with a label."""
        logits = self.scores(params, batch, key)
        return self._sums_of_logits(logits, batch, weights)

    def _sums_of_logits(self, logits: jax.Array, batch: Batch, weights: jax.Array) -> Sums:
        labels = batch["label"]
        is_labelled = labels != UNLABELLED
        label_weights = weights * is_labelled
        targets = jnp.maximum(labels, 0)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        predicted = logits.argmax(-1)
        hits = predicted == labels
        return {
            "loss": weighted_sum(losses, label_weights),
            "accuracy": weighted_sum(hits, label_weights),
        }

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """Loss and hits of the labelled examples, and the predicted "label" of each; MNLI has two
        accuracies.

        For Matthews's correlation and F1, it also counts the examples that are positive (of class
        1), that are predicted to be, and both.
        """
        labels = batch["label"]
        weights = batch["weight"]
        logits = self.scores(params, batch, None)
        predicted = logits.argmax(-1).astype(jnp.int32)
        hits = predicted == labels
        is_labelled = labels != UNLABELLED
        label_weights = weights * is_labelled
        sums = self._sums_of_logits(logits, batch, weights)
        for name, part in PARTS.items():
            is_in_part = batch["part"] == part
            part_weights = label_weights * is_in_part
            sums[name] = weighted_sum(hits, part_weights)
        sums["examples"] = example_count(weights)
        if self.text_task.scores:
            sums |= _counts_of_positives(labels, predicted, label_weights)
        return sums, {"label": predicted}

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        """The task's scores; a task with two held-out parts has two accuracies."""
        task = self.text_task
        mismatched = ("accuracy_mm",) if len(task.submission) == 2 else ()
        return "accuracy", "loss", *mismatched, *task.scores

    def summarize(self, sums: Totals, outputs: Outputs, data: Any) -> dict[str, float]:
        """Accuracy (for MNLI matched, and mismatched as `accuracy_mm`), loss, and the other scores
        that GLUE reports for the task.

        Examples without a label are left out; `unlabelled` says how many there are.
        """
        metrics: dict[str, float] = {}
        for name in (*PARTS, "loss"):
            total, weight = sums[name]
            if weight:
                metrics[name] = total / weight
        _, example_weight = sums["examples"]
        examples = int(example_weight)
        _, label_weight = sums["loss"]
        labelled = int(label_weight)
        if labelled:
            counts = []
            for name in COUNTS:
                if name in sums:
                    count, _ = sums[name]
                    counts.append(int(count))
            for name in self.text_task.scores:
                score = SCORES[name]
                metrics[name] = score(labelled, *counts)
        metrics["examples"] = examples
        if examples > labelled:
            metrics["unlabelled"] = examples - labelled
        return metrics

    def baselines(self, sums: Totals, data: TextClassificationData) -> list[Baseline]:
        """One label for all examples: the most frequent one in each part of the held-out data."""
        heldout = data.dataset(HELDOUT)
        parts = np.array([row.part for row in heldout.examples.rows])
        is_labelled = heldout.labels != UNLABELLED
        metrics = {}
        for name, part in PARTS.items():
            is_in_part = parts == part
            is_counted = is_in_part & is_labelled
            labels = heldout.labels[is_counted]
            if len(labels):
                counts = np.bincount(labels)
                most_frequent = float(counts.max())
                metrics[name] = most_frequent / len(labels)
        if not metrics:
            return []
        return [Baseline("the most frequent label", metrics)]

    def label_text(self, label: Any) -> str:
        """See `LabelledText`."""
        task = self.text_task
        if task.names_submitted:
            return task.labels[label]
        return super().label_text(label)
