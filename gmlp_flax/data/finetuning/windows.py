"""Windows of tokens on passages, `[CLS] question [SEP] passage [SEP]` (Devlin et al. 2019)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gmlp_flax.data.finetuning import pairs
from gmlp_flax.data.finetuning.questions import Question
from gmlp_flax.data.text.fixed_vocabulary import Encoding
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError

NO_TARGET = (-1, -1)  # see Windows.targets
SPECIALS = 3  # of a window: [CLS], and [SEP] after the question and after the passage


class Windows:
    """The windows of some questions, in order, as a random-access source.

    A passage that does not fit is cut into overlapping windows. Passages and questions are
    tokenized once; windows are assembled when they are read.

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
        training: whether to leave out the questions whose answer overlaps no token.

    Attributes:
        questions: the questions that are not left out.
        targets: their first references as tokens of the passage: the first and last token that
            overlap the answer, which may begin or end inside them; -1 and -1 if there is no answer,
            or no token overlaps it.
        left_out: how many questions are left out.
        number: int64 [windows], the question of each window.
        begin: int64 [windows], the passage's first token in the window.
        size: int64 [windows], how many tokens of the passage are in the window.

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
        shortest = max_query + SPECIALS + 1
        if length < shortest:
            raise DataError(
                f"length={length} has no room for a passage besides squad.max_query={max_query} "
                "tokens"
            )
        self.length = length
        self._tokenizer = tokenizer
        self.questions: list[Question] = []
        self.targets: list[tuple[int, int]] = []
        self._passages: list[Encoding] = []
        self._add(questions, training)
        self.left_out = len(questions) - len(self.questions)
        texts = [question.question for question in self.questions]
        self._queries = pairs.encode(texts, tokenizer, max_query)
        passage_ids = [passage.ids for passage in self._passages]
        passage_lengths = _lengths(passage_ids)
        query_lengths = _lengths(self._queries)
        room = length - SPECIALS - query_lengths
        self.number, self.begin, self.size = window_bounds(passage_lengths, room, stride)
        # The first window of each question, and the number of all windows.
        bounds = len(self.questions) + 1
        question_bounds = np.arange(bounds)
        self._first_window = np.searchsorted(self.number, question_bounds)

    def _add(self, questions: Sequence[Question], training: bool) -> None:
        """Adds the questions, with their targets and passages, that are not left out."""
        passages = _encode_passages(questions, self._tokenizer)
        for question in questions:
            passage = passages[question.context]
            target = find_target(question, passage.spans)
            is_lost = not question.impossible and target == NO_TARGET
            if training and is_lost:
                continue
            self.questions.append(question)
            self.targets.append(target)
            self._passages.append(passage)

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = int(self.number[index])
        begin = int(self.begin[index])
        size = int(self.size[index])
        stop = begin + size
        query = self._queries[number]
        passage = self._passages[number]
        ids = passage.ids[begin:stop]
        inputs = pairs.assemble([query, ids], self.length, self._tokenizer)
        first, last = self.targets[number]
        start = 0
        end = 0
        holds_answer = first >= begin and last < stop
        if holds_answer:
            offset = self.passage_offset(index)
            shift = offset - begin
            start = first + shift
            end = last + shift
        return {
            "tokens": inputs.tokens,
            "segments": inputs.segments,
            "start": np.int32(start),
            "end": np.int32(end),
            "index": np.int32(index),
        }

    def passage_offset(self, index: int) -> int:
        """The position in window `index` at which its part of the passage begins."""
        number = self.number[index]
        query = self._queries[number]
        specials_before = SPECIALS - 1
        return len(query) + specials_before

    def of_question(self, number: int) -> range:
        """The windows of a question."""
        start = int(self._first_window[number])
        stop = int(self._first_window[number + 1])
        return range(start, stop)

    def rows(self, number: int) -> slice:
        """The windows of a question, as rows of arrays with a row for each window."""
        members = self.of_question(number)
        return slice(members.start, members.stop)

    def widest(self, number: int) -> np.ndarray:
        """For each token of a question's passage, which of the question's windows, counted from 0,
        gives it the most context: int64 [tokens]."""
        rows = self.rows(number)
        begin = self.begin[rows]
        size = self.size[rows]
        tokens = len(self.spans(number))
        return widest_context(begin, size, tokens)

    def spans(self, number: int) -> np.ndarray:
        """The spans of the tokens of a question's passage: int32 [tokens, 2], start and stop in
        characters."""
        passage = self._passages[number]
        return passage.spans


def _encode_passages(questions: Sequence[Question], tokenizer: Tokenizer) -> dict[str, Encoding]:
    """Context -> its tokens; a context of several questions is encoded once."""
    passages = {}
    for question in questions:
        context = question.context
        if context not in passages:
            passages[context] = tokenizer.encode_with_offsets(context)
    return passages


def _lengths(sequences: Sequence[np.ndarray]) -> np.ndarray:
    """The number of tokens of each sequence: int64 [sequences]."""
    lengths = list(map(len, sequences))
    return np.array(lengths, np.int64)


def window_bounds(
    lengths: np.ndarray, room: np.ndarray, stride: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts passages into windows that begin at 0, stride, 2 stride, ... until one reaches the end.

    Args:
        lengths: int64 [passages], tokens of each passage.
        room: int64 [passages], the most tokens of the passage in one window.
        stride: tokens from one window to the next. Where `room` is less, the windows are `room`
            apart, so that no token is left out.

    Returns:
        number: int64 [windows], the passage of each window.
        begin: int64 [windows], the passage's first token in the window.
        size: int64 [windows], how many of its tokens are in the window.
    """
    step = np.minimum(stride, room)
    excess = lengths - room
    after_first = np.maximum(0, excess)  # tokens that the first window does not hold
    more_windows = -(-after_first // step)  # rounded up
    counts = 1 + more_windows
    passages = np.arange(len(lengths))
    number = np.repeat(passages, counts)
    windows = np.arange(len(number))
    window_ends = np.cumsum(counts)
    first_windows = window_ends - counts  # of each passage
    window_in_passage = windows - first_windows[number]
    begin = window_in_passage * step[number]
    left = lengths[number] - begin
    size = np.minimum(room[number], left)
    return number, begin, size


def widest_context(begin: np.ndarray, size: np.ndarray, tokens: int) -> np.ndarray:
    """The window of a passage in which each token has the most context, int64 [tokens].

    As in BERT, the context is the number of tokens before it or after it in the window, whichever
    is less, plus a hundredth of the window's size. The first of several equal windows is taken.

    Args:
        begin: int [windows], the passage's first token in each window.
        size: int [windows], how many of its tokens are in each window.
        tokens: how many tokens the passage has.
    """
    position = np.arange(tokens)
    sizes = size[:, None]
    first = begin[:, None]
    last = first + sizes - 1
    tokens_before = position - first
    tokens_after = last - position
    nearest_end = np.minimum(tokens_before, tokens_after)
    bonus = 0.01 * sizes
    context = nearest_end + bonus
    is_outside = nearest_end < 0
    context[is_outside] = -1.0
    return context.argmax(axis=0)


def find_target(question: Question, spans: np.ndarray) -> tuple[int, int]:
    """A question's target, see Windows; `spans`, int32 [tokens, 2], are those of the passage's
    tokens."""
    if question.impossible:
        return NO_TARGET
    text, position = question.answers[0]
    # Spans of tokens leave out white space at either end.
    without_leading = text.lstrip()
    without_trailing = text.rstrip()
    leading_space = len(text) - len(without_leading)
    start = position + leading_space
    stop = position + len(without_trailing)
    token_starts = spans[:, 0]
    token_stops = spans[:, 1]
    tokens_before = np.searchsorted(token_stops, start, side="right")
    tokens_begun = np.searchsorted(token_starts, stop, side="left")
    first = int(tokens_before)
    last = int(tokens_begun) - 1
    if first > last:
        return NO_TARGET
    return first, last
