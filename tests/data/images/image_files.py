"""Class folders, tar files and TFDS folders of images for the tests."""

import io
import itertools
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image, ImageOps

from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.images import stores
from gmlp_flax.data.images.stores import Store
from tests.data import writers

FEATURES = {
    "image": tfds.features.Image(shape=(None, None, 3)),
    "label": tfds.features.ClassLabel(names=["cat", "dog", "eel"]),
    "file_name": tfds.features.Text(),
}

Contents = Mapping[str, bytes | None]  # name -> content of a file; None for a folder


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Random pixels: uint8 of a shape."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, shape, np.uint8)


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    """An image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def file_of(pixels: np.ndarray, kind: str = "PNG", **options) -> bytes:
    """Pixels [height, width] or [height, width, channels] as a file."""
    image = Image.fromarray(pixels)
    return encoded(image, kind, **options)


def png(seed: int, size: tuple[int, int] = (9, 7)) -> bytes:
    """An image of noise, of size (height, width)."""
    return file_of(noise(*size, 3, seed=seed))


def smooth(height: int, width: int) -> np.ndarray:
    """An image without edges, of which JPEG loses little."""
    small = Image.fromarray(noise(6, 8, 3))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


def turned(orientation: int) -> Image.Exif:
    """EXIF data with an orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def upright_pixels(data: bytes) -> np.ndarray:
    """Pillow's pixels of a file, upright."""
    stream = io.BytesIO(data)
    with Image.open(stream) as image:
        upright = ImageOps.exif_transpose(image)
    return np.asarray(upright)


def make_folder(path: Path, files: Contents) -> Path:
    """Writes files below a folder."""
    path.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            file.mkdir()
        else:
            file.write_bytes(data)
    return path


def make_tar(path: Path, files: Contents, suffix: str = "", name: str = "images.tar") -> Path:
    """Writes files to a tar file in a folder, compressed if there is a suffix such as "gz"."""
    path.mkdir(parents=True, exist_ok=True)
    if suffix:
        name = f"{name}.{suffix}"
    tar_path = path / name
    with tarfile.open(tar_path, f"w:{suffix}") as tar:
        for member_name, data in files.items():
            member = tarfile.TarInfo(f"./{member_name}")
            if data is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(data)
            tar.addfile(member, io.BytesIO(data or b""))
    return tar_path


def empty_files(*names: str) -> dict[str, bytes]:
    """Files without content, for tests that only read names."""
    return dict.fromkeys(names, b"")


def open_store(path: str) -> Store:
    """The files of a folder or of a tar file."""
    return stores.open_tar(path) if path.endswith(".tar") else stores.open_folder(path)


def classes_by_name(dataset: Dataset) -> dict[str, str]:
    """Name of the image -> name of its class."""
    found = {}
    for index, label in enumerate(dataset.labels):
        name = dataset.examples[index]["name"]
        found[name] = dataset.classes[label]
    return found


def images_by_name(dataset: Dataset) -> dict[str, bytes]:
    """Name of the image -> its encoded bytes, or its pixels."""
    images = {}
    for index in range(len(dataset)):
        example = dataset.examples[index]
        images[example["name"]] = example["image"]
    return images


def record(index: int, label: int | None = None, image: bytes | None = None) -> bytes:
    """An example as in TFDS's imagenet2012. By default, the labels are 0, 1, 2, 0, ...."""
    return writers.example(
        image=png(index) if image is None else image,
        label=index % 3 if label is None else label,
        file_name=b"ILSVRC2012_val_%08d.JPEG" % (index + 1),
    )


def tfds_folder(folder: Path, splits: dict[str, list[int]], file_format: str, **features) -> Path:
    """A TFDS folder: split name -> the number of examples in each shard.

    The examples of each split are numbered from 0.
    """
    shards = {}
    for name, counts in splits.items():
        indices = itertools.count()
        shards[name] = []
        for count in counts:
            records = [record(index) for index in itertools.islice(indices, count)]
            shards[name].append(records)
    return writers.tfds_folder(folder, shards, file_format, **(features or FEATURES))
