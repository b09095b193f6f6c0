"""Text generation token by token, with a cache of the tokens before: from logits to the next token
by temperature, top-k, top-p and the draw."""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from gmlp_flax.tasks.inference.sampling import Sampling

LEAST_TEMPERATURE = 1e-6  # below it a division would overflow: the most likely token is taken


def probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The probabilities that the next token is drawn with.

    The `top_k` most likely tokens of softmax(logits / temperature) are kept and renormalized. Then
    the fewest tokens, the most likely first, whose total probability reaches `top_p` are kept (Holtzman et al.,
    arXiv 1904.09751). Among equal logits, the first count as the likelier ones.

    Args:
        logits: [vocabulary]; -inf for tokens that are never drawn.
        sampling: its temperature, top_k and top_p.

    Returns:
        float64 [vocabulary], with sum 1.
    """
    order = np.argsort(-logits, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    best = logits[order].astype(np.float64)
    shares = _softmax(best, sampling.temperature)
    kept = _keep_top_p(shares, sampling.top_p)
    result = np.zeros(logits.shape)
    result[order] = kept
    return result


def _softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    """softmax(logits / temperature) of logits in descending order."""
    if temperature < LEAST_TEMPERATURE:
        only_first = np.zeros(len(logits))
        only_first[0] = 1
        return only_first
    behind_first = logits - logits[0]
    weights = np.exp(behind_first / temperature)
    return weights / weights.sum()


def _keep_top_p(shares: np.ndarray, top_p: float) -> np.ndarray:
    """Probabilities in descending order, renormalized after the first ones that reach `top_p`."""
    sums_before = np.cumsum(shares) - shares
    is_kept = sums_before < top_p
    kept = np.where(is_kept, shares, 0.0)
    return kept / kept.sum()


def program_length(tokens: int, most: int) -> int:
    """The length to which an array of tokens is padded: a power of two, or `most`, because each
    length is a program to compile."""
    exponent = (tokens - 1).bit_length()
    power = 1 << exponent
    return min(most, power)


def draw(probabilities: np.ndarray, random: np.random.Generator) -> int:
    """A token, by one number of the generator."""
    sums = np.cumsum(probabilities)
    total = sums[-1]
    drawn = random.random() * total
    token = np.searchsorted(sums, drawn, "right")
    return int(token)


class GeneratedText(NamedTuple):
    """A text that a model wrote after a prompt."""

    text: str  # what follows the prompt
    prompt_tokens: int
    new_tokens: int
    windows: int  # of the model that were read from scratch
    ended: bool  # by the model


class TextGenerator:
    """Generates texts with one model.

    A prompt is read as in training, [CLS] and then its tokens, into a window of n tokens. Each
    further token costs one row of every layer's mixing. Only the last n - 1 tokens of a longer
    prompt are read. When a window is full, a new one begins with [CLS] and the last n // 2 tokens.
    Biases and positions belong to positions of the window, so it cannot slide by one token without
    being read from scratch, which costs as much as n tokens.

    Args:
        extend: (params, tokens, cache, first, last) to logits and cache, as
            `models.text.CausalLM.extend`.
        length: n.
        tokenizer: of the model.
    """

    def __init__(self, extend: Callable[..., tuple[jax.Array, Any]], length: int, tokenizer: Any):
        self.extend = extend
        self.length = length
        self.tokenizer = tokenizer
        self._read = jax.jit(extend, donate_argnums=2)

    def generate(self, params: Any, prompt: str, sampling: Sampling) -> GeneratedText:
        """What the model writes after a prompt."""
        ids = self.tokenizer.encode(prompt)
        new: list[int] = []
        windows = 0
        ended = False
        random = np.random.default_rng(sampling.seed)
        steps = self.logits(params, ids, new)
        while not ended and len(new) < sampling.tokens:
            logits, is_new_window = next(steps)
            if is_new_window:
                windows += 1
            token = self._draw_allowed(logits, sampling, random)
            if token == self.tokenizer.sep_id:
                ended = True
            else:
                new.append(token)
        return GeneratedText(
            text=self._text_after(ids, new),
            prompt_tokens=len(ids),
            new_tokens=len(new),
            windows=windows,
            ended=ended,
        )

    def _draw_allowed(
        self, logits: np.ndarray, sampling: Sampling, random: np.random.Generator
    ) -> int:
        """The next token, from logits [vocabulary], which may have more entries than pieces."""
        is_allowed = self._is_allowed
        pieces = len(is_allowed)
        allowed_logits = np.where(is_allowed, logits[:pieces], -np.inf)
        chances = probabilities(allowed_logits, sampling)
        return draw(chances, random)

    def _text_after(self, ids: list[int], new: list[int]) -> str:
        """The text of new tokens, which begins with the space that belongs before them."""
        all_ids = [*ids, *new]
        prompt = self.tokenizer.decode(ids)
        whole = self.tokenizer.decode(all_ids)
        common = os.path.commonprefix([prompt, whole])  # noqa: RUF071 - of texts, not of paths
        start = len(common)
        return whole[start:]

    def logits(
        self, params: Any, prompt: list[int], new: list[int]
    ) -> Iterator[tuple[np.ndarray, bool]]:
        """Yields logits [vocabulary] of the next token, and whether a new window was read for them.

        The caller appends the token that it chose to `new` before it asks for the next logits.
        """
        window = self._window_with_last(prompt, self.length - 1)
        cache = None
        while True:
            is_new_window = cache is None
            if is_new_window:
                first = 0
                last = len(window) - 1
                tokens = self._padded(window)
            else:
                first = len(window) - 1
                last = 0
                tokens = window[-1:]
            batch = np.array([tokens], np.int32)
            logits, cache = self._read(params, batch, cache, first, last)
            yield np.asarray(logits[0]), is_new_window
            window.append(new[-1])
            if len(window) > self.length:
                window = self._window_with_last(window, self.length // 2)
                cache = None

    def _window_with_last(self, ids: list[int], count: int) -> list[int]:
        """A new window: [CLS], and at most the last `count` tokens."""
        first = max(0, len(ids) - count)
        return [self.tokenizer.cls_id, *ids[first:]]

    def _padded(self, window: list[int]) -> list[int]:
        """A window in one of a few sizes, as each is a program to compile."""
        size = program_length(len(window), self.length)
        missing = size - len(window)
        padding = [self.tokenizer.pad_id] * missing
        return window + padding

    @functools.cached_property
    def _is_allowed(self) -> np.ndarray:
        """bool [pieces]: which tokens may be drawn, those of text and the [SEP] that ends a
        text."""
        tokenizer = self.tokenizer
        special_ids = list(tokenizer.special_ids)
        is_allowed = np.ones(tokenizer.vocab_size, bool)
        is_allowed[special_ids] = False
        is_allowed[tokenizer.sep_id] = True
        return is_allowed
