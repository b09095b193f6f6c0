"""What language models share, masked or causal: their options and their scores."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax.data.text import packing
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE
from gmlp_flax.errors import ConfigError, DataError
from gmlp_flax.models import blocks
from gmlp_flax.options import AT_LEAST_0, NO_RUNS, Option
from gmlp_flax.tasks import recall_slices
from gmlp_flax.tasks.base import (
    Baseline,
    Batch,
    Inheritance,
    Outputs,
    Shapes,
    Sums,
    Totals,
    example_count,
    weighted_sum,
)
from gmlp_flax.tasks.data.language import LanguageData
from gmlp_flax.tasks.text import TEXT_OPTIONS, TextTask


def cross_entropy(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> Sums:
    """The loss, in nats, and the hits of logits [..., vocabulary] on targets, both summed by
    weights [...]."""
    # A sum and no lookup, because devices that hold parts of the vocabulary can share a sum.
    vocabulary = jnp.arange(logits.shape[-1])
    is_target = vocabulary == targets[..., None]
    only_targets = jnp.where(is_target, logits, 0)
    target_logits = only_targets.sum(-1)
    log_normalizers = jax.nn.logsumexp(logits, axis=-1)
    losses = log_normalizers - target_logits
    predicted = jnp.argmax(logits, axis=-1)
    hits = predicted == targets
    return {
        "loss": weighted_sum(losses, weights),
        "accuracy": weighted_sum(hits, weights),
    }


class LanguageModeling(TextTask):
    """Predicts tokens of a text; perplexity is the exponential of the mean cross-entropy over
    them."""

    options: ClassVar[dict[str, Option]] = TEXT_OPTIONS | {
        "model.transform": Option(
            False,
            "BERT's transform layer before the logits (the paper's counts have none)",
            architecture=True,
        ),
        "model.tie_embeddings": Option(
            True,
            "logits from the embedding table; False: from a second table of its size",
            architecture=True,
        ),
        "data.mixture": Option(
            (),
            "PATH=SHARE: further text to train on, and its share of the examples; data.train has "
            "the rest",
            reads=True,
        ),
        "data.mask_documents": Option(
            False,
            "attention and convolutions see no other document of a window; gates and Fourier "
            "transforms mix all tokens, and refuse it",
        ),
        "eval.examples": Option(
            0, "held-out sequences to score, evenly spread over all; 0: all", AT_LEAST_0
        ),
        "eval.recall_slices": Option(
            False,
            "also score the predicted tokens that repeat a bigram of their window, apart from all "
            "others",
            may_change=True,
            compared=NO_RUNS,
        ),
        "eval.frequent_bigrams": Option(
            recall_slices.PUBLISHED_MOST,
            "bigrams that are more frequent in the training text do not count as repeated; 0: all "
            "count",
            AT_LEAST_0,
            may_change=True,
            compared=NO_RUNS,
        ),
    }
    Data: ClassVar[type[LanguageData]] = LanguageData
    inheritance = Inheritance(shared=(TOKENIZER_FILE,))
    around_encoder = (*TextTask.around_encoder, "transform", "tie_embeddings")
    best = ("perplexity", "min")
    percent: ClassVar = {
        "accuracy": 100.0,
        f"{recall_slices.RECALL}accuracy": 100.0,
        f"{recall_slices.OTHER}accuracy": 100.0,
    }
    unit = "tokens"

    @classmethod
    def check(cls, config: ConfigDict) -> None:
        """See `Task`."""
        packing.read_shares(config.data.mixture)
        if not config.data.mask_documents:
            return
        name = config.model.block
        if blocks.find(name).masks_documents:
            return
        able = [name for name, block in blocks.BLOCKS.items() if block.masks_documents]
        expected = ", ".join(able)
        raise ConfigError(
            f"config.data.mask_documents is True, and {name} mixes all tokens of a window: "
            f"expected one of {expected}"
        )

    def padding_mask(self, tokens: Any) -> Any:
        """See `TextTask`; with data.mask_documents int32 [batch, tokens], the document of each
        token, from 1, with the [SEP] that ends it, and 0 for padding."""
        if not self.config.data.mask_documents:
            return super().padding_mask(tokens)
        is_end = tokens == self.tokenizer.sep_id
        is_padding = tokens == self.tokenizer.pad_id
        ends_so_far = jnp.cumsum(is_end, axis=1, dtype=jnp.int32)
        ends_before = ends_so_far - is_end
        return jnp.where(is_padding, 0, ends_before + 1)

    @property
    def units_per_example(self) -> int:
        """See `Task`: the tokens that the model reads."""
        return self.length

    def example_shapes(self) -> Shapes:
        """See `Task`."""
        tokens = self.length + self.Data.extra_tokens
        window = ((tokens,), jnp.int32)
        number = ((), jnp.int32)
        return {"tokens": window, "index": number}

    def evaluation_sums(
        self, scores: Sums, batch: Batch, targets: jax.Array, weights: jax.Array
    ) -> Sums:
        """The sums of an evaluation batch: its scores, the examples, and how often each token is a
        target."""
        return {
            **scores,
            "targets": self.token_counts(targets, weights),
            "examples": example_count(batch["weight"]),
        }

    def recall_sums(
        self, logits: jax.Array, targets: jax.Array, weights: jax.Array, repeats: jax.Array
    ) -> Sums:
        """Loss and hits of the targets that repeat a bigram, see `recall_slices`.

        Args:
            logits, targets, weights: of `cross_entropy`.
            repeats: which targets do, bool [...].
        """
        prefix = recall_slices.RECALL
        recall_weights = weights * repeats
        sums = cross_entropy(logits, targets, recall_weights)
        return {f"{prefix}{name}": total for name, total in sums.items()}

    def documents(self, tokens: jax.Array) -> jax.Array:
        """The document of each token in which it may repeat a bigram, int [batch, tokens]: one for
        all, unless data.mask_documents hides the others from the model."""
        if self.config.data.mask_documents:
            return self.padding_mask(tokens)
        return jnp.zeros_like(tokens)

    def token_counts(self, tokens: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        """How often each id of the vocabulary is among the tokens, by their weights, float32
        [vocabulary]; and in all.

        Args:
            tokens, weights: [batch, tokens].
        """
        zeros = jnp.zeros(self.config.model.vocab_size)
        counts = zeros.at[tokens].add(weights)
        return counts, weights.sum()

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        """See `Task`."""
        return "perplexity", "accuracy", "loss"

    def summarize(self, sums: Totals, outputs: Outputs, data: Any) -> dict[str, float]:
        """See `Task`; raises DataError if no token was to be predicted."""
        loss, predictions = sums["loss"]
        if not predictions:
            raise DataError(
                "the held-out text has no token to predict, only [UNK]: give other "
                "config.data.heldout"
            )
        _, examples = sums["examples"]
        hits, _ = sums["accuracy"]
        return {
            "perplexity": recall_slices.perplexity(loss, predictions),
            "accuracy": hits / predictions,
            "loss": loss / predictions,
            "predictions": int(predictions),
            "examples": int(examples),
            **recall_slices.metrics_of(sums),
        }

    @property
    def unpredicted(self) -> tuple[int, ...]:
        """The ids that are never a target."""
        return self.tokenizer.special_ids

    def baselines(self, sums: Totals, data: LanguageData) -> list[Baseline]:
        """The training text's token frequencies without any context."""
        targets, predictions = sums["targets"]
        frequencies = self.frequencies(data)
        log_frequencies = np.log(np.maximum(frequencies, 1e-300))
        log_likelihoods = targets * log_frequencies
        loss = -log_likelihoods.sum()
        perplexity = math.exp(loss / predictions)
        return [Baseline("token frequencies alone", {"perplexity": perplexity})]

    def frequencies(self, data: LanguageData) -> np.ndarray:
        """The share of each token among the tokens of the training text that may be targets, with
        one added to each count: float64 [vocabulary]."""
        counts = data.token_counts + 1.0
        counts[list(self.unpredicted)] = 0
        return counts / counts.sum()
