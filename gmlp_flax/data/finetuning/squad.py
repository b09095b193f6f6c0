"""SQuAD (Rajpurkar et al. 2016, 2018): questions on passages, from the official JSON or folders
that TFDS prepared; and their windows of tokens, `[CLS] question [SEP] passage [SEP]` (Devlin et al.
2019).

A path is one of

    a file: the official JSON, also packed as .gz or .xz, or remote: {"data": [{"title",
        "paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text",
        "answer_start"}]}]}]}]}. In v2.0, questions also have "is_impossible".
    a TFDS folder, or tfds:squad/v1.1 or tfds:squad/v2.0 (see tfds_folders.find).
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gmlp_flax.data import splits
from gmlp_flax.data.finetuning import pairs
from gmlp_flax.data.splits import HELDOUT, HELDOUT_SPLIT, TRAIN_SPLIT, Side
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import files, json_files, tfds_folders
from gmlp_flax.io.records import BadRecord, BadRecords, decode_utf8, example_features

VERSIONS = ("v1.1", "v2.0")
NO_TARGET = -1, -1  # see Windows.targets
SPECIALS = 3  # of a window: [CLS], and [SEP] after the question and after the passage


class Question(NamedTuple):
    """A question on a passage.

    Attributes:
        id: unique in its data.
        title: of the article with the passage.
        context: the passage.
        question: the question.
        answers: (text, start) of each reference, where context[start : start + len(text)] is the
            text; () if the passage holds no answer (v2.0).
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


def read_side(path: str, side: Side, version: str, bad: BadRecords | None = None) -> list[Question]:
    """The questions at `path` to train on, or the held-out ones, in order.

    In a TFDS folder, `train` is for training and `validation` is held out. In a JSON file, a share
    of the articles is
    held out, by their titles: no passage is on both sides.

    Args:
        path: see the module's docstring.
        side: of the data; JSON has no splits.
        version: "v1.1", where every question has an answer, or "v2.0".
        bad: counts and limits the questions that are left out, for the reasons below. Without it,
            the first one raises.

    Raises:
        DataError: there is nothing at `path`, no such split or no question, it is not SQuAD's JSON,
            or an id occurs twice; a split would be both trained on and held out, or a side is
            empty. Without `bad`, also if a question lacks a field, a question or passage is empty,
            an answer is not at its `answer_start`, or a question of v1.1 has no answer.
    """
    path = tfds_folders.find(str(path))
    if folder := tfds_folders.load(path, files.find_files(path)):
        side = side._replace(heldout_split=side.heldout_split or HELDOUT_SPLIT)
        (name,), share = side.choose(path, (side.split or TRAIN_SPLIT,), (side.heldout_split,))
        if name not in folder.lengths:
            raise splits.missing_split(path, name, tuple(folder.lengths))
        records, parse = folder.records(name), functools.partial(_example, contexts={})
    else:
        split, share = (
            side.heldout_split if side.name == HELDOUT else side.split,
            side.heldout_share,
        )
        records, parse = _from_json(path, split), _question
    questions = _usable(records, parse, version, bad or BadRecords())
    if not questions:
        raise DataError(f"{path}: no question in it; give SQuAD's JSON file or a TFDS folder")
    if not share:
        return questions
    titles: dict[str, str] = {}  # of each passage, which may stand under two: the first
    for question in questions:
        titles.setdefault(question.context, question.title)
    keys = [titles[question.context] for question in questions]
    return side.members(questions, keys, f"the articles of {path!r}")


def _usable(
    records: Iterable[tuple[str, Any]],
    parse: Callable[[Any], Question],
    version: str,
    bad: BadRecords,
) -> list[Question]:
    """The questions of records, each with its name in messages; `parse` raises BadRecord."""
    questions: dict[str, Question] = {}
    for where, record in records:
        try:
            question = parse(record)
            _check(question, version)
        except BadRecord as error:
            bad.skip(f"{where}: {error}")
            continue
        if question.id in questions:
            raise DataError(
                f"{where}: the id {question.id!r} occurs twice; remove one of the two questions"
            )
        questions[question.id] = question
    return list(questions.values())


def _from_json(path: str, split: str) -> Iterator[tuple[str, Any]]:
    if split:
        raise splits.missing_split(path, split, ())
    values: Any = json_files.parse(files.read_small(path, files.MOST, decompress=True), path)
    with decode_errors(
        f"{path}: not SQuAD's JSON", "expected data, with paragraphs, with context and qas"
    ):
        paragraphs = [
            (article, paragraph)
            for article in values["data"]
            for paragraph in article["paragraphs"]
        ]
        entries = [(entry, *around) for around in paragraphs for entry in around[1]["qas"]]
    for number, (entry, article, paragraph) in enumerate(entries, start=1):
        name = entry.get("id") if isinstance(entry, dict) else None
        yield f"{path}, question {name or number}", (entry, article, paragraph)


def _question(record: tuple[Any, Any, Any]) -> Question:
    entry, article, paragraph = record
    name, text = _field(entry, "id", str), _field(entry, "question", str)
    title, context = _field(article, "title", str), _field(paragraph, "context", str)
    answers = _field(entry, "answers", list)
    references = tuple(
        (_field(answer, "text", str), _field(answer, "answer_start", int)) for answer in answers
    )
    impossible = entry.get("is_impossible", not references)
    if impossible is not (not references):
        raise BadRecord(
            f"is_impossible is {impossible} beside {len(references)} answer(s); mend one of the two"
        )
    return Question(name, title, context, text, references)


def _field(record: Any, name: str, kind: type) -> Any:
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        given = (
            f"fields {', '.join(map(repr, record))}"
            if isinstance(record, dict)
            else type(record).__name__
        )
        given = f"{type(value).__name__} {name!r}" if value is not None else given
        raise BadRecord(
            f"found {given}; expected SQuAD's format, with {name!r} of type {kind.__name__}"
        )
    return value


def _example(record: bytes | BadRecord, contexts: dict[str, str]) -> Question:
    """A question from a serialised `tf.train.Example`; equal passages, as of several questions,
    become one object in `contexts`."""
    if isinstance(record, BadRecord):
        raise record
    feature = example_features(record)
    names = ("id", "title", "context", "question", "answers/text")
    # The positions of answers count a byte-order mark.
    texts = {
        name: [decode_utf8(value, keep_mark=True) for value in feature[name].bytes_list.value]
        for name in names
    }
    *fields, answers = texts.values()
    starts = feature["answers/answer_start"].int64_list.value
    if {*map(len, fields)} != {1} or len(answers) != len(starts):
        counts = ", ".join(f"{len(values)} {name!r}" for name, values in texts.items())
        raise BadRecord(
            f"found {counts} and {len(starts)} starts; expected one of each, and equally many answers"
        )
    name, title, context, question = (values[0] for values in fields)
    return Question(
        name,
        title,
        contexts.setdefault(context, context),
        question,
        tuple(zip(answers, starts, strict=True)),
    )


def _check(question: Question, version: str) -> None:
    """Raises BadRecord if a question cannot be used."""
    for name in ("context", "question"):
        if not getattr(question, name).strip():
            raise BadRecord(f"an empty {name}; remove or mend it")
    if question.impossible and version == "v1.1":
        raise BadRecord(
            "no answer, which only v2.0 allows; set config.squad.version=v2.0 or remove the question"
        )
    for text, start in question.answers:
        if not text.strip():
            raise BadRecord("an empty answer; a question without one has no 'answers'")
        if start < 0 or not question.context.startswith(text, start):
            raise BadRecord(
                f"the answer {text!r} is not in the context at {start}, its answer_start; mend it"
            )


class Windows:
    """The windows of some questions, in order, as a random-access source.

    A passage that does not fit is cut into overlapping windows. Passages and questions are
    tokenised once; windows are assembled when they are read.

    An item is {"tokens", "segments": int32 [length]; "start", "end", "index": int32}. Segments are
    1 for the passage and its [SEP], else 0. Start and end are the positions of the answer's first
    and last token, or both 0, that of [CLS], if the window does not hold the whole answer. The
    index is the window's number.

    Args:
        questions: the questions.
        tokenizer: the tokenizer.
        length: tokens of a window.
        stride: tokens from one window of a passage to the next.
        max_query: the most tokens of a question; longer questions are cut.
        training: whether to leave out the questions whose answer is lost: no token overlaps it.

    Attributes:
        questions: the questions that are not left out.
        targets: their first references as tokens of the passage: the first and last token that
            overlap the answer, which may begin or end inside them; -1 and -1 if there is no answer,
            or no token overlaps it.
        left_out: how many questions are left out.
        number: int64 [windows], the question of each window.
        begin, size: int64 [windows], the passage's first token in the window, and its number of
            tokens there.

    Raises:
        DataError: `length` leaves no room for a passage.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        tokenizer: Tokenizer,
        *,
        length: int,
        stride: int,
        max_query: int,
        training: bool = False,
    ):
        if length < max_query + SPECIALS + 1:
            raise DataError(
                f"length={length} has no room for a passage beside squad.max_query={max_query} tokens"
            )
        self.length, self._tokenizer = length, tokenizer
        # Context -> the ids of its tokens and their spans, see Tokenizer.encode_with_offsets.
        encoded = {
            context: tokenizer.encode_with_offsets(context)
            for context in {q.context for q in questions}
        }
        targets = [
            (question, find_target(question, encoded[question.context][1]))
            for question in questions
        ]
        used = [
            (q, target)
            for q, target in targets
            if not training or q.impossible or target != NO_TARGET
        ]
        self.questions, self.targets = (
            [question for question, _ in used],
            [target for _, target in used],
        )
        self.left_out = len(questions) - len(self.questions)
        self._passages = [encoded[question.context] for question in self.questions]
        self._queries = pairs.encode(
            [question.question for question in self.questions], tokenizer, max_query
        )
        lengths = np.array([len(ids) for ids, _ in self._passages], np.int64)
        room = length - SPECIALS - np.array([*map(len, self._queries)], np.int64)
        self.number, self.begin, self.size = window_bounds(lengths, room, stride)
        self._first_window = np.searchsorted(self.number, np.arange(len(self.questions) + 1))

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, begin, size = int(self.number[index]), int(self.begin[index]), int(self.size[index])
        texts = [self._queries[number], self._passages[number][0][begin : begin + size]]
        tokens, segments = pairs.assemble(texts, self.length, self._tokenizer)
        first, last = (token - begin for token in self.targets[number])
        inside = first >= 0 and last < size
        start, end = (
            np.int32(token + self.passage_offset(index) if inside else 0) for token in (first, last)
        )
        return {
            "tokens": tokens,
            "segments": segments,
            "start": start,
            "end": end,
            "index": np.int32(index),
        }

    def passage_offset(self, index: int) -> int:
        """The position in window `index` at which its part of the passage begins."""
        return len(self._queries[self.number[index]]) + SPECIALS - 1

    def of_question(self, number: int) -> range:
        """The windows of a question."""
        return range(*map(int, self._first_window[number : number + 2]))

    def spans(self, number: int) -> np.ndarray:
        """The spans of the tokens of a question's passage: int32 [tokens, 2], start and stop in
        characters."""
        return self._passages[number][1]


def window_bounds(
    lengths: np.ndarray, room: np.ndarray, stride: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts passages into windows that begin at 0, stride, 2 stride, ... until one reaches the end.

    Args:
        lengths: int64 [passages], tokens of each passage.
        room: int64 [passages], the most tokens of the passage in one window.
        stride: tokens from one window to the next; if `room` is less, that, so that no token is
            left out.

    Returns:
        number, begin, size: int64 [windows]: which passage, its first token in the window, tokens
            in the window.
    """
    step = np.minimum(stride, room)
    counts = 1 + np.maximum(0, -(-(lengths - room) // step))
    number = np.repeat(np.arange(len(lengths)), counts)
    begin = (np.arange(len(number)) - np.repeat(np.cumsum(counts) - counts, counts)) * step[number]
    return number, begin, np.minimum(room[number], lengths[number] - begin)


def widest_context(begin: np.ndarray, size: np.ndarray, tokens: int) -> np.ndarray:
    """The window of a passage in which each token has the most context, int64 [tokens].

    As in BERT, the context is the number of tokens before it or after it in the window, whichever
    is less, plus a hundredth of the window's size. The first of several equal windows is taken.

    Args:
        begin, size: int [windows], of the passage's windows.
        tokens: the passage's number of tokens.
    """
    before = np.arange(tokens) - begin[:, None]
    after = size[:, None] - 1 - before
    context = np.where(
        (before >= 0) & (after >= 0), np.minimum(before, after) + 0.01 * size[:, None], -1.0
    )
    return context.argmax(axis=0)


def find_target(question: Question, spans: np.ndarray) -> tuple[int, int]:
    """A question's target, see Windows; `spans`, int32 [tokens, 2], are those of the passage's
    tokens."""
    if question.impossible:
        return NO_TARGET
    text, start = question.answers[0]
    # Spans of tokens leave out white space at either end.
    start, stop = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    first = int(np.searchsorted(spans[:, 1], start, side="right"))
    last = int(np.searchsorted(spans[:, 0], stop, side="left")) - 1
    return (first, last) if first <= last else NO_TARGET
