"""Class folders, tar files and TFDS folders of images for the tests."""

import io
import tarfile
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from tests.data import writers

FEATURES = {
    "image": tfds.features.Image(shape=(None, None, 3)),
    "label": tfds.features.ClassLabel(names=["cat", "dog", "eel"]),
    "file_name": tfds.features.Text(),
}


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    """An image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(seed: int, size: tuple[int, int] = (9, 7)) -> bytes:
    """An image of noise, of size (height, width)."""
    return encoded(Image.fromarray(noise(*size, 3, seed=seed)))


def make_folder(path, files):
    for name, data in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data) if data is not None else file.mkdir()
    return path


def make_tar(path, files, suffix=""):
    path = path / f"images.tar{'.' * bool(suffix)}{suffix}"
    with tarfile.open(path, f"w:{suffix}") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(data or b"")
            member.type = tarfile.REGTYPE if data is not None else tarfile.DIRTYPE
            tar.addfile(member, io.BytesIO(data or b""))
    return path


def record(index: int, label: int | None = None, image: bytes | None = None) -> bytes:
    """An example as TFDS's imagenet2012 has them; without a label, labels are 0, 1, 2, 0, ...."""
    return writers.example(
        image=png(index) if image is None else image,
        label=index % 3 if label is None else label,
        file_name=b"ILSVRC2012_val_%08d.JPEG" % (index + 1),
    )


def tfds_folder(folder: Path, splits: dict[str, list[int]], file_format: str, **features) -> Path:
    """A TFDS folder: split name -> how many examples in each shard, numbered from 0 in each
    split."""
    shards = {
        name: [
            [record(sum(counts[:i]) + k) for k in range(count)] for i, count in enumerate(counts)
        ]
        for name, counts in splits.items()
    }
    return writers.tfds_folder(folder, shards, file_format, **(features or FEATURES))
