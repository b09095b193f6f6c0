"""Draws a config's augmentation of its training images, for a person to judge.

    gmlp augmentations --config=imagenet:gmlp_s --config.data.train=photos/ --out=samples.png
    gmlp augmentations --config=FILE[:ARGUMENT] --out=FILE.png [--images=8] [--samples=7] [--config.KEY=VALUE ...]

One row per image: the centre crop of evaluation, then samples of augmented views, as training sees them. If the config
mixes images, the rows below show some samples before mixing, and then mixed. An image and the one half a row further
are a pair; the number is the weight of the image's own label.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict
from PIL import Image, ImageDraw

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError, DataError
from gmlp_flax.tasks import mixing
from gmlp_flax.tasks.image_classification import ImageClassification

GAP = 4  # pixels between images
LEAST_SIDE = 96  # pixels; smaller images are drawn larger


def sampled(task: ImageClassification, count: int, samples: int) -> np.ndarray:
    """Evenly spread images of the training data: uint8 [count, 1 + samples, height, width, channels]."""
    source = task.source("train")
    rows = []
    for place in np.linspace(0, len(source) - 1, min(count, len(source))).astype(int):
        example = source[int(place)]
        rngs = [np.random.default_rng([task.config.seed, place, sample]) for sample in range(samples)]
        views = [task.evaluation_example(example), *(task.training_example(example, rng) for rng in rngs)]
        rows.append(np.stack([view["image"] for view in views]))
    return np.stack(rows)


def mixed(views: np.ndarray, config: ConfigDict) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of (images, weights of their own labels): unmixed, and mixed in each way that the config uses.

    Args:
        views: uint8 [count, height, width, channels]; the count is even.
        config: the whole config.
    """
    rows, augment = [(views, np.ones(len(views)))], config.augment
    keys = mixing.pair_keys(jax.random.split(jax.random.key(config.seed), len(views)))
    for kind in ("mixup", "cutmix"):
        if augment[kind]:
            alphas = {"mixup": 0.0, "cutmix": 0.0, kind: augment[kind]}
            own, shares = mixing.own_weights(keys, views.shape[1:3], switch=0.5, **alphas)
            rows.append((np.asarray(mixing.blend_pixels(jnp.asarray(views), own)), np.asarray(shares)))
    return rows if len(rows) > 1 else []


def grid(rows: list[tuple[np.ndarray, list[str]]]) -> Image.Image:
    """One image of rows of (images, uint8 [columns, height, width, channels], and a word below each)."""
    height, width = rows[0][0].shape[1:3]
    scale = -(-LEAST_SIDE // min(height, width))
    cell_height, cell_width, columns = height * scale + 14 + GAP, width * scale + GAP, max(len(row) for row, _ in rows)
    canvas = Image.new("RGB", (columns * cell_width + GAP, len(rows) * cell_height + GAP), "white")
    draw = ImageDraw.Draw(canvas)
    for line, (images, words) in enumerate(rows):
        for column, (pixels, word) in enumerate(zip(images, words, strict=True)):
            corner = GAP + column * cell_width, GAP + line * cell_height
            image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
            canvas.paste(image.resize((width * scale, height * scale), Image.Resampling.NEAREST), corner)
            draw.text((corner[0], corner[1] + height * scale), word, fill="black")
    return canvas


def main(_argv: list[str]) -> None:
    """Draws the grid and prints its path."""
    values: Any = flags.FLAGS
    usage = "augmentations --config=FILE --out=FILE.png"
    cli.required("config", usage)
    config, out = values.config, cli.required("out", usage)
    config_lib.validate(config)
    kind = tasks.find(config.task)
    if not issubclass(kind, ImageClassification):
        raise ConfigError(f"config.task is {config.task!r}: expected image_classification, or a class that extends it")
    task = kind(config, os.path.dirname(os.path.abspath(out)))
    views = sampled(task, values.images, values.samples)
    rows = [(row, ["original"] + [config.augment.auto] * values.samples) for row in views]
    # As many unmixed samples as fill a row, each of another image.
    samples = np.concatenate(list(views[:, 1:].swapaxes(0, 1)))[: (values.samples + 1) // 2 * 2]
    names = iter(("before mixing", *(kind for kind in ("mixup", "cutmix") if config.augment[kind])))
    for images, shares in mixed(samples[: len(samples) // 2 * 2], config):
        name = next(names)
        rows.append((images, [f"{name} {share:.2f}" if share < 1 else name for share in shares]))
    try:
        grid(rows).save(out)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot write --out={out} ({error}): name a .png in a folder that exists") from None
    print(f"{len(views)} images, {values.samples} samples of each: {out}")


def run() -> None:
    """The command line."""
    flags.DEFINE_string("out", None, "The .png file to write.")
    flags.DEFINE_integer("images", 8, "How many images, one row each.", lower_bound=1)
    flags.DEFINE_integer("samples", 7, "Augmented samples of each image.", lower_bound=1)
    cli.run(main, parser=cli.parse_flags_with_config)
