"""Classification of sentences and of pairs: GLUE's tasks (SST-2 and MNLI: paper, section 4),
SNLI, Long Range Arena's texts, and your own labelled text."""

import csv
import functools
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data import pipeline
from gmlp_flax.data.finetuning import pairs, sentences
from gmlp_flax.data.finetuning.glue import SENTENCE_TASKS, SentenceTask, own_task
from gmlp_flax.data.fingerprints import Fingerprint
from gmlp_flax.data.text.tokenizer import report_unknown
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.io.records import BadRecords
from gmlp_flax.models.text import PairClassifier, SequenceClassifier
from gmlp_flax.options import Option
from gmlp_flax.tasks import base, sides
from gmlp_flax.tasks.base import Batch, Outputs, Shapes, Sums, Totals, model_keys, weighted_sum
from gmlp_flax.tasks.prediction import Prepared
from gmlp_flax.tasks.vocabulary import TEXT_OPTIONS, Finetuning

LABELS_FILE = "labels.json"
OWN = "own"
EXPECTED = "PATH, or tfds:glue/NAME"  # of config.data.train


class TextClassification(Finetuning):
    """Predicts the class of a sentence or pair; batches have "label" int32 [batch] as well,
    UNLABELLED in test sets."""

    options = TEXT_OPTIONS | {
        "model.pool": Option(
            "mean", "the head reads the mean of the tokens, or [CLS] (BERT)", ("mean", "cls")
        ),
        "model.pooler": Option(False, "BERT's tanh layer before the head"),
        "model.hide_padding": Option(
            False,
            "with mask_padding, Toeplitz projections ignore [PAD] as well, so that batches of short texts are cut",
        ),
        "model.pairs": Option(
            "joined",
            "both texts of a pair in one sequence; or apart, each of model.length tokens, compared by the head alone",
            ("joined", "apart"),
        ),
        "model.interaction": Option(
            "nli",
            "of texts read apart, the head gets [u, v, u * v, u - v] (nli) or [u, v] (concat)",
            ("nli", "concat"),
        ),
        "glue.task": Option(
            "sst2",
            "what is learned: a task of GLUE, SNLI, one on long texts, or own data",
            (*SENTENCE_TASKS, OWN),
        ),
        "own.text": Option(
            "text", "of own data, the column of the text, or of a pair's first text"
        ),
        "own.second": Option(
            "", "of own data, the column of the pairs' second text; empty: there are no pairs"
        ),
        "own.label": Option("label", "of own data, the column of the labels: words or numbers"),
    }
    known: ClassVar[Mapping[str, SentenceTask]] = SENTENCE_TASKS
    best = ("accuracy", "max")
    hub_task = "text-classification"
    percent = dict.fromkeys(("accuracy", "accuracy_mm", "f1"), 100.0)
    heads = {LABELS_FILE: "head/"}
    new_params = ("segments/", "pooler/")
    inherited_keys = ("model.pooler",)

    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        """See `Task`."""
        model = self.config.model
        if model.causal and model.pool == "cls":
            raise ConfigError(
                "config.model.pool is 'cls', and the model is causal: it sees no token; set it to 'mean'"
            )
        sizes = self.spec(), model.vocab_size, len(self.glue.labels), rngs
        if self.dual_encoder:
            return PairClassifier(
                *sizes, pool=model.pool, interaction=model.interaction, **self.embedding()
            )
        return SequenceClassifier(*sizes, pool=model.pool, pooler=model.pooler, **self.embedding())

    def spec(self) -> Any:
        """See `Task`."""
        spec = super().spec()
        hiding = spec.hiding_padding() if self.config.model.hide_padding else spec
        if hiding is None:
            raise ValueError(
                "model.hide_padding is True, and this model reads all n tokens: set it to False"
            )
        return hiding

    @property
    def hides_padding(self) -> bool:
        """Whether the logits of a text do not depend on how much padding follows it, in training
        too."""
        return self.config.model.mask_padding and (spec := self.spec()).hiding_padding() == spec

    def train_batches(self, start: int, host: int, hosts: int) -> pipeline.Batches:
        return self._cut(super().train_batches(start, host, hosts), hosts)

    def evaluation_batches(self, host: int, hosts: int, shares: int = 1) -> pipeline.Batches:
        return self._cut(super().evaluation_batches(host, hosts, shares), hosts)

    def _cut(self, batches: pipeline.Batches, hosts: int) -> pipeline.Batches:
        """Batches as long as their longest text needs; several hosts, of which each sees its own
        texts, keep n."""
        if hosts == 1 and self.hides_padding:
            batches.finish = functools.partial(pairs.cut_padding, pad_id=self.pad_id)
        return batches

    @property
    def dual_encoder(self) -> bool:
        """Whether each text of a pair is encoded alone."""
        return self.config.model.pairs == "apart"

    def example_shapes(self) -> Shapes:
        text = ((2, self.length), jnp.int32)
        pair = {"tokens": text, "segments": text} if self.dual_encoder else {}
        return super().example_shapes() | pair | {"label": ((), jnp.int32), "part": ((), jnp.int32)}

    @classmethod
    def check(cls, config: ConfigDict) -> None:
        """See `Task`."""
        if config.model.hide_padding and not config.model.mask_padding:
            raise ConfigError(
                "config.model.hide_padding is True, and model.mask_padding is not: set it to True, too"
            )
        if config.model.pairs != "apart":
            return
        if len(cls.sentence_task(config).texts) == 1:
            task = config.glue.task
            raise ConfigError(
                f"config.model.pairs is 'apart', and the task {task} has no pairs: set it to 'joined'"
            )
        if config.model.pooler:
            raise ConfigError(
                "config.model.pairs is 'apart', whose head has other layers: set model.pooler to False"
            )

    @classmethod
    def sentence_task(cls, config: ConfigDict) -> SentenceTask:
        """The task that a config names; one of classes on own data has no labels yet."""
        if config.glue.task != OWN:
            return cls.known[config.glue.task]
        own = config.own
        return own_task(
            (own.text, own.second) if own.second else (own.text,),
            own.label,
            numbers=cls.predicts_numbers,
        )

    @functools.cached_property
    def glue(self) -> SentenceTask:
        """The config's task. Classes of own data come from the run folder, or from the training
        data."""
        task = self._declared_task
        return task if task.labels else task._replace(labels=self.sentences("train").names)

    @property
    def _declared_task(self) -> SentenceTask:
        """The config's task before the training data are read, when own data may have no classes
        yet."""
        task = self.sentence_task(self.config)
        return task if task.labels else task._replace(labels=self.saved_names(LABELS_FILE))

    @classmethod
    def row(
        cls, config: ConfigDict, inputs: Sequence[str], label: Any, path: str
    ) -> dict[str, Any]:
        """See `Task`."""
        task = cls.sentence_task(config)
        columns = [names[0] for names in task.texts]
        if len(inputs) != len(columns) or label is None:
            advice = (
                "set own.second to the name of a second text"
                if len(inputs) == 2
                else "give (text, label)"
            )
            raise DataError(
                f"an example has {len(inputs)} text(s), label {label!r}; expected {len(columns)}: {advice}"
            )
        return dict(zip(columns, inputs, strict=True)) | {task.label[0]: label}

    @property
    def class_names(self) -> Sequence[str]:
        return () if self.glue.numbers else self.glue.labels

    @property
    def prediction_names(self) -> Sequence[str]:
        return self.glue.labels

    @classmethod
    def without_data(
        cls, config: ConfigDict, files: Mapping[str, bytes] = MappingProxyType({})
    ) -> Self:
        """See `Task`; own data has two classes."""
        task = super().without_data(config, files)
        known = cls.sentence_task(config)
        if not known.labels and LABELS_FILE not in files:
            task.glue = known._replace(labels=("0", "1"))
        return task

    def texts(self, side: str) -> list[tuple[str, ...]]:
        return self.sentences(side).texts

    def notes(self) -> list[str]:
        """See `Finetuning`; of own data, the columns that were read, the classes' sizes, and texts
        of several rows."""
        if not self.glue.own:
            return super().notes()
        train, heldout, names = self.sentences("train"), self.sentences("heldout"), self.glue.labels
        counts = np.bincount(train.labels, minlength=len(names)).tolist()
        columns = [name for (name,) in self.glue.texts]
        by_size = sorted(range(len(names)), key=counts.__getitem__)
        least, most = (f"{names[at]!r} with {counts[at]:,}" for at in (by_size[0], by_size[-1]))
        notes = [
            *super().notes(),
            f"read: text {' and '.join(map(repr, columns))}, label {self.glue.label[0]!r}; smallest class to train on "
            f"{least}, largest {most}; {train.dropped + heldout.dropped:,} rows without a label left out",
        ]
        texts, labels = (
            Counter(train.texts),
            {*zip(train.texts, train.labels.tolist(), strict=True)},
        )
        (text, rows) = texts.most_common(1)[0]
        if rows > 1:
            repeated = f"{len(train) - len(texts):,} of {len(train):,} examples to train on repeat the texts of others"
            other = f"{len(labels) - len(texts):,} of them with another label"
            notes.append(f"note: {repeated}, such as {text[0][:40]!r} ({rows:,} rows), {other}")
        return notes

    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        """Cross-entropy and hits of a batch."""
        logits, labels = self.scores(params, batch, model_keys(batch)), batch["label"]
        ones = jnp.ones(labels.shape)
        sums = {
            "loss": weighted_sum(
                optax.softmax_cross_entropy_with_integer_labels(logits, labels), ones
            ),
            "accuracy": weighted_sum(logits.argmax(-1) == labels, ones),
        }
        return sums["loss"][0], sums

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """Loss and hits of the labelled examples, and the predicted "label" of each; MNLI has two
        accuracies.

        For Matthews's correlation and F1, also how many are positive (of class 1), are predicted to
        be, and both.
        """
        logits, labels, weights = self.scores(params, batch, None), batch["label"], batch["weight"]
        predicted = logits.argmax(-1).astype(jnp.int32)
        known = weights * (labels != sentences.UNLABELLED)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
        sums = {
            "loss": weighted_sum(losses, known),
            "accuracy": weighted_sum(predicted == labels, known * (batch["part"] == 0)),
            "accuracy_mm": weighted_sum(predicted == labels, known * (batch["part"] == 1)),
            "examples": weighted_sum(jnp.ones_like(weights), weights),
        }
        if self.glue.scores:
            counted = labels == 1, predicted == 1, (labels == 1) & (predicted == 1)
            sums |= {
                name: weighted_sum(hits, known) for name, hits in zip(COUNTS, counted, strict=True)
            }
        return sums, {"label": predicted}

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        """The task's scores; a task with two held-out parts has two accuracies."""
        mismatched = ["accuracy_mm"] if len(self.glue.submission) == 2 else []
        return "accuracy", "loss", *mismatched, *self.glue.scores

    def summarize(self, sums: Totals, outputs: Outputs) -> dict[str, float]:
        """Accuracy (of MNLI matched, and mismatched as `accuracy_mm`), loss, and what else GLUE
        reports of the task.

        Examples without a label are left out; `unlabelled` tells how many there are.
        """
        names = [name for name in ("accuracy", "accuracy_mm", "loss") if sums[name][1]]
        metrics: dict[str, float] = {name: sums[name][0] / sums[name][1] for name in names}
        examples, labelled = int(sums["examples"][1]), int(sums["loss"][1])
        if labelled:
            counts = [int(sums[name][0]) for name in COUNTS if name in sums]
            metrics |= {name: SCORES[name](labelled, *counts) for name in self.glue.scores}
        unlabelled = {"unlabelled": examples - labelled} if examples > labelled else {}
        return metrics | {"examples": examples} | unlabelled

    def baselines(self, sums: Totals) -> list[base.Baseline]:
        """One label for all examples: the most frequent one of the held-out data, in each part of
        it."""
        heldout, metrics = self.sentences("heldout"), {}
        for name, part in (("accuracy", 0), ("accuracy_mm", 1)):
            labels = heldout.labels[
                (heldout.part == part) & (heldout.labels != sentences.UNLABELLED)
            ]
            if len(labels):
                metrics[name] = float(np.bincount(labels).max()) / len(labels)
        return [base.Baseline("the most frequent label", metrics)] if metrics else []

    def prediction_files(self, outputs: Outputs) -> dict[str, bytes]:
        """What GLUE's server takes: one file per part, one line per example with its id and what is
        predicted.

        An id or label of the user's own with a tab or a line feed in it stands in quotation marks.
        """
        heldout, files = self.sentences("heldout"), {}
        for part in np.unique(heldout.part):
            members = np.flatnonzero(heldout.part == part)
            rows = ((heldout.ids[i], self.label_text(outputs["label"][i])) for i in members)
            table = io.StringIO()
            csv.writer(table, "excel-tab", lineterminator="\n").writerows(
                [("index", "prediction"), *rows]
            )
            files[self.glue.submission[part]] = table.getvalue().encode("utf-8", "backslashreplace")
        return files

    def label_text(self, label: Any) -> str:
        """A predicted label, as `prediction_files` writes it."""
        return self.glue.labels[label] if self.glue.names else str(label)

    def prepare(self, given: str, truncate: bool = False) -> Prepared:
        """See `Task`: a sentence, or a pair with a tab between.

        Raises:
            RunError: a line has more or fewer texts than the task, or is longer than the model's
                sequences.
        """
        texts, expected = given.split("\t"), len(self.glue.texts)
        if len(texts) != expected:
            advice = "put a tab between two texts, none in a single one"
            raise RunError(
                f"the line has {len(texts)} text(s), the task reads {expected}: {advice}: {given[:60]!r}"
            )
        ids = [np.array(self.tokenizer.encode(text), np.int32) for text in texts]
        layouts = [[text] for text in ids] if self.dual_encoder else [ids]
        most = max(1 + sum(len(text) + 1 for text in layout) for layout in layouts)
        note = self.note_of_cut(most, given, truncate)
        length = min(most, self.length) if self.hides_padding else self.length
        example = self._pairs([[text] for text in ids], length)[0]
        return Prepared([{name: example[name] for name in ("tokens", "segments")}], 1, note)

    def prediction_scores(self, params: Any, batch: Batch) -> jax.Array:
        """See `Task`: one prediction for each line."""
        return self.scores(params, batch, None)[:, None]

    def assets(self) -> dict[str, bytes]:
        labels = {"task": self.config.glue.task, "labels": self.glue.labels}
        return super().assets() | {LABELS_FILE: json.dumps(labels, indent=1).encode()}

    @functools.cache  # noqa: B019 - a task lives as long as its run
    def examples(self, side: str) -> pairs.Pairs:
        """The encoded examples of a side, "train" or "heldout", in the order of
        `prediction_files`."""
        read, length = self.sentences(side), self.config.model.length
        # No more tokens are ever read, and one more tells that a text is cut.
        encode = functools.partial(pairs.encode, tokenizer=self.tokenizer, max_tokens=length)
        with sides.errors_name("model.length"):
            tokens = [encode(texts) for texts in zip(*read.texts, strict=True)]
            source = self._pairs(tokens, length, label=read.labels, part=read.part)
        report_unknown(self.tokenizer, source, f"{side} examples")
        if source.cut:
            message = f"{source.cut} of {len(source)} are longer than config.model.length={length} and are cut"
            sides.warn(side, "examples", message)
        return source

    def _pairs(
        self, texts: Sequence[Sequence[np.ndarray]], length: int, **columns: np.ndarray
    ) -> pairs.Pairs:
        return pairs.Pairs(
            texts, columns, length=length, tokenizer=self.tokenizer, dual_encoder=self.dual_encoder
        )

    def fingerprint(self, side: str) -> Fingerprint:
        """See `Task`."""
        return self.sentences(side).fingerprint()

    @functools.cache  # noqa: B019 - a task lives as long as its run
    def sentences(self, side: str) -> sentences.Sentences:
        """The labelled texts of a side; raises DataError if they cannot be read."""
        bad, task = (
            BadRecords(self.config.data.max_bad_records),
            self._declared_task if side == "train" else self.glue,
        )
        read = sides.open_side(
            self.config, side, sentences.open_sentences, EXPECTED, task=task, bad=bad
        )
        for note in read.notes:
            sides.warn(side, "examples", note)
        if bad.count:
            sides.warn(
                side, "examples", f"{bad.count} bad record(s) skipped, the first: {bad.first[0]}"
            )
        if read.dropped:
            sides.warn(
                side,
                "examples",
                f"{read.dropped} without a gold label are left out, {len(read)} remain",
            )
        return read


def matthews(examples: int, positives: int, predicted: int, true_positives: int) -> float:
    """Matthews's correlation, from the numbers of examples that are positive, are predicted to be,
    and both.

    It is 0 if all examples are, or are predicted to be, of one class.
    """
    spread = positives * (examples - positives) * predicted * (examples - predicted)
    return (examples * true_positives - positives * predicted) / spread**0.5 if spread else 0.0


def f1(examples: int, positives: int, predicted: int, true_positives: int) -> float:
    """Harmonic mean of precision and recall, counted as in `matthews`; 0 if nothing is positive or
    predicted to be."""
    return 2 * true_positives / (positives + predicted) if positives + predicted else 0.0


SCORES = {"matthews": matthews, "f1": f1}
# sums that the scores take, in their order
COUNTS = ("positives", "predicted_positives", "true_positives")
