"""What the tasks that finetune a pretrained text model share: its encoder, its vocabulary, how a batch is read."""

from __future__ import annotations

import abc
import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from gmlp_flax.data import pipeline
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.tasks.base import Batch, Shapes, Task
from gmlp_flax.tasks.vocabulary import TOKENIZER_FILE, StandInTokenizer, given_tokenizer, require_rows


class Finetuning(Task):
    """A task on texts, `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, that starts from a pretrained encoder.

    Batches have "tokens" and "segments" int32 [batch, length] and "index" int32 [batch]. The encoder is that of
    `config.init_from`: the keys of config.model that say what it is, not how it is run, are taken from there. Without
    `init_from` they are the config's, and config.data.tokenizer names the vocabulary.
    """

    unit = "examples"
    shared_assets = (TOKENIZER_FILE,)
    inherits_model = True

    def __init__(self, *args: Any, tokenizer: Any = None):
        super().__init__(*args)
        if tokenizer is not None:
            self.tokenizer = tokenizer
        require_rows(self, self.tokenizer)

    @classmethod
    def without_data(cls, config: ConfigDict) -> Self:
        return cls(config, "", tokenizer=StandInTokenizer(config.model.vocab_size))

    def example_shapes(self) -> Shapes:
        text, number = ((self.length,), jnp.int32), ((), jnp.int32)
        return {"tokens": text, "segments": text, "index": number}

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The run folder's, the one that the config names, or that of `config.init_from`.

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
            self.examples("train"), seed=self.config.seed, start=start, batch_size=self.config.batch_size, host=host,
            hosts=hosts, workers=self.config.data.workers,
        )

    def evaluation_batches(self, host: int, hosts: int) -> pipeline.Batches:
        return pipeline.evaluation_batches(
            self.examples("heldout"), batch_size=self.evaluation_batch_size(), host=host, hosts=hosts
        )

    def evaluation_examples(self) -> int:
        return len(self.examples("heldout"))

    def assets(self) -> dict[str, bytes]:
        return {TOKENIZER_FILE: self.tokenizer.model}

    def scores(self, params: Any, batch: Batch, key: jax.Array | None) -> jax.Array:
        """What the model says of a batch; keys [batch] for training, none for evaluation."""
        tokens = batch["tokens"]
        seen = tokens != self.tokenizer.pad_id if self.config.model.mask_padding else None
        return self.apply(params, tokens, batch["segments"], seen, key)
