"""What a config's augmentation does to its training images, as one image for a person to judge."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.analysis import drawing
from gmlp_flax.errors import ConfigError
from gmlp_flax.io import files
from gmlp_flax.tasks import mixing
from gmlp_flax.tasks.image_classification import ImageClassification

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES = 1.0  # of an image's side


def draw(config: ConfigDict, out: str, count: int, samples: int) -> int:
    """Writes a row of augmented samples per image, and rows of mixed ones if the config mixes.

    Args:
        config: of a run of image classification.
        out: the .png file.
        count: how many images, at most as many as there are.
        samples: augmented views of each.

    Returns:
        How many images there are.

    Raises:
        ConfigError: the config is not of images.
        DataError: the data cannot be read, or the file cannot be written.
    """
    config_lib.validate(config)
    kind = tasks.find(config.task)
    if not issubclass(kind, ImageClassification):
        raise ConfigError(
            f"config.task is {config.task!r}: expected image_classification, or a class that extends it"
        )
    views = sampled(kind(config, os.path.dirname(os.path.abspath(out))), count, samples)
    rows = [(row, ["original"] + [config.augment.auto] * samples) for row in views]
    # An even number of unmixed samples that fills a row, each of another image.
    several = np.concatenate(list(views[:, 1:].swapaxes(0, 1)))[: (samples + 1) // 2 * 2]
    for name, images, shares in mixed(several[: len(several) // 2 * 2], config):
        rows.append((images, [f"{name} {share:.2f}" if share < 1 else name for share in shares]))
    image = io.BytesIO()
    grid(rows).savefig(image, format="png")
    files.write(out, image.getvalue())
    return len(views)


def sampled(task: ImageClassification, count: int, samples: int) -> np.ndarray:
    """Evenly spread images of the training data: uint8 [count, 1 + samples, height, width,
    channels]."""
    source = task.source("train")
    rows = []
    for index in np.linspace(0, len(source) - 1, min(count, len(source))).astype(int):
        example = source[int(index)]
        rngs = [
            np.random.default_rng([task.config.seed, index, sample]) for sample in range(samples)
        ]
        views = [
            task.evaluation_example(example),
            *(task.training_example(example, rng) for rng in rngs),
        ]
        rows.append(np.stack([view["image"] for view in views]))
    return np.stack(rows)


def mixed(views: np.ndarray, config: ConfigDict) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Rows of (name, images, weights of their own labels): unmixed, and mixed in each way that the
    config uses.

    Args:
        views: uint8 [count, height, width, channels]; the count is even.
        config: the whole config.
    """
    rows, augment = [("before mixing", views, np.ones(len(views)))], config.augment
    keys = mixing.pair_keys(jax.random.split(jax.random.key(config.seed), len(views)))
    for kind in ("mixup", "cutmix"):
        if augment[kind]:
            alphas = {"mixup": 0.0, "cutmix": 0.0, kind: augment[kind]}
            own, shares = mixing.own_weights(keys, views.shape[1:3], switch=0.5, **alphas)
            rows.append(
                (kind, np.asarray(mixing.blend_pixels(jnp.asarray(views), own)), np.asarray(shares))
            )
    return rows if len(rows) > 1 else []


@drawing.style()
def grid(rows: Sequence[tuple[np.ndarray, Sequence[str]]]) -> Figure:
    """Rows of (images, uint8 [columns, height, width, channels], and a word above each)."""
    columns = max(len(images) for images, _ in rows)
    figure, axes = drawing.subplots(len(rows) * columns, columns, columns * INCHES, 1.15 * INCHES)
    for axis in axes:
        axis.set_axis_off()
    for row, (images, words) in enumerate(rows):
        for axis, pixels, word in zip(axes[row * columns :], images, words, strict=False):
            axis.imshow(pixels, cmap="gray", vmin=0, vmax=255)
            axis.set_title(word, fontsize=6)
    return figure
