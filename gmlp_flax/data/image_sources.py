"""Labelled images as random-access sources: what a path names, its splits, its held-out part, its list of classes.

A path is one of

    a folder of class folders, or a tar file of one (see image_folders).
    a TFDS folder: .../imagenet2012/5.1.0, with features.json and dataset_info.json, as ArrayRecord or TFRecord.
    tfds:NAME[/CONFIG][:VERSION]: such a folder below TFDS_DATA_DIR or ~/tensorflow_datasets (see tfds_folders).

A source has `len(source)`, `source[i]` (a dict with "image", "label" and "name"), `.classes` (names, the label is the
position) and `.path`. Sources are read-only, picklable and safe to read from several threads.
"""

import os
import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gmlp_flax.data import image_tfds
from gmlp_flax.data.errors import DataError
from gmlp_flax.data.image_folders import ImageFolder, ImageTar
from gmlp_flax.data.image_tfds import TFDSImages

_HELDOUT_SPLITS = ("validation", "test")  # the first that a data set has is held out


class ImageSource(Protocol):
    """What the functions below need of a source."""

    classes: tuple[str, ...]
    path: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict: ...


class ImageArrays:
    """Images already decoded: items are {"image": images[i], "label": int32, "name": which}.

    Args:
        images: uint8 [examples, height, width, channels].
        labels: int32 [examples], positions in `classes`.
        classes: the class names.
        name: what the source calls itself.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], name: str):
        self.images, self.labels, self.classes, self.path = images, labels, classes, name

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict:
        return {"image": self.images[index], "label": self.labels[index], "name": f"image {index}"}

    def __repr__(self) -> str:
        return f"ImageArrays({self.path!r}, images={len(self)}, classes={len(self.classes)})"


class Subset:
    """The examples of `source` at `indices` (int [examples]), in that order, with the classes of the whole."""

    def __init__(self, source: ImageSource, indices: np.ndarray):
        self.source, self.classes, self.path = source, source.classes, source.path
        self.indices = np.asarray(indices, np.int64)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> dict:
        return self.source[int(self.indices[index])]

    def __repr__(self) -> str:
        return f"Subset({self.source!r}, images={len(self)}, crc={zlib.crc32(self.indices.tobytes()):08x})"


def open_images(path: str) -> ImageFolder | ImageTar:
    """Opens a folder or a tar file of class folders; raises DataError where there is neither."""
    if not os.path.exists(path):
        raise DataError(f"no images at {str(path)!r}: expected a folder or a tar file of class folders; check the path")
    return ImageFolder(path) if os.path.isdir(path) else ImageTar(path)


def open_side(
    path: str, side: str, *, split: str = "", heldout_split: str = "", heldout_share: float = 0.0,
    cache_folder: str = "",
) -> ImageSource:
    """The images at `path` to train on, or those held out.

    Of a data set with splits, `train` is for training, and `validation` or else `test` is held out. Where there is no
    such split, a share of the training images is (see split_images).

    Args:
        path: see the module's docstring.
        side: "train" or "heldout".
        split, heldout_split: other splits than these.
        heldout_share: 0 where each side has a path of its own: all that is at `path`, or one split, is the side.
        cache_folder: see TFDSImages.

    Raises:
        DataError: nothing there, no such split, or one that would be both trained on and held out.
    """
    folder = image_tfds.folder_at(path)
    if folder is None:
        if split or heldout_split:
            raise DataError(f"{path!r} has no splits: config.data.split and heldout_split are for TFDS folders")
        source = open_images(path)
        return _shared(source, side, heldout_share) if heldout_share else source
    known = tuple(folder.lengths)
    train = split or "train"
    heldout = heldout_split or next((name for name in _HELDOUT_SPLITS if name in known), "")
    if not heldout_share:
        only = known[0] if len(known) == 1 else ""
        return TFDSImages(folder, train if side == "train" else heldout or only or "validation", cache_folder)
    if heldout == train and heldout_split:
        raise DataError(
            f"the split {heldout!r} of {path!r} would be both trained on and held out; give two splits as "
            f"config.data.split and heldout_split (it has {', '.join(known)})"
        )
    if heldout and heldout != train:
        return TFDSImages(folder, {"train": train, "heldout": heldout}[side], cache_folder)
    return _shared(TFDSImages(folder, train, cache_folder), side, heldout_share)


def _shared(source: ImageSource, side: str, heldout_share: float) -> Subset:
    return split_images(source, heldout_share)[side == "heldout"]


def split_images(source: ImageSource, heldout_share: float) -> tuple[Subset, Subset]:
    """Splits a source into (train, heldout).

    Class by class, by the hash of the images' names: each class holds out about `heldout_share` of its images and has
    at least one on either side. Of a TFDS split, whose labels are known from its records alone, by the hash of the
    records' positions, over all classes.

    Raises:
        DataError: `heldout_share` is not between 0 and 1, or a class, or the whole, has a single image.
    """
    if not 0 < heldout_share < 1:
        raise DataError(f"heldout_share={heldout_share} is not between 0 and 1; 0.1 holds out 10 % of the images")
    if isinstance(source, TFDSImages):
        names, labels, groups = map(str, range(len(source))), np.zeros(len(source), np.int32), (source.split,)
    else:
        names, labels, groups = source.names, source.labels, source.classes
    hashes = np.array([zlib.crc32(name.encode("utf-8", "surrogateescape")) for name in names])
    train, heldout = [], []
    for label, name in enumerate(groups):
        members = np.flatnonzero(labels == label)
        if len(members) < 2:
            raise DataError(f"class {name!r} of {source!r} has a single image: add one, or remove the class")
        members = members[np.argsort(hashes[members], kind="stable")]
        cut = np.clip(np.sum(hashes[members] < heldout_share * 2**32), 1, len(members) - 1)
        heldout.append(members[:cut])
        train.append(members[cut:])
    return Subset(source, np.sort(np.concatenate(train))), Subset(source, np.sort(np.concatenate(heldout)))


def require_classes(source: ImageSource, classes: Sequence[str], where: str) -> None:
    """Raises DataError, naming what differs, unless a source has the list of `classes` that `where` has."""
    if tuple(source.classes) == tuple(classes):
        return
    missing, added = (
        _listed(sorted(set(one) - set(other)))
        for one, other in ((classes, source.classes), (source.classes, classes))
    )
    if missing == added == _listed([]):
        pairs = enumerate(zip(classes, source.classes, strict=False))
        label, names = next((label, names) for label, names in pairs if names[0] != names[1])
        what = f"they are in another order, label {label} is {names[1]!r} and not {names[0]!r}"
    else:
        what = f"{missing} only there, {added} only in {source.path!r}"
    raise DataError(
        f"{source.path!r} has {len(source.classes)} classes which differ from those of {where}: {what}; give data with "
        "the same list of classes"
    )


def _listed(names: list[str], most: int = 5) -> str:
    rest = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join([*map(repr, names[:most]), *rest]) or "none"
