"""SQuAD (Rajpurkar et al. 2016, 2018): questions on passages, from the official JSON or folders that TFDS prepared.

A path is one of

    a file: the official JSON, also packed as .gz or .xz, or remote: {"data": [{"title", "paragraphs": [{"context",
        "qas": [{"id", "question", "answers": [{"text", "answer_start"}]}]}]}]}. In v2.0, questions also have
        "is_impossible".
    a TFDS folder, or tfds:squad/v1.1 or tfds:squad/v2.0 (see tfds_folders.find).
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gmlp_flax.data import splits
from gmlp_flax.data.splits import HELDOUT, HELDOUT_SPLIT, TRAIN_SPLIT
from gmlp_flax.data.text.documents import read_whole
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, json_files, tfds_folders
from gmlp_flax.io.records import BadRecord, BadRecords, decode_utf8, example_features

VERSIONS = ("v1.1", "v2.0")

# The name of each question in messages, and a function that returns the question or raises BadRecord.
_Records = Iterator[tuple[str, Callable[[], "Question"]]]


class Question(NamedTuple):
    """A question on a passage.

    Attributes:
        id: unique in its data.
        title: of the article with the passage.
        context: the passage.
        question: the question.
        answers: (text, start) of each reference, where context[start : start + len(text)] is the text; () if the
            passage holds no answer (v2.0).
    """

    id: str
    title: str
    context: str
    question: str
    answers: tuple[tuple[str, int], ...]

    @property
    def impossible(self) -> bool:
        """Whether the passage holds no answer."""
        return not self.answers


def read_side(
    path: str,
    side: str,
    version: str,
    *,
    split: str = "",
    heldout_split: str = "",
    heldout_share: float = 0.0,
    bad: BadRecords | None = None,
) -> list[Question]:
    """The questions at `path` to train on, or the held-out ones, in order.

    In a TFDS folder, `train` is for training and `validation` is held out. In a JSON file, a share of the articles is
    held out, by their titles: no passage is on both sides.

    Args:
        path: see the module's docstring.
        version: "v1.1", where every question has an answer, or "v2.0".
        side, split, heldout_split, heldout_share: as in data.text.selection.open_side; JSON has no splits.
        bad: counts and limits the questions that are left out, for the reasons below. Without it, the first one raises.

    Raises:
        DataError: there is nothing at `path`, no such split or no question, it is not SQuAD's JSON, or an id occurs
            twice; a split would be both trained on and held out, or a side is empty. Without `bad`, also if a question
            lacks a field, a question or passage is empty, an answer is not at its `answer_start`, or a question of v1.1
            has no answer.
    """
    path = tfds_folders.find(str(path))
    if folder := tfds_folders.load(path, files.find_files(path)):
        train, heldout = (split or TRAIN_SPLIT,), (heldout_split or HELDOUT_SPLIT,)
        (name, *_), heldout_share = splits.choose(path, side, train, heldout, heldout_share)
        questions = _usable(_from_folder(folder, name), version, bad)
    else:
        questions = _usable(_from_json(path, heldout_split if side == HELDOUT else split), version, bad)
    if not questions:
        raise DataError(f"{path}: no question in it; give SQuAD's JSON file or a TFDS folder")
    if not heldout_share:
        return questions
    titles: dict[str, str] = {}  # of each passage, which may stand under two: the first
    for question in questions:
        titles.setdefault(question.context, question.title)
    chosen = [q for q in questions if splits.is_on(side, titles[q.context], heldout_share)]
    if not chosen:
        advice = "give the held-out questions a file of their own"
        raise splits.empty_side(f"the articles of {path!r}", side, heldout_share, advice)
    return chosen


def _usable(records: _Records, version: str, bad: BadRecords | None) -> list[Question]:
    questions: dict[str, Question] = {}
    for where, make in records:
        try:
            question = make()
            _check(question, version)
        except BadRecord as error:
            if bad is None:
                raise DataError(f"{where}: {error}") from None
            bad.skip(f"{where}: {error}")
            continue
        if question.id in questions:
            raise DataError(f"{where}: the id {question.id!r} occurs twice; remove one of the two questions")
        questions[question.id] = question
    return list(questions.values())


def _from_json(path: str, split: str) -> _Records:
    if split:
        raise splits.without_splits(path)
    values, where = json_files.parse(read_whole(path), path), path
    try:
        for i, article in enumerate(_field(values, "data", list), start=1):
            where = f"{path}, article {i}"
            paragraphs, title = _field(article, "paragraphs", list), _field(article, "title", str)
            for j, paragraph in enumerate(paragraphs, start=1):
                where = f"{path}, article {i} ({title!r}), paragraph {j}"
                context = _field(paragraph, "context", str)
                for k, entry in enumerate(_field(paragraph, "qas", list), start=1):
                    name = entry.get("id") if isinstance(entry, dict) else None
                    yield f"{where}, question {name or k}", functools.partial(_question, entry, title, context)
    except BadRecord as error:
        raise DataError(f"{where}: {error}") from None


def _question(entry: Any, title: str, context: str) -> Question:
    name, text = _field(entry, "id", str), _field(entry, "question", str)
    answers = _field(entry, "answers", list)
    references = tuple((_field(answer, "text", str), _field(answer, "answer_start", int)) for answer in answers)
    impossible = entry.get("is_impossible", not references)
    if impossible is not (not references):
        raise BadRecord(f"is_impossible is {impossible} beside {len(references)} answer(s); mend one of the two")
    return Question(name, title, context, text, references)


def _field(record: Any, name: str, kind: type) -> Any:
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        given = f"fields {', '.join(map(repr, record))}" if isinstance(record, dict) else type(record).__name__
        given = f"{type(value).__name__} {name!r}" if value is not None else given
        raise BadRecord(f"found {given}; expected SQuAD's format, with {name!r} of type {kind.__name__}")
    return value


def _from_folder(folder: tfds_folders.Folder, split: str) -> _Records:
    if split not in folder.lengths:
        raise splits.missing_split(folder.path, split, tuple(folder.lengths))
    contexts: dict[str, str] = {}  # the records repeat a passage for every question on it
    return ((where, functools.partial(_example, record, contexts)) for where, record in folder.records(split))


def _example(record: bytes | BadRecord, contexts: dict[str, str]) -> Question:
    """A question from a serialised `tf.train.Example`; equal passages become one object in `contexts`."""
    if isinstance(record, BadRecord):
        raise record
    feature = example_features(record)
    names = ("id", "title", "context", "question", "answers/text")
    # The positions of answers count a byte-order mark.
    texts = {name: [decode_utf8(value, keep_mark=True) for value in feature[name].bytes_list.value] for name in names}
    *fields, answers = texts.values()
    starts = feature["answers/answer_start"].int64_list.value
    if {*map(len, fields)} != {1} or len(answers) != len(starts):
        counts = ", ".join(f"{len(values)} {name!r}" for name, values in texts.items())
        raise BadRecord(f"found {counts} and {len(starts)} starts; expected one of each, and equally many answers")
    name, title, context, question = (values[0] for values in fields)
    return Question(
        name, title, contexts.setdefault(context, context), question, tuple(zip(answers, starts, strict=True))
    )


def _check(question: Question, version: str) -> None:
    """Raises BadRecord if a question cannot be used."""
    for name in ("context", "question"):
        if not getattr(question, name).strip():
            raise BadRecord(f"an empty {name}; remove or mend it")
    if question.impossible and version == "v1.1":
        raise BadRecord("no answer, which only v2.0 allows; set config.squad.version=v2.0 or remove the question")
    for text, start in question.answers:
        if not text.strip():
            raise BadRecord("an empty answer; a question without one has no 'answers'")
        if start < 0 or not question.context.startswith(text, start):
            raise BadRecord(f"the answer {text!r} is not in the context at {start}, its answer_start; mend it")
