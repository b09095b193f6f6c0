"""Opens a sample of the images of a data set, for notes on their files."""

import contextlib
import io
from typing import NamedTuple

from PIL import Image

from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.fingerprints import spread
from gmlp_flax.data.images import decoding


class Sampled(NamedTuple):
    """What is known from a sample of the images.

    Attributes:
        looked_at: how many images were opened.
        animated: names of images with several frames or pages, of which only the first is read.
        brightest: the largest pixel of each image that is grey in 16 bits.
    """

    looked_at: int
    animated: tuple[str, ...]
    brightest: tuple[int, ...]


def sample(dataset: Dataset) -> Sampled:
    """Opens some images of a data set, evenly spread over it."""
    looked_at = spread(len(dataset))
    animated = []
    brightest = []
    for index in looked_at:
        content = dataset.examples.content(index)
        stream = io.BytesIO(content)
        with contextlib.suppress(Exception), Image.open(stream) as file:
            # MPO files come from cameras, and their other frames are thumbnails.
            if file.format != "MPO" and getattr(file, "is_animated", False):
                example = dataset.examples[index]
                animated.append(example["name"])
            brightest_of_file = decoding.brightest_wide_pixel(file)
            if brightest_of_file:
                brightest.append(brightest_of_file)
    return Sampled(len(looked_at), tuple(animated), tuple(brightest))


def notes(sampled: Sampled, max_value: int) -> list[str]:
    """Lines for the user on sampled images; `max_value` is what 16-bit images are divided by."""
    lines = []
    if sampled.animated:
        count = len(sampled.animated)
        name = sampled.animated[0]
        lines.append(
            f"note: {count} of {sampled.looked_at} images that were opened have "
            f"several frames, such as {name!r}: the first is read"
        )
    if sampled.brightest:
        wide = len(sampled.brightest)
        most = max(sampled.brightest)
        lines.append(
            f"note: {wide} of {sampled.looked_at} images that were opened have 16 bits; their "
            f"pixels are divided by data.max_value={max_value:,}, and the brightest is {most:,}"
        )
    return lines
