"""SQuAD v1.1 and v2.0 (Rajpurkar et al. 2016, 2018), and data in its forms: the official JSON;
Hugging Face's rows with id, title, context, question and answers, as .jsonl, .parquet or .arrow;
TFDS's folders.

    .json                the official form: {"data": [{"title", "paragraphs": [{"context", "qas":
                         [{"id", "question", "answers": [{"text", "answer_start"}]}]}]}]}, in v2.0
                         with "is_impossible"
    .jsonl, .parquet,    Hugging Face's rows: id, title, context, question, answers with text and
    .arrow               answer_start; a missing title is "", an id may be a number
    a TFDS folder        tfds:squad/v1.1, tfds:squad/v2.0

The path is a file (.json and .jsonl may be compressed), or a folder with files for each split:
train-v1.1.json and dev-v1.1.json, or train-00000-of-00001.parquet and
validation-00000-of-00001.parquet.
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
from gmlp_flax.io import compression, files, json_files, records, tfds_folders
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord, BadRecords, decode_utf8
from gmlp_flax.io.tfds_folders import Folder

FORM = "SQuAD"

OFFICIAL = ".json"
SUFFIXES = (OFFICIAL, ".jsonl", *rows.COLUMNAR)
COLUMNS = ("id", "title", "context", "question", "answers")


class _Located(NamedTuple):
    """A question, or the reason why there is none, and its place for messages."""

    where: str
    question: Question | BadRecord


def read(path: str, version: str, bad: BadRecords, ignore_splits: bool = False) -> Splits:
    """The splits of SQuAD's questions.

    Args:
        path: see the module's docstring.
        version: "v1.1", where every question has an answer, or "v2.0".
        bad: counts and limits the questions that are left out: a field is missing, a question or a
            passage is empty, an answer is not at its `answer_start`, or a question of v1.1 has no
            answer.
        ignore_splits: whether all files of a folder are one data set, whatever their names mean.

    Raises:
        DataError: there are no such data. When a split is read: it has another form, there is no
            question, an id occurs twice, or too many questions are bad.
    """
    path = tfds_folders.find(str(path))
    listing = files.find_files(path)
    folder = tfds_folders.load(path, listing)
    if folder is not None:
        read_tfds = functools.partial(_read_tfds, folder, version, bad)
        return Splits.of_names(path, FORM, folder.lengths, read_tfds)
    tables = rows.find_by_suffix(path, listing, SUFFIXES, "file of questions")
    note = rows.unread_files_note(path, listing, tables)
    groups = splits.group_files(path, listing, tables, ignore_splits)
    read_split = functools.partial(_read_files, path, note, version, bad)
    return Splits.of_groups(path, FORM, groups, read_split)


def _read_files(
    path: str, note: str, version: str, bad: BadRecords, split: str, members: Sequence[File]
) -> Dataset:
    parts = map(_questions_of_file, members)
    located = itertools.chain.from_iterable(parts)
    usable = _usable(located, version, bad)
    dataset = _dataset(path, split, members, usable)
    return dataset.with_notes(note)


def _questions_of_file(file: File) -> Iterator[_Located]:
    if compression.suffix(file.path) == OFFICIAL:
        return _from_official(file.path)
    return _from_rows(file.path)


def _read_tfds(folder: Folder, version: str, bad: BadRecords, split: str) -> Dataset:
    located = _from_tfds(folder, split)
    usable = _usable(located, version, bad)
    members = folder.shard_files(split)
    return _dataset(folder.path, split, members, usable)


def _usable(located: Iterable[_Located], version: str, bad: BadRecords) -> list[Question]:
    """The questions that can be used; raises DataError if two have one id."""
    usable: dict[str, Question] = {}
    contexts: dict[str, str] = {}  # equal passages of several questions become one object
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
    return list(usable.values())


def _dataset(path: str, split: str, members: Sequence[File], usable: Sequence[Question]) -> Dataset:
    if not usable:
        raise DataError(f"{path}: no question in it; give SQuAD's JSON, its rows or a TFDS folder")
    return Dataset(
        path=path,
        form=FORM,
        examples=Questions(usable),
        split=split,
        files=tuple(members),
        columns=COLUMNS,
    )


def _attempt(where: str, parse: Callable[[Any], Question], record: Any) -> _Located:
    """The question that a record holds."""
    try:
        question = parse(record)
    except BadRecord as error:
        return _Located(where, error)
    return _Located(where, question)


class _Entry(NamedTuple):
    """A question of the official form, with the objects around it."""

    article: Any
    paragraph: Any
    question: Any


def _from_official(path: str) -> Iterator[_Located]:
    entries = _official_entries(path)
    for number, entry in enumerate(entries, start=1):
        name: Any = number
        if isinstance(entry.question, dict):
            name = entry.question.get("id") or number
        where = f"{path}, question {name}"
        yield _attempt(where, _official_question, entry)


def _official_entries(path: str) -> list[_Entry]:
    content = files.read_small(path, files.MOST, decompress=True)
    advice = "expected data, with paragraphs, with context and qas; rows are .jsonl or .parquet"
    entries = []
    with decode_errors(f"{path}: not SQuAD's JSON", advice):
        text = content.decode("utf-8-sig")
        values: Any = json_files.loads(text)
        for article in values["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    entry = _Entry(article, paragraph, question)
                    entries.append(entry)
    return entries


def _official_question(entry: _Entry) -> Question:
    question = entry.question
    name = _field(question, "id", str)
    text = _field(question, "question", str)
    context = _field(entry.paragraph, "context", str)
    title = _title(entry.article)
    answers = []
    for answer in _field(question, "answers", list):
        answer_text = _field(answer, "text", str)
        start = _field(answer, "answer_start", int)
        answers.append((answer_text, start))
    has_no_answer = not answers
    is_impossible = question.get("is_impossible", has_no_answer)
    if is_impossible is not has_no_answer:
        count = len(answers)
        raise BadRecord(f"is_impossible is {is_impossible} and there are {count} answers")
    return Question(name, title, context, text, tuple(answers))


def _from_rows(path: str) -> Iterator[_Located]:
    for where, row in rows.read_rows(path, COLUMNS):
        if isinstance(row, BadRecord):
            yield _Located(where, row)
        else:
            yield _attempt(where, _row_question, row)


def _row_question(row: Mapping[str, Any]) -> Question:
    name = row.get("id")
    if not _is_name(name):
        raise BadRecord(f"the id is {name!r:.40}: expected text or a number")
    title = _title(row)
    context = _field(row, "context", str)
    question = _field(row, "question", str)
    answers = _field(row, "answers", dict)
    texts = _field(answers, "text", list)
    starts = _field(answers, "answer_start", list)
    pairs = _pairs(texts, starts)
    question_id = str(name)
    return Question(question_id, title, context, question, pairs)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) or _is_whole(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _pairs(texts: Sequence[Any], starts: Sequence[Any]) -> tuple[tuple[str, int], ...]:
    """The answers of a row, each with its start."""
    text_count = len(texts)
    start_count = len(starts)
    if text_count != start_count:
        raise BadRecord(f"{text_count} answers and {start_count} starts: expected one for each")
    pairs = tuple(zip(texts, starts, strict=True))
    for text, start in pairs:
        if not isinstance(text, str) or not _is_whole(start):
            raise BadRecord(f"the answer {text!r} at {start!r}: expected a text and a number")
    return pairs


def _title(record: Mapping[str, Any]) -> str:
    if record.get("title") is None:
        return ""
    return _field(record, "title", str)


def _field(record: Any, name: str, kind: type) -> Any:
    """A field of an object; raises BadRecord if it is missing or of another type."""
    expected = f"expected SQuAD's form, with {name!r} of type {kind.__name__}"
    if not isinstance(record, dict):
        record_kind = type(record).__name__
        raise BadRecord(f"found {record_kind}; {expected}")
    value = record.get(name)
    if value is None:
        names = map(repr, record)
        keys = ", ".join(names)
        raise BadRecord(f"found fields {keys}; {expected}")
    if isinstance(value, bool) or not isinstance(value, kind):
        value_kind = type(value).__name__
        raise BadRecord(f"found {value_kind} {name!r}; {expected}")
    return value


def _from_tfds(folder: Folder, split: str) -> Iterator[_Located]:
    for where, record in folder.records(split):
        if isinstance(record, BadRecord):
            yield _Located(where, record)
        else:
            yield _attempt(where, _tfds_question, record)


def _tfds_question(record: bytes) -> Question:
    features = records.example_features(record)
    name = _tfds_text(features, "id")
    title = _tfds_text(features, "title")
    context = _tfds_text(features, "context")
    text = _tfds_text(features, "question")
    answers = _tfds_texts(features, "answers/text")
    start_feature = features["answers/answer_start"]
    starts = list(start_feature.int64_list.value)
    pairs = _pairs(answers, starts)
    return Question(name, title, context, text, pairs)


def _tfds_text(features: Mapping[str, Any], name: str) -> str:
    """The only text of a feature."""
    texts = _tfds_texts(features, name)
    count = len(texts)
    if count != 1:
        raise BadRecord(f"found {count} texts in {name!r}; expected one")
    [text] = texts
    return text


def _tfds_texts(features: Mapping[str, Any], name: str) -> list[str]:
    # The positions of answers count a byte-order mark.
    feature = features[name]
    values = feature.bytes_list.value
    return [decode_utf8(value, keep_mark=True) for value in values]
