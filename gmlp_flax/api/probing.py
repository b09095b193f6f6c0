"""What frozen features tell of classes: nearest neighbours, a linear classifier, and few examples of each class."""

import tempfile
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import optimize

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.api.model import POOLS, Model, require_counts, require_model
from gmlp_flax.api.runs import SIDES, store
from gmlp_flax.data import pipeline
from gmlp_flax.errors import RunError

NEIGHBOURS, TEMPERATURE = 20, 0.07  # as DINO (arXiv 2104.14294)
SHOTS, SEEDS, RIDGE, BIAS = (1, 5, 10, 25), 3, 2.0**10, 100.0  # as big_vision's fewshot_lsr
STEPS, DECAY = 100, 1e-3  # of the linear classifier: L-BFGS, and its weights' decay

Features = tuple[np.ndarray, np.ndarray]  # float32 [examples, channels], and the labels, int [examples]


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
        model: of images, or a language model; its own classes, if it has some, do not count.
        data: labelled examples of both sides, as in `train`, whatever their classes; of one alone, a share is held out.
        kind: "knn": the 20 nearest neighbours by cosine similarity, weighted by exp(similarity / 0.07). "linear":
            logistic regression on standardized features, by 100 steps of L-BFGS, L2 penalty 1e-3. "fewshot": ridge
            regression on 1, 5, 10 and 25 examples of each class (big_vision's fewshot_lsr, l2_reg 1024), the mean over
            three draws.
        layers: of the features, as in `Model.features`.
        pool: the same.
        batch_size: examples at once.

    Returns:
        "accuracy"; of few shots "accuracy_1", "accuracy_5", ..., for as many as each class has; and "examples", how
        many were held out.

    Raises:
        ConfigError, DataError, RunError: the data cannot be read, have no labels, or do not suit the model.
    """
    require_model(model)
    require_counts(batch_size=batch_size)
    for name, value, known in (("kind", kind, KINDS), ("pool", pool, POOLS)):
        if value not in known:
            raise RunError(f"{name} is {value!r}: expected one of {', '.join(known)}")
    config, files = model.config.copy_and_resolve_references(), model.task.assets()
    for key, value in model.task.as_classifier.items():
        config = config_lib.changed(config, task=value) if key == "task" else config
        config.update_from_flattened_dict({key: value})
    if not (find := tasks.find(config.task)).heads:
        raise RunError(f"a model of the task {config.task} cannot be probed: give one of images or text")
    with tempfile.TemporaryDirectory() as folder:
        config.update_from_flattened_dict(store(data, config, folder))
        task = find(config, folder, {name: content for name, content in files.items() if name not in find.heads})
        train, heldout = (_features(model, task.labelled(side), layers, pool, batch_size) for side in SIDES)
    return KINDS[kind](train, heldout) | {"examples": len(heldout[1])}


def _features(model: Model, source: Any, layers: Sequence[int], pool: Any, batch_size: int) -> Features:
    states, labels = [], []
    with pipeline.evaluation_batches(source, batch_size=batch_size) as batches:
        for batch in batches:
            real = (batch["weight"] > 0) & (batch["label"] >= 0)  # not those that cannot be read, or have no label
            inputs = batch["image"] if "image" in batch else batch["tokens"]
            states.append(np.asarray(model.features(inputs, layers, pool), np.float32)[real])
            labels.append(batch["label"][real])
    return np.concatenate(states), np.concatenate(labels)


def _standardized(train: np.ndarray, heldout: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, std = train.mean(0), train.std(0) + 1e-6
    return (train - mean) / std, (heldout - mean) / std


def _accuracy(scores: Any, labels: np.ndarray) -> float:
    return float(np.mean(np.argmax(np.asarray(scores), -1) == labels))


def nearest_neighbours(train: Features, heldout: Features) -> dict[str, float]:
    """See `probe`."""
    x, test = (side / (np.linalg.norm(side, axis=-1, keepdims=True) + 1e-12) for side in (train[0], heldout[0]))
    hot = jax.nn.one_hot(train[1], max(train[1].max(), heldout[1].max()) + 1)
    k = min(NEIGHBOURS, len(x))

    @jax.jit
    def scores(rows: jax.Array) -> jax.Array:
        similarities, nearest = jax.lax.top_k(rows @ x.T, k)
        return jnp.einsum("rk,rkc->rc", jnp.exp(similarities / TEMPERATURE), hot[nearest])

    parts = np.array_split(test, -(-len(test) // 1024))
    return {"accuracy": _accuracy(np.concatenate([scores(part) for part in parts]), heldout[1])}


def linear(train: Features, heldout: Features) -> dict[str, float]:
    """See `probe`."""
    x, test = _standardized(train[0], heldout[0])
    classes = int(max(train[1].max(), heldout[1].max())) + 1

    @jax.jit
    @jax.value_and_grad
    def loss(flat: jax.Array) -> jax.Array:
        """The last row of the weights are the biases."""
        weights = flat.reshape(-1, classes)
        losses = optax.softmax_cross_entropy_with_integer_labels(x @ weights[:-1] + weights[-1], train[1])
        return losses.mean() + DECAY / 2 * (weights[:-1] ** 2).sum()

    start = np.zeros((x.shape[1] + 1) * classes, np.float32)
    found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    weights = found.x.reshape(-1, classes)
    return {"accuracy": _accuracy(test @ weights[:-1] + weights[-1], heldout[1])}


def few_shots(train: Features, heldout: Features) -> dict[str, float]:
    """See `probe`. Raises RunError if a class of the training data has no example."""
    classes, found = int(max(train[1].max(), heldout[1].max())) + 1, {}
    counts = np.bincount(train[1], minlength=classes)
    for shots in (shots for shots in SHOTS if shots <= counts[counts > 0].min()):
        accuracies = []
        for seed in range(SEEDS):
            order = np.random.default_rng(seed).permutation(len(train[1]))
            chosen = np.concatenate([order[train[1][order] == label][:shots] for label in range(classes)])
            x, test = _standardized(train[0][chosen], heldout[0])
            x, test = (np.pad(side, ((0, 0), (0, 1)), constant_values=BIAS).astype(np.float64) for side in (x, test))
            targets = 2.0 * (train[1][chosen][:, None] == np.arange(classes)) - 1
            weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ targets)
            accuracies.append(_accuracy(test @ weights, heldout[1]))
        found[f"accuracy_{shots}"] = float(np.mean(accuracies))
    return found


KINDS = {"knn": nearest_neighbours, "linear": linear, "fewshot": few_shots}
