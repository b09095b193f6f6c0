"""Two slices of the predicted tokens of a language model: those that associative recall could
predict, "AR hits", and all others.

Zoology (arXiv 2312.04927, section 3.1) calls a token an AR hit if it is the last token of a bigram
that occurred earlier in the same context, and that the training text has at most 1,250 times. A
model may know more frequent bigrams by heart. For masked tokens the paper has no definition; ours is
in `repeat_visible_bigrams`.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gmlp_flax.errors import RunError
from gmlp_flax.tasks.base import Totals

HIDDEN = -1  # replaces the tokens that are in no bigram
PUBLISHED_MOST = 1250  # of occurrences in the training text
RECALL = "recall_"  # prefix of the metrics of AR hits
OTHER = "other_"  # prefix of the metrics of all other predicted tokens
MOST_NATS = 700  # the exponential of more overflows a float


def hide(tokens: jax.Array, ids: tuple[int, ...]) -> jax.Array:
    """The tokens with HIDDEN in place of those with such ids."""
    hidden_ids = jnp.array(ids)
    is_hidden = jnp.isin(tokens, hidden_ids)
    return jnp.where(is_hidden, HIDDEN, tokens)


def repeat_earlier_bigrams(tokens: jax.Array, documents: jax.Array) -> jax.Array:
    """Whether each token, with the one before it, repeats an earlier bigram: bool [tokens], False
    for the first token.

    Token t is such a token if there is an s < t in the same document with (x[s - 1], x[s]) = (x[t -
    1], x[t]), and neither of the two is HIDDEN.

    Args:
        tokens: of one sequence, int [tokens].
        documents: the document of each token, int [tokens].
    """
    first = tokens[:-1]
    second = tokens[1:]
    document = documents[1:]
    is_earlier = jnp.tri(len(second), k=-1, dtype=bool)  # [t, s]
    same_first = _each_equal(first, first)
    same_second = _each_equal(second, second)
    same_document = _each_equal(document, document)
    is_same = is_earlier & same_first & same_second & same_document
    is_repeated = is_same.any(axis=1)
    is_bigram = _are_bigrams(first, second)
    repeats = is_repeated & is_bigram
    return jnp.pad(repeats, (1, 0))


def _each_equal(left: jax.Array, right: jax.Array) -> jax.Array:
    """Which of [m] values equal which of [n] others: bool [m, n]."""
    return left[:, None] == right


def _are_bigrams(first: jax.Array, second: jax.Array) -> jax.Array:
    """Which pairs have no HIDDEN token."""
    is_first_shown = first != HIDDEN
    is_second_shown = second != HIDDEN
    return is_first_shown & is_second_shown


class MaskedTokens(NamedTuple):
    """A sequence with tokens to predict.

    Attributes:
        visible: int [tokens], with HIDDEN at all tokens to predict and at special tokens.
        positions: of the tokens to predict, int [predictions].
        targets: the tokens themselves, int [predictions].
        documents: the document of each token, int [tokens].
        is_frequent: whether a token and the one before it are a frequent bigram, bool [tokens].
    """

    visible: jax.Array
    positions: jax.Array
    targets: jax.Array
    documents: jax.Array
    is_frequent: jax.Array


def repeat_visible_bigrams(masked: MaskedTokens) -> jax.Array:
    """Whether each token to predict completes a bigram that the sequence shows elsewhere: bool
    [predictions].

    The bigram is the token with its left or with its right neighbour. The neighbour must be
    visible, the bigram must not be frequent, and its other occurrence must be two visible tokens of
    the same document. This is our definition, not Zoology's, whose models are causal.
    """
    positions = masked.positions
    targets = masked.targets
    visible = masked.visible
    is_frequent = masked.is_frequent
    tokens_before = jnp.pad(visible[:-1], (1, 0), constant_values=HIDDEN)
    tokens_after = jnp.pad(visible[1:], (0, 1), constant_values=HIDDEN)
    is_frequent_with_next = jnp.pad(is_frequent[1:], (0, 1))
    left = tokens_before[positions]
    right = tokens_after[positions]
    is_left_shown = _are_visible(masked, left, targets)
    is_right_shown = _are_visible(masked, targets, right)
    is_left_frequent = is_frequent[positions]
    is_right_frequent = is_frequent_with_next[positions]
    completes_left = is_left_shown & ~is_left_frequent
    completes_right = is_right_shown & ~is_right_frequent
    return completes_left | completes_right


def _are_visible(masked: MaskedTokens, first: jax.Array, second: jax.Array) -> jax.Array:
    """Whether the bigram at each prediction, of tokens [predictions], is two visible tokens of its
    document: bool [predictions]."""
    document = masked.documents[masked.positions]
    shown_first = masked.visible[:-1]
    shown_second = masked.visible[1:]
    shown_document = masked.documents[1:]
    same_first = _each_equal(first, shown_first)  # [predictions, bigrams]
    same_second = _each_equal(second, shown_second)
    same_document = _each_equal(document, shown_document)
    is_same = same_first & same_second & same_document
    is_shown = is_same.any(axis=1)
    is_bigram = _are_bigrams(first, second)
    return is_shown & is_bigram


def perplexity(loss: float, predictions: float) -> float:
    """The exponential of the mean of a loss that is summed over predictions, in nats."""
    mean = loss / predictions
    if mean < MOST_NATS:
        return math.exp(mean)
    return math.inf


def metrics_of(sums: Totals) -> dict[str, float]:
    """The metrics of both slices, with the prefixes RECALL and OTHER: the number of predictions
    and, if there are any, their perplexity and accuracy. {} if the sums have no slices.

    Args:
        sums: of an evaluation: loss and accuracy of all predictions and, with the prefix RECALL, of
            AR hits.
    """
    if f"{RECALL}loss" not in sums:
        return {}
    loss, predictions = sums["loss"]
    hits, _ = sums["accuracy"]
    recall_loss, recall_predictions = sums[f"{RECALL}loss"]
    recall_hits, _ = sums[f"{RECALL}accuracy"]
    other_loss = loss - recall_loss
    other_hits = hits - recall_hits
    other_predictions = predictions - recall_predictions
    recall = _slice_metrics(RECALL, recall_loss, recall_hits, recall_predictions)
    other = _slice_metrics(OTHER, other_loss, other_hits, other_predictions)
    return {**recall, **other}


def _slice_metrics(prefix: str, loss: float, hits: float, predictions: float) -> dict[str, float]:
    """The metrics of one slice, from its sums."""
    metrics: dict[str, float] = {}
    if predictions:
        metrics[f"{prefix}perplexity"] = perplexity(loss, predictions)
        metrics[f"{prefix}accuracy"] = hits / predictions
    metrics[f"{prefix}predictions"] = int(predictions)
    return metrics


class SliceLosses(NamedTuple):
    """The losses of a model on all predicted tokens and on AR hits.

    Attributes:
        predictions: the number of predicted tokens.
        loss: their mean loss in nats, the logarithm of the perplexity.
        recall_predictions: the number of AR hits.
        recall_loss: their mean loss in nats.
    """

    predictions: int
    loss: float
    recall_predictions: int
    recall_loss: float

    @classmethod
    def of_metrics(cls, metrics: Mapping[str, float]) -> "SliceLosses":
        """From the metrics of an evaluation.

        Raises:
            RunError: they have no slices, or the text has no AR hit.
        """
        recall_predictions = f"{RECALL}predictions"
        recall_perplexity = metrics.get(f"{RECALL}perplexity")
        if recall_perplexity is None:
            raise RunError(
                "an evaluation has no AR hits: give held-out text that repeats bigrams, or count "
                "frequent bigrams too, with config.eval.frequent_bigrams=0"
            )
        return cls(
            predictions=int(metrics["predictions"]),
            loss=metrics["loss"],
            recall_predictions=int(metrics[recall_predictions]),
            recall_loss=math.log(recall_perplexity),
        )


def of_running_mean(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of the running mean of the parameters, under their plain names, if an evaluation
    has it; else all of its metrics."""
    of_mean = {}
    for name, value in metrics.items():
        if name.startswith("ema_"):
            plain_name = name.removeprefix("ema_")
            of_mean[plain_name] = value
    return of_mean or dict(metrics)


def share_of_gap(model: SliceLosses, reference: SliceLosses) -> float | None:
    """How much of the gap between two models is due to AR hits (Zoology, section 3.1): the
    difference of their log-perplexities on AR hits times the number of AR hits, divided by the same
    of all predicted tokens.

    It is the share of the gap that would close if the model were as good as the reference on AR hits
    alone, and exceeds 1 if the model is better on all other tokens.

    Returns:
        The share; None if the model is not behind the reference.

    Raises:
        RunError: they were not scored on the same tokens.
    """
    predictions = model.predictions
    their_predictions = reference.predictions
    hits = model.recall_predictions
    their_hits = reference.recall_predictions
    if predictions != their_predictions or hits != their_hits:
        raise RunError(
            f"the models have {predictions:,} and {their_predictions:,} predicted tokens, "
            f"{hits:,} and {their_hits:,} of them AR hits: score both on the same held-out tokens"
        )
    gap_of_token = model.loss - reference.loss
    gap = gap_of_token * predictions
    if gap <= 0:
        return None
    gap_of_hit = model.recall_loss - reference.recall_loss
    recall_gap = gap_of_hit * hits
    return recall_gap / gap
