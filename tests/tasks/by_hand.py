"""Slow float64 references for what tasks compute, and helpers that the tests of tasks share."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition


def log_softmax(logits) -> np.ndarray:
    """Over the last axis."""
    exact = np.asarray(logits, np.float64)
    largest = exact.max(-1, keepdims=True)
    shifted = exact - largest
    total = np.exp(shifted).sum(-1, keepdims=True)
    return shifted - np.log(total)


def softmax(logits) -> np.ndarray:
    """Over the last axis."""
    return np.exp(log_softmax(logits))


def cross_entropies(logits, targets) -> np.ndarray:
    """The loss of each target in nats, [...], from logits [..., classes] and int targets [...]."""
    indices = np.asarray(targets)[..., None]
    picked = np.take_along_axis(log_softmax(logits), indices, -1)
    return -picked[..., 0]


def are_hits(logits, targets) -> np.ndarray:
    """Whether each target is the most likely class: bool [...]."""
    predicted = np.asarray(logits).argmax(-1)
    return predicted == np.asarray(targets)


def largest(values, count: int) -> np.ndarray:
    """The indices of the largest values, in descending order."""
    order = np.argsort(-np.asarray(values))
    return order[:count]


def total(sums: dict, name: str) -> float:
    """The sum of a metric."""
    value, _ = sums[name]
    return float(value)


def weight(sums: dict, name: str) -> float:
    """The weight that a metric's sum is divided by."""
    _, value = sums[name]
    return float(value)


def all_examples(examples: Any) -> list:
    """The examples of a source that has a length and is indexed by position."""
    found = []
    for index in range(len(examples)):
        found.append(examples[index])
    return found


def split_sizes(data) -> tuple[int, int]:
    """The number of training examples and the number of held-out ones."""
    train = data.dataset(TRAIN)
    heldout = data.dataset(HELDOUT)
    return len(train), len(heldout)


def stacked(examples: Iterable[dict]) -> dict[str, np.ndarray]:
    """Examples stacked into one batch."""

    def stack(*values):
        return np.stack(values)

    return jax.tree.map(stack, *examples)


def first_batch(data) -> dict[str, np.ndarray]:
    """The first batch of training."""
    with data.train_batches(0, 0, 1) as batches:
        return next(batches)


def keys(count: int, seed: int = 0) -> jax.Array:
    """Random keys, [count]."""
    key = jax.random.key(seed)
    return jax.random.split(key, count)


def scaled_params(task, factor: float):
    """Initial parameters, scaled so that the outputs for different inputs differ clearly."""
    init = jax.jit(task.init)
    params = init(jax.random.key(0))
    return jax.tree.map(lambda leaf: factor * leaf, params)


def evaluate(task, data, params) -> tuple[dict, dict]:
    """The metrics and the outputs of an evaluation on all devices."""
    evaluator = Evaluator(task, data, Partition.make())
    return evaluator(params)


def names_of(candidates) -> list[str]:
    """The names of ranked candidates."""
    return [name for name, _ in candidates]


def shares_of(candidates) -> list[float]:
    """The probabilities of ranked candidates."""
    return [share for _, share in candidates]
