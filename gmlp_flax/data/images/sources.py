"""Labelled images as random-access sources: opening a path, its two sides, its list of classes, and
its examples.

A path is one of

    a folder with one folder of images per class, or a tar file of one (see `folders`).
    files of many images, of parquet, Arrow, .npz, .csv, or a folder of them or of tar files (see
    `rows`). a folder of one difficulty of Pathfinder, with metadata/ and imgs/ (see `rows`).
    a TFDS folder: .../imagenet2012/5.1.0, with features.json and dataset_info.json, as ArrayRecord
    or TFRecord. tfds:NAME[/CONFIG][:VERSION]: a TFDS folder below TFDS_DATA_DIR or
    ~/tensorflow_datasets (see tfds_folders).
"""

import copy
import hashlib
import itertools
import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from gmlp_flax.data import splits
from gmlp_flax.data.fingerprints import Fingerprint, spread
from gmlp_flax.data.images import rows, tfds
from gmlp_flax.data.images.folders import ImageFolder, ImageSource, ImageTar
from gmlp_flax.data.images.tfds import TFDSImages
from gmlp_flax.data.splits import SIDES, Side
from gmlp_flax.errors import DataError, listed
from gmlp_flax.io import files, json_files
from gmlp_flax.io.records import BadRecord, BadRecords

UNREAD = -1  # the label of an example that was replaced

_HELDOUT_SPLITS = (splits.HELDOUT_SPLIT, "test")  # the first that a data set has is held out
_SIDES_READ = ("to train on", "held out")
# held-out images, images to train on, and how many of these are read
_SAMPLE, _LOOKED_INTO, _READ = 400, 100_000, 4000
_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")
_REAL = "config.eval.real_labels"


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
    """The examples of `source` at `indices` (int [examples]), in this order, with the classes of
    the whole source."""

    def __init__(self, source: ImageSource, indices: Sequence[int] | np.ndarray):
        self.source, self.classes, self.path = source, source.classes, source.path
        self.notes, self.dark, self.indices = (
            source.notes,
            source.dark,
            np.asarray(indices, np.int64),
        )
        if hasattr(source, "labels"):
            self.names, self.labels = (
                [source.names[i] for i in self.indices],
                source.labels[self.indices],
            )

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> dict:
        return self.source[int(self.indices[index])]

    def fingerprint(self) -> Fingerprint:
        """That of the whole source: its splits and shares are keys of the config."""
        return self.source.fingerprint()

    def file_of(self, index: int) -> tuple[int, Hashable] | None:
        return self.source.file_of(int(self.indices[index]))

    def read(self, index: int) -> bytes | np.ndarray:
        return self.source.read(int(self.indices[index]))


def open_images(path: str) -> ImageSource:
    """Opens a folder or a tar file of images, or Pathfinder's; raises DataError if there is
    neither.

    If its `splits` are known, `of_split` gives the images of one.
    """
    if not files.exists(path):
        raise DataError(
            f"no images at {str(path)!r}: expected a folder or a tar file of class folders; check the path"
        )
    if (found := rows.open_rows(path)) is not None:
        return found
    if files.is_folder(path):
        return rows.PathfinderImages(path) if rows.is_pathfinder(path) else ImageFolder(path)
    return ImageTar(path)


def open_side(
    path: str, side: Side, cache_folder: str = "", order: Sequence[str] = ()
) -> ImageSource:
    """The images at `path` to train on, or the held-out ones.

    In a data set with splits, of TFDS or by its folders (see layout), `train` is for training, and
    `validation` or else `test` is held out. If there is no such split, a share of the training
    images is held out (see split_images).

    Args:
        path: see the module's docstring.
        side: of the data.
        cache_folder: see TFDSImages.
        order: the classes that the names 0, 1, ... of class folders stand for (see name_numbers).

    Raises:
        DataError: there is nothing at `path` or no such split, a split would be both trained on and
            held out, or all images are of one class.
    """
    folder = tfds.folder_at(path)
    source = ImageSource() if folder else open_images(path)
    known = tuple(folder.lengths if folder else source.splits)
    choice = splits.Choice(("",), side.heldout_share)
    if known:
        heldout = (
            [side.heldout_split]
            if side.heldout_split
            else [name for name in _HELDOUT_SPLITS if name in known]
        )
        if not heldout and not side.heldout_share:
            heldout = known if len(known) == 1 else [splits.HELDOUT_SPLIT]
        sides = (side.split or splits.TRAIN_SPLIT,), tuple(heldout[:1])
        choice = side.choose(path, *sides, known)
    elif split := side.split or side.heldout_split:
        raise splits.missing_split(path, split, ())
    name = choice.splits[0]
    source = TFDSImages(folder, name, cache_folder) if folder else source.of_split(name)
    if source.splits:
        read = {
            name: "to train on and, in part, held out"
            if choice.share
            else _SIDES_READ[SIDES.index(side.name)]
        }
        if side.heldout_share and not choice.share:
            read = {sides[0][0]: _SIDES_READ[0], sides[1][0]: _SIDES_READ[1]}
        told = [(folders, read.get(one, "left out")) for one, folders in source.splits.items()]
        told += [(source.without_classes, "left out, having no classes")] * bool(
            source.without_classes
        )
        parts = (
            f"{', '.join(folder.rstrip('/') for folder in folders)} {use}" for folders, use in told
        )
        source.notes = (f"{path!r}: {'; '.join(parts)}", *source.notes)
    source = name_numbers(source, order) if order else source
    if len(source.classes) < 2:
        content = f"{len(source)} images of {len(source.classes)} class, {', '.join(map(repr, source.classes))}"
        raise DataError(
            f"{source.path!r} has {content}: a classifier needs at least two classes, each a folder of images"
        )
    return split_images(source, choice.share)[SIDES.index(side.name)] if choice.share else source


def split_images(source: ImageSource, heldout_share: float) -> tuple[Subset, Subset]:
    """Splits a source into (train, heldout).

    A folder or tar file is split class by class, by the images' names: each class holds out about
    `heldout_share` of its images and keeps at least one on each side. A TFDS split, whose labels
    are known only from its records, is split by the records' positions, over all classes.

    Raises:
        DataError: a class (or the whole TFDS split) has a single image.
    """
    if isinstance(source, TFDSImages):
        labels, classes, name_of = np.zeros(len(source), np.int32), (source.split,), str
    else:
        labels, classes, name_of = source.labels, source.classes, source.names.__getitem__
    heldout, reported = np.zeros(len(labels), bool), np.zeros(len(labels), bool)
    order, counts = np.argsort(labels, kind="stable"), np.bincount(labels, minlength=len(classes))
    for members, name in zip(np.split(order, np.cumsum(counts)[:-1]), classes, strict=True):
        if len(members) < 2:
            raise DataError(
                f"class {name!r} of {source.path!r} has a single image: add one, or remove the class"
            )
        keys = [name_of(i).encode("utf-8", "surrogateescape") for i in members.tolist()]
        heldout[members] = splits.heldout_members(keys, heldout_share)
        if heldout_share < 0:
            reported[members] = splits.heldout_members(keys, -heldout_share)
    return Subset(source, np.flatnonzero(~(heldout | reported))), Subset(
        source, np.flatnonzero(heldout)
    )


def name_numbers(source: ImageSource, order: Sequence[str]) -> ImageSource:
    """A source whose classes are called by numbers, as ImageNetV2's folders 0 to 999, with names in
    their place.

    Args:
        source: one with other names comes back as it is.
        order: the classes of the numbers 0, 1, ...; the labels become positions in it.

    Raises:
        DataError: there is a larger number.
    """
    if isinstance(source, TFDSImages) or not all(map(str.isdecimal, source.classes)):
        return source
    numbers = np.array([*map(int, source.classes)], np.int32)
    if max(numbers) >= len(order):
        raise DataError(
            f"{source.path!r} has a class {max(numbers)}, and config.data.class_map has {len(order)} classes, from 0 "
            f"to {len(order) - 1}; give the list of these images"
        )
    named = copy.copy(source)
    named.classes, named.labels = tuple(order), numbers[source.labels]
    return named


def class_sizes(source: ImageSource) -> np.ndarray | None:
    """The number of images of each class, int [classes]; None if it is not known without reading
    all of them."""
    labels = getattr(source, "labels", None)
    return None if labels is None else np.bincount(labels, minlength=len(source.classes))


def check_overlap(train: ImageSource, heldout: ImageSource) -> str:
    """Looks for held-out images among those to train on, in samples: same sizes first, then same
    bytes.

    Returns:
        A line if more than 1 % of the held-out images are also trained on; else "".

    Raises:
        DataError: a file is on both sides, by a link too, or the sides are the same.
    """
    advice = "give other images as config.data.heldout, or leave it empty to hold out a share"
    if not isinstance(train, Subset) and train.fingerprint() == heldout.fingerprint():
        raise DataError(f"{train.path!r} would be both trained on and held out; {advice}")
    ours, theirs = (
        {i: file for i in spread(len(source), most) if (file := source.file_of(i))}
        for source, most in ((heldout, _SAMPLE), (train, _LOOKED_INTO))
    )
    same = {file for _, file in ours.values()} & {file for _, file in theirs.values()}
    if same and not isinstance(heldout, Subset):
        both = next(i for i, (_, file) in ours.items() if file in same)
        raise DataError(
            f"{heldout.path!r}: {heldout[both]['name']!r} is also among the images to train on; {advice}"
        )
    sizes = {size for size, _ in ours.values()}
    # where each look takes a request
    remote = files.is_remote(train.path) or files.is_remote(heldout.path)
    alike = [i for i, (size, _) in theirs.items() if size in sizes and not remote]
    looked = [alike[i] for i in spread(len(alike), _READ)]
    known = {hashlib.blake2b(train.content(i)).digest() for i in looked}
    equal = sum(hashlib.blake2b(heldout.content(i)).digest() in known for i in ours if alike)
    share = (
        equal
        / max(1, len(ours))
        * max(1, len(alike))
        / max(1, len(looked))
        * len(train)
        / max(1, len(theirs))
    )
    if share <= 0.01:
        return ""
    return f"note: about {min(share, 1):.0%} of the held-out images are also among those to train on, byte for byte"


def check_copies(source: ImageSource) -> str:
    """A line on the images, of both sides, that lie in two classes, or ""; raises DataError if they
    are most images."""
    source = source.source if isinstance(source, Subset) else source
    labels, by_size, by_content = (
        np.array(getattr(source, "labels", ())),
        defaultdict(list),
        defaultdict(list),
    )
    for i in (
        spread(len(labels), _LOOKED_INTO)
        if len(labels) and not files.is_remote(source.path)
        else ()
    ):
        by_size[(source.file_of(i) or (0,))[0]].append(i)
    alike = [
        i for size, group in by_size.items() if size and len({*labels[group]}) > 1 for i in group
    ]
    for i in alike[:_READ]:
        by_content[hashlib.blake2b(source.content(i)).digest()].append(i)
    copies = [group for group in by_content.values() if len({*labels[group]}) > 1]
    if not copies:
        return ""
    one, other = (
        source[copies[0][at]]["name"]
        for at in np.unique(labels[copies[0]], return_index=True)[1][:2]
    )
    line = f"{sum(map(len, copies)):,} images lie in two classes, byte for byte, such as {one!r} and {other!r}"
    if sum(map(len, copies)) > len(labels) / 2:
        raise DataError(f"{source.path!r}: {line}: give each image one class")
    return f"note: {line}: their labels contradict each other"


def with_classes(
    source: ImageSource, classes: Sequence[str], where: str, some: bool = False
) -> ImageSource:
    """The source, with the list of `classes` found in `where`: it has the same, or, if `some` will
    do, lacks several of them, which a note names. Raises DataError, naming the differences, if it
    has others."""
    own, expected = (
        tuple(unicodedata.normalize("NFC", name) for name in names)
        for names in (source.classes, classes)
    )
    if own == expected:
        return source
    if some and {*own} < {*expected} and hasattr(source, "labels"):
        part, lacking = copy.copy(source), listed(name for name in expected if name not in own)
        part.classes = tuple(classes)
        part.labels = np.array([*map(expected.index, own)], np.int32)[source.labels]
        part.notes = (
            *source.notes,
            f"warning: {source.path!r} has no image to evaluate of the classes {lacking}",
        )
        return part
    pairs = (expected, own), (own, expected)
    missing, added = (
        listed(map(repr, sorted({*one} - {*other}))) or "none" for one, other in pairs
    )
    what = f"{missing} only there, {added} only in {source.path!r}"
    if {*own} == {*expected}:
        label = next(label for label, name in enumerate(own) if name != expected[label])
        what = f"they are in another order, label {label} is {own[label]!r} and not {expected[label]!r}"
    numbered = (
        " (config.data.class_map=FILE names the classes of numbers)"
        if all(map(str.isdecimal, own))
        else ""
    )
    raise DataError(
        f"{source.path!r} has {len(own)} classes which differ from those of {where}: {what}; give data with the same "
        f"list of classes{numbered}"
    )


class RealLabels(Subset):
    """ReaL labels of ImageNet's validation set (Beyer et al. 2020, "Are we done with ImageNet?"): a
    source whose items have one more entry, "real": the image's labels, int32 [most labels], filled
    with -1.

    An image without a ReaL label has only -1. Labels and images are matched by the number in the
    images' names.

    Args:
        source: images with file names: a folder, a tar file, or TFDS's imagenet2012.
        path: of the JSON file: a list of labels for each image, ordered by the images' numbers from
            1 on.

    Raises:
        DataError: the file is missing or not of this format, or its labels are not among the
            classes; or the images' names have no numbers, or numbers that the file does not have.
    """

    def __init__(self, source: ImageSource, path: str):
        super().__init__(source, range(len(source)))
        self.file = path
        lists: Any = json_files.read(path, list)
        labels: list[Any] = [
            label for entry in lists for label in (entry if isinstance(entry, list) else [None])
        ]
        if not labels or not all(type(label) is int and 0 <= label < 2**31 for label in labels):
            raise DataError(
                f"{_REAL}={path}: expected a list of labels for each image, as in real.json"
            )
        if max(labels) >= len(self.classes):
            raise DataError(
                f"{path}: label {max(labels)}, but {self.path!r} has {len(self.classes)} classes; evaluate on "
                "ImageNet's validation set, with its 1,000 classes"
            )
        self.real = np.array([*itertools.zip_longest(*lists, fillvalue=-1)], np.int32).T
        for name in getattr(source, "names", ()):  # else as images are read
            self._number(name)

    def __getitem__(self, index: int) -> dict:
        item = super().__getitem__(index)
        return {**item, "real": self.real[self._number(item["name"])]}

    def _number(self, name: str) -> int:
        match = _NUMBER.search(name)
        if not match:
            raise DataError(
                f"{_REAL}: image {name!r} has no number in its name, expected names with ILSVRC2012_val_N"
            )
        if not 1 <= int(match[1]) <= len(self.real):
            raise DataError(
                f"{self.file}: labels of {len(self.real)} images, but none for {name!r}; give theirs"
            )
        return int(match[1]) - 1


class ReadableExamples:
    """The transformed examples of a source; one that cannot be read is replaced by the next one
    that can.

    The replacement depends on the source alone, and it draws the same random numbers as if the
    first example had not
    been tried: batches stay a function of the seed and the step. Picklable.

    Args:
        source: read-only. An item that raises BadRecord is a bad record; DataError is an error of
            the whole source.
        transform: takes a record and, for training, a random generator; DataError means that it
            does not decode.
        bad: counts the bad records and limits their number.
    """

    def __init__(self, source: ImageSource, transform: Callable[..., dict], bad: BadRecords):
        self.source, self.transform, self.bad = source, transform, bad

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict:
        """An example for evaluation, with the label UNREAD if it replaces another; see also
        `train`."""
        found, example = self._first_readable(index)
        return example if found == index else {**example, "label": np.int32(UNREAD)}

    def train(self, index: int, rng: np.random.Generator) -> dict:
        """An example for training; raises DataError if there are more bad records than allowed."""
        return self._first_readable(index, rng)[1]

    def _first_readable(self, start: int, *rng: np.random.Generator) -> tuple[int, dict]:
        """The first example from `start` on that can be read, and its index."""
        states = [generator.bit_generator.state for generator in rng]
        for index in itertools.chain(range(start, len(self)), range(start)):
            try:
                record = self.source[index]
            except BadRecord as error:
                self._skip(error)
                continue
            try:
                return index, self.transform(record, *rng)
            except DataError as error:
                self._skip(error)
            for generator, state in zip(rng, states, strict=True):
                generator.bit_generator.state = state
        raise DataError(
            f"{self.source!r}: not one of {len(self)} images can be read; check the files"
        )

    def _skip(self, error: Exception) -> None:
        if self.bad.skip(message := f"{self.source.path}: {error}"):
            # one write: threads report at the same time
            sys.stderr.write(f"skipped a bad record: {message}\n")
