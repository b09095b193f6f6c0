"""Masked language modelling, as BERT does it (paper, section 4)."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data import embedded, pipeline
from gmlp_flax.data.storage import cache
from gmlp_flax.data.text import corpora, packing, prepare, prepared, selection, tokenizer_training
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.models.options import AT_LEAST_0, INNER_SHARE, SHARE, SIZE, Option
from gmlp_flax.models.text import MaskedLM
from gmlp_flax.tasks.base import (
    EMBEDDED,
    Baseline,
    Batch,
    Outputs,
    Ranked,
    Shapes,
    Sums,
    Totals,
    model_keys,
    ranked,
    weighted,
)
from gmlp_flax.tasks.vocabulary import TEXT_OPTIONS, TextTask, given_tokenizer


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


class MaskedLanguageModeling(TextTask):
    """Predicts masked tokens; perplexity is the exponential of the mean cross-entropy over them."""

    options = TEXT_OPTIONS | {
        "model.transform": Option(
            False, "BERT's transform layer before the logits (the paper's counts have none)", architecture=True
        ),
        "data.packing": Option(
            "concatenated", "windows over all documents in a row, or over each one alone", ("concatenated", "documents")
        ),
        "masking.rate": Option(0.15, "share of a sequence's tokens to predict", INNER_SHARE),
        "masking.max_predictions": Option(20, "at most this many per sequence (BERT: 20 at length 128)", SIZE),
        "masking.mask_share": Option(0.8, "share of the predicted tokens that [MASK] replaces", SHARE),
        "masking.random_share": Option(0.1, "share that a random token replaces; the rest stays", SHARE),
        "masking.static": Option(False, "mask each sequence once, instead of anew each time that it is seen"),
        "eval.examples": Option(0, "held-out sequences to score, evenly spread over all; 0: all", AT_LEAST_0),
        "eval.seed": Option(0, "fixes which held-out tokens are masked, for all runs alike", AT_LEAST_0),
    }
    best = ("perplexity", "min")
    unit = "tokens"

    def __init__(self, *args: Any, tokenizer: Any = None):
        super().__init__(*args, tokenizer=tokenizer)
        self.units_per_example = self.length

    @classmethod
    def check(cls, config: ConfigDict) -> None:
        mask, random = config.masking.mask_share, config.masking.random_share
        if mask + random > 1:
            raise ConfigError(
                f"config.masking.mask_share is {mask} and random_share is {random}: lower one, their sum is at most 1"
            )

    def example_shapes(self) -> Shapes:
        return {"tokens": ((self.length,), jnp.int32), "index": ((), jnp.int32)}

    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        model = self.config.model
        return MaskedLM(self.spec(), model.vocab_size, rngs, transform=model.transform, **self.embedding())

    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        if self.config.masking.static:
            masked = self.fixed_mask(batch, self.config.seed)
        else:
            masked = self.mask(batch["key"], batch["tokens"])
        sums = self._sums(params, masked, masked.weights, model_keys(batch))
        return sums["loss"][0], sums

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        masked = self.fixed_mask(batch, self.config.eval.seed)
        weights = masked.weights * batch["weight"][:, None]
        sums = self._sums(params, masked, weights, None)
        targets = jnp.zeros(self.config.model.vocab_size).at[masked.targets].add(weights), weights.sum()
        return sums | {"targets": targets, "examples": weighted(jnp.ones_like(batch["weight"]), batch["weight"])}, {}

    def mask(self, keys: jax.Array, tokens: jax.Array) -> Masked:
        """Masks each sequence with its own key: [batch] and [batch, tokens]."""
        options = {name: value for name, value in self.config.masking.items() if name != "static"}
        return jax.vmap(functools.partial(mask_tokens, tokenizer=self.tokenizer, **options))(keys, tokens)

    def fixed_mask(self, batch: Batch, seed: int) -> Masked:
        """Masks that depend on a seed and the example's index alone: the same for every run and model."""
        base = jax.random.key(seed)
        return self.mask(jax.vmap(functools.partial(jax.random.fold_in, base))(batch["index"]), batch["tokens"])

    def _sums(self, params: Any, masked: Masked, weights: jax.Array, key: jax.Array | None) -> Sums:
        logits = self.apply(params, masked.inputs, masked.positions, key, self.seen(masked.inputs))
        # Not looked up: a sum can be shared by devices that hold parts of the vocabulary.
        is_target = jnp.arange(logits.shape[-1]) == masked.targets[..., None]
        target_logits = jnp.where(is_target, logits, 0).sum(-1)
        losses = jax.nn.logsumexp(logits, axis=-1) - target_logits
        hits = jnp.argmax(logits, axis=-1) == masked.targets
        return {"loss": weighted(losses, weights), "accuracy": weighted(hits, weights)}

    @property
    def evaluated(self) -> tuple[str, ...]:
        return "perplexity", "accuracy", "loss"

    def summarize(self, sums: Totals, outputs: Outputs) -> dict[str, float]:
        loss, predictions = sums["loss"]
        mean = loss / predictions
        perplexity = math.exp(mean) if mean < 700 else math.inf
        return {
            "perplexity": perplexity, "accuracy": sums["accuracy"][0] / predictions, "loss": mean,
            "predictions": int(predictions), "examples": int(sums["examples"][1]),
        }

    def baseline(self, sums: Totals) -> Baseline:
        """The training text's token frequencies without any context, with one added to each count."""
        counts = self.windows("train").prepared.counts(self.config.model.vocab_size) + 1.0
        counts[list(self.tokenizer.special_ids)] = 0
        log_share = np.log(np.maximum(counts, 1e-300) / counts.sum())
        targets, predictions = sums["targets"]
        return Baseline("token frequencies alone", {"perplexity": math.exp(-(targets * log_share).sum() / predictions)})

    def predict(self, params: Any, inputs: Sequence[str], top: int = 5) -> list[list[Ranked]]:
        """The likeliest tokens for each [MASK] of each line.

        Raises:
            RunError: a line has no [MASK], or is longer than the model's sequences.
        """
        return [self._fill(params, line, top) for line in inputs]

    def prediction_label(self, number: int) -> str:
        return f"[MASK] {number}: "

    def _fill(self, params: Any, line: str, top: int) -> list[Ranked]:
        tokenizer = self.tokenizer
        ids = [tokenizer.cls_id, *tokenizer.encode_masked(line), tokenizer.sep_id]
        positions = [place for place, token in enumerate(ids) if token == tokenizer.mask_id]
        if not positions:
            raise RunError(f"there is no [MASK] in {line!r}; put one where a token is to be predicted")
        if len(ids) > self.length:
            raise RunError(f"the line has {len(ids)} tokens, the model reads at most {self.length}: {line[:60]!r}...")
        spec = self.spec()
        if not spec.block.takes(spec, len(ids)):
            ids += [tokenizer.pad_id] * (self.length - len(ids))
        logits = self.compiled_apply(params, np.array([ids]), np.array([positions]))[0]
        pieces = [tokenizer.piece(i) for i in range(tokenizer.vocab_size)]
        return [ranked(scores, pieces, top) for scores in logits]

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run folder, of the config, of prepared data or of `config.init_from`; if there is none,
        one is trained on the text.

        Raises:
            DataError: two of them differ, or one is damaged.
        """
        data = self.config.data
        of_prepared = {
            f"the tokenizer of config.data.{key}": os.path.join(data[key], prepared.TOKENIZER)
            for key in ("train", "heldout") if data[key] and prepared.is_prepared(data[key])
        }
        if (given := given_tokenizer(self, of_prepared)) is not None:
            return given
        corpus, chosen = self._corpus("train")
        with _about("data.train"):
            return tokenizer_training.cached_tokenizer(
                corpus, self.config.model.vocab_size, data.cache or cache.default_folder(), selection=chosen,
                max_bad_records=data.max_bad_records,
            )

    def train_batches(self, start: int, host: int, hosts: int) -> pipeline.Batches:
        return packing.train_batches(
            self.windows("train"), seed=self.config.seed, start=start, batch_size=self.config.batch_size, host=host,
            hosts=hosts, workers=self.config.data.workers,
        )

    def evaluation_batches(self, host: int, hosts: int) -> pipeline.Batches:
        return pipeline.evaluation_batches(
            self._evaluation_source(), batch_size=self.evaluation_batch_size(), host=host, hosts=hosts
        )

    def evaluation_examples(self) -> int:
        return len(self._evaluation_source())

    def training_examples(self) -> int:
        return len(self.windows("train"))

    def _evaluation_source(self) -> pipeline.Spread:
        return pipeline.Spread(self.windows("heldout"), self.config.eval.examples)

    @functools.cache  # noqa: B019 - a task lives as long as its run
    def windows(self, side: str) -> packing.Packing:
        """The sequences of a side, "train" or "heldout", as a random-access source of {"tokens", "index"}."""
        data = self.config.data
        if data[side] and prepared.is_prepared(data[side]):
            tokens = prepared.Prepared(data[side])
        else:
            corpus, chosen = self._corpus(side)
            with _about(f"data.{side}"):
                tokens = prepare.cached(
                    corpus, self.tokenizer, data.cache or cache.default_folder(), selection=chosen,
                    max_bad_records=data.max_bad_records,
                )
            if tokens.skipped:
                first = next(message for shard in tokens.index["shards"] for message in shard["skipped_first"])
                print(f"{side} text: {tokens.skipped} bad record(s) skipped, the first: {first}", file=sys.stderr)
        with _about(f"data.{side}", "model.length"):
            return packing.Packing(tokens, self.config.model.length, data.packing)

    def _corpus(self, side: str) -> tuple[corpora.Corpus, selection.Selection]:
        """The documents of a side: a corpus of its own, a split of the one corpus, or a share of it.

        Raises:
            DataError: there is no such corpus or split.
        """
        data = self.config.data
        key = "heldout" if side == "heldout" and data.heldout else "train"
        if data[key] == EMBEDDED:
            return corpora.in_memory(f"{EMBEDDED}, {side}", embedded.embedded_text(side)), selection.EVERYTHING
        if not data[key]:
            raise DataError(f"config.data.{key} is not set; give --config.data.{key}=PATH, a file or a folder")
        if prepared.is_prepared(data[key]):
            raise DataError(
                f"config.data.{key}={data[key]} holds prepared tokens of one side; prepare the held-out side as well "
                "and give it as --config.data.heldout"
            )
        with _about(f"data.{key}"):
            return selection.open_side(
                data[key], side, split=data.split, heldout_split=data.heldout_split,
                heldout_share=0.0 if data.heldout else data.heldout_share,
            )


@contextlib.contextmanager
def _about(key: str, other: str = "") -> Iterator[None]:
    """Names in a DataError the keys of the config that it is about."""
    try:
        yield
    except DataError as error:
        raise DataError(f"config.{key}: {error}{other and f' (config.{other})'}") from None
