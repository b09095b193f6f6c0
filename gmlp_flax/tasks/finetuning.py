"""What the tasks that finetune a pretrained text model share: its encoder and its vocabulary."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.tasks.base import Batch, Shapes
from gmlp_flax.tasks.vocabulary import TextTask, given_tokenizer


class Finetuning(TextTask):
    """A task on texts, `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, that starts from a pretrained encoder.

    Batches have "tokens" and "segments" int32 [batch, length], or [batch, 2, length] if each text of a pair is encoded
    alone, and "index" int32 [batch]. The encoder is that of `config.init_from`, and so are the keys of config.model
    that describe its architecture. Without `init_from` they are the config's, and config.data.tokenizer names the
    vocabulary.
    """

    unit = "examples"
    inherits_model = True

    def example_shapes(self) -> Shapes:
        text = (self.length,), jnp.int32
        return {"tokens": text, "segments": text, "index": ((), jnp.int32)}

    @functools.cached_property
    def compiled_scores(self) -> Callable:
        """`scores` without dropout, compiled once for all predictions: (params, batch)."""
        return jax.jit(lambda params, batch: self.scores(params, batch, None))

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run folder, of the config or of `config.init_from`.

        Raises:
            DataError: there is none, two differ, or one is damaged.
        """
        tokenizer = given_tokenizer(self, {})
        if tokenizer is None:
            raise DataError(
                "there is no vocabulary: give --config.init_from=RUN, a pretrained text model, or, to train a new one, "
                "--config.data.tokenizer=FILE"
            )
        return tokenizer

    def scores(self, params: Any, batch: Batch, key: jax.Array | None) -> jax.Array:
        """The model's logits for a batch; `key`, [batch], is given in training."""
        tokens = batch["tokens"]
        return self.apply(params, tokens, batch["segments"], self.padding_mask(tokens), key)
