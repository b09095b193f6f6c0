"""Labelled sentences and pairs of sentences: GLUE's classification tasks, SNLI, Long Range Arena's texts, and the
user's own.

A path is one of

    a file: with GLUE's header, tab-separated (.tsv, .txt) or with commas (.csv), or JSON lines (.jsonl, .ndjson, .json),
        each also packed as .gz, .xz, .bz2 or .zst; or .parquet. Its rows may name their splits in a field `tag` or
        `split` ("train", "dev").
    a folder as GLUE ships a task: train.tsv, dev.tsv, test.tsv; for MNLI, dev_matched.tsv and dev_mismatched.tsv. Other
        names that end in a split will do, such as snli_1.0_train.jsonl, and shards of a split, as Hugging Face has them:
        train-00000-of-00001.parquet.
    a TFDS folder with features.json and dataset_info.json, or tfds:NAME[/CONFIG][:VERSION] (see tfds_folders).

Columns are found by their names. A row that cannot be used is a bad record.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gmlp_flax.data import splits
from gmlp_flax.data.finetuning.glue import SentenceTask
from gmlp_flax.data.finetuning.sentence_rows import (
    IDS,
    READERS,
    TAGS,
    Record,
    Rows,
    file_rows,
    require_features,
    tfds_rows,
)
from gmlp_flax.data.splits import HELDOUT, HELDOUT_SPLIT, SPLIT_WORDS, TRAIN_SPLIT
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, shards, tfds_folders
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord, BadRecords

UNLABELLED = -1
_MOST_LABELS = 1000  # a column with more values than these does not hold classes

_PARTS = ("", "_matched", "_mismatched")  # of a split; only MNLI's splits have parts
_SPLIT = re.compile(rf"(?:^|[-_.])({'|'.join(SPLIT_WORDS)})({'|'.join(_PARTS[1:])}|)$")


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Labelled sentences, or pairs of sentences, in memory.

    Attributes:
        path: of the file or folder.
        first: the sentences, or the first sentence of each pair.
        second: the second sentence of each pair, or None.
        labels: int32 [examples], positions in the task's labels; all UNLABELLED in a test set.
        ids: values of the column `index`, `idx`, `pairID` or `id`; if there is none, positions in the file.
        part: int32 [examples], 1 for MNLI's mismatched examples, else 0.
        tags: the split that each row names, or "".
        dropped: how many examples without a label were left out.
    """

    path: str
    first: list[str]
    second: list[str] | None
    labels: np.ndarray
    ids: list[str]
    part: np.ndarray
    tags: list[str]
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.first)

    def __repr__(self) -> str:
        return f"Sentences({self.path!r}, examples={len(self)})"

    def subset(self, chosen: np.ndarray) -> "Sentences":
        """The examples for which `chosen`, bool [examples], is true."""
        places = np.flatnonzero(chosen)
        lists = {name: [values[i] for i in places] for name, values in self._lists().items()}
        return dataclasses.replace(self, labels=self.labels[places], part=self.part[places], **lists)

    def _lists(self) -> dict[str, list[str]]:
        lists = {"first": self.first, "second": self.second, "ids": self.ids, "tags": self.tags}
        return {name: values for name, values in lists.items() if values is not None}


def open_sentences(
    path: str,
    task: SentenceTask,
    side: str,
    *,
    split: str = "",
    heldout_split: str = "",
    heldout_share: float = 0.0,
    bad: BadRecords | None = None,
) -> Sentences:
    """Reads the examples at `path` to train on, or the held-out ones.

    In data with splits, `train` is for training and `validation` (`dev`; in MNLI, both of its parts) is held out. If
    there is no such split, a share of the training examples is held out, by their first text.

    Args:
        path: see the module's docstring.
        task: the names of the columns and of the labels.
        side: "train" or "heldout".
        split, heldout_split: other splits than these.
        heldout_share: the share of the training data to hold out if there is no held-out split, 0 to 1; 0 if `path`
            holds one side alone.
        bad: counts and limits the rows that cannot be used. Without it, the first one raises.

    Raises:
        DataError: there is nothing at `path`, no such split or columns, or nothing on this side; rows are bad; or there
            are no labels to train on.
    """
    path = tfds_folders.find(str(path))
    groups = _groups(path, task, BadRecords() if bad is None else bad)
    known = tuple(groups)
    only = known if len(known) == 1 else ()
    train = _named(path, known, split, TRAIN_SPLIT) or only
    heldout = _named(path, known, heldout_split, HELDOUT_SPLIT) or (() if heldout_share else only)
    chosen = splits.choose(path, side, train, heldout, heldout_share, known=known, explicit=bool(heldout_split))
    if not chosen.splits:
        raise DataError(
            f"{path!r} has no split for this side, only {', '.join(map(repr, known))}; give one as config.data.split "
            "or heldout_split"
        )
    joined = _joined(path, [groups[name]() for name in chosen.splits])
    found = _labelled(joined, side, task)
    if not chosen.share:
        return found

    def of_side(sentences: Sentences) -> Sentences:
        heldout_texts = np.array([splits.is_heldout(text, chosen.share) for text in sentences.first])
        return sentences.subset(heldout_texts == (side == HELDOUT))

    shared = of_side(found)
    if found.dropped:
        shared = dataclasses.replace(shared, dropped=len(of_side(joined)) - len(shared))
    if not len(shared):
        raise splits.empty_side(
            f"the {len(found)} examples of {path!r}",
            side,
            chosen.share,
            "give the held-out examples a path of their own",
        )
    return shared


def label_names(path: str, task: SentenceTask) -> tuple[str, ...]:
    """The labels in the data at `path`, or in a TFDS folder's description: numbers by size, then words by letters.

    Raises:
        DataError: there is no such data or column, or the column holds no classes.
    """
    path = tfds_folders.find(str(path))
    found = files.find_files(path)
    folder = tfds_folders.load(path, found)
    if folder and (named := getattr(folder.fields.get(task.label[0]), "names", None)):
        return tuple(named)
    parts = _rows(path, task, found, folder).values()
    values = (_field(record, task.label) for rows in parts for _, record in rows() if isinstance(record, dict))
    try:
        names = {_label_name(value) for value in values if value is not None} - set(task.unlabelled)
    except BadRecord as error:
        raise DataError(f"{path!r}: {error}") from None
    if not 2 <= len(names) <= _MOST_LABELS:
        raise DataError(
            f"{path!r} has {len(names)} different values in the column of labels, {task.label[0]!r}: expected 2 to "
            f"{_MOST_LABELS}; give another column or file"
        )
    numbers = {name: int(name) for name in names if name.removeprefix("-").isdecimal()}
    return tuple(sorted(names, key=lambda name: (name not in numbers, numbers.get(name, 0), name)))


def _named(path: str, known: tuple[str, ...], wanted: str, default: str) -> tuple[str, ...]:
    """The split with this name, or its parts, matched before mismatched; () if the default split is not there."""
    name = wanted or default
    if name not in known and _SPLIT.fullmatch(name):
        name = _split_name(name)
    found = tuple(name + part for part in _PARTS if name + part in known)
    if wanted and not found:
        raise splits.missing_split(path, wanted, known)
    return found


def _split_name(name: str) -> str:
    """The split at the end of a name, by TFDS's name for it, such as "validation_matched"; "" if there is none."""
    found = _SPLIT.search(name)
    return SPLIT_WORDS[found[1]] + found[2] if found else ""


def _labelled(sentences: Sentences, side: str, task: SentenceTask) -> Sentences:
    """The examples with a label; all examples if they are held out and none has a label, as in a test set."""
    labelled = sentences.labels != UNLABELLED
    if labelled.all() or (side == "heldout" and not labelled.any()):
        return sentences
    if not labelled.any():
        raise DataError(
            f"{sentences.path!r} has no labels to train on: expected a column {' or '.join(map(repr, task.label))}; "
            "give another file or split"
        )
    return dataclasses.replace(sentences.subset(labelled), dropped=int((~labelled).sum()))


def _joined(path: str, parts: list[Sentences]) -> Sentences:
    """Examples of several splits or shards, in order."""
    lists = {name: sum((getattr(part, name) for part in parts), []) for name in parts[0]._lists()}
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("labels", "part")}
    return dataclasses.replace(parts[0], path=path, **lists, **arrays)


def _groups(path: str, task: SentenceTask, bad: BadRecords) -> dict[str, Callable[[], Sentences]]:
    """Split name -> a function that reads the split; the name is "" if the data have no splits."""
    found = files.find_files(path)
    folder = tfds_folders.load(path, found)
    if folder:
        require_features(folder, task)
    rows = _rows(path, task, found, folder)
    if list(rows) != [""]:
        return {name: lambda name=name: _read(path, name, rows[name](), task, bad) for name in rows}
    whole = _read(path, "", rows[""](), task, bad)
    known = tuple(dict.fromkeys(SPLIT_WORDS.values()))
    strange = [tag for tag in whole.tags if tag not in known]
    if strange and not set(whole.tags) & set(known):
        return {"": lambda: whole}
    if strange:  # what is held out would be trained on
        raise DataError(
            f"{path!r}: the column {' or '.join(map(repr, TAGS))} names splits in some rows, and {strange[0]!r} in another: "
            f"expected {', '.join(known)} in each; correct or rename it"
        )
    tags = np.array(whole.tags)
    return {str(tag): lambda tag=tag: whole.subset(tags == tag) for tag in np.unique(tags)}


def _rows(
    path: str, task: SentenceTask, found: tuple[File, ...], folder: tfds_folders.Folder | None
) -> dict[str, Callable[[], Rows]]:
    """Split name -> a function that gives its rows; the name is "" for a single file."""
    if folder:
        return {name: functools.partial(tfds_rows, folder, name) for name in folder.lengths}
    if found and found[0].path == path:
        return {"": functools.partial(file_rows, path, task)}
    return {name: functools.partial(_chained, chosen, task) for name, chosen in _split_files(path, found).items()}


def _chained(chosen: list[File], task: SentenceTask) -> Rows:
    return itertools.chain.from_iterable(file_rows(file.path, task) for file in chosen)


def _split_files(path: str, found: tuple[File, ...]) -> dict[str, list[File]]:
    """Split name -> its file in a folder, or its shards. Of several formats, as of SNLI, one that has all splits."""
    sets: dict[str, dict[tuple[str, str], list[File]]] = {}  # suffix -> split, one of its files or sets -> files
    for file in found:
        suffix, shard = files.suffix(file.name), shards.NAME.match(file.name)
        stem = shard["stem"] if shard else file.name[: len(file.name) - len(suffix + files.packing(file.name))]
        name = _split_name(stem)
        if suffix in READERS and name and "/" not in file.name:
            one = f"{stem}, {shard['count']}" if shard else file.name
            sets.setdefault(suffix, {}).setdefault((name, one), []).append(file)
    every = {name: of_split[0].name for of_suffix in sets.values() for (name, _), of_split in of_suffix.items()}
    for suffix in filter(sets.__contains__, READERS):
        chosen: dict[str, list[File]] = {}
        for (name, _), of_split in sets[suffix].items():
            if name in chosen:
                raise DataError(
                    f"{path!r} holds two files of the split {name!r}, {chosen[name][0].name!r} and {of_split[0].name!r}; "
                    "give a folder of one task, or single files as config.data.train and heldout"
                )
            shards.check(path, of_split)
            chosen[name] = of_split
        if len(chosen) == len(every):
            return chosen
    if every:
        raise DataError(
            f"{path!r} holds splits in several formats, {', '.join(map(repr, every.values()))}, and no format has all: give "
            "single files as config.data.train and heldout"
        )
    raise DataError(
        f"folder {path!r} holds no task of GLUE: expected train.tsv and dev.tsv (or .jsonl, .csv, .parquet), or TFDS's files; "
        "give a folder with them, or single files"
    )


def _read(path: str, split: str, rows: Rows, task: SentenceTask, bad: BadRecords) -> Sentences:
    """The usable rows of a file or split."""
    labels = {name: place for place, name in enumerate(task.labels)}
    if task.numbered and not any(name.isdecimal() for name in labels):
        labels |= {str(place): place for place in labels.values()}
    labels |= dict.fromkeys(task.unlabelled, UNLABELLED) | {name: i for i, name in enumerate(task.aliases)}
    once: dict[str, str] = {}  # Retrieval has each long document in many pairs
    texts, found, ids, tags, seen = [[] for _ in task.texts], [], [], [], set()
    for place, (where, record) in enumerate(rows):
        try:
            if isinstance(record, BadRecord):
                raise record
            pair = [_text(record, names, task.words) for names in task.texts]
            label = _label(record, labels, task)
            own_id, tag = _field(record, IDS), str(_field(record, TAGS) or "")
            if not isinstance(own_id, str | int | float | None):
                columns = " or ".join(map(repr, IDS))
                raise BadRecord(f"the id {own_id!r}; expected a text or a number, or no column {columns}")
            if own_id is not None and (tag, own_id) in seen:
                raise BadRecord(
                    f"the id {own_id!r} is also that of an earlier row: give each its own, or rename the column"
                )
        except BadRecord as error:
            bad.skip(f"{where}: {error}")
            continue
        seen.add((tag, own_id))
        for column, text in zip(texts, pair, strict=True):
            column.append(once.setdefault(text, text))
        found.append(label)
        ids.append(str(place if own_id is None else own_id))
        tags.append(SPLIT_WORDS.get(tag.strip().lower(), tag))
    if not found:
        raise DataError(f"{path!r} holds no example{f' in the split {split!r}' if split else ''}; give other data")
    first, second = texts if len(texts) == 2 else (texts[0], None)
    part = np.full(len(found), split.endswith(_PARTS[2]), np.int32)
    return Sentences(path, first, second, np.array(found, np.int32), ids, part, tags)


def _field(record: Record, names: Sequence[str]) -> Any:
    """The value of the first of these columns that the row has, or None."""
    return next((record[name] for name in names if name in record), None)


def _text(record: Record, names: tuple[str, ...], words: tuple[str, ...] = ()) -> str:
    value = _field(record, names)
    if not isinstance(value, str):
        raise BadRecord(f"no text {' or '.join(map(repr, names))}, found {', '.join(map(repr, sorted(record)))}")
    if not value.strip():
        raise BadRecord(f"an empty sentence {' or '.join(map(repr, names))}")
    if words and (strange := set(value.split()).difference(words)):
        first = next(word for word in value.split() if word in strange)
        raise BadRecord(f"the symbol {first[:40]!r}; expected one of {' '.join(words)}")
    return value.strip()  # so that equal premises are equal


def _label(record: Record, labels: dict[str, int], task: SentenceTask) -> int:
    value = _field(record, task.label)
    if value is None:
        return UNLABELLED
    name = _label_name(value)
    if name not in labels:
        listed = ", ".join(map(repr, task.labels[:10])) + (", ..." if len(task.labels) > 10 else "")
        numbered = task.numbered and not any(map(str.isdecimal, task.labels))
        numbers = f", or its number from 0 to {len(task.labels) - 1}" if numbered else ""
        raise BadRecord(f"the label {value!r}; expected {listed}{numbers}")
    return labels[name]


def _label_name(value: Any) -> str:
    """The name of a class; raises BadRecord if it is neither a word nor a number."""
    if isinstance(value, list | dict) or value != value:
        raise BadRecord(f"the label {value!r}; expected a word or a number")
    return str(value).strip()
