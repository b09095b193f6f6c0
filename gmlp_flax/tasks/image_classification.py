"""Image classification, as the paper does it on ImageNet (section 3)."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data import embedded, image_sources, images, pipeline
from gmlp_flax.data.errors import DataError
from gmlp_flax.models.image import ImageClassifier, token_count
from gmlp_flax.tasks.base import EMBEDDED, Batch, Sums, Task, require_path, weighted

CLASSES_FILE = "classes.json"


def training_example(
    example: dict, rng: np.random.Generator, *, size: tuple[int, int], channels: int, flip: bool, min_scale: float
) -> dict:
    """A record to {"image" uint8 [*size, channels], "label"}: random crop and flip."""
    picture = images.training_view(_decoded(example, channels), size, rng, flip=flip, min_scale=min_scale)
    return {"image": picture, "label": example["label"]}


def evaluation_example(example: dict, *, size: tuple[int, int], channels: int, eval_crop: float) -> dict:
    """A record to {"image" uint8 [*size, channels], "label"}: resize and centre crop."""
    picture = images.evaluation_view(_decoded(example, channels), size, eval_crop)
    return {"image": picture, "label": example["label"]}


def _decoded(example: dict, channels: int) -> np.ndarray:
    if isinstance(example["image"], np.ndarray):
        return example["image"]
    return images.decode(example["image"], example["name"], channels)


class ImageClassification(Task):
    """Predicts the class of a picture; batches carry uint8 images, which the step normalises on the device."""

    best = ("top1", "max")
    unit = "images"

    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        model = self.config.model
        length = token_count(model.image_size, model.patch_size, model.pool)
        return ImageClassifier(
            self.spec(length), rngs, image_size=model.image_size, patch_size=model.patch_size,
            classes=len(self.classes), channels=model.channels, pool=model.pool, mean=self.config.data.mean,
            std=self.config.data.std,
        )

    def loss(self, params: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, Sums]:
        """Cross-entropy with smoothed labels: "image" uint8 [batch, height, width, channels], "label" int32 [batch]."""
        logits = self.apply(params, batch["image"], key)
        targets = optax.smooth_labels(
            jax.nn.one_hot(batch["label"], logits.shape[-1]), self.config.optimizer.label_smoothing
        )
        every = jnp.ones(logits.shape[:1])
        sums = {
            "loss": weighted(optax.softmax_cross_entropy(logits, targets), every),
            "accuracy": weighted(logits.argmax(-1) == batch["label"], every),
        }
        return sums["loss"][0], sums

    def evaluate(self, params: Any, batch: Batch) -> Sums:
        """Cross-entropy, top-1 and top-5 hits of a batch as in `loss`, with "weight" float32 [batch]."""
        logits, labels, weight = self.apply(params, batch["image"]), batch["label"], batch["weight"]
        _, best = jax.lax.top_k(logits, min(5, logits.shape[-1]))
        hits = best == labels[:, None]
        return {
            "loss": weighted(optax.softmax_cross_entropy_with_integer_labels(logits, labels), weight),
            "top1": weighted(hits[:, 0], weight),
            "top5": weighted(hits.any(-1), weight),
            "examples": weighted(jnp.ones_like(weight), weight),
        }

    def summarize(self, sums: dict[str, tuple[float, float]]) -> dict[str, float]:
        means = {name: total / weight for name, (total, weight) in sums.items()}
        return {name: means[name] for name in ("top1", "top5", "loss")} | {"examples": int(sums["examples"][1])}

    @functools.cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of their labels: the run folder's, else the training data's.

        Raises:
            DataError: the two differ.
        """
        own = os.path.join(self.folder, CLASSES_FILE)
        if not os.path.exists(own):
            return tuple(self._sources[0].classes)
        with open(own) as file:
            return tuple(json.load(file))

    def train_batches(self, start: int, host: int, hosts: int) -> pipeline.Batches:
        return pipeline.train_batches(
            self._sources[0], seed=self.config.seed, start=start, batch_size=self.config.batch_size,
            transform=self._view(training_example, "flip", "min_scale"), host=host, hosts=hosts, workers=self.config.data.workers,
        )

    def evaluation_batches(self, host: int, hosts: int) -> pipeline.Batches:
        return pipeline.evaluation_batches(
            self._sources[1], batch_size=self.evaluation_batch_size(), transform=self._view(evaluation_example, "eval_crop"), host=host,
            hosts=hosts, workers=self.config.data.workers,
        )

    def evaluation_examples(self) -> int:
        return len(self._sources[1])

    def evaluation_example(self, example: dict) -> dict:
        """A record as evaluation sees it: {"image" uint8 [height, width, channels], "label"}."""
        return self._view(evaluation_example, "eval_crop")(example)

    def _view(self, function: Callable, *options: str) -> Callable:
        """A picklable transform, for worker processes: it holds options and nothing of the task."""
        model, data = self.config.model, self.config.data
        return functools.partial(
            function, size=model.image_size, channels=model.channels, **{name: data[name] for name in options}
        )

    def assets(self) -> dict[str, bytes]:
        return {CLASSES_FILE: json.dumps(self.classes, indent=1).encode()}

    @functools.cached_property
    def _sources(self):
        data = self.config.data
        if data.train == EMBEDDED:
            train, heldout = embedded.embedded_digits("train"), embedded.embedded_digits("heldout")
        elif data.heldout:
            train = image_sources.open_images(require_path(data.train, "data.train"))
            heldout = image_sources.open_images(require_path(data.heldout, "data.heldout"))
        else:
            whole = image_sources.open_images(require_path(data.train, "data.train"))
            train, heldout = image_sources.split_images(whole, data.heldout_share)
        image_sources.check_same_classes(train, heldout)
        own = os.path.join(self.folder, CLASSES_FILE)
        if os.path.exists(own) and tuple(self.classes) != tuple(train.classes):
            raise DataError(f"{data.train} has {len(train.classes)} classes which differ from those of {own}")
        return train, heldout
