"""What the tasks that finetune a pretrained text model share: its encoder, its vocabulary, how a batch is read."""

from __future__ import annotations

import abc
import functools
from typing import Any

import jax
import jax.numpy as jnp

from gmlp_flax.data import pipeline
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.tasks.base import Batch, Shapes
from gmlp_flax.tasks.vocabulary import TextTask, given_tokenizer


class Finetuning(TextTask):
    """A task on texts, `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, that starts from a pretrained encoder.

    Batches have "tokens" and "segments" int32 [batch, length], or [batch, 2, length] if the texts of a pair are encoded
    apart, and "index" int32 [batch]. The encoder is that of `config.init_from`: the keys of config.model that say what it
    is, not how it is run, are taken from there. Without `init_from` they are the config's, and config.data.tokenizer
    names the vocabulary.
    """

    unit = "examples"
    inherits_model = True

    def example_shapes(self) -> Shapes:
        text, number = ((self.length,), jnp.int32), ((), jnp.int32)
        return {"tokens": text, "segments": text, "index": number}

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

    @abc.abstractmethod
    def examples(self, side: str) -> Any:
        """The encoded examples of a side, "train" or "heldout", as a random-access source of what batches hold."""

    def train_batches(self, start: int, host: int, hosts: int) -> pipeline.Batches:
        return pipeline.train_batches(
            self.examples("train"),
            seed=self.config.seed,
            start=start,
            batch_size=self.config.batch_size,
            host=host,
            hosts=hosts,
            workers=self.config.data.workers,
        )

    def evaluation_batches(self, host: int, hosts: int, shares: int = 1) -> pipeline.Batches:
        return pipeline.evaluation_batches(
            self.examples("heldout"), batch_size=self.evaluation_batch_size(shares), host=host, hosts=hosts
        )

    def training_examples(self) -> int:
        return len(self.examples("train"))

    def evaluation_examples(self) -> int:
        return len(self.examples("heldout"))

    def scores(self, params: Any, batch: Batch, key: jax.Array | None) -> jax.Array:
        """What the model says of a batch; keys [batch] for training, None for evaluation."""
        tokens = batch["tokens"]
        return self.apply(params, tokens, batch["segments"], self.padding_mask(tokens), key)
