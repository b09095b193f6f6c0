"""The benchmark's part `images`: the cost of a training image from file to pixels, next to plain
Pillow."""

import functools
import io
import os
import tarfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from gmlp_flax.benchmarks.timing import Row, measure, per_second, ratios, row
from gmlp_flax.data import pipeline
from gmlp_flax.data.images import augment, decoding, views
from gmlp_flax.data.images.augment import Augmentation
from gmlp_flax.data.images.views import training_example
from gmlp_flax.errors import DataError
from gmlp_flax.io import files as io_files

SIZE = (224, 224)
MIN_SCALE = 0.08
CROP = views.Crop(MIN_SCALE, flip=True)
MOST = 100  # images to read: more would only take longer
BATCH = 50
BATCHES = 12
GREY = (128, 128, 128)  # the default fill of what rotations bring into view

# The operations of AutoAugment's policy as in timm, which draws one of two interpolations; here
# always the cheaper.
PLAIN = {
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Equalize": lambda image, _: ImageOps.equalize(image),
    "Invert": lambda image, _: ImageOps.invert(image),
    "Posterize": ImageOps.posterize,
    "Solarize": ImageOps.solarize,
    "Color": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    "Contrast": lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    "Sharpness": lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
    "Rotate": lambda image, degrees: image.rotate(
        degrees, Image.Resampling.BILINEAR, fillcolor=GREY
    ),
    "ShearX": lambda image, shear: image.transform(
        image.size,
        Image.Transform.AFFINE,
        (1, shear, 0, 0, 1, 0),
        Image.Resampling.BILINEAR,
        fillcolor=GREY,
    ),
}

Call = Callable[[bytes, np.random.Generator], np.ndarray]


def bench_images(repeats: int, images: str | None = None) -> list[Row]:
    """Our stages next to plain Pillow's, by CPU time, and two worker processes next to one.

    Args:
        repeats: measurements of each figure; at most 3 for the worker processes.
        images: a tar file or a folder of JPEG files, however nested; without it, they are made up.

    Raises:
        DataError: there is no JPEG file there.
    """
    files = jpegs(images) if images else made_up(MOST)
    count = len(files)
    kind = "photographs" if images else "made-up images"
    kilobytes = sum(len(data) for data in files) / count / 1e3
    rows = [row(f"{count} {kind}: size of a file", [kilobytes], "KB")]
    rows += _stage_rows(files, repeats)
    rows += _bench_workers(files, min(repeats, 3))
    return rows


def _call_for_each(files: Sequence[bytes], call: Call) -> None:
    for seed, data in enumerate(files):
        call(data, np.random.default_rng(seed))


def _stage_rows(files: Sequence[bytes], repeats: int) -> list[Row]:
    """The rate of each stage in Pillow and here, then our speed over Pillow's."""
    calls = {}
    for name, stage in STAGES.items():
        calls[f"Pillow: {name}"] = functools.partial(_call_for_each, files, stage.plain)
        calls[f"ours: {name}"] = functools.partial(_call_for_each, files, stage.ours)
    # on one core: no call starts threads
    seconds = measure(calls, repeats, clock=time.process_time)
    rows = []
    for name, values in seconds.items():
        rates = per_second(len(files), values)
        rows.append(row(name, rates, "images/s/core"))
    for name in STAGES:
        speed = ratios(seconds[f"Pillow: {name}"], seconds[f"ours: {name}"])
        goal = GOALS.get(name, "")
        rows.append(row(f"{name}, ours / Pillow", speed, "x", goal))
    return rows


def _plain_decode(data: bytes, _rng: np.random.Generator) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    return image.convert("RGB")


def _plain_view(data: bytes, rng: np.random.Generator) -> Image.Image:
    """A view as torchvision and timm make it, with our random draws."""
    image = _plain_decode(data, rng)
    top, left, height, width = views.random_box(image.height, image.width, rng, MIN_SCALE)
    right = left + width
    bottom = top + height
    cropped = image.crop((left, top, right, bottom))
    view_height, view_width = SIZE
    view = cropped.resize((view_width, view_height), Image.Resampling.BICUBIC)
    if rng.random() < 0.5:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return view


def _plain_augmented(data: bytes, rng: np.random.Generator) -> Image.Image:
    """Our policy and random draws, with Pillow's operations."""
    image = _plain_view(data, rng)
    policy = augment.IMAGENET_POLICY
    chosen = policy[rng.integers(len(policy))]
    for name, probability, magnitude in chosen:
        if rng.random() >= probability:
            continue
        _, argument, signed = augment.OPERATIONS[name]
        value = argument(magnitude / augment.MAX_MAGNITUDE) if argument else 0
        if signed and rng.random() < 0.5:
            value = -value
        image = PLAIN[name](image, value)
    return image


def _as_array(call: Callable[[bytes, np.random.Generator], Image.Image]) -> Call:
    return lambda data, rng: np.asarray(call(data, rng))


def _our_decode(data: bytes, _rng: np.random.Generator) -> np.ndarray:
    return decoding.decode(data, "a")


def _our_view(data: bytes, rng: np.random.Generator) -> np.ndarray:
    return views.training_view(data, SIZE, rng, crop=CROP)


# The task's own transform, as its worker processes run it.
_transform = functools.partial(
    training_example,
    size=SIZE,
    crop=CROP,
    augmentation=Augmentation("autoaugment"),
)


def _our_augmented(data: bytes, rng: np.random.Generator) -> np.ndarray:
    example = _transform({"image": data, "name": "a", "label": 0}, rng)
    return example["image"]


class Stage(NamedTuple):
    """A stage of reading an image.

    Attributes:
        plain: in Pillow.
        ours: here.
    """

    plain: Call
    ours: Call


STAGES = {
    "decode": Stage(_as_array(_plain_decode), _our_decode),
    "and random crop and flip": Stage(_as_array(_plain_view), _our_view),
    "and AutoAugment": Stage(_as_array(_plain_augmented), _our_augmented),
}
GOALS = {"and AutoAugment": ">= 1.7"}  # of stages, for our speed over Pillow's


def _bench_workers(files: Sequence[bytes], repeats: int) -> list[Row]:
    """Batches from one worker process and from two, in turn, once they arrive steadily."""
    source: Any = [{"image": data, "name": "a", "label": 0} for data in files]
    rates: dict[int, list[float]] = {1: [], 2: []}
    for repeat in range(repeats):
        for workers, rates_of_workers in rates.items():
            order = pipeline.Shuffled(source, repeat, _transform)
            rate = _rate_of_batches(order, workers)
            rates_of_workers.append(rate)
    rows = []
    for workers, rates_of_workers in rates.items():
        rows.append(row(f"batches from {workers} worker process(es)", rates_of_workers, "images/s"))
    speedup = ratios(rates[2], rates[1])
    rows.append(row("2 worker processes / 1", speedup, "x", ">= 1.7"))
    return rows


def jpegs(path: str) -> list[bytes]:
    """The first JPEG files, by name, of a tar file or folder; raises DataError if there is none."""
    is_tar = os.path.isfile(path) and tarfile.is_tarfile(path)
    files = _in_tar(path) if is_tar else _in_folder(path)
    if not files:
        raise DataError(
            f"no .jpg or .jpeg file in {path!r}; give a tar file or a folder of JPEG files"
        )
    return files


def _in_tar(path: str) -> list[bytes]:
    contents = []
    with tarfile.open(path) as tar:
        members = [member for member in tar if member.isfile() and _is_jpeg(member.name)]
        members.sort(key=lambda member: member.name)
        for member in members[:MOST]:
            file = tar.extractfile(member)
            if file is not None:
                contents.append(file.read())
    return contents


def _in_folder(path: str) -> list[bytes]:
    paths = [file.path for file in io_files.find_files(path) if _is_jpeg(file.name)]
    return [io_files.read_small(path) for path in paths[:MOST]]


def _is_jpeg(name: str) -> bool:
    return name.lower().endswith((".jpg", ".jpeg"))


def _rate_of_batches(order: pipeline.Shuffled, workers: int) -> float:
    """Images per second from some worker processes."""
    reading = pipeline.Reading(BATCH, workers=workers)
    with pipeline.train_batches(order, reading) as batches:
        # These were read ahead while the processes started.
        for _ in range(4 * workers):
            next(batches)
        start = time.perf_counter()
        for _ in range(BATCHES):
            next(batches)
        seconds = time.perf_counter() - start
    return BATCH * BATCHES / seconds


# Cells along each side of a square of noise -> its strength, from the coarsest.
NOISE = {4: 40, 16: 30, 64: 20, 250: 12}


def made_up(count: int) -> list[bytes]:
    """JPEG files as large as ImageNet's (500 x 375, about 100 KB): noise of every scale, most of it
    coarse."""
    return [_made_up_image(seed) for seed in range(count)]


def _made_up_image(seed: int) -> bytes:
    """One of them."""
    rng = np.random.default_rng(seed)
    pixels = np.full((375, 500, 3), 128.0)
    for cells, strength in NOISE.items():
        noise = rng.integers(0, 256, (cells, cells, 3), np.uint8)
        resized = Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC)
        centred = np.asarray(resized) / 64.0 - 2
        pixels += strength * centred
    clipped = pixels.clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(clipped).save(file, "JPEG", quality=92)
    return file.getvalue()
