"""Draws what a config's augmentation makes of its training pictures, for a person to judge.

Usage: python scripts/show_augmentations.py --config=configs/x.py[:ARG] --out=FILE.png [--pictures=8] [--samples=7]
           [--config.data.train=PATH] [--config.augment.auto=autoaugment ...]

A row a picture: the centre that evaluation would see, then samples of what training sees. Below, where the config mixes
pictures, some of them before, and then mixed: a picture and the one half a row on are a pair, the number is the share
of the picture's own label.
"""

from __future__ import annotations

import os

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags
from PIL import Image, ImageDraw

from gmlp_flax import cli
from gmlp_flax import config as config_lib
from gmlp_flax.data.errors import DataError
from gmlp_flax.tasks import mixing
from gmlp_flax.tasks.image_classification import ImageClassification

GAP = 4  # pixels between pictures
LEAST_SIDE = 96  # pixels; smaller pictures are drawn larger


def sampled(task: ImageClassification, pictures: int, samples: int) -> np.ndarray:
    """Evenly spread pictures of the training data: uint8 [pictures, 1 + samples, height, width, channels]."""
    source = task.training_source()
    rows = []
    for place in np.linspace(0, len(source) - 1, min(pictures, len(source))).astype(int):
        example = source[int(place)]
        rngs = [np.random.default_rng([task.config.seed, place, sample]) for sample in range(samples)]
        views = [task.evaluation_example(example), *(task.training_example(example, rng) for rng in rngs)]
        rows.append(np.stack([view["image"] for view in views]))
    return np.stack(rows)


def mixed(views: np.ndarray, config: ConfigDict) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of (pictures, shares of their own labels): unmixed, and mixed by each kind that the config uses.

    Args:
        views: uint8 [pictures, height, width, channels], an even number of them.
        config: the whole config.
    """
    rows, augment = [(views, np.ones(len(views)))], config.augment
    keys = mixing.pair_keys(jax.random.split(jax.random.key(config.seed), len(views)))
    for kind in ("mixup", "cutmix"):
        if augment[kind]:
            alphas = {"mixup": 0.0, "cutmix": 0.0, kind: augment[kind]}
            own, shares = mixing.own_weights(keys, views.shape[1:3], switch=0.5, **alphas)
            rows.append((np.asarray(mixing.blend_pixels(views, own)), np.asarray(shares)))
    return rows if len(rows) > 1 else []


def grid(rows: list[tuple[np.ndarray, list[str]]]) -> Image.Image:
    """One picture of rows of (pictures, uint8 [columns, height, width, channels], and a word below each)."""
    height, width = rows[0][0].shape[1:3]
    scale = -(-LEAST_SIDE // min(height, width))
    cell_height, cell_width, columns = height * scale + 14 + GAP, width * scale + GAP, max(len(row) for row, _ in rows)
    canvas = Image.new("RGB", (columns * cell_width + GAP, len(rows) * cell_height + GAP), "white")
    draw = ImageDraw.Draw(canvas)
    for line, (pictures, words) in enumerate(rows):
        for column, (pixels, word) in enumerate(zip(pictures, words, strict=True)):
            corner = GAP + column * cell_width, GAP + line * cell_height
            picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
            canvas.paste(picture.resize((width * scale, height * scale), Image.Resampling.NEAREST), corner)
            draw.text((corner[0], corner[1] + height * scale), word, fill="black")
    return canvas


def main(_argv: list[str]) -> None:
    """Draws the grid and says where it is."""
    values = flags.FLAGS
    config, out = values.config, values.out
    if config is None or not out:
        cli.fail("--config or --out is missing; usage: python scripts/show_augmentations.py --config=FILE --out=PNG")
    config_lib.validate(config)
    if config.task != "image_classification":
        raise config_lib.ConfigError(f"config.task is {config.task!r}: expected image_classification")
    task = ImageClassification(config, os.path.dirname(os.path.abspath(out)))
    views = sampled(task, values.pictures, values.samples)
    rows = [(row, ["original"] + [config.augment.auto] * values.samples) for row in views]
    # As many unmixed samples as fill a row, each of another picture.
    samples = np.concatenate(list(views[:, 1:].swapaxes(0, 1)))[: (values.samples + 1) // 2 * 2]
    names = iter(("before mixing", *(kind for kind in ("mixup", "cutmix") if config.augment[kind])))
    for pictures, shares in mixed(samples[: len(samples) // 2 * 2], config):
        name = next(names)
        rows.append((pictures, [f"{name} {share:.2f}" if share < 1 else name for share in shares]))
    try:
        grid(rows).save(out)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot write --out={out} ({error}): name a .png in a folder that exists") from None
    print(f"{len(views)} pictures, {values.samples} samples of each: {out}")


def define_flags() -> None:
    """Defines what the command takes."""
    config_flags.DEFINE_config_file("config", None, "A config file, as in training.", lock_config=True)
    flags.DEFINE_string("out", None, "The picture to write.")
    flags.DEFINE_integer("pictures", 8, "Rows.", lower_bound=1)
    flags.DEFINE_integer("samples", 7, "Augmented samples of each picture.", lower_bound=1)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
