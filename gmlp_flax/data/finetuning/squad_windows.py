"""Questions on passages as windows of tokens: `[CLS] question [SEP] passage [SEP]` (BERT's SQuAD, Devlin et al. 2019).

A passage that does not fit is cut into overlapping windows. Passages and questions are tokenised once, into flat arrays
of token ids and of their spans in the text; windows are assembled when they are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gmlp_flax.data.finetuning import pairs
from gmlp_flax.data.finetuning.pairs import TokenLists
from gmlp_flax.data.finetuning.squad import Question
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError

SPECIALS = 3  # [CLS], and [SEP] after the question and after the passage

# A text's number times this, plus a place in it, is one sorted key for all texts.
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
    """The place of each question's first reference among its passage's tokens.

    Attributes:
        first, last: int64 [questions], the first and last token that overlap the answer; both -1 if there is no answer,
            or if no token overlaps it.
        unaligned: bool [questions], whether the answer begins or ends inside a token. Training then uses the tokens
            that overlap it, which hold a little more than the answer.
        lost: bool [questions], whether there is an answer but no token overlaps it.
    """

    first: np.ndarray
    last: np.ndarray
    unaligned: np.ndarray
    lost: np.ndarray


class Windows:
    """The windows of some questions, in order, as a random-access source.

    An item is {"tokens", "segments": int32 [length]; "start", "end", "index": int32}. Segments are 1 for the passage
    and its [SEP], else 0. Start and end are the places of the answer's first and last token, or both 0, the place of
    [CLS], if the window does not hold the whole answer. The index is the window's number.

    Args:
        questions: the questions.
        tokenizer: the tokenizer.
        length: tokens of a window.
        stride: tokens from one window of a passage to the next.
        max_query: the most tokens of a question; longer questions are cut.
        training: whether to leave out the questions whose answer is lost, see Targets.

    Attributes:
        questions: the questions that are not left out.
        targets: of these questions.
        left_out: how many questions are left out.
        number: int64 [windows], the question of each window.
        begin, size: int64 [windows], the passage's first token in the window, and its number of tokens there.

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
                f"length={length} has no room for a passage beside squad.max_query={max_query} tokens of a "
                f"question and {SPECIALS} special ones; raise the one or lower the other"
            )
        self.length, self._tokenizer = length, tokenizer
        contexts = {context: i for i, context in enumerate(dict.fromkeys(q.context for q in questions))}
        self._passages = tokenize(list(contexts), tokenizer)
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
        self.number, self.begin, self.size = window_bounds(lengths, room, stride)
        self._first_window = np.searchsorted(self.number, np.arange(len(self.questions) + 1))

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, begin, size = int(self.number[index]), int(self.begin[index]), int(self.size[index])
        query = self._queries[number][: self._query_sizes[number]]
        passage = self._passages.tokens[int(self._passage_of[number])][begin : begin + size]
        tokens, segments = pairs.assemble([query, passage], self.length, self._tokenizer)
        first, last = self.targets.first[number] - begin, self.targets.last[number] - begin
        inside = first >= 0 and last < size
        start, end = (np.int32(token + self.passage_offset(index) if inside else 0) for token in (first, last))
        return {"tokens": tokens, "segments": segments, "start": start, "end": end, "index": np.int32(index)}

    def passage_offset(self, index: int) -> int:
        """The place in window `index` at which its part of the passage begins."""
        return int(self._query_sizes[self.number[index]]) + SPECIALS - 1

    def of_question(self, number: int) -> range:
        """The windows of a question."""
        return range(*map(int, self._first_window[number : number + 2]))

    def spans(self, number: int) -> np.ndarray:
        """The spans of the tokens of a question's passage: int32 [tokens, 2], start and stop in characters."""
        passage = self._passage_of[number]
        return self._passages.spans[slice(*self._passages.tokens.offsets[passage : passage + 2])]

    def __repr__(self) -> str:
        return f"Windows(questions={len(self.questions)}, windows={len(self)}, length={self.length})"


def tokenize(contexts: Sequence[str], tokenizer: Tokenizer) -> Passages:
    """Tokenises passages, once each; see Tokenizer.encode_with_offsets."""
    encoded = [tokenizer.encode_with_offsets(context) for context in contexts]
    ids = [np.zeros(0, np.int32), *(ids for ids, _ in encoded)]
    spans = [np.zeros((0, 2), np.int32), *(spans for _, spans in encoded)]
    return Passages(TokenLists(np.concatenate(ids), np.cumsum([*map(len, ids)], dtype=np.int64)), np.concatenate(spans))


def window_bounds(lengths: np.ndarray, room: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts passages into windows that begin at 0, stride, 2 stride, ... until one reaches the end.

    Args:
        lengths: int [passages], tokens of each passage.
        room: int [passages], the most tokens of the passage in one window.
        stride: tokens from one window to the next; if `room` is less, that, so that no token is left out.

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

    As in BERT, the context is the number of tokens before it or after it in the window, whichever is less, plus a
    hundredth of the window's size. The first of several equal windows is taken.

    Args:
        begin, size: int [windows], of the passage's windows.
        tokens: the passage's number of tokens.
    """
    before = np.arange(tokens) - begin[:, None]
    after = size[:, None] - 1 - before
    context = np.where((before >= 0) & (after >= 0), np.minimum(before, after) + 0.01 * size[:, None], -1.0)
    return context.argmax(axis=0)


def find_targets(questions: Sequence[Question], passages: Passages, passage_of: np.ndarray) -> Targets:
    """The tokens of each question's first reference; `passage_of`, int [questions], is the passage of each question."""
    wanted = np.full((len(questions), 2), -1, np.int64)
    for number, question in enumerate(questions):
        if question.answers:
            text, start = question.answers[0]
            # Spans of tokens leave out white space at either end.
            wanted[number] = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    answered = wanted[:, 0] >= 0
    lengths = passages.tokens.lengths
    starts, stops = np.repeat(np.arange(len(lengths)), lengths) * _TEXT + passages.spans.T
    first = np.searchsorted(stops, passage_of * _TEXT + wanted[:, 0], side="right")
    last = np.searchsorted(starts, passage_of * _TEXT + wanted[:, 1], side="left") - 1
    lost = answered & (first > last)
    covered = answered & ~lost
    matching = np.zeros(len(questions), bool)
    matching[covered] = (passages.spans[first[covered], 0] == wanted[covered, 0]) & (
        passages.spans[last[covered], 1] == wanted[covered, 1]
    )
    first, last = (np.where(covered, token - passages.tokens.offsets[passage_of], -1) for token in (first, last))
    return Targets(first, last, answered & ~matching, lost)
