"""Questions on passages as windows of tokens: `[CLS] question [SEP] passage [SEP]` (BERT's SQuAD, Devlin et al. 2019).

A passage that does not fit is cut into overlapping windows. Passages and questions are tokenised once; windows are
assembled when they are read.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gmlp_flax.data.finetuning import pairs
from gmlp_flax.data.finetuning.squad import Question
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError

SPECIALS = 3  # [CLS], and [SEP] after the question and after the passage


class Target(NamedTuple):
    """The first reference of a question, as tokens of its passage.

    Attributes:
        first, last: the first and last token that overlap the answer, which may begin or end inside them; both -1 if
            there is no answer, or if no token overlaps it.
        lost: whether there is an answer but no token overlaps it.
    """

    first: int = -1
    last: int = -1
    lost: bool = False


class Windows:
    """The windows of some questions, in order, as a random-access source.

    An item is {"tokens", "segments": int32 [length]; "start", "end", "index": int32}. Segments are 1 for the passage
    and its [SEP], else 0. Start and end are the positions of the answer's first and last token, or both 0, that of
    [CLS], if the window does not hold the whole answer. The index is the window's number.

    Args:
        questions: the questions.
        tokenizer: the tokenizer.
        length: tokens of a window.
        stride: tokens from one window of a passage to the next.
        max_query: the most tokens of a question; longer questions are cut.
        training: whether to leave out the questions whose answer is lost, see Target.

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
            raise DataError(f"length={length} has no room for a passage beside squad.max_query={max_query} tokens")
        self.length, self._tokenizer = length, tokenizer
        # Context -> the ids of its tokens and their spans, see Tokenizer.encode_with_offsets.
        encoded = {context: tokenizer.encode_with_offsets(context) for context in {q.context for q in questions}}
        targets = [find_target(question, encoded[question.context][1]) for question in questions]
        used = [not (training and target.lost) for target in targets]
        self.questions, self.targets = [*itertools.compress(questions, used)], [*itertools.compress(targets, used)]
        self.left_out = len(questions) - len(self.questions)
        self._passages = [encoded[question.context] for question in self.questions]
        self._queries = pairs.encode([question.question for question in self.questions], tokenizer, max_query)
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
        first, last = self.targets[number].first - begin, self.targets[number].last - begin
        inside = first >= 0 and last < size
        start, end = (np.int32(token + self.passage_offset(index) if inside else 0) for token in (first, last))
        return {"tokens": tokens, "segments": segments, "start": start, "end": end, "index": np.int32(index)}

    def passage_offset(self, index: int) -> int:
        """The position in window `index` at which its part of the passage begins."""
        return len(self._queries[self.number[index]]) + SPECIALS - 1

    def of_question(self, number: int) -> range:
        """The windows of a question."""
        return range(*map(int, self._first_window[number : number + 2]))

    def spans(self, number: int) -> np.ndarray:
        """The spans of the tokens of a question's passage: int32 [tokens, 2], start and stop in characters."""
        return self._passages[number][1]


def window_bounds(lengths: np.ndarray, room: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts passages into windows that begin at 0, stride, 2 stride, ... until one reaches the end.

    Args:
        lengths: int64 [passages], tokens of each passage.
        room: int64 [passages], the most tokens of the passage in one window.
        stride: tokens from one window to the next; if `room` is less, that, so that no token is left out.

    Returns:
        number, begin, size: int64 [windows]: which passage, its first token in the window, tokens in the window.
    """
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


def find_target(question: Question, spans: np.ndarray) -> Target:
    """The tokens of a question's first reference; `spans`, int32 [tokens, 2], are those of the passage's tokens."""
    if question.impossible:
        return Target()
    text, start = question.answers[0]
    # Spans of tokens leave out white space at either end.
    start, stop = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    first = int(np.searchsorted(spans[:, 1], start, side="right"))
    last = int(np.searchsorted(spans[:, 0], stop, side="left")) - 1
    if first > last:
        return Target(lost=True)
    return Target(first, last)
