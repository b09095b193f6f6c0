"""Masked language modelling, as BERT does it (paper, section 4)."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.models.text import MaskedLM
from gmlp_flax.options import AT_LEAST_0, INNER_SHARE, SHARE, SIZE, Option
from gmlp_flax.tasks.base import Baseline, Batch, Outputs, Sums, Totals, model_keys
from gmlp_flax.tasks.language_modeling import LanguageModeling, cross_entropy
from gmlp_flax.tasks.prediction import Prepared


class Masked(NamedTuple):
    """A sequence with some tokens to predict."""

    inputs: jax.Array  # int32 [tokens], what the model reads
    positions: jax.Array  # int32 [predictions], where it predicts
    targets: jax.Array  # int32 [predictions], the tokens that stood there
    weights: jax.Array  # float32 [predictions], 0 if the sequence has fewer tokens to predict


def mask_tokens(
    key: jax.Array,
    tokens: jax.Array,
    tokenizer: Tokenizer,
    *,
    rate: float,
    max_predictions: int,
    mask_share: float,
    random_share: float,
) -> Masked:
    """Masks tokens of one sequence.

    Of the ordinary tokens, min(max_predictions, max(1, round(rate * number))) are chosen; each is
    replaced by [MASK], by a random ordinary token, or by itself (BERT: 80, 10 and 10 %). Special
    tokens are neither chosen nor drawn.

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
    vocabulary = np.setdiff1d(
        np.arange(tokenizer.vocab_size, dtype=np.int32), tokenizer.special_ids
    )
    drawn = jnp.asarray(vocabulary)[
        jax.random.randint(draw_key, (predictions,), 0, len(vocabulary))
    ]
    roll = jax.random.uniform(replace_key, (predictions,))
    replacement = jnp.where(
        roll < mask_share,
        tokenizer.mask_id,
        jnp.where(roll < mask_share + random_share, drawn, targets),
    )
    inputs = tokens.at[positions].set(jnp.where(chosen, replacement, targets))
    return Masked(inputs, positions, targets, chosen.astype(jnp.float32))


class MaskedLanguageModeling(LanguageModeling):
    """Predicts masked tokens; perplexity is the exponential of the mean cross-entropy over them."""

    options = LanguageModeling.options | {
        "model.pooler": Option(
            False, "keep an imported BERT's pooler, for finetuning; masked tokens do not train it"
        ),
        "masking.rate": Option(0.15, "share of a sequence's tokens to predict", INNER_SHARE),
        "masking.max_predictions": Option(
            20, "at most this many per sequence (BERT: 20 at length 128)", SIZE
        ),
        "masking.mask_share": Option(
            0.8, "share of the predicted tokens that [MASK] replaces", SHARE
        ),
        "masking.random_share": Option(
            0.1, "share that a random token replaces; the rest stays", SHARE
        ),
        "masking.static": Option(
            False, "mask each sequence once, instead of anew each time that it is seen"
        ),
        "eval.seed": Option(
            0, "fixes which held-out tokens are masked, for all runs alike", AT_LEAST_0
        ),
    }
    around_encoder = (*LanguageModeling.around_encoder, "pooler")
    prediction_label = "[MASK] {}: "
    hub_task = "fill-mask"

    @classmethod
    def check(cls, config: ConfigDict) -> None:
        """See `Task`."""
        super().check(config)
        if config.model.causal:
            raise ConfigError(
                "config.task is 'masked_lm' and config.model.causal is True: set it to False"
            )
        mask, random = config.masking.mask_share, config.masking.random_share
        if mask + random > 1:
            raise ConfigError(
                f"config.masking.mask_share is {mask} and random_share is {random}: their sum is over 1"
            )

    def notes(self) -> list[str]:
        """See `Task`: max_predictions may be too few for the rate in a long sequence."""
        cap, rate, words = (
            self.config.masking.max_predictions,
            self.config.masking.rate,
            self.length - 2,
        )
        if cap >= (predictions := round(rate * words)):
            return []
        return [
            f"note: masking.max_predictions is {cap}, so {cap / words:.1%} of {words:,} tokens are masked and not "
            f"masking.rate, {rate:.1%}: consider --config.masking.max_predictions={predictions}"
        ]

    def module(self, rngs: nnx.Rngs, spec: Any = None) -> nnx.Module:
        """See `Task`; with its own spec of the blocks, or a similar one."""
        return MaskedLM(spec or self.spec(), self.config.model.vocab_size, rngs, **self.embedding())

    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        if self.config.masking.static:
            masked = self.fixed_mask(batch, self.config.seed)
        else:
            masked = self.mask(batch["key"], batch["tokens"])
        sums = self.masked_loss(params, masked, masked.weights, model_keys(batch))
        return sums["loss"][0], sums

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """See `Task`; also counts, for `baselines`, the tokens shown where the text's own or a
        random one stands."""
        masked = self.fixed_mask(batch, self.config.eval.seed)
        weights = masked.weights * batch["weight"][:, None]
        sums = self.masked_loss(params, masked, weights, None)
        inputs = jnp.take_along_axis(masked.inputs, masked.positions, axis=1)
        kept, hidden = inputs == masked.targets, inputs == self.tokenizer.mask_id
        sums |= {
            "kept": self.token_counts(inputs, weights * kept),
            "replaced": self.token_counts(inputs, weights * ~(kept | hidden)),
        }
        return self.evaluation_sums(sums, batch, masked.targets, weights), {}

    def baselines(self, sums: Totals) -> list[Baseline]:
        """See `LanguageModeling`; and the floor that a model must beat to have learned anything
        from context.

        It is the best predictor that sees only what is shown at a position. If that is [MASK], the
        token's chances are the frequencies p(t); if it is a token s, which was kept or drawn, they
        are, by Bayes' rule, p(t) (r + k [t = s]) / (r + k p(s)): k is the share of tokens that are
        kept, r that of random ones, divided by their number.
        """
        [frequencies] = super().baselines(sums)
        masking, predictions = self.config.masking, sums["targets"][1]
        kept = 1 - masking.mask_share - masking.random_share
        drawn = masking.random_share / (self.tokenizer.vocab_size - len(self.tokenizer.special_ids))
        marginal = np.maximum(drawn + kept * self.frequencies, 1e-300)
        gain = sum(
            (sums[name][0] * np.log(np.maximum(chance, 1e-300) / marginal)).sum()
            for name, chance in (("kept", drawn + kept), ("replaced", drawn))
        )
        perplexity = frequencies.metrics["perplexity"] * math.exp(-gain / predictions)
        return [
            frequencies,
            Baseline("the shown token alone, without context", {"perplexity": perplexity}),
        ]

    def mask(self, keys: jax.Array, tokens: jax.Array) -> Masked:
        """Masks each sequence with its own key: [batch] and [batch, tokens]."""
        options = {name: value for name, value in self.config.masking.items() if name != "static"}
        return jax.vmap(functools.partial(mask_tokens, tokenizer=self.tokenizer, **options))(
            keys, tokens
        )

    def fixed_mask(self, batch: Batch, seed: int) -> Masked:
        """Masks that depend on a seed and the example's index alone: the same for every run and
        model."""
        base = jax.random.key(seed)
        return self.mask(
            jax.vmap(functools.partial(jax.random.fold_in, base))(batch["index"]), batch["tokens"]
        )

    def masked_loss(
        self, params: Any, masked: Masked, weights: jax.Array, key: jax.Array | None
    ) -> Sums:
        """Loss and hits of masked sequences, summed by weights [batch, predictions]; `key` is given
        in training."""
        logits = self.apply(
            params, masked.inputs, masked.positions, key, self.padding_mask(masked.inputs)
        )
        return cross_entropy(logits, masked.targets, weights)

    def encode(self, inputs: Sequence[str]) -> np.ndarray:
        """See `Task`: int32 [batch, tokens], each text with [CLS] and [SEP]."""
        ids = [
            [self.tokenizer.cls_id, *self.tokenizer.encode_masked(line), self.tokenizer.sep_id]
            for line in inputs
        ]
        return self.pad(ids)

    def forward(self, params: Any, inputs: Any) -> jax.Array:
        """See `Task`: logits [batch, tokens, vocabulary] at all positions."""
        positions = jnp.broadcast_to(jnp.arange(inputs.shape[1]), inputs.shape)
        return self.prediction_scores(params, {"tokens": inputs, "positions": positions})

    def prepare(self, given: str, truncate: bool = False) -> Prepared:
        """See `Task`: a line of text with one or more [MASK].

        Raises:
            RunError: a line has no [MASK], or is longer than the model's sequences.
        """
        tokenizer, length = self.tokenizer, self.length
        ids = [tokenizer.cls_id, *tokenizer.encode_masked(given), tokenizer.sep_id]
        note = self.note_of_cut(len(ids), given, truncate)
        if note:
            ids = [*ids[: length - 1], tokenizer.sep_id]
        positions = [position for position, token in enumerate(ids) if token == tokenizer.mask_id]
        if not positions:
            where = f" in the first {length} tokens of" if note else " in"
            raise RunError(
                f"there is no [MASK]{where} {given[:60]!r}; put one where a token is to be predicted"
            )
        ids += [] if self._hidden else [tokenizer.pad_id] * (length - len(ids))
        arrays = {"tokens": np.array(ids, np.int32), "positions": np.array(positions, np.int32)}
        return Prepared([arrays], len(positions), note)

    @functools.cached_property
    def _hidden(self) -> Any:
        """The model that ignores padding, without values; None if its blocks cannot."""
        spec = self.spec().hiding_padding()
        return spec and nnx.eval_shape(lambda: self.module(nnx.Rngs(0), spec))

    def reader(self, params: Any, tokens: Any) -> tuple[Any, Any]:
        """See `TextTask`: padding is hidden if that makes the length irrelevant."""
        if self._hidden is None:
            return super().reader(params, tokens)
        return nnx.merge(nnx.graphdef(self._hidden), params), tokens != self.tokenizer.pad_id

    def prediction_scores(self, params: Any, batch: Batch) -> jax.Array:
        """See `Task`: a prediction for each position."""
        model, mask = self.reader(params, batch["tokens"])
        return model(batch["tokens"], batch["positions"], None, mask)
