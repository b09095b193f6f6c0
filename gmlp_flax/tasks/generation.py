"""Continues texts token by token: what a model keeps of the tokens that it has read makes the next one cheap."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.planning.flops import matmul_flops
from gmlp_flax.tasks import sampling
from gmlp_flax.tasks.base import Continuation
from gmlp_flax.tasks.sampling import Sampling

# (params, tokens, kept, first, last) to logits and kept, as `models.text.CausalLM.extend`.
Extend = Callable[..., tuple[jax.Array, Any]]


class Cost(NamedTuple):
    """What one more token costs.

    Attributes:
        flops: operations in matrix products.
        flops_anew: the same if all n tokens of a full window were read for it.
        kept_bytes: what is kept of the tokens of a window.
    """

    flops: int
    flops_anew: int
    kept_bytes: int


class Writer:
    """Continues texts with one model.

    A text is read as in training, [CLS] and then its tokens, into a window of n tokens; each further token costs one
    row of every layer's mixing. Of a text that is longer, the last n - 1 tokens are read. When the window is full, it
    begins anew with [CLS] and the last n // 2 tokens: biases and positions belong to places, so that a window cannot
    slide by one token without being read again, which costs as much as n tokens otherwise do.

    Args:
        extend: of the model.
        length: n.
        tokenizer: of the model.
    """

    def __init__(self, extend: Extend, length: int, tokenizer: Tokenizer):
        self.extend, self.length, self.tokenizer = extend, length, tokenizer
        self._read = jax.jit(extend, donate_argnums=2)

    def write(self, params: Any, text: str, how: Sampling) -> Continuation:
        """A text's continuation."""
        prompt, new, windows, ended = self.tokenizer.encode(text), [], 0, False
        random, found = np.random.default_rng(how.seed), self.logits(params, prompt, new)
        while not ended and len(new) < how.tokens:
            logits, begins = next(found)
            windows += begins
            known = np.where(self._drawn, logits[: len(self._drawn)], -np.inf)
            token = sampling.draw(sampling.shares(known, how), random)
            ended = token == self.tokenizer.sep_id
            new += [] if ended else [token]
        return Continuation(self._after(prompt, new), len(prompt), len(new), windows, ended)

    def logits(self, params: Any, prompt: list[int], new: list[int]) -> Iterator[tuple[np.ndarray, bool]]:
        """Logits [vocabulary] of the next token after `prompt` and `new`, to which the caller appends that token before
        it asks for the next ones; and whether a window began, which was read as a whole."""
        window, kept = self.window(prompt), None
        while True:
            if kept is None:
                last, first = len(window) - 1, 0
                size = min(self.length, 1 << last.bit_length())  # few sizes: each is a program to compile
                read = window + [self.tokenizer.pad_id] * (size - len(window))
            else:
                last, first, read = 0, len(window) - 1, window[-1:]
            begins = kept is None
            logits, kept = self._read(params, np.array([read], np.int32), kept, first, last)
            yield np.asarray(logits[0]), begins
            window.append(new[-1])
            if len(window) > self.length:
                window, kept = [self.tokenizer.cls_id, *window[len(window) - self.length // 2 :]], None

    def window(self, prompt: list[int]) -> list[int]:
        """The window that a text begins with."""
        return [self.tokenizer.cls_id, *prompt[max(0, len(prompt) - self.length + 1) :]]

    def cost(self, params: Any) -> Cost:
        """What a token costs, counted on the programs; parameters, or their shapes."""

        def tokens(count: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((1, count), jnp.int32)

        place = jax.ShapeDtypeStruct((), jnp.int32)
        whole = params, tokens(self.length), None, place, place
        _, kept = jax.eval_shape(self.extend, *whole)
        sizes = (math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))
        one = matmul_flops(self.extend, params, tokens(1), kept, place, place)
        return Cost(one, matmul_flops(self.extend, *whole), sum(sizes))

    @functools.cached_property
    def _drawn(self) -> np.ndarray:
        """Which logits may be drawn: those of pieces of text, and the [SEP] that ends a text."""
        drawn = np.ones(self.tokenizer.vocab_size, bool)
        drawn[list(self.tokenizer.special_ids)] = False
        drawn[self.tokenizer.sep_id] = True
        return drawn

    def _after(self, prompt: list[int], new: list[int]) -> str:
        """The text of the new tokens, with the space that belongs before them."""
        before, whole = self.tokenizer.decode(prompt), self.tokenizer.decode([*prompt, *new])
        return whole[len(os.path.commonprefix([before, whole])) :]
