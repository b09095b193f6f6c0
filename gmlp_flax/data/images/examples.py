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
    record: dict, rng: np.random.Generator, *, augmentation: Augmentation = Augmentation(), **view: Any
) -> dict:
    """A record to {"image" uint8 [*size, channels], "label"}: random crop and flip, then `augmentation`.

    `view` are the options of `views.training_view`.
    """
    image = views.training_view(record["image"], rng=rng, name=record.get("name", ""), **view)
    return {"image": augment(image, rng, augmentation), "label": record["label"]}


def evaluation_example(record: dict, *, size: tuple[int, int], channels: int, eval_crop: float) -> dict:
    """A record, without its name, whose "image" is resized and cropped to uint8 [*size, channels]."""
    image = record["image"]
    pixels = image if isinstance(image, np.ndarray) else views.decode(image, record["name"], channels)
    others = {key: value for key, value in record.items() if key != "name"}
    return others | {"image": views.evaluation_view(pixels, size, eval_crop)}


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
