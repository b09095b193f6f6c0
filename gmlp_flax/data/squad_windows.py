"""Questions on passages as windows of tokens: `[CLS] question [SEP] passage [SEP]` (BERT's SQuAD, Devlin et al. 2019).

A passage that does not fit is cut into windows that overlap. Every passage and every question is tokenised once; kept
are flat arrays of token ids and of their places in the text, from which a window is put together when it is asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gmlp_flax.data import pairs
from gmlp_flax.data.errors import DataError
from gmlp_flax.data.pairs import TokenLists
from gmlp_flax.data.squad import Question
from gmlp_flax.data.tokenizer import Tokenizer

SPECIALS = 3  # [CLS], and [SEP] after the question and after the passage

# Text and character in one integer, that texts in a row can be searched at once.
_TEXT = 1 << 32


class Passages(NamedTuple):
    """Tokenised passages.

    Attributes:
        tokens: their token ids.
        spans: int32 [tokens of all passages, 2], see Tokenizer.encode_with_offsets.
    """

    tokens: TokenLists
    spans: np.ndarray


class Targets(NamedTuple):
    """Where the first reference of each question stands among its passage's tokens.

    Attributes:
        first, last: int64 [questions]: the first and the last token that has a part in the answer; -1 and -1 where
            there is no answer, or none that tokens stand for.
        unaligned: bool [questions]: the answer does not begin and end where tokens do. What these tokens stand for is
            trained on, with a little more than the answer in it.
        lost: bool [questions]: no token stands for any of it.
    """

    first: np.ndarray
    last: np.ndarray
    unaligned: np.ndarray
    lost: np.ndarray


class Windows:
    """The windows of some questions, in order, as a random-access source.

    An item is {"tokens", "segments": int32 [length]; "start", "end", "index": int32}. Segments are 0 for the question
    with its [CLS] and [SEP], 1 for the passage with its [SEP], and 0 for padding. Start and end are the places of the
    answer's first and last token, both 0, [CLS], where the window does not hold all of an answer. The index is the
    window's number.

    Args:
        questions: the questions.
        tokenizer: the tokenizer.
        length: tokens of a window.
        stride: tokens from one window of a passage to the next.
        max_query: a question's tokens, at most; the rest of a longer one is cut off.
        training: leaves out the questions whose answer is lost, see Targets.

    Attributes:
        questions: those that are not left out.
        targets: of these questions.
        left_out: how many are.
        number: int64 [windows], the question of each window.
        begin, size: int64 [windows], the first token of its passage that a window holds, and how many it holds.

    Raises:
        DataError: `length` leaves no room for a passage.
    """

    def __init__(
        self, questions: Sequence[Question], tokenizer: Tokenizer, *, length: int, stride: int, max_query: int,
        training: bool = False,
    ):
        if length < max_query + SPECIALS + 1:
            raise DataError(
                f"model.length={length} has no room for a passage beside squad.max_query={max_query} tokens of a "
                f"question and {SPECIALS} special ones; raise the one or lower the other"
            )
        self.length, self._tokenizer = length, tokenizer
        contexts = {context: i for i, context in enumerate(dict.fromkeys(q.context for q in questions))}
        self._passages = tokenized(list(contexts), tokenizer)
        passage_of = np.array([contexts[question.context] for question in questions], np.int64)
        targets = find_targets(questions, self._passages, passage_of)
        kept = ~targets.lost if training else np.ones(len(questions), bool)
        self.questions = list(itertools.compress(questions, kept))
        self.targets = Targets(*(values[kept] for values in targets))
        self.left_out = len(questions) - len(self.questions)
        self._passage_of = passage_of[kept]
        self._queries = pairs.encode([question.question for question in self.questions], tokenizer)
        self._query_sizes = np.minimum(self._queries.lengths, max_query)
        lengths, room = self._passages.tokens.lengths[self._passage_of], length - SPECIALS - self._query_sizes
        self.number, self.begin, self.size = cut(lengths, room, stride)
        self._first_window = np.searchsorted(self.number, np.arange(len(self.questions) + 1))

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        number, begin, size = self.number[index], self.begin[index], self.size[index]
        query = self._queries[number][: self._query_sizes[number]]
        passage = self._passages.tokens[self._passage_of[number]][begin : begin + size]
        tokens, segments = pairs.assemble(query, passage, self.length, self._tokenizer)
        first, last = self.targets.first[number] - begin, self.targets.last[number] - begin
        inside = first >= 0 and last < size
        start, end = (np.int32(place + self.passage_offset(index) if inside else 0) for place in (first, last))
        return {"tokens": tokens, "segments": segments, "start": start, "end": end, "index": np.int32(index)}

    def passage_offset(self, index: int) -> int:
        """The place in window `index` where its part of the passage begins."""
        return int(self._query_sizes[self.number[index]]) + SPECIALS - 1

    def of_question(self, number: int) -> range:
        """The windows of a question."""
        return range(*map(int, self._first_window[number : number + 2]))

    def spans(self, number: int) -> np.ndarray:
        """What the tokens of a question's passage stand for in it: int32 [tokens, 2], start and stop in characters."""
        passage = self._passage_of[number]
        return self._passages.spans[slice(*self._passages.tokens.offsets[passage : passage + 2])]

    def __repr__(self) -> str:
        return f"Windows(questions={len(self.questions)}, windows={len(self)}, length={self.length})"


def tokenized(contexts: Sequence[str], tokenizer: Tokenizer) -> Passages:
    """Tokenises passages."""
    found = [tokenizer.encode_with_offsets(context) for context in contexts]
    ids = [np.zeros(0, np.int32), *(ids for ids, _ in found)]
    spans = [np.zeros((0, 2), np.int32), *(spans for _, spans in found)]
    return Passages(TokenLists(np.concatenate(ids), np.cumsum([*map(len, ids)], dtype=np.int64)), np.concatenate(spans))


def cut(lengths: np.ndarray, room: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts passages into windows: at 0, stride, 2 stride, ... until one reaches the end; no token is left out.

    Args:
        lengths: int [passages], tokens.
        room: int [passages], tokens that a window of each has room for.
        stride: tokens from one window to the next; of narrower windows, their width.

    Returns:
        number, begin, size: int64 [windows]: which passage, its first token in the window, tokens in the window.
    """
    lengths, room = np.asarray(lengths, np.int64), np.asarray(room, np.int64)
    step = np.minimum(stride, room)
    counts = 1 + np.maximum(0, -(-(lengths - room) // step))
    number = np.repeat(np.arange(len(lengths)), counts)
    begin = (np.arange(len(number)) - np.repeat(np.cumsum(counts) - counts, counts)) * step[number]
    return number, begin, np.minimum(room[number], lengths[number] - begin)


def widest_context(begin: np.ndarray, size: np.ndarray, tokens: int) -> np.ndarray:
    """The window of a passage in which each token has the most context, int64 [tokens].

    That is the lesser of the tokens before and after it, plus a hundredth of the window's size (BERT); the first of
    equals.

    Args:
        begin, size: int [windows], the passage's windows.
        tokens: of the passage.
    """
    before = np.arange(tokens) - begin[:, None]
    after = size[:, None] - 1 - before
    context = np.where((before >= 0) & (after >= 0), np.minimum(before, after) + 0.01 * size[:, None], -1.0)
    return context.argmax(axis=0)


def find_targets(questions: Sequence[Question], passages: Passages, passage_of: np.ndarray) -> Targets:
    """The tokens of each question's first reference; `passage_of` int [questions] says which passage is whose."""
    wanted = np.full((len(questions), 2), -1, np.int64)
    for number, question in enumerate(questions):
        if question.answers:
            text, start = question.answers[0]
            # White space is no token's, at either end.
            wanted[number] = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    answered = wanted[:, 0] >= 0
    lengths = passages.tokens.lengths
    starts, stops = np.repeat(np.arange(len(lengths)), lengths) * _TEXT + passages.spans.T
    first = np.searchsorted(stops, passage_of * _TEXT + wanted[:, 0], side="right")
    last = np.searchsorted(starts, passage_of * _TEXT + wanted[:, 1], side="left") - 1
    lost = answered & (first > last)
    found = answered & ~lost
    matching = np.zeros(len(questions), bool)
    matching[found] = (passages.spans[first[found], 0] == wanted[found, 0]) & (
        passages.spans[last[found], 1] == wanted[found, 1]
    )
    first, last = (np.where(found, place - passages.tokens.offsets[passage_of], -1) for place in (first, last))
    return Targets(first, last, answered & ~matching, lost)
