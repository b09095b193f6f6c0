"""Masked language modelling, as BERT does it (paper, section 4)."""

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

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
from gmlp_flax.tasks.language_data import LanguageData
from gmlp_flax.tasks.language_modeling import LanguageModeling, cross_entropy
from gmlp_flax.tasks.prediction import Prepared
from gmlp_flax.tasks.text import TextPredictor

LEAST = 1e-300  # a probability whose logarithm is finite


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
    ids = np.arange(tokenizer.vocab_size, dtype=np.int32)
    vocabulary = np.setdiff1d(ids, tokenizer.special_ids)
    indices = jax.random.randint(draw_key, (predictions,), 0, len(vocabulary))
    drawn = jnp.asarray(vocabulary)[indices]
    roll = jax.random.uniform(replace_key, (predictions,))
    drawn_or_kept = jnp.where(roll < mask_share + random_share, drawn, targets)
    replacement = jnp.where(roll < mask_share, tokenizer.mask_id, drawn_or_kept)
    inputs = tokens.at[positions].set(jnp.where(chosen, replacement, targets))
    return Masked(inputs, positions, targets, chosen.astype(jnp.float32))


class MaskedPredictor(TextPredictor):
    """Fills in each [MASK] of a text."""

    @functools.cached_property
    def names(self) -> list[str]:
        """See `Predictor`: the text of each token of the vocabulary."""
        return [self.tokenizer.piece(token) for token in range(self.tokenizer.vocab_size)]

    def label(self, number: int) -> str:
        """See `Predictor`."""
        return f"[MASK] {number}"

    def encode(self, inputs: Sequence[str]) -> np.ndarray:
        """See `Predictor`: int32 [batch, tokens], each text with [CLS] and [SEP]."""
        return self.padded(self._ids(line) for line in inputs)

    def _ids(self, text: str) -> list[int]:
        tokenizer = self.tokenizer
        return [tokenizer.cls_id, *tokenizer.encode_masked(text), tokenizer.sep_id]

    def prepare(self, given: str, truncate: bool = False) -> Prepared:
        """See `Predictor`: a line of text with one or more [MASK].

        Raises:
            RunError: a line has no [MASK], or is longer than the model's sequences.
        """
        tokenizer = self.tokenizer
        length = self.task.length
        ids = self._ids(given)
        note = self.note_of_cut(len(ids), given, truncate)
        if note:
            ids = [*ids[: length - 1], tokenizer.sep_id]
        positions = [position for position, token in enumerate(ids) if token == tokenizer.mask_id]
        if not positions:
            where = f" in the first {length} tokens of" if note else " in"
            raise RunError(
                f"there is no [MASK]{where} {given[:60]!r}; put one where a token is to be "
                "predicted"
            )
        if not self.task.can_hide_padding:
            ids += [tokenizer.pad_id] * (length - len(ids))
        arrays = {"tokens": np.array(ids, np.int32), "positions": np.array(positions, np.int32)}
        return Prepared([arrays], len(positions), note)

    def scores(self, params: Any, batch: Batch) -> jax.Array:
        """See `Predictor`: a prediction for each position."""
        return self.task.logits(params, batch["tokens"], batch["positions"])


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
    Predictor: ClassVar = MaskedPredictor
    around_encoder = (*LanguageModeling.around_encoder, "pooler")
    hub_task = "fill-mask"

    @classmethod
    def check(cls, config: ConfigDict) -> None:
        """See `Task`."""
        super().check(config)
        if config.model.causal:
            raise ConfigError(
                "config.task is 'masked_lm' and config.model.causal is True: set it to False"
            )
        mask = config.masking.mask_share
        random = config.masking.random_share
        if mask + random > 1:
            raise ConfigError(
                f"config.masking.mask_share is {mask} and random_share is {random}: their sum is "
                "over 1"
            )

    def notes(self) -> list[str]:
        """See `Task`: max_predictions may be too few for the rate in a long sequence."""
        most = self.config.masking.max_predictions
        rate = self.config.masking.rate
        words = self.length - 2
        predictions = round(rate * words)
        if most >= predictions:
            return []
        return [
            f"note: masking.max_predictions is {most}, so {most / words:.1%} of {words:,} tokens "
            f"are masked and not masking.rate, {rate:.1%}: consider "
            f"--config.masking.max_predictions={predictions}"
        ]

    def module(self, rngs: nnx.Rngs, spec: Any = None) -> nnx.Module:
        """See `Task`; with its own spec of the blocks, or a similar one."""
        return MaskedLM(spec or self.spec(), self.config.model.vocab_size, rngs, **self.embedding())

    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        """See `Task`."""
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
        is_kept = inputs == masked.targets
        is_hidden = inputs == self.tokenizer.mask_id
        sums["kept"] = self.token_counts(inputs, weights * is_kept)
        sums["replaced"] = self.token_counts(inputs, weights * ~(is_kept | is_hidden))
        return self.evaluation_sums(sums, batch, masked.targets, weights), {}

    def baselines(self, sums: Totals, data: LanguageData) -> list[Baseline]:
        """See `LanguageModeling`; and the floor that a model must beat to have learned anything
        from context.

        It is the best predictor that sees only what is shown at a position. If that is [MASK], the
        token's chances are the frequencies p(t); if it is a token s, which was kept or drawn, they
        are, by Bayes' rule, p(t) (r + k [t = s]) / (r + k p(s)): k is the share of tokens that are
        kept, r that of random ones, divided by their number.
        """
        [without_context] = super().baselines(sums, data)
        masking = self.config.masking
        predictions = sums["targets"][1]
        kept = 1 - masking.mask_share - masking.random_share
        drawn = masking.random_share / (self.tokenizer.vocab_size - len(self.tokenizer.special_ids))
        marginal = np.maximum(drawn + kept * self.frequencies(data), LEAST)
        gain = 0.0
        for name, chance in (("kept", drawn + kept), ("replaced", drawn)):
            counts = sums[name][0]
            gain += (counts * np.log(np.maximum(chance, LEAST) / marginal)).sum()
        perplexity = without_context.metrics["perplexity"] * math.exp(-gain / predictions)
        shown = Baseline("the shown token alone, without context", {"perplexity": perplexity})
        return [without_context, shown]

    def mask(self, keys: jax.Array, tokens: jax.Array) -> Masked:
        """Masks each sequence with its own key: [batch] and [batch, tokens]."""
        masking = self.config.masking
        mask_one = functools.partial(
            mask_tokens,
            tokenizer=self.tokenizer,
            rate=masking.rate,
            max_predictions=masking.max_predictions,
            mask_share=masking.mask_share,
            random_share=masking.random_share,
        )
        return jax.vmap(mask_one)(keys, tokens)

    def fixed_mask(self, batch: Batch, seed: int) -> Masked:
        """Masks that depend on a seed and the example's index alone: the same for every run and
        model."""
        key = jax.random.key(seed)
        keys = jax.vmap(functools.partial(jax.random.fold_in, key))(batch["index"])
        return self.mask(keys, batch["tokens"])

    def masked_loss(
        self, params: Any, masked: Masked, weights: jax.Array, key: jax.Array | None
    ) -> Sums:
        """Loss and hits of masked sequences, summed by weights [batch, predictions]; `key` is given
        in training."""
        mask = self.padding_mask(masked.inputs)
        logits = self.apply(params, masked.inputs, masked.positions, key, mask)
        return cross_entropy(logits, masked.targets, weights)

    def forward(self, params: Any, inputs: Any) -> jax.Array:
        """See `Task`: logits [batch, tokens, vocabulary] at all positions."""
        positions = jnp.broadcast_to(jnp.arange(inputs.shape[1]), inputs.shape)
        return self.logits(params, inputs, positions)

    def logits(self, params: Any, tokens: Any, positions: Any) -> jax.Array:
        """Logits [batch, predictions, vocabulary] at positions [batch, predictions], outside
        training."""
        model, mask = self.reader(params, tokens)
        return model(tokens, positions, None, mask)

    @property
    def can_hide_padding(self) -> bool:
        """Whether the model can ignore padding, so that the length of a text does not matter."""
        return self._hidden is not None

    @functools.cached_property
    def _hidden(self) -> Any:
        """The model that ignores padding, without values; None if its blocks cannot."""
        spec = self.spec().hiding_padding()
        if spec is None:
            return None
        return nnx.eval_shape(lambda: self.module(nnx.Rngs(0), spec))

    def reader(self, params: Any, tokens: Any) -> tuple[Any, Any]:
        """See `TextTask`: padding is hidden if that makes the length irrelevant."""
        if self._hidden is None:
            return super().reader(params, tokens)
        model = nnx.merge(nnx.graphdef(self._hidden), params)
        return model, tokens != self.tokenizer.pad_id
