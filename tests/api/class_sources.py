"""Labelled images whose brightness is their class, in the form of each kind of source."""

import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from gmlp_flax import config as config_lib

COUNT = 12  # classes, so that alphabetical order differs from numerical order
SIZE = 8


class Images:
    """Images whose brightness is their class; names[level] is the name of a level."""

    def __init__(self, names, labels):
        self.names = names
        self.labels = np.asarray(labels)
        levels = self.labels * 255 // (COUNT - 1)
        grey = levels.astype(np.uint8)
        shape = (len(grey), SIZE, SIZE, 1)
        self.pixels = np.broadcast_to(grey.reshape(-1, 1, 1, 1), shape)

    def named(self):
        return [self.names[label] for label in self.labels]


NUMBERS = [str(number) for number in range(COUNT)]
WORDS = [f"w{(5 * number) % COUNT:02}" for number in range(COUNT)]  # not in alphabetical order


def write_png(path: Path, pixels) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    grey = np.ascontiguousarray(pixels[..., 0])
    Image.fromarray(grey).save(path)


def folders(images, root):
    for index, name in enumerate(images.named()):
        write_png(root / name / f"{index}.png", images.pixels[index])
    return str(root)


def table(images, root):
    lines = ["file_name,label"]
    for index, name in enumerate(images.named()):
        write_png(root / f"{index}.png", images.pixels[index])
        lines.append(f"{index}.png,{name}")
    (root / "labels.csv").write_text("\n".join(lines))
    return str(root)


def npz(images, root):
    path = f"{root}.npz"
    np.savez(path, images=images.pixels, labels=np.array(images.named()))
    return path


def _encoded(images, root):
    cells = []
    for index, pixels in enumerate(images.pixels):
        path = root.parent / f"{root.name}_png" / f"{index}.png"
        write_png(path, pixels)
        cells.append({"bytes": path.read_bytes(), "path": None})
    return cells


def parquet(images, root):
    rows = pyarrow.table({"image": _encoded(images, root), "label": images.named()})
    pyarrow.parquet.write_table(rows, f"{root}.parquet")
    return f"{root}.parquet"


def declared_parquet(images, root):
    """As the package datasets writes it: labels are positions in the names that the file declares."""
    rows = pyarrow.table({"image": _encoded(images, root), "label": images.labels})
    feature = {"label": {"names": images.names, "_type": "ClassLabel"}}
    described = json.dumps({"info": {"features": feature}})
    rows = rows.replace_schema_metadata({"huggingface": described})
    pyarrow.parquet.write_table(rows, f"{root}.parquet")
    return f"{root}.parquet"


class _Feature:
    def __init__(self, names):
        self.names = names


class _Dataset(list):
    """The parts of a datasets.Dataset that are read."""


def declared_rows(images, root):
    rows = []
    for pixels, label in zip(images.pixels, images.labels, strict=True):
        rows.append({"image": pixels, "label": int(label)})
    data = _Dataset(rows)
    data.features = {"label": _Feature(images.names)}
    return data


def arrays(images, root):
    return (images.pixels, np.array(images.named()))


def numbers(images, root):
    """Positions without names."""
    return (images.pixels, images.labels)


def pairs(images, root):
    named_pixels = zip(images.pixels, images.named(), strict=True)
    return iter(list(named_pixels))


SOURCES = {
    "folders": folders,
    "table": table,
    "npz": npz,
    "parquet": parquet,
    "declared parquet": declared_parquet,
    "datasets": declared_rows,
    "arrays of names": arrays,
    "arrays of numbers": numbers,
    "iterable": pairs,
}


def images_of(names, seed):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(COUNT), 3))
    return Images(names, labels)


def small_config():
    config = config_lib.from_file("quickstart_image")
    config.model.update(image_size=(SIZE, SIZE), patch_size=(4, 4))
    config.model.update(layers=1, d_model=16, d_ffn=16)
    config.data.heldout_share = 0.4
    return config
