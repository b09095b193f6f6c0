"""SQuAD (Rajpurkar et al. 2016, 2018): questions on passages, from the official JSON or folders that TFDS prepared.

A path is one of

    a file: the official JSON, also .gz or .xz, also remote: {"data": [{"title", "paragraphs": [{"context", "qas": [{
        "id", "question", "answers": [{"text", "answer_start"}]}]}]}]}. v2.0 adds "is_impossible" to a question.
    a TFDS folder, or tfds:squad/v1.1 or tfds:squad/v2.0 (see tfds_folders.find), as ArrayRecord or TFRecord.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gmlp_flax.data import corpora, files, records, tfds_folders
from gmlp_flax.data.errors import DataError
from gmlp_flax.data.records import BadRecord, BadRecords

VERSIONS = ("v1.1", "v2.0")

_RECORDS = {
    "array_record": lambda shard: records.array_records(shard.file.path, 0, shard.records),
    "tfrecord": lambda shard: records.TFRecordFile(shard.file.path).records(0, shard.records),
}
_KINDS = {str: "a string", int: "an integer", list: "a list"}
_FEATURES = ("id", "title", "context", "question", "answers")


class Question(NamedTuple):
    """A question on a passage.

    Attributes:
        id: unique in its data.
        title: of the article that the passage is from.
        context: the passage.
        question: the question.
        answers: (text, start) of each reference, context[start : start + len(text)] being the text; none where the
            passage holds no answer (v2.0).
    """

    id: str
    title: str
    context: str
    question: str
    answers: tuple[tuple[str, int], ...]

    @property
    def impossible(self) -> bool:
        """True where the passage holds no answer."""
        return not self.answers


def read(
    path: str, version: str, split: str = "", bad: BadRecords | None = None, places: bool = True
) -> list[Question]:
    """The questions at `path`, in order.

    Args:
        path: see the module's docstring.
        version: "v1.1", where every question has an answer, or "v2.0".
        split: of a TFDS folder.
        bad: counts the questions that are left out, up to its limit, for the reasons below; without it, the first one
            raises.
        places: False leaves unchecked where an answer stands, on which scores do not depend.

    Raises:
        DataError: nothing there, no such split, not SQuAD's JSON, an id that stands there twice, or no question left.
            Without `bad` also a question that lacks a field, is empty or has an empty passage, whose answer does not
            stand where `answer_start` says, or, in v1.1, that has no answer.
    """
    path = tfds_folders.find(str(path))
    folder = tfds_folders.load(path, files.find_files(path))
    found = _from_folder(folder, split) if folder else _from_json(path, split)
    questions: dict[str, Question] = {}
    for where, make in found:
        try:
            question = make()
            _check(question, version, places)
        except BadRecord as error:
            if bad is None:
                raise DataError(f"{where}: {error}") from None
            bad.skip(f"{where}: {error}")
            continue
        if question.id in questions:
            raise DataError(f"{where}: the id {question.id!r} stands there twice; remove one of the two questions")
        questions[question.id] = question
    if not questions:
        raise DataError(f"{path}: no question in it; give SQuAD's JSON file or a TFDS folder")
    return list(questions.values())


def read_side(
    path: str, side: str, version: str, *, split: str = "", heldout_split: str = "", heldout_share: float = 0.0,
    bad: BadRecords | None = None,
) -> list[Question]:
    """The questions at `path` to train on, or those held out.

    Of a TFDS folder, `train` is for training and `validation` is held out. Of a JSON file, the articles whose titles'
    hash falls below the share are: no passage is on both sides.

    Args:
        path: see the module's docstring.
        side: "train" or "heldout".
        split, heldout_split: other splits than these, of a TFDS folder.
        heldout_share: 0 where each side has a path of its own: all that is in a file is the side.
        others: as in `read`.

    Raises:
        DataError: as `read` does; or one split would be both trained on and held out, or a side is empty.
    """
    path = tfds_folders.find(str(path))
    train, heldout = split or "train", heldout_split or "validation"
    if files.exists(files.join(path, "features.json")):
        if heldout_share and train == heldout:
            raise DataError(
                f"the split {train!r} of {path!r} would be both trained on and held out; give two splits as "
                "config.data.split and heldout_split"
            )
        return read(path, version, {"train": train, "heldout": heldout}[side], bad)
    if {"train": split, "heldout": heldout_split}[side]:
        raise DataError(f"{path!r} has no splits: config.data.split and heldout_split are for TFDS folders")
    questions = read(path, version, "", bad)
    if not heldout_share:
        return questions
    chosen = [q for q in questions if corpora.is_heldout(q.title, heldout_share) == (side == "heldout")]
    if not chosen:
        articles = len({question.title for question in questions})
        raise DataError(
            f"{path}: none of its {articles} article(s) is on the side {side!r} with heldout_share={heldout_share}; "
            "use another share, or give the held-out questions as a file of their own"
        )
    return chosen


# Where a question stands, and what reads it or raises BadRecord.
_Found = Iterator[tuple[str, Callable[[], Question]]]


def _from_json(path: str, split: str) -> _Found:
    if split:
        raise DataError(f"{path!r} has no split {split!r}: splits are for TFDS folders")
    values = read_json(path)
    articles = values.get("data") if isinstance(values, dict) else None
    if not isinstance(articles, list):
        found = f"fields {', '.join(map(repr, values))}" if isinstance(values, dict) else type(values).__name__
        raise DataError(f"{path}: found {found}; expected SQuAD's JSON, an object with a list 'data' of articles")
    for i, article in enumerate(articles, start=1):
        try:
            paragraphs = _field(article, "paragraphs", list)
            title = _field(article, "title", str)
        except BadRecord as error:
            raise DataError(f"{path}, article {i}: {error}") from None
        for j, paragraph in enumerate(paragraphs, start=1):
            try:
                context, entries = _field(paragraph, "context", str), _field(paragraph, "qas", list)
            except BadRecord as error:
                raise DataError(f"{path}, article {i} ({title!r}), paragraph {j}: {error}") from None
            for k, entry in enumerate(entries, start=1):
                name = entry.get("id") if isinstance(entry, dict) else None
                where = f"{path}, article {i} ({title!r}), paragraph {j}, question {name or k}"
                yield where, lambda entry=entry, context=context, title=title: _question(entry, title, context)


def read_json(path: str) -> Any:
    """The value in a JSON file, also packed; raises DataError where it cannot be read or is none."""
    path = str(path)
    if files.find_files(path)[0].path != path:
        raise DataError(f"{path!r} is a folder; give a JSON file")
    with files.opened(path) as stream:
        data = stream.read()
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        place = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else error
        raise DataError(f"{path}: not JSON ({place}); copy or download it again") from None


def _question(entry: Any, title: str, context: str) -> Question:
    name, text = _field(entry, "id", str), _field(entry, "question", str)
    answers = _field(entry, "answers", list)
    found = tuple((_field(answer, "text", str), _field(answer, "answer_start", int)) for answer in answers)
    impossible = entry.get("is_impossible", not found)
    if impossible is not (not found):
        raise BadRecord(f"is_impossible is {impossible} beside {len(found)} answer(s); mend one of the two")
    return Question(name, title, context, text, found)


def _field(record: Any, name: str, kind: type) -> Any:
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        found = f"fields {', '.join(map(repr, record))}" if isinstance(record, dict) else type(record).__name__
        found = f"{type(value).__name__} {name!r}" if value is not None else found
        raise BadRecord(f"found {found}; expected an object with {name!r}, {_KINDS[kind]}")
    return value


def _from_folder(folder: tfds_folders.Folder, split: str) -> _Found:
    if folder.file_format not in _RECORDS:
        raise DataError(
            f"{folder.path!r} is in TFDS's format {folder.file_format!r}, of which questions are not read; expected "
            f"{' or '.join(_RECORDS)}: prepare it with `tfds build --file_format=array_record`"
        )
    if missing := [name for name in _FEATURES if name not in folder.fields]:
        raise DataError(f"{folder.path!r} has no feature {missing[0]!r}, found {folder.listed}; give TFDS's squad")
    if split not in folder.lengths:
        raise DataError(f"{folder.path!r} has no split {split!r}; give one of {', '.join(folder.lengths)}")
    contexts: dict[str, str] = {}  # each stands in the records once for every question on it
    for shard in folder.shards(split):
        for number, record in _RECORDS[folder.file_format](shard):
            yield f"{shard.file.path}, record {number}", lambda record=record: _example(record, contexts)


def _example(record: bytes | BadRecord, contexts: dict[str, str]) -> Question:
    """A question from a serialised `tf.train.Example`."""
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    if isinstance(record, BadRecord):
        raise record
    try:
        feature = tf_example_pb2.Example.FromString(record).features.feature
        fields = {name: feature[name].bytes_list.value for name in ("id", "title", "context", "question")}
        if lacking := [name for name, values in fields.items() if len(values) != 1]:
            raise BadRecord(f"{len(fields[lacking[0]])} strings {lacking[0]!r}; expected one")
        name, title, context, text = (values[0].decode() for values in fields.values())
        texts = [value.decode() for value in feature["answers/text"].bytes_list.value]
    except (DecodeError, UnicodeDecodeError) as error:
        raise BadRecord(f"not a tf.train.Example of UTF-8 strings ({error})") from None
    starts = feature["answers/answer_start"].int64_list.value
    if len(texts) != len(starts):
        raise BadRecord(f"{len(texts)} answers and {len(starts)} starts; expected as many")
    context = contexts.setdefault(context, context)
    return Question(name, title, context, text, tuple(zip(texts, starts, strict=True)))


def _check(question: Question, version: str, places: bool) -> None:
    """Raises BadRecord where a question cannot be used."""
    for name in ("context", "question"):
        if not getattr(question, name).strip():
            raise BadRecord(f"an empty {name}; remove or mend it")
    if question.impossible and version == "v1.1":
        raise BadRecord("no answer, as v2.0 has such; set config.squad.version=v2.0 or remove the question")
    for text, start in question.answers if places else ():
        if not text.strip():
            raise BadRecord("an empty answer; a question without one has no 'answers'")
        if start < 0 or not question.context.startswith(text, start):
            elsewhere = question.context.find(text)
            found = f"but at {elsewhere}" if elsewhere >= 0 else "nor anywhere else"
            raise BadRecord(
                f"the answer {text!r} does not stand in the context at {start}, its answer_start, {found}; mend it"
            )
