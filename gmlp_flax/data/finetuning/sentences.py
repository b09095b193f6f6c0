"""Labelled sentences and pairs of sentences: GLUE's classification tasks, SNLI, Long Range Arena's
texts, and the user's own.

A path is one of

    a file: with GLUE's header, tab-separated (.tsv, .txt) or with commas (.csv), or JSON lines
        (.jsonl, .ndjson, .json), each also packed as .gz, .xz, .bz2 or .zst; or .parquet. Its rows
        may name their splits in a field `tag` or `split` ("train", "dev").
    a folder as GLUE ships a task: train.tsv, dev.tsv, test.tsv; for MNLI, dev_matched.tsv and
        dev_mismatched.tsv. Other names that end in a split will do, such as snli_1.0_train.jsonl,
        and shards of a split, as Hugging Face
        has them: train-00000-of-00001.parquet.
    a TFDS folder with features.json and dataset_info.json, or tfds:NAME[/CONFIG][:VERSION] (see
    tfds_folders).

Columns are found by their names. A row that cannot be used is a bad record.
"""

import contextlib
import dataclasses
import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gmlp_flax.data import fingerprints, splits
from gmlp_flax.data.finetuning.glue import MISSING, SentenceTask
from gmlp_flax.data.finetuning.sentence_rows import (
    IDS,
    PARTS,
    TAGS,
    Record,
    Rows,
    rejected,
    rows_by_split,
)
from gmlp_flax.data.splits import HELDOUT, HELDOUT_SPLIT, SPLIT_WORDS, TRAIN_SPLIT, Side
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, tfds_folders
from gmlp_flax.io.records import BadRecord, BadRecords, decode_utf8

UNLABELLED = -1
_LIST = re.compile(r"\s*(\[.*\]|\{.*\})\s*", re.DOTALL)  # as pandas writes lists

MOST_LABELS = 1000  # a column with more values than these does not hold classes
_PERHAPS_MISSING = ("none", "null", "na", "n/a", "-", "?", "-1")  # or classes
_WHOLE = re.compile(r"([+-]?\d{1,18})\.0*")
_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?")
_SAME = {
    "true": "1",
    "false": "0",
    "y": "yes",
    "n": "no",
    "m": "male",
    "pos": "positive",
    "neg": "negative",
}
_JOINTS = re.compile(r"\s*[|;,+/]\s*")


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Labelled sentences, or pairs of sentences, in memory.

    Attributes:
        texts: the text of each example, or both texts of each pair.
        labels: int32 [examples], positions in `names`; all UNLABELLED in a test set. Of a task of
            numbers float32, nan in a test set.
        ids: values of the column `index`, `idx`, `pairID` or `id`; if there is none, positions in
            the file.
        part: int32 [examples], 1 for MNLI's mismatched examples, else 0.
        dropped: how many examples without a label were left out.
        names: of the classes: the task's labels or, if it has none, those of a TFDS folder's
            description or the column.
        notes: what was assumed about the files, a line each.
    """

    texts: list[tuple[str, ...]]
    labels: np.ndarray
    ids: list[str]
    part: np.ndarray
    dropped: int
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    def fingerprint(self) -> fingerprints.Fingerprint:
        """See `data.fingerprints`: all texts and labels."""
        texts = fingerprints.of_texts([*itertools.chain(*zip(*self.texts, strict=True))])
        return {
            "examples": len(self),
            "texts": texts,
            "labels": fingerprints.digest([self.labels.tobytes()]),
        }


class _Example(NamedTuple):
    """A usable row; `tag` is the split that it names, or "". Before its task has labels, `label` is
    the row's value."""

    texts: tuple[str, ...]
    label: Any
    id: str
    part: int
    tag: str


def open_sentences(
    path: str, task: SentenceTask, side: Side, bad: BadRecords | None = None
) -> Sentences:
    """Reads the examples at `path` to train on, or the held-out ones.

    In data with splits, `train` is for training and `validation` (`dev`; in MNLI, both of its
    parts) is held out. If there is no such split, a share of the training examples is held out, by
    their first text.

    Args:
        path: see the module's docstring.
        task: the names of the columns and of the labels.
        side: of the data.
        bad: counts and limits the rows that cannot be used. Without it, the first one raises.

    Raises:
        DataError: there is nothing at `path`, no such split or columns, or nothing on this side;
            rows are bad; or there are no labels to train on or, if the task has no names of
            classes, no classes in the column (see `classes`).
    """
    path, notes, bad = tfds_folders.find(str(path)), [], bad or BadRecords()
    task = task if task.labels else task._replace(labels=_described_labels(path, task))
    rows = rows_by_split(path, task, notes)
    tagged = (
        _by_tag(path, _read(path, "", rows.pop(""), task, bad, notes), notes) if "" in rows else {}
    )
    known = (*tagged, *rows)
    only = known if len(known) == 1 else ()
    train = _parts_of(path, known, side.split, TRAIN_SPLIT) or only
    heldout = _parts_of(path, known, side.heldout_split, HELDOUT_SPLIT) or (
        () if side.heldout_share else only
    )
    choice = side.choose(path, train, heldout, known)
    if not choice.splits:
        raise DataError(
            f"{path!r} has no split for this side, only {', '.join(map(repr, known))}: see data.split"
        )
    read = (
        tagged.get(name) or _read(path, name, rows[name], task, bad, notes)
        for name in choice.splits
    )
    examples = [*itertools.chain.from_iterable(read)]
    if choice.share:
        first_texts = [example.texts[0] for example in examples]
        examples = side.members(examples, first_texts, f"the examples of {path!r}")
    unlabelled = math.nan if task.numbers else UNLABELLED
    labelled = [example for example in examples if example.label == example.label != unlabelled]
    if not labelled and side.name != HELDOUT:
        raise DataError(
            f"{path!r} has no labels to train on: expected a column {_either(task.label)}"
        )
    used = labelled or examples  # all examples if none has a label, as in a test set
    texts, labels, ids, parts, _ = zip(*used, strict=True)
    names = task.labels
    if not names:
        values = Counter(labels)
        names, assumed = classes(values, f"in the column of labels, {task.label[0]!r}, of {path!r}")
        numbers = {value: names.index(class_name(value)) for value in values}
        labels, notes = [numbers[value] for value in labels], [*assumed, *notes]
    labels, parts = (
        np.array(labels, np.float32 if task.numbers else np.int32),
        np.array(parts, np.int32),
    )
    dropped, told = len(examples) - len(used), tuple(dict.fromkeys(notes))
    return Sentences(list(texts), labels, list(ids), parts, dropped, names, told)


def _described_labels(path: str, task: SentenceTask) -> tuple[str, ...]:
    """The names of the classes in the description of a TFDS folder; () for other data."""
    folder = tfds_folders.load(path, files.find_files(path))
    return tuple(getattr(folder and folder.fields.get(task.label[0]), "names", None) or ())


def class_name(value: Any) -> str:
    """The name of a class: in NFC, without blanks around it, and 1 for 1.0, which pandas writes if
    cells are empty."""
    name = unicodedata.normalize("NFC", str(value)).strip()
    whole = _WHOLE.fullmatch(name)
    return str(int(whole[1])) if whole else name


def classes(values: Mapping[str, int], where: str) -> tuple[tuple[str, ...], list[str]]:
    """The classes of a column: numbers by size, then words by letters; and a line for each
    assumption about them.

    Args:
        values: each value of the column in the training data -> its number of rows.
        where: the column, for messages.

    Raises:
        DataError: the values are no classes, a class has a single row, or two are the same but for
            their spelling.
    """
    counts: Counter[str] = Counter()
    for value, rows in values.items():
        counts[class_name(value)] += rows
    notes = check_names(
        counts, where, "; to predict numbers give --config=finetune_glue:own_number"
    )
    total, single = sum(counts.values()), sorted(name for name, rows in counts.items() if rows < 2)
    if not 2 <= len(counts) <= MOST_LABELS or len(counts) == total:
        raise DataError(
            f"{len(counts)} different values in {total} rows {where}: expected 2 to {MOST_LABELS} classes"
        )
    if single:
        more = f", as have {len(single) - 1} more classes" if len(single) > 1 else ""
        raise DataError(
            f"one row of the class {single[0][:60]!r}{more} {where}: add another, or remove it"
        )
    if changed := [value for value in values if value != class_name(value)]:
        listed = ", ".join(f"{value!a} as {class_name(value)!r}" for value in changed[:3])
        notes.insert(
            0,
            f"{sum(values[value] for value in changed):,} labels are read in another form: {listed}",
        )
    numbers = {name: int(name) for name in counts if re.fullmatch(r"-?\d{1,18}", name)}
    return tuple(
        sorted(counts, key=lambda name: (name not in numbers, numbers.get(name, 0), name))
    ), notes


def check_names(
    counts: Mapping[str, int], where: str, advice: str = "", unit: str = "rows"
) -> list[str]:
    """A line for those names of classes, with their numbers of `unit`, that may stand for several
    labels or for none.

    Raises:
        DataError: the names of rows are real numbers, about which there may be `advice`; or two are
            spelled alike.
    """
    scores = [name for name in counts if not re.fullmatch(r"[+-]?\d+", name)]
    if unit == "rows" and scores and all(map(_NUMBER.fullmatch, counts)):
        raise DataError(f"real numbers such as {scores[0]!r} {where}: expected classes{advice}")
    spelled: dict[str, str] = {}
    for name in counts:
        seen = "".join(
            one for one in name if unicodedata.category(one) != "Cf" and one not in "\ufe0e\ufe0f"
        )
        seen = unicodedata.normalize("NFKC", seen)
        # folders of letters
        bare = seen if unit != "rows" and len(seen) == 1 else " ".join(seen.casefold().split())
        bare = bare.lstrip("0") or "0" if bare.isdecimal() else _SAME.get(bare, bare)
        if (other := spelled.setdefault(bare, name)) != name:
            raise DataError(
                f"two labels, {other!r} ({counts[other]} {unit}) and {name!r} ({counts[name]}), {where}, that mean the "
                "same or differ only in capitals, blanks, leading zeros, types or forms of characters: write them alike"
            )
    notes, parts = [], Counter(part for name in counts for part in _JOINTS.split(name))
    joined = [
        name
        for name in counts
        if any(parts[part] > 1 for part in _JOINTS.split(name) if part != name)
    ]
    missing = [name for name in counts if name.lower() in _PERHAPS_MISSING]
    for names, meaning in (
        (joined, "several labels, which are not offered"),
        (missing, "no label: empty their cells"),
    ):
        if names:
            listed = ", ".join(f"{name[:60]!r} ({counts[name]:,} {unit})" for name in names[:3])
            notes.append(f"{listed}, taken as {len(names)} classes, may mean {meaning}")
    return notes


def _parts_of(path: str, known: tuple[str, ...], wanted: str, default: str) -> tuple[str, ...]:
    """The split with this name, or its parts, matched before mismatched; () if the default split is
    not there."""
    name = wanted or default
    if name not in known:
        word = name.partition("_")[0]  # of dev_matched
        name = SPLIT_WORDS.get(word, word) + name.removeprefix(word)
    parts = tuple(name + part for part in PARTS if name + part in known)
    if wanted and not parts:
        raise splits.missing_split(path, wanted, known)
    return parts


def _by_tag(path: str, examples: list[_Example], notes: list[str]) -> dict[str, list[_Example]]:
    """The examples of one file by the splits that they name, or all under "" if they name none."""
    tags, known = {example.tag for example in examples}, dict.fromkeys(SPLIT_WORDS.values())
    if tags.isdisjoint(known):
        return {"": examples}
    if strange := tags.difference(known):  # what is held out would be trained on
        raise DataError(
            f"{path!r}: the column {_either(TAGS)} names splits in some rows, and {min(strange)!r} in another: "
            f"expected {', '.join(known)} in each; correct or rename it"
        )
    notes.append(
        f"the column {_either(TAGS)} of {path} decides what is trained on and what is held out"
    )
    return {tag: [example for example in examples if example.tag == tag] for tag in sorted(tags)}


def _read(
    path: str, split: str, rows: Rows, task: SentenceTask, bad: BadRecords, notes: list[str]
) -> list[_Example]:
    """The usable rows of a file or split."""
    labels, intern = _label_numbers(task), {}  # Retrieval has each long document in many pairs
    examples, ids, part = [], set(), int(split.endswith(PARTS[2]) and len(task.submission) > 1)
    id_names, tag_names = (
        [name for name in names if name not in task.columns] for names in (IDS, TAGS)
    )
    columns, marks = {}, Counter()
    for position, (where, record) in enumerate(rows):
        try:
            if isinstance(record, BadRecord):
                raise record
            decode_utf8(b"".join(value for value in record.values() if isinstance(value, bytes)))
            if mark := rejected(record, task):
                marks[mark] += 1
                continue
            texts = tuple(_text(record, names, task) for names in task.texts)
            label, tag = _label(record, labels, task), str(_field(record, tag_names) or "")
            own_id = _field(record, id_names)
            if own_id is not None and (
                not isinstance(own_id, str | int | float) or (tag, own_id) in ids
            ):
                problem = "no text or number, or an earlier row's: mend it, or rename the column"
                raise BadRecord(f"the id {own_id!r} is {problem}")
            ids.add((tag, own_id))  # predictions are written under it
            splits.add_values(columns, record if task.own else {})
        except BadRecord as error:
            bad.skip(f"{where}: {error}")
            continue
        texts = tuple(intern.setdefault(text, text) for text in texts)
        tag = SPLIT_WORDS.get(tag.strip().lower(), tag)
        examples.append(
            _Example(texts, label, str(position if own_id is None else own_id), part, tag)
        )
    notes += [
        f"{path}: {n:,} rows are left out, which {name!r} calls rejected or skipped"
        for name, n in marks.items()
    ]
    if not examples:
        raise DataError(
            f"{path!r} holds no example{f' in the split {split!r}' if split else ''}; give other data"
        )
    by_tag = not split and any(example.tag in SPLIT_WORDS.values() for example in examples)
    read = {*task.columns, *IDS, *[name for name in tag_names if name in columns and by_tag][:1]}
    notes += splits.check_columns(
        {name: columns[name] for name in columns if name not in read}, path
    )
    return examples


def _field(record: Record, names: Sequence[str]) -> Any:
    """The value of the first of these columns that the row has, or None."""
    return next((record[name] for name in names if name in record), None)


def _either(names: Sequence[str]) -> str:
    return " or ".join(map(repr, names))


def _absent(what: str, names: Sequence[str], record: Record, task: SentenceTask) -> BadRecord:
    advice = "; config.own.text, own.second and own.label name the columns" if task.own else ""
    return BadRecord(
        f"no {what} {_either(names)}, found {', '.join(map(repr, sorted(record)))}{advice}"
    )


def _text(record: Record, names: tuple[str, ...], task: SentenceTask) -> str:
    value = _field(record, names)
    if not isinstance(value, str):
        raise _absent("text", names, record, task)
    text = value.strip()  # so that equal premises are equal
    if not text or (task.own and text in MISSING):
        raise BadRecord(f"an empty sentence {_either(names)}{text and f', {text!r}'}")
    if task.words and (
        unknown := next((word for word in text.split() if word not in task.words), None)
    ):
        raise BadRecord(f"the symbol {unknown[:40]!r}; expected one of {' '.join(task.words)}")
    return text


def _label_numbers(task: SentenceTask) -> dict[str, int]:
    """Every accepted value of the column of labels -> the number of the class, or UNLABELLED."""
    labels = {class_name(name): number for number, name in enumerate(task.labels)}
    if not task.own and not any(map(str.isdecimal, task.labels)):
        labels |= {str(number): number for number in labels.values()}
    return labels | dict.fromkeys(task.unlabelled, UNLABELLED)


def _label(record: Record, labels: dict[str, int], task: SentenceTask) -> int | str | float:
    """The number of the row's class, or UNLABELLED; its value as text if the task has no labels
    yet. Of a task of numbers the number, or nan."""
    value = _field(record, task.label)
    # Doccano's
    value = (
        next(iter(value), None)
        if task.own and isinstance(value, list) and len(value) < 2
        else value
    )
    if value is None and task.own and record.keys().isdisjoint(task.label):
        raise _absent("label", task.label, record, task)
    if value is None or (task.numbers and str(value).strip() in task.unlabelled):
        return math.nan if task.numbers else UNLABELLED
    if task.numbers:
        least, most = task.numbers
        with contextlib.suppress(ValueError):
            # 1_000 is a number in Python alone
            if least <= (number := float(str(value).replace("_", "?"))) <= most:
                return number
        raise BadRecord(f"the label {value!r}; expected a number from {least:.4g} to {most:.4g}")
    if isinstance(value, list | dict) or (task.own and _LIST.fullmatch(str(value))):
        several = "; several labels of one text (multi-label classification) are not offered"
        raise BadRecord(
            f"the label {value!r}; expected a word or a number{several if task.own else ''}"
        )
    name = class_name(value)
    if name in labels or not task.labels:
        return labels.get(name, str(value))
    listed = ", ".join(map(repr, task.labels[:10])) + (", ..." if len(task.labels) > 10 else "")
    more = ", which the examples to train on have" if task.own else ", or its number"
    raise BadRecord(f"the label {value!r}; expected {listed}{more}")
