"""Masked language modelling, as BERT does it (paper, section 4)."""

from __future__ import annotations

import functools
import math
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data import embedded, pipeline, text, text_sources
from gmlp_flax.data.errors import DataError
from gmlp_flax.data.tokenizer import Tokenizer
from gmlp_flax.models.text import MaskedLM
from gmlp_flax.tasks.base import EMBEDDED, Batch, Sums, Task, cache_folder, require_path, weighted

TOKENIZER_FILE = "tokenizer.model"


class Masked(NamedTuple):
    """A sequence with some tokens to predict.

    Attributes:
        inputs: int32 [tokens], what the model reads.
        positions: int32 [predictions], where it predicts.
        targets: int32 [predictions], the tokens that stood there.
        weights: float32 [predictions], 0 where there is nothing to predict.
    """

    inputs: jax.Array
    positions: jax.Array
    targets: jax.Array
    weights: jax.Array


def mask_tokens(
    key: jax.Array, tokens: jax.Array, tokenizer: Tokenizer, *, rate: float, max_predictions: int, mask_share: float,
    random_share: float,
) -> Masked:
    """Chooses tokens of one sequence to predict and hides them.

    Of the ordinary tokens, min(max_predictions, max(1, round(rate * number))) are chosen; each is replaced by [MASK],
    by a random ordinary token, or by itself (BERT: 80, 10 and 10 %). Special tokens are neither chosen nor drawn.

    Args:
        key: a random key.
        tokens: int32 [tokens].
        tokenizer: for the ids of special tokens.
        rate, max_predictions, mask_share, random_share: see above.
    """
    choose_key, replace_key, draw_key = jax.random.split(key, 3)
    predictions = min(max_predictions, tokens.shape[0])
    ordinary = ~jnp.isin(tokens, jnp.array(tokenizer.special_ids))
    scores = jnp.where(ordinary, jax.random.uniform(choose_key, tokens.shape), -1.0)
    best, positions = jax.lax.top_k(scores, predictions)
    count = jnp.maximum(jnp.round(rate * ordinary.sum()), 1)
    chosen = (jnp.arange(predictions) < count) & (best >= 0)
    targets = tokens[positions]
    vocabulary = np.setdiff1d(np.arange(tokenizer.vocab_size, dtype=np.int32), tokenizer.special_ids)
    drawn = jnp.asarray(vocabulary)[jax.random.randint(draw_key, (predictions,), 0, len(vocabulary))]
    roll = jax.random.uniform(replace_key, (predictions,))
    replacement = jnp.where(
        roll < mask_share, tokenizer.mask_id, jnp.where(roll < mask_share + random_share, drawn, targets)
    )
    inputs = tokens.at[positions].set(jnp.where(chosen, replacement, targets))
    return Masked(inputs, positions, targets, chosen.astype(jnp.float32))


class MaskedLanguageModeling(Task):
    """Predicts masked tokens; perplexity is the exponential of the mean cross-entropy over them."""

    best = ("perplexity", "min")
    unit = "tokens"

    def __init__(self, config: ConfigDict, folder: str):
        super().__init__(config, folder)
        self.units_per_example = config.model.length
        if config.model.vocab_size < self.tokenizer.vocab_size:
            raise DataError(
                f"the tokenizer has {self.tokenizer.vocab_size} pieces, config.model.vocab_size is "
                f"{config.model.vocab_size}: raise it, or train a smaller tokenizer"
            )

    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        model = self.config.model
        return MaskedLM(self.spec(model.length), model.vocab_size, rngs, transform=model.transform)

    def loss(self, params: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, Sums]:
        masked = self.mask(batch["key"], batch["tokens"])
        sums = self._sums(params, masked, masked.weights, key)
        return sums["loss"][0], sums

    def evaluate(self, params: Any, batch: Batch) -> Sums:
        masked = self.fixed_mask(batch)
        sums = self._sums(params, masked, masked.weights * batch["weight"][:, None], None)
        return sums | {"examples": weighted(jnp.ones_like(batch["weight"]), batch["weight"])}

    def mask(self, keys: jax.Array, tokens: jax.Array) -> Masked:
        """Masks each sequence with its own key: [batch] and [batch, tokens]."""
        return jax.vmap(functools.partial(mask_tokens, tokenizer=self.tokenizer, **self.config.masking))(keys, tokens)

    def fixed_mask(self, batch: Batch) -> Masked:
        """Masks that depend on config.eval.seed and the example's index alone: the same for every run and model."""
        base = jax.random.key(self.config.eval.seed)
        return self.mask(jax.vmap(functools.partial(jax.random.fold_in, base))(batch["index"]), batch["tokens"])

    def _sums(self, params: Any, masked: Masked, weights: jax.Array, key: jax.Array | None) -> Sums:
        logits = self.apply(params, masked.inputs, masked.positions, key)
        target_logits = jnp.take_along_axis(logits, masked.targets[..., None], -1, mode="clip")[..., 0]
        losses = jax.nn.logsumexp(logits, axis=-1) - target_logits
        hits = jnp.argmax(logits, axis=-1) == masked.targets
        return {"loss": weighted(losses, weights), "accuracy": weighted(hits, weights)}

    def summarize(self, sums: dict[str, tuple[float, float]]) -> dict[str, float]:
        loss, predictions = sums["loss"]
        mean = loss / predictions
        perplexity = math.exp(mean) if mean < 700 else math.inf
        return {
            "perplexity": perplexity, "accuracy": sums["accuracy"][0] / predictions, "loss": mean,
            "predictions": int(predictions), "examples": int(sums["examples"][1]),
        }

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The run folder's, else the one that the config names, else one trained on the training text."""
        own, given = os.path.join(self.folder, TOKENIZER_FILE), self.config.data.tokenizer
        if os.path.exists(own):
            tokenizer = Tokenizer.load(own)
            if given and Tokenizer.load(given).checksum != tokenizer.checksum:
                raise DataError(f"config.data.tokenizer is {given}, but this run began with another one, {own}")
            return tokenizer
        if given:
            return Tokenizer.load(require_path(given, "data.tokenizer"))
        return text.cached_tokenizer(lambda: self._documents()[0](), self.config.model.vocab_size, cache_folder(self.config))

    def train_batches(self, start: int, host: int, hosts: int) -> pipeline.Batches:
        return pipeline.train_batches(
            self.windows("train"), seed=self.config.seed, start=start, batch_size=self.config.batch_size, host=host,
            hosts=hosts, workers=self.config.data.workers,
        )

    def evaluation_batches(self, host: int, hosts: int) -> pipeline.Batches:
        return pipeline.evaluation_batches(
            self.windows("heldout"), batch_size=self.evaluation_batch_size(), host=host, hosts=hosts
        )

    def evaluation_examples(self) -> int:
        return len(self.windows("heldout"))

    def save_assets(self) -> None:
        self.tokenizer.save(os.path.join(self.folder, TOKENIZER_FILE))

    @functools.cache  # noqa: B019 - a task lives as long as its run
    def windows(self, split: str) -> text.Windows:
        """The sequences of a split, "train" or "heldout", as a random-access source of {"tokens", "index"}."""
        documents = self._documents()[split == "heldout"]
        tokens = text.cached_tokens(documents, self.tokenizer, cache_folder(self.config))
        try:
            return text.Windows(tokens, self.config.model.length, self.tokenizer)
        except DataError as error:
            raise DataError(f"data.{split}: {error} (config.model.length)") from None

    @functools.cache  # noqa: B019
    def _documents(self):
        """Two functions that begin a pass over the training and the held-out documents."""
        data = self.config.data
        if data.train == EMBEDDED:
            train, heldout = embedded.embedded_text("train"), embedded.embedded_text("heldout")
            return lambda: train, lambda: heldout
        train_path = require_path(data.train, "data.train")
        if data.heldout:
            heldout_path = require_path(data.heldout, "data.heldout")
            return lambda: text_sources.read_documents(train_path), lambda: text_sources.read_documents(heldout_path)
        train, heldout = text_sources.split_documents(text_sources.read_documents(train_path), data.heldout_share)
        return lambda: train, lambda: heldout
