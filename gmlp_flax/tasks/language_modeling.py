"""What language models share, masked or causal: their text, cut into windows, their tokenizer and their scores."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from gmlp_flax.data import embedded, pipeline
from gmlp_flax.data.text import corpora, packing, prepare, prepared, selection, tokenizer_training
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.io import cache
from gmlp_flax.options import AT_LEAST_0, Option
from gmlp_flax.tasks.base import EMBEDDED, Baseline, Batch, Outputs, Shapes, Sums, Totals, weighted
from gmlp_flax.tasks.vocabulary import TEXT_OPTIONS, TextTask, given_tokenizer


def cross_entropy(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> Sums:
    """The loss, in nats, and the hits of logits [..., vocabulary] on targets, both summed by weights [...]."""
    # Not looked up: a sum can be shared by devices that hold parts of the vocabulary.
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    target_logits = jnp.where(is_target, logits, 0).sum(-1)
    losses = jax.nn.logsumexp(logits, axis=-1) - target_logits
    hits = jnp.argmax(logits, axis=-1) == targets
    return {"loss": weighted(losses, weights), "accuracy": weighted(hits, weights)}


class LanguageModeling(TextTask):
    """Predicts tokens of a text; perplexity is the exponential of the mean cross-entropy over them.

    Attributes:
        more_tokens: how many tokens a window has beyond the `length` that the model reads.
        closed: whether a [SEP] ends each window, also where the text goes on.
    """

    options: ClassVar[dict[str, Option]] = TEXT_OPTIONS | {
        "model.transform": Option(
            False, "BERT's transform layer before the logits (the paper's counts have none)", architecture=True
        ),
        "data.packing": Option(
            "concatenated", "windows over all documents in a row, or over each one alone", ("concatenated", "documents")
        ),
        "eval.examples": Option(0, "held-out sequences to score, evenly spread over all; 0: all", AT_LEAST_0),
    }
    best = ("perplexity", "min")
    unit = "tokens"
    more_tokens = 0
    closed = True

    def __init__(self, *args: Any, tokenizer: Any = None):
        super().__init__(*args, tokenizer=tokenizer)
        self.units_per_example = self.length

    def example_shapes(self) -> Shapes:
        return {"tokens": ((self.length + self.more_tokens,), jnp.int32), "index": ((), jnp.int32)}

    def evaluation_sums(self, scores: Sums, batch: Batch, targets: jax.Array, weights: jax.Array) -> Sums:
        """Scores of an evaluation batch, with how often each token is a target, for `baseline`, and the examples."""
        counts = jnp.zeros(self.config.model.vocab_size).at[targets].add(weights), weights.sum()
        examples = weighted(jnp.ones_like(batch["weight"]), batch["weight"])
        return scores | {"targets": counts, "examples": examples}

    @property
    def evaluated(self) -> tuple[str, ...]:
        return "perplexity", "accuracy", "loss"

    def summarize(self, sums: Totals, outputs: Outputs) -> dict[str, float]:
        """See Task.summarize; raises DataError if no token was to be predicted."""
        loss, predictions = sums["loss"]
        if not predictions:
            raise DataError(
                "the held-out text has no token that the model could predict, only such as [UNK]: give text that the "
                "vocabulary knows as config.data.heldout"
            )
        mean = loss / predictions
        perplexity = math.exp(mean) if mean < 700 else math.inf
        return {
            "perplexity": perplexity,
            "accuracy": sums["accuracy"][0] / predictions,
            "loss": mean,
            "predictions": int(predictions),
            "examples": int(sums["examples"][1]),
        }

    @property
    def unpredicted(self) -> tuple[int, ...]:
        """The ids that are never to be predicted."""
        return self.tokenizer.special_ids

    def baseline(self, sums: Totals) -> Baseline:
        """The training text's token frequencies without any context, with one added to each count."""
        counts = self.windows("train").prepared.counts(self.config.model.vocab_size) + 1.0
        counts[list(self.unpredicted)] = 0
        log_share = np.log(np.maximum(counts, 1e-300) / counts.sum())
        targets, predictions = sums["targets"]
        return Baseline("token frequencies alone", {"perplexity": math.exp(-(targets * log_share).sum() / predictions)})

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run folder, of the config, of prepared data or of `config.init_from`; if there is none,
        one is trained on the text.

        Raises:
            DataError: two of them differ, or one is damaged.
        """
        data = self.config.data
        of_prepared = {
            f"the tokenizer of config.data.{key}": os.path.join(data[key], TOKENIZER_FILE)
            for key in ("train", "heldout")
            if data[key] and prepared.is_prepared(data[key])
        }
        if (given := given_tokenizer(self, of_prepared)) is not None:
            return given
        corpus, chosen = self._corpus("train")
        with _about("data.train"):
            return tokenizer_training.cached_tokenizer(
                corpus,
                self.config.model.vocab_size,
                data.cache or cache.default_folder(),
                selection=chosen,
                max_bad_records=data.max_bad_records,
            )

    def train_batches(self, start: int, host: int, hosts: int) -> pipeline.Batches:
        return packing.train_batches(
            self.windows("train"),
            seed=self.config.seed,
            start=start,
            batch_size=self.config.batch_size,
            host=host,
            hosts=hosts,
            workers=self.config.data.workers,
        )

    def evaluation_batches(self, host: int, hosts: int, shares: int = 1) -> pipeline.Batches:
        return pipeline.evaluation_batches(
            self._evaluation_source(), batch_size=self.evaluation_batch_size(shares), host=host, hosts=hosts
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
                tokens = prepare.prepare_in_cache(
                    corpus,
                    self.tokenizer,
                    data.cache or cache.default_folder(),
                    selection=chosen,
                    max_bad_records=data.max_bad_records,
                )
            if tokens.skipped:
                first = next(message for shard in tokens.index["shards"] for message in shard["skipped_first"])
                print(f"{side} text: {tokens.skipped} bad record(s) skipped, the first: {first}", file=sys.stderr)
        with _about(f"data.{side}", "model.length"):
            return packing.Packing(tokens, self.length + self.more_tokens, data.packing, self.closed)

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
                data[key],
                side,
                split=data.split,
                heldout_split=data.heldout_split,
                heldout_share=0.0 if data.heldout else data.heldout_share,
            )


@contextlib.contextmanager
def _about(key: str, other: str = "") -> Iterator[None]:
    """Names in a DataError the keys of the config that it is about."""
    try:
        yield
    except DataError as error:
        raise DataError(f"config.{key}: {error}{other and f' (config.{other})'}") from None
