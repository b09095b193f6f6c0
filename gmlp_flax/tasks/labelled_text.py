"""What classification and regression share: labelled sentences and pairs, from their files to the
rows of a submission."""

import csv
import functools
import io
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data import classes, pipeline, text_rows
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.finetuning import pairs, text_tasks
from gmlp_flax.data.fingerprints import spread
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.readers import labelled_text, text_benchmarks
from gmlp_flax.data.summary import Tokens, count_tokens
from gmlp_flax.data.text.tokenizer import DOCUMENTS, TOKENIZER_FILE
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.io.records import BadRecords
from gmlp_flax.models.text import PairClassifier, SequenceClassifier
from gmlp_flax.options import FINETUNED_RUNS, Option
from gmlp_flax.tasks.base import Batch, Inheritance, Outputs, Shapes, block_spec
from gmlp_flax.tasks.data import config as data_config
from gmlp_flax.tasks.data.lines import Line
from gmlp_flax.tasks.data.text import report_unknown, require_texts
from gmlp_flax.tasks.finetuning import Finetuning, FinetuningData, FinetuningPredictor
from gmlp_flax.tasks.inference.prediction import Prepared
from gmlp_flax.tasks.text import LINES_ADVICE, TEXT_OPTIONS

OWN = "own"
EXPECTED = "PATH, or tfds:glue/NAME"  # of config.data.train

OPTIONS = TEXT_OPTIONS | {
    "model.pool": Option(
        "mean",
        "the head reads the mean of the tokens, or [CLS] (BERT)",
        ("mean", "cls"),
        compared=FINETUNED_RUNS,
    ),
    "model.pooler": Option(
        False, "BERT's tanh layer before the head", inherited=True, compared=FINETUNED_RUNS
    ),
    "model.hide_padding": Option(
        False,
        "with mask_padding, Toeplitz projections ignore [PAD] as well, so that batches of short "
        "texts are cut",
        compared=FINETUNED_RUNS,
    ),
    "model.pairs": Option(
        "joined",
        "both texts of a pair in one sequence; or apart, each of model.length tokens, compared by "
        "the head alone",
        ("joined", "apart"),
    ),
    "model.interaction": Option(
        "nli",
        "of texts read apart, the head gets [u, v, u * v, u - v] (nli) or [u, v] (concat)",
        ("nli", "concat"),
    ),
    "own.text": Option(
        "text",
        "of own data, the column of the text, or of a pair's first text",
        selects_data=True,
    ),
    "own.second": Option(
        "",
        "of own data, the column of the pairs' second text; empty: there are no pairs",
        selects_data=True,
    ),
    "own.label": Option(
        "label",
        "of own data, the column of the labels: words or numbers",
        selects_data=True,
    ),
}


def text_task(
    config: ConfigDict, known: Mapping[str, text_tasks.TextTask], numbers: bool = False
) -> text_tasks.TextTask:
    """The texts and labels that a config names: those of `known`, or of the user's own data, whose
    labels are `numbers` or classes that are not known yet."""
    name = config.glue.task
    if name != OWN:
        return known[name]
    columns = config.own
    texts = (columns.text,)
    if columns.second:
        texts = (columns.text, columns.second)
    return text_tasks.custom_task(texts, columns.label, numbers)


def encodes_separately(config: ConfigDict) -> bool:
    """Whether each text of a pair is encoded separately."""
    return config.model.pairs == "apart"


def spec_of(config: ConfigDict) -> Any:
    """The spec of the blocks; with model.hide_padding, one that ignores padding."""
    spec = block_spec(config, config.model.length)
    if not config.model.hide_padding:
        return spec
    hiding = spec.hiding_padding()
    if hiding is None:
        raise ValueError(
            "model.hide_padding is True, and this model reads all n tokens: set it to False"
        )
    return hiding


def hides_padding(config: ConfigDict) -> bool:
    """Whether the logits of a text do not depend on how much padding follows it, in training
    too."""
    spec = spec_of(config)
    return config.model.mask_padding and spec.hiding_padding() == spec


def encoded_pairs(
    config: ConfigDict,
    tokenizer: Any,
    texts: Sequence[Sequence[np.ndarray]],
    length: int,
    **columns: np.ndarray,
) -> pairs.Pairs:
    """Examples of token ids; the arguments are those of `pairs.Pairs`."""
    return pairs.Pairs(
        texts, columns, length=length, tokenizer=tokenizer, dual_encoder=encodes_separately(config)
    )


class LabelledTextData(FinetuningData):
    """Labelled texts and pairs.

    Attributes:
        known: the published tasks, by name.
        numbers: whether own labels are numbers.
    """

    known: ClassVar[Mapping[str, text_tasks.TextTask]]
    numbers: ClassVar[bool] = False

    @property
    def text_task(self) -> text_tasks.TextTask:
        """The columns of texts and labels; the user's own data have no names of labels here."""
        return text_task(self.config, self.known, self.numbers)

    @property
    def is_own(self) -> bool:
        """Whether the data are the user's own."""
        return self.config.glue.task == OWN

    @functools.cache  # noqa: B019 - data live as long as their run
    def dataset(self, role: str) -> Dataset:
        """The labelled texts of a role; raises DataError if they cannot be read, or those to train
        on have no labels."""
        bad = BadRecords(self.config.data.max_bad_records)

        def read(path: str, ignore_splits: bool) -> Splits:
            """The splits of the labelled texts at a path."""
            task = self.text_task
            if self.is_own:
                return labelled_text.read(path, task, bad, ignore_splits)
            return text_benchmarks.read(path, task, bad, ignore_splits)

        dataset = data_config.open_split(self.config, role, read, EXPECTED)
        if role == TRAIN:
            self._require_labels(dataset)
        labelled = self.with_labels(dataset, role)
        return data_config.with_skipped(labelled, bad)

    def _require_labels(self, dataset: Dataset) -> None:
        """Raises DataError if the data to train on have no labels."""
        is_labelled = self.is_labelled(dataset)
        if not is_labelled.any():
            columns = " or ".join(map(repr, self.text_task.label))
            raise DataError(
                f"config.data.train: {dataset.path!r} has no labels to train on: expected a column "
                f"{columns}"
            )

    def with_labels(self, dataset: Dataset, role: str) -> Dataset:
        """The data of a role with the labels that the run predicts."""
        return dataset

    def is_labelled(self, dataset: Dataset) -> np.ndarray:
        """Which examples have a label, bool [examples]."""
        return dataset.labels != classes.UNLABELLED

    @functools.cache  # noqa: B019 - as above
    def examples(self, role: str) -> pairs.Pairs:
        """The encoded examples of a role, in the order of `Task.prediction_files`."""
        dataset = self.dataset(role)
        rows = dataset.examples.rows
        length = self.config.model.length
        with data_config.errors_name("model.length"):
            tokens = []
            for texts in _columns_of_texts(rows):
                # No more tokens are ever read. One more shows that a text is cut.
                encoded = pairs.encode(texts, self.tokenizer, max_tokens=length)
                tokens.append(encoded)
            parts = [row.part for row in rows]
            columns = {"label": dataset.labels, "part": np.array(parts, np.int32)}
            source = encoded_pairs(self.config, self.tokenizer, tokens, length, **columns)
        report_unknown(self.tokenizer, source, f"{role} examples")
        if source.cut:
            message = (
                f"{source.cut} of {len(source)} are longer than config.model.length={length} and "
                "are cut"
            )
            data_config.warn(role, "examples", message)
        return source

    def tokens(self, role: str) -> Tokens:
        """See `TaskData`: of both texts of a pair together, if they are read together."""
        dataset = self.dataset(role)
        all_rows = dataset.examples.rows
        indices = spread(len(dataset), DOCUMENTS)
        rows = [all_rows[index] for index in indices]
        ids_by_column = []
        for texts in _columns_of_texts(rows):
            ids_of_column = self.tokenizer.encode_batch(texts)
            ids_by_column.append(ids_of_column)
        if encodes_separately(self.config):
            texts_read = 1
            ids = list(itertools.chain.from_iterable(ids_by_column))
        else:
            texts_read = len(ids_by_column)
            ids_by_example = zip(*ids_by_column, strict=True)
            ids = [np.concatenate(texts) for texts in ids_by_example]
        room = pairs.room_for(texts_read, self.config.model.length)
        return count_tokens(ids, self.tokenizer.unk_id, room)

    def finish(self, hosts: int) -> Callable[[pipeline.Batch], pipeline.Batch]:
        """See `TaskData`: batches as long as their longest text needs. Each of several hosts sees
        only its own texts, so they keep n."""
        if hosts > 1 or not hides_padding(self.config):
            return pipeline.unchanged
        pad_id = self.tokenizer.pad_id
        return functools.partial(pairs.cut_padding, pad_id=pad_id)

    @classmethod
    def row(
        cls, config: ConfigDict, inputs: Sequence[Any], label: Any, path: str
    ) -> dict[str, Any]:
        """See `TaskData`."""
        task = text_task(config, cls.known, cls.numbers)
        columns = [names[0] for names in task.texts]
        label_column = task.label[0]
        count = len(inputs)
        expected = len(columns)
        if count != expected or label is None:
            advice = "give (text, label)"
            if count == 2:
                advice = "set own.second to the name of a second text"
            raise DataError(
                f"an example has {count} text(s), label {label!r}; expected {expected}: {advice}"
            )
        require_texts(inputs)
        row = dict(zip(columns, inputs, strict=True))
        row[label_column] = label
        return row


def _columns_of_texts(rows: Sequence[Any]) -> Iterable[tuple[str, ...]]:
    """The texts of rows by column: all first texts, then all second ones if there are pairs."""
    texts_of_rows = [row.texts for row in rows]
    return zip(*texts_of_rows, strict=True)


class LabelledTextPredictor(FinetuningPredictor):
    """Answers to a sentence or, with a tab between them, to a pair."""

    def table_columns(self, path: str, header: Sequence[str]) -> tuple[str, ...]:
        """See `Predictor`: those of the texts that the model was trained on."""
        task = self.task.text_task
        columns = text_rows.resolve_columns(path, header, task, flags=LINES_ADVICE)
        return columns.texts

    def prepare(self, value: str, truncate: bool = False) -> Prepared:
        """See `Predictor`. A tab in a program's text is white space if the task has no pairs.

        Raises:
            RunError: a line has more or fewer texts than the task, or is longer than the model's
                sequences.
        """
        config = self.task.config
        texts = self._split(value)
        ids = []
        for text in texts:
            ids_of_text = self.tokenizer.encode(text)
            ids.append(np.array(ids_of_text, np.int32))
        lengths = [len(ids_of_text) + 1 for ids_of_text in ids]  # with the [SEP] after each
        texts_length = max(lengths) if encodes_separately(config) else sum(lengths)
        needed = 1 + texts_length  # with [CLS]
        note = self.note_of_cut(needed, value, truncate)
        length = self.task.length
        if hides_padding(config):
            length = min(needed, length)
        columns = [[ids_of_text] for ids_of_text in ids]
        examples = encoded_pairs(config, self.tokenizer, columns, length)
        example = examples[0]
        arrays = {"tokens": example["tokens"], "segments": example["segments"]}
        return Prepared([arrays], 1, note)

    def _split(self, line: str) -> list[str]:
        """The texts of a line; raises RunError if it has more or fewer than the task."""
        expected = len(self.task.text_task.texts)
        texts = [line]
        if isinstance(line, Line) or expected > 1:
            texts = line.split("\t")
        count = len(texts)
        if count != expected:
            start = line[:60]
            raise RunError(
                f"the line has {count} text(s), the task reads {expected}: put a tab between "
                f"two texts, none in a single one: {start!r}"
            )
        return texts

    def scores(self, params: Any, batch: dict[str, Any]) -> jax.Array:
        """See `Predictor`: one prediction for each line."""
        scores = self.task.scores(params, batch, None)
        return scores[:, None]


class LabelledText(Finetuning):
    """A label of a sentence or a pair: what classification and regression share.

    Batches have "label" [batch] and "part" int32 [batch] as well.

    Attributes:
        text_task: the columns, labels and scores of the texts.
    """

    Data: ClassVar[type[LabelledTextData]] = LabelledTextData
    Predictor: ClassVar = LabelledTextPredictor
    inheritance = Inheritance(
        model=True, shared=(TOKENIZER_FILE,), new_params=("segments/", "pooler/")
    )
    hub_task = "text-classification"
    text_task: text_tasks.TextTask

    @classmethod
    def check(cls, config: ConfigDict) -> None:
        """See `Task`."""
        if config.model.causal and config.model.pool == "cls":
            raise ConfigError(
                "config.model.pool is 'cls', and the model is causal: it sees no token; set it to "
                "'mean'"
            )
        if config.model.hide_padding and not config.model.mask_padding:
            raise ConfigError(
                "config.model.hide_padding is True, and model.mask_padding is not: set it to True, "
                "too"
            )
        if not encodes_separately(config):
            return
        task = text_task(config, cls.Data.known)
        if len(task.texts) == 1:
            raise ConfigError(
                f"config.model.pairs is 'apart', and the task {config.glue.task} has no pairs: set "
                "it to 'joined'"
            )
        if config.model.pooler:
            raise ConfigError(
                "config.model.pairs is 'apart', whose head has other layers: set model.pooler to "
                "False"
            )

    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        """See `Task`; the head has an output for each label, or one for a number."""
        model = self.config.model
        spec = self.spec()
        rows = model.vocab_size
        label_count = len(self.text_task.labels)
        options = {"pool": model.pool, **self.embedding()}
        if encodes_separately(self.config):
            options["interaction"] = model.interaction
            return PairClassifier(spec, rows, label_count, rngs, **options)
        options["pooler"] = model.pooler
        return SequenceClassifier(spec, rows, label_count, rngs, **options)

    def spec(self) -> Any:
        """See `Task`."""
        return spec_of(self.config)

    def scores(self, params: Any, batch: Batch, key: jax.Array | None) -> jax.Array:
        """See `Finetuning`; the model may read padding, but the mean of the tokens excludes it."""
        tokens = batch["tokens"]
        segments = batch["segments"]
        mask = self.padding_mask(tokens)
        is_text = tokens != self.tokenizer.pad_id
        return self.apply(params, tokens, segments, mask, key, is_text)

    def example_shapes(self) -> Shapes:
        """See `Task`."""
        shapes = super().example_shapes()
        if encodes_separately(self.config):
            both_texts = ((2, self.length), jnp.int32)
            shapes["tokens"] = both_texts
            shapes["segments"] = both_texts
        number = ((), jnp.int32)
        return {**shapes, "label": number, "part": number}

    def prediction_files(self, outputs: Outputs, data: LabelledTextData) -> dict[str, bytes]:
        """What GLUE's server takes: one file per part, one line per example with its id and what is
        predicted.

        An id or label of the user's own data that contains a tab or a line feed is quoted.
        """
        heldout = data.dataset(HELDOUT)
        rows = heldout.examples.rows
        tables: dict[int, list[tuple[str, str]]] = {}  # by part
        for row, label in zip(rows, outputs["label"], strict=True):
            text = self.label_text(label)
            table = tables.setdefault(row.part, [])
            table.append((row.id, text))
        names = self.text_task.submission
        files = {}
        for part in sorted(tables):
            name = names[part]
            files[name] = _submission_table(tables[part])
        return files

    def label_text(self, label: Any) -> str:
        """A predicted label, as `prediction_files` writes it."""
        return str(label)


def _submission_table(lines: Sequence[tuple[str, str]]) -> bytes:
    """A tab-separated file of ids and predictions, with a header."""
    table = io.StringIO()
    writer = csv.writer(table, "excel-tab", lineterminator="\n")
    writer.writerow(("index", "prediction"))
    writer.writerows(lines)
    text = table.getvalue()
    return text.encode("utf-8", "backslashreplace")
