"""Slow and obvious counterparts, in float64, of what tasks compute; and what their tests share."""

from collections.abc import Iterable, Sequence

import jax
import numpy as np

from gmlp_flax.data.holdout import HELDOUT, TRAIN


def log_softmax(logits) -> np.ndarray:
    """Over the last axis."""
    exact = np.asarray(logits, np.float64)
    shifted = exact - exact.max(-1, keepdims=True)
    total = np.exp(shifted).sum(-1, keepdims=True)
    return shifted - np.log(total)


def softmax(logits) -> np.ndarray:
    """Over the last axis."""
    return np.exp(log_softmax(logits))


def cross_entropies(logits, targets) -> np.ndarray:
    """Of [..., classes] and int [...]: the loss of each target in nats, [...]."""
    picked = np.take_along_axis(log_softmax(logits), np.asarray(targets)[..., None], -1)
    return -picked[..., 0]


def are_hits(logits, targets) -> np.ndarray:
    """Whether each target is the likeliest class: bool [...]."""
    return np.asarray(logits).argmax(-1) == np.asarray(targets)


def largest(values, count: int) -> np.ndarray:
    """The indices of the largest values, from the largest on."""
    return np.argsort(-np.asarray(values))[:count]


def total(sums: dict, name: str) -> float:
    """The sum of a metric."""
    value, _ = sums[name]
    return float(value)


def weight(sums: dict, name: str) -> float:
    """The weight that a metric's sum is divided by."""
    _, value = sums[name]
    return float(value)


def every(examples: Sequence) -> list:
    """The examples of a source that only has a length and is read by position."""
    return [examples[index] for index in range(len(examples))]


def split_sizes(data) -> tuple[int, int]:
    """How many examples there are to train on, and how many are held out."""
    return len(data.dataset(TRAIN)), len(data.dataset(HELDOUT))


def stacked(examples: Iterable[dict]) -> dict[str, np.ndarray]:
    """Examples as one batch."""
    return jax.tree.map(lambda *values: np.stack(values), *examples)


def first_batch(data) -> dict[str, np.ndarray]:
    """The first batch of training."""
    with data.train_batches(0, 0, 1) as batches:
        return next(batches)


def scaled_params(task, factor: float):
    """Fresh parameters, made large enough for the model to tell its inputs apart."""
    params = jax.jit(task.init)(jax.random.key(0))
    return jax.tree.map(lambda leaf: factor * leaf, params)


def names_of(candidates) -> list[str]:
    """The names of ranked candidates."""
    return [name for name, _ in candidates]


def shares_of(candidates) -> list[float]:
    """The probabilities of ranked candidates."""
    return [share for _, share in candidates]
