"""What a task is trained on and scored by: its examples as batches, and the files that a model of
them needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax.data import pipeline
from gmlp_flax.data import summary as summaries
from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.fingerprints import Fingerprint
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.pipeline import Batches
from gmlp_flax.data.summary import DataSummary, Inspection, Tokens
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.io import files, json_files

Files = Mapping[str, bytes]  # contents by name

_NONE: Files = MappingProxyType({})


class RunFiles:
    """The files of a run besides its parameters: its own, else those of the run that starts it.

    Args:
        folder: of the run, in which its own files lie; "" for none.
        local: by name, further files of the run, such as those of a checkpoint.
        inherited: by name, files of the run that starts this one.
    """

    def __init__(self, folder: str = "", local: Files = _NONE, inherited: Files = _NONE):
        self.folder = folder
        self.local = local
        self.inherited = inherited

    def path(self, name: str) -> str:
        """Where a file is, or would be, in the run folder."""
        return os.path.join(self.folder, name)

    def read_local(self, name: str) -> bytes | None:
        """The content of one of the run's own files; None if there is none."""
        path = self.path(name)
        if self.folder and files.exists(path):
            return files.read_small(path)
        return self.local.get(name)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        content = self.read_local(name)
        if content is None:
            return self.inherited.get(name)
        return content

    def names(self, name: str) -> tuple[str, ...]:
        """The names of classes in a JSON file, see `names_in`; () without the file."""
        content = self.read(name)
        if content is None:
            return ()
        return names_in(content, self.path(name))


def names_in(content: bytes, where: str) -> tuple[str, ...]:
    """The names of classes in a JSON file: a list, or "labels" in an object.

    Args:
        content: of the file.
        where: the file's path, for the error.

    Raises:
        DataError: there is no such list in it, or an empty one.
    """
    values = json_files.parse(content, where)
    if isinstance(values, dict):
        values = values.get("labels")
    if not isinstance(values, list) or not _are_names(values):
        raise DataError(
            f"{where} is damaged: expected a list of names; take it from the run's checkpoint again"
        )
    return tuple(values)


def _are_names(values: list[Any]) -> bool:
    """Whether a list of JSON has one or more values, all of them texts."""
    are_texts = [isinstance(value, str) for value in values]
    return bool(are_texts) and all(are_texts)


def single_input(inputs: Sequence[Any], kind: str) -> Any:
    """The input of a program's example, for a task that takes one; `kind` is what it reads.
    Raises DataError if there are several."""
    count = len(inputs)
    first = inputs[0]
    if count != 1:
        raise DataError(
            f"an example has {count} inputs, such as {first!r:.60}: expected one {kind}; leave "
            "the other columns out"
        )
    return first


class TaskData:
    """The examples of a run, to train on and held out, as batches.

    Your own data define `examples`, and `assets` if the model needs to know something about them.

    Args:
        config: of the run.
        run_files: what is known already, such as the tokenizer of a run that resumes.
    """

    def __init__(self, config: ConfigDict, run_files: RunFiles = RunFiles()):
        self.config = config
        self.run_files = run_files

    def examples(self, role: str) -> Any:
        """The examples of a role, "train" or "heldout", as a pipeline.Source."""
        raise ConfigError(f"{type(self).__name__} has no examples: define `examples(role)`")

    def labelled(self, role: str) -> Any:
        """The examples of a role as evaluation reads them, with their "label"."""
        return self.examples(role)

    def assets(self) -> dict[str, bytes]:
        """The files that a model of these data needs besides its parameters, by name; run folder
        and checkpoints hold them."""
        return {}

    def dataset(self, role: str) -> Dataset | None:
        """The data set that the examples of a role come from; None if there is nothing to say about
        it."""
        return None

    def fingerprint(self, role: str) -> Fingerprint:
        """What identifies the data of a role when a run resumes (`data.fingerprints`); {} if they
        are not compared."""
        dataset = self.dataset(role)
        if dataset is None:
            return {}
        return dataset.fingerprint

    def lines(self, role: str) -> list[str]:
        """What was read for a role, and what the user should know about it, a line each."""
        dataset = self.dataset(role)
        if dataset is None:
            return []
        line = summaries.line(dataset, role)
        return [line, *dataset.notes]

    def summary(self, role: str) -> DataSummary:
        """The same with some examples and, of text, its tokens."""
        dataset = self.dataset(role)
        if dataset is None:
            examples = self.examples(role)
            name = type(self).__name__
            return summaries.summarize_examples(examples, name, role)
        tokens = self.tokens(role)
        return summaries.summarize(dataset, role, tokens)

    def tokens(self, role: str) -> Tokens | None:
        """The tokens of some examples of a role; None if they are not text."""
        return None

    def notes(self) -> list[str]:
        """What the user should know about both roles together, a line each.

        Raises:
            DataError: the data cannot be what the user meant.
        """
        return []

    @classmethod
    def row(
        cls, config: ConfigDict, inputs: Sequence[Any], label: Any, path: str
    ) -> dict[str, Any]:
        """A program's example, its inputs and its label or None, as a JSON row of the data that the
        run reads. It may write a file that the row names to `path`, which has no suffix.

        Raises:
            UserError: it does not suit the task.
        """
        raise RunError(f"{cls.__name__} takes no examples from a program: give a path")

    @classmethod
    def label_column(cls, config: ConfigDict) -> str:
        """The column of the class in `row`; "" if there are no classes."""
        return ""

    def inspect(self) -> Inspection:
        """What was read for both roles."""
        train = self.summary(TRAIN)
        heldout = self.summary(HELDOUT)
        notes = tuple(self.notes())
        return Inspection(train, heldout, notes)

    # Batches.

    def train_order(self) -> pipeline.Order:
        """The examples to train on, in the order of training."""
        examples = self.examples(TRAIN)
        return pipeline.Shuffled(examples, self.config.seed)

    def finish(self, hosts: int) -> Callable[[pipeline.Batch], pipeline.Batch]:
        """What is done with a host's batch once it is stacked: a function, picklable if there are
        workers."""
        return pipeline.unchanged

    def train_batches(self, start: int, host: int, hosts: int) -> Batches:
        """This host's share of the training batches, batch `start` first."""
        reading = self._reading(self.config.batch_size, host, hosts)
        order = self.train_order()
        return pipeline.train_batches(order, reading, start)

    def evaluation_batches(self, host: int, hosts: int, shares: int = 1) -> Batches:
        """This host's share of the held-out batches, with "weight" [batch]; `shares` divides their
        size."""
        batch_size = self.evaluation_batch_size(shares)
        reading = self._reading(batch_size, host, hosts)
        examples = self.examples(HELDOUT)
        return pipeline.evaluation_batches(examples, reading)

    def _reading(self, batch_size: int, host: int, hosts: int) -> pipeline.Reading:
        return pipeline.Reading(
            batch_size=batch_size,
            host=host,
            hosts=hosts,
            workers=self.config.data.workers,
            finish=self.finish(hosts),
        )

    def training_examples(self) -> int | None:
        """Number of training examples, over all hosts; None: not known."""
        return len(self.examples(TRAIN))

    def evaluation_examples(self) -> int:
        """Number of held-out examples, over all hosts."""
        return len(self.examples(HELDOUT))

    def evaluation_batch_size(self, shares: int) -> int:
        """Examples of an evaluation batch, over all hosts: not more than are held out, in even
        shares."""
        examples = max(1, self.evaluation_examples())
        share_size = -(-examples // shares)  # rounded up
        most = share_size * shares
        batch_size = self.config.eval.batch_size or self.config.batch_size
        return min(batch_size, most)
