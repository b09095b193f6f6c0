"""SQuAD v1.1 and v2.0 (Rajpurkar et al. 2016, 2018), and data in its forms: the official JSON;
Hugging Face's rows with id, title, context, question and answers, as .jsonl, .parquet or .arrow;
TFDS's folders.

    .json                the official form: {"data": [{"title", "paragraphs": [{"context", "qas":
                         [{"id", "question", "answers": [{"text", "answer_start"}]}]}]}]}, in v2.0
                         with "is_impossible"
    .jsonl, .parquet,    Hugging Face's rows: id, title, context, question, answers with text and
    .arrow               answer_start; a missing title is "", an id may be a number
    a TFDS folder        tfds:squad/v1.1, tfds:squad/v2.0

A file, .json and .jsonl perhaps compressed, or a folder with one for each split: train-v1.1.json
and dev-v1.1.json, train-00000-of-00001.parquet and validation-00000-of-00001.parquet.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gmlp_flax.data import rows, splits
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.finetuning import questions
from gmlp_flax.data.finetuning.questions import Question, Questions
from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import files, json_files, records, tfds_folders
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord, BadRecords, decode_utf8
from gmlp_flax.io.tfds_folders import Folder

FORM = "SQuAD"

OFFICIAL = ".json"
SUFFIXES = (OFFICIAL, ".jsonl", *rows.COLUMNAR)
COLUMNS = ("id", "title", "context", "question", "answers")


class _Located(NamedTuple):
    """A question, or why there is none, and where it stands, for messages."""

    where: str
    question: Question | BadRecord


def read(path: str, version: str, bad: BadRecords, as_one: bool = False) -> Splits:
    """The splits of SQuAD's questions.

    Args:
        path: see the module's docstring.
        version: "v1.1", where every question has an answer, or "v2.0".
        bad: counts and limits the questions that are left out: a field is missing, a question or a
            passage is empty, an answer is not at its `answer_start`, or a question of v1.1 has no
            answer.
        as_one: whether all files of a folder are one data set, whatever their names mean.

    Raises:
        DataError: there is no such data. Of a split: it is in no such form, there is no question,
            an id occurs twice, or too many questions are bad.
    """
    path = tfds_folders.find(str(path))
    found = files.find_files(path)
    folder = tfds_folders.load(path, found)
    if folder is not None:
        readers = {
            split: functools.partial(_read_tfds, folder, split, version, bad)
            for split in folder.lengths
        }
        return Splits(path, FORM, readers)
    tables = rows.find_by_suffix(path, found, SUFFIXES, "file of questions")
    note = rows.others_note(path, found, tables)
    readers = {}
    for split, members in splits.group_files(path, found, tables, as_one).items():
        readers[split] = functools.partial(_read_files, path, split, members, note, version, bad)
    return Splits(path, FORM, readers)


def _read_files(
    path: str, split: str, members: Sequence[File], note: str, version: str, bad: BadRecords
) -> Dataset:
    parts = []
    for file in members:
        is_official = files.suffix(file.path) == OFFICIAL
        parts.append(_from_official(file.path) if is_official else _from_rows(file.path))
    located = itertools.chain.from_iterable(parts)
    return _dataset(path, split, members, located, version, bad).with_notes(note)


def _read_tfds(folder: Folder, split: str, version: str, bad: BadRecords) -> Dataset:
    members = [shard.file for shard in folder.shards(split)]
    return _dataset(folder.path, split, members, _from_tfds(folder, split), version, bad)


def _dataset(
    path: str,
    split: str,
    members: Sequence[File],
    located: Iterable[_Located],
    version: str,
    bad: BadRecords,
) -> Dataset:
    usable: dict[str, Question] = {}
    contexts: dict[str, str] = {}  # equal passages, as of several questions, become one object
    for where, question in located:
        try:
            if isinstance(question, BadRecord):
                raise question
            questions.check(question, version)
        except BadRecord as error:
            bad.skip(f"{where}: {error}")
            continue
        if question.id in usable:
            raise DataError(
                f"{where}: the id {question.id!r} occurs twice; remove one of the two questions"
            )
        context = contexts.setdefault(question.context, question.context)
        usable[question.id] = question._replace(context=context)
    if not usable:
        raise DataError(f"{path}: no question in it; give SQuAD's JSON, its rows or a TFDS folder")
    return Dataset(
        path=path,
        form=FORM,
        examples=Questions(list(usable.values())),
        split=split,
        files=tuple(members),
        columns=COLUMNS,
    )


def _attempt(where: str, parse: Callable[[Any], Question], record: Any) -> _Located:
    """The question that a record holds."""
    try:
        return _Located(where, parse(record))
    except BadRecord as error:
        return _Located(where, error)


class _Entry(NamedTuple):
    """A question of the official form, with the objects around it."""

    article: Any
    paragraph: Any
    question: Any


def _from_official(path: str) -> Iterator[_Located]:
    content = files.read_small(path, files.MOST, decompress=True)
    advice = "expected data, with paragraphs, with context and qas; rows are .jsonl or .parquet"
    entries: list[_Entry] = []
    with decode_errors(f"{path}: not SQuAD's JSON", advice):
        values: Any = json_files.loads(content.decode("utf-8-sig"))
        for article in values["data"]:
            for paragraph in article["paragraphs"]:
                entries += [_Entry(article, paragraph, entry) for entry in paragraph["qas"]]
    for number, entry in enumerate(entries, start=1):
        name = entry.question.get("id") if isinstance(entry.question, dict) else None
        yield _attempt(f"{path}, question {name or number}", _official_question, entry)


def _official_question(entry: _Entry) -> Question:
    name = _field(entry.question, "id", str)
    text = _field(entry.question, "question", str)
    context = _field(entry.paragraph, "context", str)
    title = _title(entry.article)
    answers = []
    for answer in _field(entry.question, "answers", list):
        answers.append((_field(answer, "text", str), _field(answer, "answer_start", int)))
    is_impossible = entry.question.get("is_impossible", not answers)
    if is_impossible is not (not answers):
        raise BadRecord(f"is_impossible is {is_impossible} and there are {len(answers)} answers")
    return Question(name, title, context, text, tuple(answers))


def _from_rows(path: str) -> Iterator[_Located]:
    for where, row in rows.read_rows(path, COLUMNS):
        if isinstance(row, BadRecord):
            yield _Located(where, row)
        else:
            yield _attempt(where, _row_question, row)


def _row_question(row: Mapping[str, Any]) -> Question:
    name = row.get("id")
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise BadRecord(f"the id is {name!r:.40}: expected text or a number")
    title = _title(row)
    context = _field(row, "context", str)
    question = _field(row, "question", str)
    answers = _field(row, "answers", dict)
    texts = _field(answers, "text", list)
    starts = _field(answers, "answer_start", list)
    return Question(str(name), title, context, question, _pairs(texts, starts))


def _pairs(texts: Sequence[Any], starts: Sequence[Any]) -> tuple[tuple[str, int], ...]:
    """The answers of a row, each with its start."""
    if len(texts) != len(starts):
        raise BadRecord(f"{len(texts)} answers and {len(starts)} starts: expected one for each")
    pairs = []
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str) or not isinstance(start, int) or isinstance(start, bool):
            raise BadRecord(f"the answer {text!r} at {start!r}: expected a text and a number")
        pairs.append((text, start))
    return tuple(pairs)


def _title(record: Mapping[str, Any]) -> str:
    return "" if record.get("title") is None else _field(record, "title", str)


def _field(record: Any, name: str, kind: type) -> Any:
    """A field of an object; raises BadRecord if it is missing or of another type."""
    value = record.get(name) if isinstance(record, dict) else None
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    if value is not None:
        given = f"{type(value).__name__} {name!r}"
    elif isinstance(record, dict):
        given = f"fields {', '.join(map(repr, record))}"
    else:
        given = type(record).__name__
    raise BadRecord(f"found {given}; expected SQuAD's form, with {name!r} of type {kind.__name__}")


def _from_tfds(folder: Folder, split: str) -> Iterator[_Located]:
    for where, record in folder.records(split):
        if isinstance(record, BadRecord):
            yield _Located(where, record)
        else:
            yield _attempt(where, _tfds_question, record)


def _tfds_question(record: bytes) -> Question:
    features = records.example_features(record)
    fields = [_tfds_text(features, name) for name in ("id", "title", "context", "question")]
    texts = _tfds_texts(features, "answers/text")
    starts = list(features["answers/answer_start"].int64_list.value)
    return Question(*fields, answers=_pairs(texts, starts))


def _tfds_text(features: Mapping[str, Any], name: str) -> str:
    """The only text of a feature."""
    texts = _tfds_texts(features, name)
    if len(texts) != 1:
        raise BadRecord(f"found {len(texts)} texts in {name!r}; expected one")
    return texts[0]


def _tfds_texts(features: Mapping[str, Any], name: str) -> list[str]:
    # The positions of answers count a byte-order mark.
    return [decode_utf8(value, keep_mark=True) for value in features[name].bytes_list.value]
