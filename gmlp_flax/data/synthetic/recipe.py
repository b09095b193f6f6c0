"""What a synthetic task is made of, and what its generators share."""

import dataclasses
from typing import NamedTuple

import numpy as np

IGNORED = -1  # as a target: nothing is asked there


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The sizes of a synthetic task.

    Attributes:
        length: tokens of an example, n.
        vocab_size: symbols of the task, the special ones among them. The id `mask_id` comes after
            them.
        both_ways: whether the model sees later tokens: answers that are in the text are then
            masked. Else a target is the next token.
        pairs: of a key and its value in an example of `mqar`.
        power: of the gaps of `mqar`: a gap of i pairs has a probability proportional to i^(power - 1).
        fill: whether the other tokens of `mqar` are random symbols; else they are 0.
        noise: share of noise among the pairs of `noisy_recall`.
        noise_tokens: symbols of the vocabulary that are noise.
        copied: tokens to copy in `selective_copying`.
        motif: tokens of a key and of a value in `fuzzy_recall`, at most.
    """

    length: int
    vocab_size: int
    both_ways: bool = False
    pairs: int = 8
    power: float = 0.01
    fill: bool = False
    noise: float = 0.2
    noise_tokens: int = 16
    copied: int = 16
    motif: int = 3

    @property
    def mask_id(self) -> int:
        """Hides an answer from a model that sees later tokens."""
        return self.vocab_size


class Examples(NamedTuple):
    """Examples of a task.

    Attributes:
        tokens: int32 [examples, length], what the model reads.
        targets: int32 [examples, length], the answer at each position; IGNORED where none is asked.
    """

    tokens: np.ndarray
    targets: np.ndarray


def examples(tokens: np.ndarray, targets: np.ndarray) -> Examples:
    """Examples of any integers, [examples, length] each."""
    tokens = tokens.astype(np.int32)
    targets = targets.astype(np.int32)
    return Examples(tokens, targets)


class Symbols(NamedTuple):
    """The ids of keys and of values, int [symbols] each."""

    keys: np.ndarray
    values: np.ndarray


def halves(symbols: int) -> Symbols:
    """The lower half of the ids below `symbols` are keys, the others values."""
    middle = symbols // 2
    keys = np.arange(middle)
    values = np.arange(middle, symbols)
    return Symbols(keys, values)


class Text:
    """An example of a text, written from left to right, some of whose tokens are answers."""

    def __init__(self):
        self._tokens: list[int] = []
        self._asked: list[bool] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def write(self, tokens, asked: bool = False) -> None:
        """Adds tokens; whether they are answers."""
        for token in tokens:
            plain_token = int(token)
            self._tokens.append(plain_token)
            self._asked.append(asked)

    def write_pair(self, key, value, asked: bool = False) -> None:
        """Adds the tokens of a key and of its value; whether the value is an answer."""
        self.write(key)
        self.write(value, asked)

    def pad_left(self, length: int, pad: int) -> None:
        """Adds padding at the beginning, up to a length of `length` tokens."""
        missing = length - len(self._tokens)
        padding = [pad] * missing
        unasked = [False] * missing
        self._tokens = padding + self._tokens
        self._asked = unasked + self._asked

    def example(self, recipe: Recipe, training: bool) -> tuple[np.ndarray, np.ndarray]:
        """What a model reads and its targets, int32 [tokens] each.

        A causal model is trained to predict every next token, and scored on the answers. A model
        that sees later tokens predicts the answers, which are masked.
        """
        tokens = np.array(self._tokens, np.int32)
        is_asked = np.array(self._asked)
        answers = np.where(is_asked, tokens, IGNORED)
        if recipe.both_ways:
            masked = np.where(is_asked, recipe.mask_id, tokens)
            return masked, answers
        next_tokens = tokens if training else answers
        targets = np.full_like(tokens, IGNORED)
        targets[:-1] = next_tokens[1:]
        return tokens, targets


def stacked(pairs: list[tuple[np.ndarray, np.ndarray]]) -> Examples:
    """Examples of the tokens and the targets of each, any integers [length]."""
    tokens, targets = zip(*pairs, strict=True)
    all_tokens = np.stack(tokens)
    all_targets = np.stack(targets)
    return examples(all_tokens, all_targets)
