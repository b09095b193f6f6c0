"""A classifier of your own images, no code needed.

    gmlp train --config=own_images:PATH --workdir=runs/mine
    gmlp train --config=own_images:SIZE --workdir=runs/mine \\
        --config.data.train=PATH [--config.data.heldout=PATH | --config.data.heldout_share=0.05]

PATH is a folder with one folder of images per class, a tar of one, or `tfds:NAME`. The number of
images to train on decides the size and the number of steps, and a line says what was chosen and
why. Keys that you set, such as `--config.steps`, take precedence. SIZE is

    tiny             4 layers of 64 channels, at 64 x 64: for fewer than 2,000 images
    small            (default) 8 layers of 128 channels, at 64 x 64, for a CPU
    gmlp_ti, gmlp_s, gmlp_b
                     Table 1, at 224 x 224; for an accelerator
"""

import sys

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.holdout import TRAIN
from gmlp_flax.data.readers import images
from gmlp_flax.errors import DataError, counted
from gmlp_flax.io import files
from gmlp_flax.paper import recipes
from gmlp_flax.tasks.data import config as data_config
from gmlp_flax.tasks.data import images as image_data

SIZES = ("small", "tiny", "gmlp_ti", "gmlp_s", "gmlp_b")
TINY = dict(layers=4, d_model=64, d_ffn=384)
SMALL = dict(layers=8, d_model=128, d_ffn=768)
ENOUGH = 2000  # images for `small`
BATCH_SIZE = 64
STEPS = 2000  # of tiny and small; the most for a PATH
FEWEST_STEPS = 100  # for a PATH
PASSES = 50  # over the images, between these two


def count(config) -> int:
    """The images that a config trains on. Raises DataError: they cannot be read as it says."""

    def read(path: str, ignore_splits: bool):
        return images.read(path, config.data.cache, ignore_splits)

    heldout = image_data.HELDOUT_SPLITS
    dataset = data_config.open_split(config, TRAIN, read, image_data.EXPECTED, heldout)
    return len(dataset)


def is_path(arg: str) -> bool:
    """Whether the argument is a path to images and not a size."""
    if arg in SIZES or not arg:
        return False
    return arg.startswith("tfds:") or files.exists(arg)


def steps_for(images: int) -> int:
    """The steps that suit a number of images: PASSES over them, in twenties."""
    steps = 20 * round(PASSES * images / BATCH_SIZE / 20)
    return min(max(steps, FEWEST_STEPS), STEPS)


def suited(path: str):
    """The config whose size and steps suit the images at a path; says why."""
    config = small_images("small")
    config.data.train = path
    try:
        images = count(config)
    except DataError:  # the run raises it, unless another key solves it
        print(
            f"own_images:small, because the images in {path} could not be counted", file=sys.stderr
        )
        return config
    size = "small"
    why = f"it suits {ENOUGH:,} images and more"
    if images < ENOUGH:
        size = "tiny"
        why = f"with fewer than {ENOUGH:,} images a larger model is slower and no better"
    config = small_images(size)
    config.data.train = path
    config.steps = steps_for(images)
    config.optimizer.warmup = config.steps // 10
    config.checkpoint.every = config.eval.every = config.steps // 4
    passes = config.steps * config.batch_size / images
    print(
        f"own_images:{size}, {config.steps:,} steps for {counted(images, 'image')} to train on in "
        f"{path}, {passes:,.0f} passes over them: {why}. Keys that you set take precedence, but "
        "keys that change what is held out do not change this count.",
        file=sys.stderr,
    )
    return config


def small_images(size: str):
    """The config of tiny or small, at 64 x 64."""
    config = gmlp_config.default(task="image_classification")
    set_common(config)
    config.model.update(image_size=(64, 64), patch_size=(8, 8))
    config.model.update(TINY if size == "tiny" else SMALL)
    return config


def set_common(config) -> None:
    """Sets what all sizes share."""
    config.data.train = ""  # to be given
    config.steps = STEPS
    config.batch_size = BATCH_SIZE
    config.model.spatial = "dense"
    config.optimizer.update(learning_rate=1e-3, warmup=200, weight_decay=0.05, label_smoothing=0.1)
    config.checkpoint.every = config.eval.every = 500


def get_config(arg: str = "small"):
    """See the module's docstring."""
    if is_path(arg):
        return suited(arg)
    gmlp_config.note_path("own_images", arg)
    (size,) = gmlp_config.arguments(arg or "small", (*SIZES, "a folder or a file of images"))
    if size in ("tiny", "small"):
        return small_images(size)
    config = recipes.image_model(size)
    set_common(config)
    config.model.dtype = "bfloat16"
    config.steps = 100_000
    config.batch_size = 1024
    config.optimizer.warmup = 10_000
    config.eval.every = config.checkpoint.every = 5000
    return config
