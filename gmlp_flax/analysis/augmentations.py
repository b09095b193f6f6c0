"""The effect of a config's augmentation on its training images, as one image to look at."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.analysis import drawing
from gmlp_flax.data.holdout import TRAIN
from gmlp_flax.errors import ConfigError
from gmlp_flax.io import files
from gmlp_flax.tasks import mixing
from gmlp_flax.tasks.data.images import ImageData, evaluation_example, training_example
from gmlp_flax.tasks.image_classification import ImageClassification

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES = 1.0  # of an image's side
ROW_INCHES = 1.15  # with the words above it


class Row(NamedTuple):
    """Images side by side.

    Attributes:
        images: uint8 [columns, height, width, channels].
        words: above each image.
    """

    images: np.ndarray
    words: Sequence[str]


def draw(
    config: ConfigDict,
    out: str,
    count: int,
    samples: int,
) -> int:
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
    task_class = tasks.find(config.task)
    if not issubclass(task_class, ImageClassification):
        raise ConfigError(
            f"config.task is {config.task!r}: expected image_classification, or a class that "
            "extends it"
        )
    data: Any = task_class.Data(config)
    views = sampled(data, count, samples)
    words = ["original"] + [config.augment.auto] * samples
    rows = [Row(row, words) for row in views]
    unmixed = _first_samples(views)
    for name, images, shares in mixed(unmixed, config):
        words = [_mixed_name(name, share) for share in shares]
        rows.append(Row(images, words))
    write_rows(rows, out)
    return len(views)


def _mixed_name(name: str, share: float) -> str:
    """The words above a mixed image."""
    return f"{name} {share:.2f}" if share < 1 else name


def _first_samples(views: np.ndarray) -> np.ndarray:
    """An even number of samples that fit into a row: first one of each image, then another one.

    Args:
        views: [images, 1 + samples, height, width, channels]; the first is not a sample.

    Returns:
        [count, height, width, channels].
    """
    _, columns, *image_shape = views.shape
    without_originals = views[:, 1:]
    by_sample = without_originals.swapaxes(0, 1)
    samples = by_sample.reshape(-1, *image_shape)
    count = min(len(samples), columns)
    return samples[: count - count % 2]


@drawing.style()
def write_rows(rows: Sequence[Row], out: str) -> None:
    """Writes rows of images as a PNG file."""
    image = io.BytesIO()
    grid(rows).savefig(image, format="png")
    files.write(out, image.getvalue())


def sampled(data: ImageData, count: int, samples: int) -> np.ndarray:
    """Evenly spread images of the training data as evaluation sees them, then augmented.

    Returns:
        uint8 [count, 1 + samples, height, width, channels].
    """
    images = data.examples(TRAIN)
    view = evaluation_example(data.config)
    augment = training_example(data.config)
    last = len(images) - 1
    indices = np.linspace(0, last, min(count, len(images)))
    rows = []
    for index in indices.astype(int):
        example = images.record(int(index))
        views = [view(example)["image"]]
        for sample in range(samples):
            rng = np.random.default_rng([data.config.seed, index, sample])
            views.append(augment(example, rng)["image"])
        rows.append(np.stack(views))
    return np.stack(rows)


def mixed(views: np.ndarray, config: ConfigDict) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Rows of (name, images, weights of each image's own label): unmixed, and mixed in each way that
    the config uses; none if it mixes nothing.

    Args:
        views: uint8 [count, height, width, channels]; the count is even.
        config: the whole config.
    """
    count, height, width, _ = views.shape
    key = jax.random.key(config.seed)
    keys = mixing.pair_keys(jax.random.split(key, count))
    pixels = jnp.asarray(views)
    rows = []
    for kind in ("mixup", "cutmix"):
        alpha = config.augment[kind]
        if not alpha:
            continue
        alphas = {"mixup": 0.0, "cutmix": 0.0, kind: alpha}
        weights, shares = mixing.keep_weights(
            keys,
            (height, width),
            switch=0.5,
            **alphas,
        )
        images = mixing.blend_pixels(pixels, weights)
        rows.append((kind, np.asarray(images), np.asarray(shares)))
    if rows:
        rows.insert(0, ("before mixing", views, np.ones(count)))
    return rows


@drawing.style()
def grid(rows: Sequence[Row]) -> Figure:
    """Draws rows of images, one below the other."""
    columns = max(len(row.images) for row in rows)
    figure, axes = drawing.subplots(
        len(rows) * columns,
        columns,
        width=columns * INCHES,
        row_height=ROW_INCHES,
    )
    for axis in axes:
        axis.set_axis_off()
    for number, row in enumerate(rows):
        first = number * columns
        row_axes = axes[first : first + columns]
        for axis, pixels, word in zip(row_axes, row.images, row.words, strict=False):
            axis.imshow(
                pixels,
                cmap="gray",
                vmin=0,
                vmax=255,
            )
            axis.set_title(word, fontsize=6)
    return figure
