"""How the names in a folder or a tar file of images are read: which are splits, and the class of each image.

The first folder below the root is the class; folders below it count to it. If the first folders have words of splits in
their names (see splits.split_words), they are the splits, and the folders in them the classes. A folder called `images`
is part of the folder around it (Tiny-ImageNet's form). A folder that holds nothing but one folder of folders is a
wrapper, which is looked into. Images of one folder, or of none, get their classes from a table in or beside it (see
tables). What can be read in two ways is refused.
"""

import contextlib
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable

from gmlp_flax.data import splits
from gmlp_flax.data.images import tables
from gmlp_flax.data.splits import TRAIN_SPLIT
from gmlp_flax.errors import DataError, listed
from gmlp_flax.io import files

EXPECTED = "expected one folder of images per class"

_BESIDE = ".xml .txt .csv .tsv .json .jsonl .mat .npy .md .html .pdf .py .cls .db".split()


def is_junk(name: str) -> bool:
    """Whether an operating system or a program left the file or folder there for itself."""
    return name.startswith((".", "__MACOSX", "$RECYCLE.BIN"))


def is_hidden(path: str) -> bool:
    """Whether a part of a path is junk."""
    return any(map(is_junk, path.split("/")))


class Layout:
    """Reads the names of a folder's or a tar file's content; `/` stands between folders.

    Args:
        path: of the folder or tar file, for tables beside it and for messages.
        images: names of the files that are images, in order.
        others: names of all other files.
        folders: names of all folders, as far as they are known.
        read: a file's content by its name.

    Attributes:
        splits: TFDS's name of each split -> its folders; {} if there are no splits.
        without_classes: the folders of the split test, if it is one of several and its images have no classes.
        notes: what was assumed, a line each.

    Raises:
        DataError: there is no image, or the folders can be read in two ways.
    """

    def __init__(
        self, path: str, images: list[str], others: list[str], folders: Iterable[str], read: Callable[[str], bytes]
    ):
        self.path, self.images, self.others, self.notes = path, images, others, []
        self._folders = {*folders, *(name.rpartition("/")[0] for name in others if "/" in name)}
        self._tables = tables.Tables(path, images, others, read)
        if not images:
            raise self._no_images()
        base = self._unwrap("", images, to_splits=True)
        tops = _by_folder(images, base)
        words = {top: splits.split_words(top) for top in tops if top}
        self._bases = [base]
        self.splits: dict[str, list[str]] = {}
        self.without_classes: list[str] = []
        sides = [top for top in words if words[top]]
        if sides and self._are_splits(base, tops, sides):
            for top in sides:
                self.splits.setdefault(splits.split_of(top), []).append(f"{base}{top}/")
            if len(self.splits) > 1 and not any(map(self._is_labelled, self.splits.get("test", [base]))):
                self.without_classes = self.splits.pop("test")

    def classes(self, split: str = "") -> dict[str, str]:
        """The class of each image of a split, or of all images if there are no splits.

        Raises:
            DataError: there is an image without a class, or the images can be read in two ways.
        """
        found: dict[str, str] = {}
        for folder in self.splits.get(split, self._bases):
            images = [name for name in self.images if name.startswith(folder)]
            found |= self._classes(self._unwrap(folder, images), images, split or self._split_of_path())
        return found

    def _split_of_path(self) -> str:
        return next(iter(splits.split_words(os.path.basename(files.absolute(self.path)))), "")

    def about_others(self) -> str:
        """A line that counts the files that are neither images nor were read as tables, by suffix; "" if none."""
        others = [name for name in self.others if name not in self._tables.used]
        if not others:
            return ""
        kinds = Counter(tables.suffix(name) or "no suffix" for name in others).most_common()
        counts = listed((f"{kind} {count:,}" for kind, count in kinds), 4)
        return f"{self.path!r}: ignored {len(others):,} files that are no images ({counts})"

    def _note(self, line: str) -> None:
        if (line := f"{self.path!r}: {line}") not in self.notes:
            self.notes.append(line)

    def _unwrap(self, base: str, images: list[str], to_splits: bool = False) -> str:
        """The folder inside `base` that has several folders, or images, or is the only folder `to_splits`."""
        while len(tops := _by_folder(images, base)) == 1 and "" not in tops and not self._unread(base):
            (top,) = tops
            inner = _by_folder(images, f"{base}{top}/")
            is_split = to_splits and splits.split_words(top)
            if "" in inner or (is_split and not all(map(splits.split_words, inner))):
                break
            base = f"{base}{top}/"
            self._note(f"{base} is the only folder with images, and is read in its place")
        return base

    def _unread(self, base: str) -> list[str]:
        """The first folders below `base` that may be meant as classes: without images, empty or of unknown files."""
        full = {name[len(base) :].partition("/")[0] for name in self.images if name.startswith(base)}
        inside = {name[len(base) :].partition("/")[0] for name in self._folders if f"{name}/".startswith(base)}
        unread = sorted(name for name in inside - full - {""} if not is_junk(name))
        kinds = {name: {tables.suffix(x) for x in self.others if x.startswith(f"{base}{name}/")} for name in unread}
        return [name for name in unread if not kinds[name] or kinds[name] - {*_BESIDE}]

    def _are_splits(self, base: str, tops: dict[str, list[str]], sides: list[str]) -> bool:
        """Whether the folders with words of splits are splits, and not classes as all others."""
        if not (others := [top for top in tops if top and top not in sides]):
            return True
        # A class may be called "train" or "bullet train"; a split without class folders or a table cannot be read.
        if all(
            {*splits.split_words(side)} == {TRAIN_SPLIT} and not self._is_labelled(f"{base}{side}/") for side in sides
        ):
            self._note(f"{listed(map(repr, sides))} is taken as a class, like the {len(others)} folders beside it")
            return False
        raise DataError(
            f"{self.path!r}: {listed(map(repr, sides))} can be read as splits, or as classes like "
            f"{listed(map(repr, others))} beside them: move the folders of one kind away, or rename them"
        )

    def _is_labelled(self, folder: str) -> bool:
        images = [name for name in self.images if name.startswith(folder)]
        tops = _by_folder(images, self._unwrap(folder, images))
        with contextlib.suppress(DataError):  # which reading it will raise
            return (
                len(tops) > 1 or self._tables.find(images, splits.split_of(folder[:-1].rpartition("/")[2])) is not None
            )
        return True

    def _classes(self, base: str, images: list[str], split: str) -> dict[str, str]:
        tops = _by_folder(images, base)
        if len(tops) == 1 and (found := self._tables.find(images, split)) is not None:
            table, classes = found
            self._note(f"the classes of {len(images):,} images are those of {table}")
            return classes
        if {*tops} == {""}:
            raise DataError(
                f"{os.path.join(self.path, base)!r} has no classes: {len(images):,} images in no class folders"
                f"{self._tables.about_unused(split)}; {EXPECTED}, or in or beside their folder {tables.EXPECTED}"
            )
        if "" in tops:
            raise DataError(f"{self.path!r}: image {tops[''][0]!r} lies outside of the class folders; move it into one")
        if unread := self._unread(base):
            raise DataError(f"{self.path!r}: class folder {base + unread[0]!r} is empty: {EXPECTED}; fill or remove it")
        self._check_deeper(base, tops)
        names = {top: unicodedata.normalize("NFC", top) for top in tops}
        if len({*names.values()}) < len(names):
            self._note("folders whose names differ in nothing but their Unicode form are one class")
        return {name: names[top] for top, members in tops.items() for name in members}

    def _check_deeper(self, base: str, tops: dict[str, list[str]]) -> None:
        """Says that folders inside class folders count to these; raises DataError if they are called as splits."""
        deeper = {
            f"{base}{top}/{inner}"
            for top, members in tops.items()
            for inner in _by_folder(members, f"{base}{top}/")
            if inner
        }
        for folder in sorted(deeper):
            if {*splits.split_words(folder.rpartition("/")[2])} - {TRAIN_SPLIT}:
                raise DataError(
                    f"{self.path!r}: {folder!r} can be read as a split of a class, or as a part of it: put the splits "
                    "first, as train/CLASS and val/CLASS, or rename it"
                )
        if deeper:
            first = min(deeper)
            self._note(f"{len(deeper):,} folders inside class folders count to these, such as {first!r}")

    def _no_images(self) -> DataError:
        found = listed(sorted({tables.suffix(name) for name in self.others} - {""}))
        expected = f"{EXPECTED}, with files that Pillow reads{found and f' (found {found}; unpack archives)'}"
        return DataError(f"{self.path!r} has no classes, as there are no images: {expected}")


def _by_folder(images: Iterable[str], base: str) -> dict[str, list[str]]:
    """First folder below `base` -> the images in it; "" for those right in `base`, or in its folder `images`."""
    found: dict[str, list[str]] = {}
    for name in images:
        place = f"/{name.rpartition('/')[0]}".removesuffix("/images")[1:]
        found.setdefault(f"{place}/"[len(base) :].partition("/")[0], []).append(name)
    return found
