"""Labelled images as random-access sources: opening a path, its two sides, and its list of classes.

A path is one of

    a folder with one folder of images per class, or a tar file of one (see `folders`).
    a folder of one difficulty of Pathfinder, with metadata/ and imgs/ (see `pathfinder`).
    a TFDS folder: .../imagenet2012/5.1.0, with features.json and dataset_info.json, as ArrayRecord or TFRecord.
    tfds:NAME[/CONFIG][:VERSION]: a TFDS folder below TFDS_DATA_DIR or ~/tensorflow_datasets (see tfds_folders).
"""

import zlib
from collections.abc import Sequence

import numpy as np

from gmlp_flax.data import splits
from gmlp_flax.data.fingerprints import Fingerprint
from gmlp_flax.data.images import tfds
from gmlp_flax.data.images.folders import ImageFolder, ImageSource, ImageTar
from gmlp_flax.data.images.pathfinder import PathfinderImages, is_pathfinder
from gmlp_flax.data.images.tfds import TFDSImages
from gmlp_flax.data.splits import SIDES
from gmlp_flax.errors import DataError
from gmlp_flax.io import files

_SHOWN = 5  # classes that a message names
_HELDOUT_SPLITS = (splits.HELDOUT_SPLIT, "test")  # the first that a data set has is held out


class ImageArrays(ImageSource):
    """Decoded images in memory, called "image i".

    Args:
        images: uint8 [examples, height, width, channels].
        labels, classes, path: see ImageSource.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], path: str):
        self.images, self.labels, self.classes, self.path = images, labels, classes, path
        self.names = [f"image {i}" for i in range(len(images))]

    def read(self, index: int) -> np.ndarray:
        return self.images[index]


class Subset(ImageSource):
    """The examples of `source` at `indices` (int [examples]), in this order, with the classes of the whole source."""

    def __init__(self, source: ImageSource, indices: Sequence[int] | np.ndarray):
        self.source, self.classes, self.path = source, source.classes, source.path
        self.indices = np.asarray(indices, np.int64)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> dict:
        return self.source[int(self.indices[index])]

    def fingerprint(self) -> Fingerprint:
        """That of the whole source: its splits and shares are keys of the config."""
        return self.source.fingerprint()

    def __repr__(self) -> str:
        return f"Subset({self.source!r}, images={len(self)}, crc={zlib.crc32(self.indices.tobytes()):08x})"


def open_images(path: str) -> ImageFolder | ImageTar | PathfinderImages:
    """Opens a folder or a tar file of class folders, or Pathfinder's; raises DataError if there is neither."""
    if not files.exists(path):
        raise DataError(f"no images at {str(path)!r}: expected a folder or a tar file of class folders; check the path")
    if not files.is_folder(path):
        return ImageTar(path)
    return PathfinderImages(path) if is_pathfinder(path) else ImageFolder(path)


def open_side(
    path: str,
    side: str,
    *,
    split: str = "",
    heldout_split: str = "",
    heldout_share: float = 0.0,
    cache_folder: str = "",
) -> ImageSource:
    """The images at `path` to train on, or the held-out ones.

    In a data set with splits, `train` is for training, and `validation` or else `test` is held out. If there is no such
    split, a share of the training images is held out (see split_images).

    Args:
        path: see the module's docstring.
        side: "train" or "heldout".
        split, heldout_split: other splits than these.
        heldout_share: 0 if `path` holds one side alone.
        cache_folder: see TFDSImages.

    Raises:
        DataError: there is nothing at `path` or no such split, a split would be both trained on and held out, or all
            images are of one class.
    """
    if folder := tfds.folder_at(path):
        known = tuple(folder.lengths)
        heldout = [heldout_split] if heldout_split else [name for name in _HELDOUT_SPLITS if name in known]
        if not heldout and not heldout_share:
            heldout = known if len(known) == 1 else [splits.HELDOUT_SPLIT]
        sides = (split or splits.TRAIN_SPLIT,), tuple(heldout[:1])
        chosen = splits.choose(path, side, *sides, heldout_share, known=known, explicit=bool(heldout_split))
        source, heldout_share = TFDSImages(folder, chosen.splits[0], cache_folder), chosen.share
    elif split or heldout_split:
        raise splits.without_splits(path)
    else:
        source = open_images(path)
    if len(source.classes) < 2:
        content = f"{len(source)} images of {len(source.classes)} class, {', '.join(map(repr, source.classes))}"
        raise DataError(
            f"{source.path!r} has {content}: a classifier needs at least two classes, each a folder of images"
        )
    return split_images(source, heldout_share)[SIDES.index(side)] if heldout_share else source


def split_images(source: ImageSource, heldout_share: float) -> tuple[Subset, Subset]:
    """Splits a source into (train, heldout).

    A folder or tar file is split class by class, by the images' names: each class holds out about `heldout_share` of
    its images and keeps at least one on each side. A TFDS split, whose labels are known only from its records, is split
    by the records' positions, over all classes.

    Raises:
        DataError: `heldout_share` is not between 0 and 1, or a class (or the whole TFDS split) has a single image.
    """
    splits.check_share(heldout_share, "images")
    if isinstance(source, TFDSImages):
        labels, classes, name_of = np.zeros(len(source), np.int32), (source.split,), str
    else:
        labels, classes, name_of = source.labels, source.classes, source.names.__getitem__
    heldout = np.zeros(len(labels), bool)
    order, counts = np.argsort(labels, kind="stable"), np.bincount(labels, minlength=len(classes))
    for members, name in zip(np.split(order, np.cumsum(counts)[:-1]), classes, strict=True):
        if len(members) < 2:
            raise DataError(f"class {name!r} of {source!r} has a single image: add one, or remove the class")
        keys = (name_of(i).encode("utf-8", "surrogateescape") for i in members.tolist())
        heldout[members] = splits.heldout_members(keys, heldout_share)
    return Subset(source, np.flatnonzero(~heldout)), Subset(source, np.flatnonzero(heldout))


def require_classes(source: ImageSource, classes: Sequence[str], where: str) -> None:
    """Raises DataError, naming the differences, unless the source has the list of `classes` found in `where`."""
    own, expected = tuple(source.classes), tuple(classes)
    if own == expected:
        return
    missing, added = (_listed(sorted({*one} - {*other})) for one, other in ((expected, own), (own, expected)))
    what = f"{missing} only there, {added} only in {source.path!r}"
    if {*own} == {*expected}:
        label = next(label for label, name in enumerate(own) if name != expected[label])
        what = f"they are in another order, label {label} is {own[label]!r} and not {expected[label]!r}"
    raise DataError(
        f"{source.path!r} has {len(own)} classes which differ from those of {where}: {what}; give data with the same "
        "list of classes"
    )


def _listed(names: list[str]) -> str:
    rest = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join([*map(repr, names[:_SHOWN]), *rest]) or "none"
