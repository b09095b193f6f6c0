"""Simple classifiers on a model's frozen features, which measure what the features are worth."""

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict
from scipy import optimize

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.api import examples
from gmlp_flax.api.changes import as_classifier
from gmlp_flax.data import pipeline
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.errors import RunError
from gmlp_flax.tasks.data.base import RunFiles, TaskData
from gmlp_flax.training.model import POOLS, Model, require_counts, require_tokenizer

NEIGHBOURS = 20  # as DINO (arXiv 2104.14294)
TEMPERATURE = 0.07
SHOTS = (1, 5, 10, 25)  # as big_vision's fewshot_lsr
DRAWS = 3  # of the examples of each class
RIDGE = 2.0**10
BIAS = 100.0  # the constant feature whose weight is the bias
STEPS = 100  # of L-BFGS
DECAY = 1e-3  # of the weights of the linear classifier
_ROWS = 1024  # held-out examples whose similarities are in memory at once


class Features(NamedTuple):
    """Examples as a model sees them.

    Attributes:
        states: float32 [examples, channels].
        labels: int [examples].
    """

    states: np.ndarray
    labels: np.ndarray


def probe(
    model: Model,
    data: Any,
    kind: Literal["knn", "linear", "fewshot"] = "knn",
    *,
    layers: Sequence[int] = (-1,),
    pool: Literal["mean", "cls"] = "mean",
    batch_size: int = 32,
) -> dict[str, float]:
    """The held-out accuracy of simple classifiers on a model's frozen features.

    Args:
        model: of images, or a language model; its own classes, if it has any, do not matter.
        data: labelled examples of both splits, as in `train`, whatever their classes. If there is
            only one split, a share of it is held out.
        kind: "knn": the 20 nearest neighbours by cosine similarity, weighted by exp(similarity /
            0.07). "linear": logistic regression on standardized features, by 100 steps of L-BFGS,
            L2 penalty 1e-3. "fewshot": ridge regression on 1, 5, 10 and 25 examples of each class
            (big_vision's fewshot_lsr, l2_reg 1024), the mean over three draws.
        layers: of the features, as in `Model.features`.
        pool: the same.
        batch_size: examples at once.

    Returns:
        "accuracy"; for "fewshot" instead "accuracy_1", "accuracy_5", ..., as long as each class has
        enough examples; and "examples", how many were held out.

    Raises:
        UserError: the data cannot be read, have no labels, or do not suit the model.
    """
    require_tokenizer(model)
    require_counts(batch_size=batch_size)
    _require_known("kind", kind, KINDS)
    _require_known("pool", pool, POOLS)
    config = as_classifier(model.config)
    task = tasks.find(config.task)
    if not task.inheritance.heads:
        raise RunError(
            f"a model of the task {config.task} cannot be probed: give one of images or text"
        )
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "data")
        keys = examples.store(data, config, target)
        config.update_from_flattened_dict(keys)
        source = _task_data(config, model)
        train_examples = source.labelled(TRAIN)
        train = _features(model, train_examples, layers, pool, batch_size)
        heldout_examples = source.labelled(HELDOUT)
        heldout = _features(model, heldout_examples, layers, pool, batch_size)
    classify = KINDS[kind]
    scores = classify(train, heldout)
    return {**scores, "examples": len(heldout.labels)}


def _require_known(name: str, value: Any, known: Any) -> None:
    if value not in known:
        expected = ", ".join(known)
        raise RunError(f"{name} is {value!r}: expected one of {expected}")


def _task_data(config: ConfigDict, model: Model) -> TaskData:
    """The data of a classifier, with the files of a model except its classes."""
    resolution = config_lib.resolve(config)
    resolved = resolution.config
    task = tasks.find(resolved.task)
    files = dict(model.task.files)
    for name in task.inheritance.heads:
        files.pop(name, None)
    run_files = RunFiles(local=files)
    return task.Data(resolved, run_files)


def _features(
    model: Model, source: Any, layers: Sequence[int], pool: Any, batch_size: int
) -> Features:
    states = []
    labels = []
    reading = pipeline.Reading(batch_size)
    with pipeline.evaluation_batches(source, reading) as batches:
        for batch in batches:
            label = batch["label"]
            is_read = batch["weight"] > 0
            is_labelled = label >= 0
            counts = is_read & is_labelled
            inputs = batch["image"] if "image" in batch else batch["tokens"]
            features = model.features(inputs, layers, pool)
            precise = np.asarray(features, np.float32)
            states.append(precise[counts])
            labels.append(label[counts])
    all_states = np.concatenate(states)
    all_labels = np.concatenate(labels)
    return Features(all_states, all_labels)


# Classifiers.


def nearest_neighbours(train: Features, heldout: Features) -> dict[str, float]:
    """The accuracy of the 20 nearest neighbours: see `probe`."""
    train_states = _normalized(train.states)
    classes = _class_count(train, heldout)
    targets = jax.nn.one_hot(train.labels, classes)
    count = min(NEIGHBOURS, len(train_states))

    @jax.jit
    def count_votes(states: jax.Array) -> jax.Array:
        """The votes for each class, [states, classes]."""
        all_similarities = states @ train_states.T
        similarities, nearest = jax.lax.top_k(all_similarities, count)
        scaled = similarities / TEMPERATURE
        weights = jnp.exp(scaled)
        votes = targets[nearest]  # [states, neighbours, classes]
        return jnp.einsum("sn,snc->sc", weights, votes)

    heldout_states = _normalized(heldout.states)
    part_count = math.ceil(len(heldout_states) / _ROWS)
    votes_of_parts = []
    for part in np.array_split(heldout_states, part_count):
        votes = count_votes(part)
        votes_of_parts.append(votes)
    all_votes = np.concatenate(votes_of_parts)
    accuracy = _accuracy(all_votes, heldout.labels)
    return {"accuracy": accuracy}


def linear(train: Features, heldout: Features) -> dict[str, float]:
    """The accuracy of logistic regression: see `probe`."""
    scaling = _Scaling.of(train.states)
    train_states = scaling.apply(train.states)
    heldout_states = scaling.apply(heldout.states)
    classes = _class_count(train, heldout)
    channels = train_states.shape[1]
    weight_count = channels * classes

    def logits_of(states: np.ndarray, flat: Any) -> Any:
        """Logits [examples, classes] by weights [channels, classes] and then biases [classes],
        flattened."""
        rows = flat.reshape(channels + 1, classes)
        weights = rows[:-1]
        biases = rows[-1]
        return states @ weights + biases

    @jax.jit
    @jax.value_and_grad
    def loss(flat: jax.Array) -> jax.Array:
        """The loss with these weights and biases, flattened."""
        logits = logits_of(train_states, flat)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, train.labels)
        weights = flat[:weight_count]
        squares = weights**2
        penalty = DECAY / 2 * squares.sum()
        return losses.mean() + penalty

    size = weight_count + classes
    start = np.zeros(size, np.float32)
    options = {"maxiter": STEPS}
    solution = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    logits = logits_of(heldout_states, solution.x)
    accuracy = _accuracy(logits, heldout.labels)
    return {"accuracy": accuracy}


def few_shots(train: Features, heldout: Features) -> dict[str, float]:
    """The accuracies of ridge regression on few examples: see `probe`."""
    classes = _class_count(train, heldout)
    counts = np.bincount(train.labels, minlength=classes)
    is_present = counts > 0
    fewest = counts[is_present].min()
    by_shots = {}
    for shots in SHOTS:
        if shots > fewest:
            break
        accuracies = []
        for seed in range(DRAWS):
            chosen = _draw(train.labels, classes, shots, seed)
            states = train.states[chosen]
            labels = train.labels[chosen]
            drawn = Features(states, labels)
            accuracy = _ridge_accuracy(drawn, heldout, classes)
            accuracies.append(accuracy)
        mean = np.mean(accuracies)
        by_shots[f"accuracy_{shots}"] = float(mean)
    return by_shots


def _draw(labels: np.ndarray, classes: int, shots: int, seed: int) -> np.ndarray:
    """The positions of `shots` random examples of each class, int [classes * shots]."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(labels))
    shuffled_labels = labels[order]
    chosen = []
    for label in range(classes):
        is_class = shuffled_labels == label
        of_class = order[is_class]
        chosen.append(of_class[:shots])
    return np.concatenate(chosen)


def _ridge_accuracy(train: Features, heldout: Features, classes: int) -> float:
    """The accuracy of ridge regression to 1 for the class and -1 for all others."""
    scaling = _Scaling.of(train.states)
    train_states = scaling.apply(train.states)
    heldout_states = scaling.apply(heldout.states)
    train_inputs = _with_bias(train_states)
    heldout_inputs = _with_bias(heldout_states)
    shape = (len(train.labels), classes)
    targets = np.full(shape, -1.0)
    for target, label in zip(targets, train.labels, strict=True):
        target[label] = 1.0
    weights = _ridge(train_inputs, targets)
    scores = heldout_inputs @ weights
    return _accuracy(scores, heldout.labels)


def _ridge(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The weights [channels, classes] that minimize the squared errors of inputs [examples,
    channels] plus RIDGE times the squared weights: (X^T X + RIDGE I)^-1 X^T Y."""
    transposed = inputs.T
    channels = len(transposed)
    penalty = RIDGE * np.eye(channels)
    gram = transposed @ inputs
    products = transposed @ targets
    return np.linalg.solve(gram + penalty, products)


def _class_count(train: Features, heldout: Features) -> int:
    last_trained = train.labels.max()
    last_heldout = heldout.labels.max()
    last = max(last_trained, last_heldout)
    return int(last) + 1


def _normalized(states: np.ndarray) -> np.ndarray:
    """States of length 1."""
    lengths = np.linalg.norm(states, axis=-1, keepdims=True)
    return states / (lengths + 1e-12)


class _Scaling(NamedTuple):
    """A shift and a scale of each channel, [channels]: states that they were made of get mean 0
    and deviation 1."""

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, states: np.ndarray) -> "_Scaling":
        """The scaling of states [examples, channels]."""
        mean = states.mean(axis=0)
        deviation = states.std(axis=0)
        return cls(mean, deviation + 1e-6)

    def apply(self, states: np.ndarray) -> np.ndarray:
        """States [examples, channels], shifted and scaled."""
        shifted = states - self.mean
        return shifted / self.deviation


def _with_bias(states: np.ndarray) -> np.ndarray:
    """States [examples, channels] with a constant channel, in float64."""
    padded = np.pad(states, ((0, 0), (0, 1)), constant_values=BIAS)
    return padded.astype(np.float64)


def _accuracy(scores: Any, labels: np.ndarray) -> float:
    best = np.argmax(scores, axis=-1)
    is_right = best == labels
    share = is_right.mean()
    return float(share)


Classifier = Callable[[Features, Features], dict[str, float]]
KINDS: Mapping[str, Classifier] = {
    "knn": nearest_neighbours,
    "linear": linear,
    "fewshot": few_shots,
}
