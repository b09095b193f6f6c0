"""Records of images, and images that a user gives, to what a model reads."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from gmlp_flax.data.images import views
from gmlp_flax.data.images.augment import Augmentation, augment
from gmlp_flax.data.images.folders import IMAGE_BYTES
from gmlp_flax.errors import DataError
from gmlp_flax.io import files


def training_example(
    example: dict,
    rng: np.random.Generator,
    *,
    size: tuple[int, int],
    channels: int,
    flip: bool,
    min_scale: float,
    augmentation: Augmentation = Augmentation(),
) -> dict:
    """A record to {"image" uint8 [*size, channels], "label"}: random crop and flip, then `augmentation`."""
    image = views.training_view(
        example["image"], size, rng, name=example.get("name", ""), channels=channels, flip=flip, min_scale=min_scale
    )
    return {"image": augment(image, rng, augmentation), "label": example["label"]}


def evaluation_example(example: dict, *, size: tuple[int, int], channels: int, eval_crop: float) -> dict:
    """A record to {"image" uint8 [*size, channels], "label"}: resize and centre crop."""
    return {"image": views.evaluation_view(_pixels(example, channels), size, eval_crop), "label": example["label"]}


def record_of(image: Any, channels: int) -> dict[str, Any]:
    """A record of an image to predict: the path of a file, or pixels.

    Raises:
        DataError: the file cannot be read, or the pixels are not uint8 [height, width, channels].
    """
    if isinstance(image, str | os.PathLike):
        return {"image": files.read_small(image, IMAGE_BYTES), "name": str(image), "label": 0}
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.shape[2:] != (channels,):
        got = f"{pixels.dtype} {list(pixels.shape)}"
        raise DataError(f"an image is a path or an array uint8 [height, width, {channels}], not {got}")
    return {"image": pixels, "name": "the array", "label": 0}


def _pixels(example: dict, channels: int) -> np.ndarray:
    if isinstance(example["image"], np.ndarray):
        return example["image"]
    return views.decode(example["image"], example["name"], channels)
