"""Masked language modeling, as BERT does it (paper, section 4)."""

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
from gmlp_flax.tasks import recall_slices
from gmlp_flax.tasks.base import Baseline, Batch, Outputs, Sums, Totals, model_keys
from gmlp_flax.tasks.data.language import LanguageData
from gmlp_flax.tasks.inference.prediction import Prepared
from gmlp_flax.tasks.language_modeling import LanguageModeling, cross_entropy
from gmlp_flax.tasks.text import TextPredictor

LEAST = 1e-300  # replaces a probability of 0, because its logarithm is finite


class Masked(NamedTuple):
    """A sequence with some tokens to predict."""

    inputs: jax.Array  # int32 [tokens], what the model reads
    positions: jax.Array  # int32 [predictions], where it predicts
    targets: jax.Array  # int32 [predictions], the tokens that stood there
    weights: jax.Array  # float32 [predictions], 0 if the sequence has fewer tokens to predict


class Masking(NamedTuple):
    """How many tokens are predicted, and what replaces them.

    Attributes:
        rate: share of the ordinary tokens that are predicted.
        max_predictions: the most tokens of a sequence that are predicted.
        mask_share: share of the predicted tokens that [MASK] replaces.
        random_share: share of the predicted tokens that a random token replaces.
    """

    rate: float
    max_predictions: int
    mask_share: float
    random_share: float


def mask_tokens(
    key: jax.Array, tokens: jax.Array, tokenizer: Tokenizer, masking: Masking
) -> Masked:
    """Masks tokens of one sequence.

    It chooses min(max_predictions, max(1, round(rate * number))) of the ordinary tokens. Each is
    replaced by [MASK], by a random ordinary token, or by itself (BERT: 80, 10 and 10 %). Special
    tokens are neither chosen nor drawn.

    Args:
        key: a random key.
        tokens: int32 [tokens].
        tokenizer: for the ids of special tokens.
        masking: how many are chosen, and what replaces them.
    """
    choose_key, replace_key, draw_key = jax.random.split(key, 3)
    positions, is_chosen = _choose_positions(choose_key, tokens, tokenizer, masking)
    predictions = len(positions)
    targets = tokens[positions]
    drawn = _draw_ordinary(draw_key, predictions, tokenizer)
    roll = jax.random.uniform(replace_key, (predictions,))
    replaced_share = masking.mask_share + masking.random_share
    is_masked = roll < masking.mask_share
    is_replaced = roll < replaced_share
    drawn_or_kept = jnp.where(is_replaced, drawn, targets)
    replacement = jnp.where(is_masked, tokenizer.mask_id, drawn_or_kept)
    shown = jnp.where(is_chosen, replacement, targets)
    inputs = tokens.at[positions].set(shown)
    weights = is_chosen.astype(jnp.float32)
    return Masked(inputs, positions, targets, weights)


def _choose_positions(
    key: jax.Array, tokens: jax.Array, tokenizer: Tokenizer, masking: Masking
) -> tuple[jax.Array, jax.Array]:
    """Random positions of a sequence, int32 [predictions], and which of them are predicted."""
    special_ids = jnp.array(tokenizer.special_ids)
    is_special = jnp.isin(tokens, special_ids)
    is_ordinary = ~is_special
    # Random numbers from 0 on; special tokens come last.
    random_scores = jax.random.uniform(key, tokens.shape)
    scores = jnp.where(is_ordinary, random_scores, -1.0)
    predictions = min(masking.max_predictions, len(tokens))
    best, positions = jax.lax.top_k(scores, predictions)
    ordinary_tokens = is_ordinary.sum()
    wanted = jnp.round(masking.rate * ordinary_tokens)
    count = jnp.maximum(wanted, 1)
    is_counted = jnp.arange(predictions) < count
    is_found = best >= 0
    is_chosen = is_counted & is_found
    return positions, is_chosen


def _draw_ordinary(key: jax.Array, count: int, tokenizer: Tokenizer) -> jax.Array:
    """Random ordinary tokens, int32 [count]."""
    ids = np.arange(tokenizer.vocab_size, dtype=np.int32)
    ordinary_ids = np.setdiff1d(ids, tokenizer.special_ids)
    vocabulary = jnp.asarray(ordinary_ids)
    shape = (count,)
    indices = jax.random.randint(key, shape, 0, len(vocabulary))
    return vocabulary[indices]


class MaskedPredictor(TextPredictor):
    """Fills in each [MASK] of a text."""

    @functools.cached_property
    def names(self) -> list[str]:
        """See `Predictor`: the text of each token of the vocabulary."""
        tokenizer = self.tokenizer
        return [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]

    def label(self, number: int) -> str:
        """See `Predictor`."""
        return f"[MASK] {number}"

    def encode(self, inputs: Sequence[str]) -> np.ndarray:
        """See `Predictor`: int32 [batch, tokens], each text with [CLS] and [SEP]."""
        return self.padded(self._ids(line) for line in inputs)

    def _ids(self, text: str) -> list[int]:
        tokenizer = self.tokenizer
        ids = tokenizer.encode_masked(text)
        return [tokenizer.cls_id, *ids, tokenizer.sep_id]

    def prepare(self, value: str, truncate: bool = False) -> Prepared:
        """See `Predictor`: a line of text with one or more [MASK].

        Raises:
            RunError: a line has no [MASK], or is longer than the model's sequences.
        """
        tokenizer = self.tokenizer
        length = self.task.length
        ids = self._ids(value)
        note = self.note_of_cut(len(ids), value, truncate)
        if note:
            ids = [*ids[: length - 1], tokenizer.sep_id]
        is_mask = np.array(ids) == tokenizer.mask_id
        positions = np.flatnonzero(is_mask)
        if not len(positions):
            where = f"in the first {length} tokens of" if note else "in"
            start = value[:60]
            raise RunError(
                f"there is no [MASK] {where} {start!r}; put one where a token is to be predicted"
            )
        if not self.task.can_hide_padding:
            missing = length - len(ids)
            ids += [tokenizer.pad_id] * missing
        arrays = {
            "tokens": np.array(ids, np.int32),
            "positions": positions.astype(np.int32),
        }
        return Prepared([arrays], len(positions), note)

    def scores(self, params: Any, batch: Batch) -> jax.Array:
        """See `Predictor`: a prediction for each position."""
        tokens = batch["tokens"]
        positions = batch["positions"]
        return self.task.logits(params, tokens, positions)


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
            False, "mask each sequence once, instead of each time that it is seen"
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
        share = most / words
        return [
            f"note: masking.max_predictions is {most}, so {share:.1%} of {words:,} tokens "
            f"are masked and not masking.rate, {rate:.1%}: consider "
            f"--config.masking.max_predictions={predictions}"
        ]

    def module(self, rngs: nnx.Rngs, spec: Any = None) -> nnx.Module:
        """See `Task`; with the config's spec of the blocks, or with a variant of it."""
        spec = spec or self.spec()
        rows = self.config.model.vocab_size
        embedding = self.embedding()
        return MaskedLM(spec, rows, rngs, **embedding)

    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        """See `Task`."""
        if self.config.masking.static:
            masked = self.fixed_mask(batch, self.config.seed)
        else:
            masked = self.mask(batch["key"], batch["tokens"])
        keys = model_keys(batch)
        sums = self.masked_loss(params, masked, masked.weights, keys)
        loss, _ = sums["loss"]
        return loss, sums

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """See `Task`; it also counts, for `baselines`, the tokens that are shown where the text's
        token is kept or a random one replaces it."""
        options = self.config.eval
        masked = self.fixed_mask(batch, options.seed)
        example_weights = batch["weight"]
        weights = masked.weights * example_weights[:, None]
        repeats = None
        if options.recall_slices:
            repeats = self._repeats(batch, masked)
        sums = self.masked_loss(params, masked, weights, None, repeats)
        sums |= self._counts_of_shown_tokens(masked, weights)
        all_sums = self.evaluation_sums(sums, batch, masked.targets, weights)
        return all_sums, {}

    def _repeats(self, batch: Batch, masked: Masked) -> jax.Array:
        """Which of the tokens to predict complete a visible bigram, see `recall_slices`: bool
        [batch, predictions]."""
        tokens = batch["tokens"]
        positions = masked.positions
        ordinary = recall_slices.hide(tokens, self.tokenizer.special_ids)
        rows = jnp.arange(len(tokens))[:, None]
        # where a sequence has fewer tokens to predict, the other positions stay visible
        is_predicted = masked.weights > 0
        shown = jnp.take_along_axis(ordinary, positions, axis=1)
        hidden = jnp.where(is_predicted, recall_slices.HIDDEN, shown)
        visible = ordinary.at[rows, positions].set(hidden)
        predicted = recall_slices.MaskedTokens(
            visible=visible,
            positions=positions,
            targets=masked.targets,
            documents=self.documents(tokens),
            is_frequent=batch["is_frequent"],
        )
        find_repeats = jax.vmap(recall_slices.repeat_visible_bigrams)
        return find_repeats(predicted)

    def _counts_of_shown_tokens(self, masked: Masked, weights: jax.Array) -> Sums:
        """How often each token is shown where it is the target, "kept", and where it is drawn,
        "replaced"."""
        shown = jnp.take_along_axis(masked.inputs, masked.positions, axis=1)
        is_kept = shown == masked.targets
        is_hidden = shown == self.tokenizer.mask_id
        is_replaced = ~(is_kept | is_hidden)
        return {
            "kept": self.token_counts(shown, weights * is_kept),
            "replaced": self.token_counts(shown, weights * is_replaced),
        }

    def baselines(self, sums: Totals, data: LanguageData) -> list[Baseline]:
        """See `LanguageModeling`; and the floor that a model must beat to have learned anything
        from context.

        The floor is the best predictor that sees only the token shown at a position. If that is
        [MASK], the probability of a token t is its frequency p(t). If it is a token s, which was
        kept or drawn, Bayes' rule gives p(t) (r + k [t = s]) / (r + k p(s)). Here k is the share of
        tokens that are kept, and r the share of random tokens, divided by their number.
        """
        [without_context] = super().baselines(sums, data)
        _, predictions = sums["targets"]
        gain = self._gain_of_shown_tokens(sums, data)
        factor = math.exp(-gain / predictions)
        metrics = without_context.metrics
        perplexity = metrics["perplexity"] * factor
        shown = Baseline("the shown token alone, without context", {"perplexity": perplexity})
        return [without_context, shown]

    def _gain_of_shown_tokens(self, sums: Totals, data: LanguageData) -> float:
        """By how many nats the shown tokens reduce the loss of the frequencies, over all
        predictions: the logarithms of (r + k [t = s]) / (r + k p(s)), see `baselines`."""
        masking = self.config.masking
        tokenizer = self.tokenizer
        ordinary_tokens = tokenizer.vocab_size - len(tokenizer.special_ids)
        kept = 1 - masking.mask_share - masking.random_share  # k
        drawn = masking.random_share / ordinary_tokens  # r
        numerators = {"kept": drawn + kept, "replaced": drawn}
        frequencies = self.frequencies(data)
        denominator = drawn + kept * frequencies
        log_denominator = np.log(np.maximum(denominator, LEAST))
        gain = 0.0
        for name, numerator in numerators.items():
            counts, _ = sums[name]
            log_numerator = math.log(max(numerator, LEAST))
            log_ratio = log_numerator - log_denominator
            gains = counts * log_ratio
            gain += gains.sum()
        return gain

    def mask(self, keys: jax.Array, tokens: jax.Array) -> Masked:
        """Masks each sequence with its own key: [batch] and [batch, tokens]."""
        config = self.config.masking
        masking = Masking(
            rate=config.rate,
            max_predictions=config.max_predictions,
            mask_share=config.mask_share,
            random_share=config.random_share,
        )
        mask_sequence = functools.partial(mask_tokens, tokenizer=self.tokenizer, masking=masking)
        mask_sequences = jax.vmap(mask_sequence)
        return mask_sequences(keys, tokens)

    def fixed_mask(self, batch: Batch, seed: int) -> Masked:
        """Masks that depend only on a seed and the example's index: they are the same for every run
        and model."""
        key = jax.random.key(seed)
        fold_in = functools.partial(jax.random.fold_in, key)
        fold_in_each = jax.vmap(fold_in)
        keys = fold_in_each(batch["index"])
        return self.mask(keys, batch["tokens"])

    def masked_loss(
        self,
        params: Any,
        masked: Masked,
        weights: jax.Array,
        key: jax.Array | None,
        repeats: jax.Array | None = None,
    ) -> Sums:
        """Loss and hits of masked sequences, summed by weights [batch, predictions]; `key` is given
        in training. With `repeats`, bool [batch, predictions], also the sums of these
        predictions."""
        inputs = masked.inputs
        targets = masked.targets
        mask = self.padding_mask(inputs)
        logits = self.apply(params, inputs, masked.positions, key, mask)
        sums = cross_entropy(logits, targets, weights)
        if repeats is not None:
            sums |= self.recall_sums(logits, targets, weights, repeats)
        return sums

    def forward(self, params: Any, inputs: Any) -> jax.Array:
        """See `Task`: logits [batch, tokens, vocabulary] at all positions."""
        tokens = inputs.shape[1]
        all_positions = jnp.arange(tokens)
        positions = jnp.broadcast_to(all_positions, inputs.shape)
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
        graphdef = nnx.graphdef(self._hidden)
        model = nnx.merge(graphdef, params)
        mask = tokens != self.tokenizer.pad_id
        return model, mask
