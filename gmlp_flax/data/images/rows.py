"""Labelled images in files of many: Hugging Face's parquet and Arrow, NumPy's .npz, tables of
paths, shards of tars.

Also Pathfinder as Long Range Arena publishes it: whether a dashed path joins two dots (2011.04006,
section 2.2.5; google-research/long-range-arena, data/pathfinder.py). A folder of one difficulty,
such as pathfinder32/curv_contour_length_14 (the hard one), holds

    metadata/N.npy           lines of text, no NumPy arrays: FOLDER FILE NUMBER LABEL and more, with
    spaces between imgs/N/sample_K.png      the images that they name as FOLDER and FILE; label 1 if
    there is such a path
"""

import copy
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gmlp_flax.data import splits
from gmlp_flax.data.finetuning.glue import MISSING, SentenceTask
from gmlp_flax.data.finetuning.sentence_rows import file_rows
from gmlp_flax.data.finetuning.sentences import check_names, class_name
from gmlp_flax.data.images.folders import SUFFIXES, ImageSource, ImageTar, local_file, read_image
from gmlp_flax.data.images.layout import CLASS_COLUMNS, suffix
from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import cache, files
from gmlp_flax.io.files import File

MEMORY_BYTES = 8 << 30  # of files whose rows lie in memory, at most

Row = tuple[str, Any, Any]  # an image's name; its bytes, path, or source and position; its class

# Columns, of which the first that is there counts.
_IMAGES = ("image", "img", "image_path", "file_name", "filename", "file", "path")
_COLUMNS = SentenceTask((_IMAGES,), (), label=(*CLASS_COLUMNS, "fine_label"), own=True)


class ImageRows(ImageSource):
    """Images by the rows of files, which lie in memory, also of each worker process, if they are
    not files of their own or in tar files; `parts` are the files of each split, or all under ""."""

    def __init__(self, path: str, parts: Mapping[str, Sequence[File]]):
        self.path, self._parts, self._images = path, parts, []
        self.splits = {
            split: [own[0].name, *["..."] * (len(own) > 1)] for split, own in parts.items() if split
        }

    def of_split(self, split: str = "") -> "ImageRows":
        """See ImageSource; raises DataError if an image has no class."""
        found, read, notes = copy.copy(self), self._parts[self.default_split(split)], []
        rows = [row for file in read for row in READERS[suffix(file.path)](file, notes)]
        rows = [
            (name, image, "" if kind is None else class_name(kind)) for name, image, kind in rows
        ]
        if bad := [
            name
            for name, image, kind in rows
            if not isinstance(image, str | bytes | tuple) or kind in MISSING
        ]:
            columns = f"{' or '.join(_IMAGES)}, and {' or '.join(_COLUMNS.label)}"
            raise DataError(
                f"{self.path!r}: {bad[0]} has no image or no class: expected columns {columns}"
            )
        found.names, found._images, kinds = ([row[part] for row in rows] for part in range(3))
        notes += check_names(Counter(kinds), f"among the classes of {self.path!r}")
        own = {image: kind for _, image, kind in rows if isinstance(image, str)}
        if other := next(
            (row[0] for row in rows if isinstance(row[1], str) and own[row[1]] != row[2]), ""
        ):
            raise DataError(
                f"{self.path!r}: the image of {other} has another class in another row: mend one of them"
            )
        found.notes = (*dict.fromkeys(notes),)
        classes, labels = np.unique(np.array(kinds, str), return_inverse=True)
        found.classes, found.labels = tuple(classes.tolist()), labels.astype(np.int32)
        return found

    def read(self, index: int) -> bytes | np.ndarray:
        image = self._images[index]
        if isinstance(image, tuple):
            return image[0].read(image[1])
        return read_image(image) if isinstance(image, str) else image

    def file_of(self, index: int) -> tuple[int, Hashable] | None:
        image = self._images[index]
        if isinstance(image, tuple):
            return image[0].file_of(image[1])
        return local_file(image) if isinstance(image, str) else (len(image), id(image))


def open_rows(path: str) -> ImageRows | None:
    """The images of a file; or of a folder without images as files, if its files' names have one of
    the known suffixes, and words of splits if there are splits."""
    is_folder, parts = files.is_folder(path), {}
    walked = files.walk(path) if is_folder and not files.is_remote(path) else ()
    if any(suffix(name) in SUFFIXES for _, _, names in walked for name in names):
        return None
    known = {".parquet", ".arrow", ".tar", ".npz"} if is_folder else {*READERS} - {".tar"}
    chosen = [file for file in files.find_files(path) if suffix(file.name) in known]
    for file in chosen:
        if suffix(file.name) == ".npz":
            of_file = splits.split_of(file.name) if is_folder else ""
            own = [
                (splits.split_of(x) or of_file, x)
                for x in _load(file)
                if re.match("x|.*images$", x)
            ]
            if len(dict(own)) < len(own):
                raise DataError(
                    f"{file.path}: of its arrays {', '.join(x for _, x in own)} two are of one split"
                )
            for split, x in own:
                parts.setdefault(split, []).append(file._replace(name=x))
        elif not file.name.rpartition("/")[2].startswith("cache-"):  # of the package datasets
            parts.setdefault(splits.split_of(file.name) if is_folder else "", []).append(file)
    files.check_shards(path, chosen)
    if "" in parts and len(parts) > 1:
        raise DataError(
            f"{path!r}: {parts[''][0].name!r} is of no split, and others are: rename it, or move it away"
        )
    if sum(file.size for file in chosen if suffix(file.name) != ".tar") > MEMORY_BYTES:
        raise DataError(
            f"{path!r} has more than {MEMORY_BYTES >> 30} GiB: write its images to class folders"
        )
    if chosen and not parts:
        raise DataError(
            f"{path!r} has no images: expected arrays x_train and y_train, or train_images and train_labels"
        )
    return ImageRows(path, parts) if parts else None


def _rows(file: File, notes: list[str]) -> Iterator[Row]:
    """The rows of a table: images as Hugging Face's packages write them, or paths from the table's
    folder on."""
    folder, columns, used = file.path.rpartition("/")[0] or ".", {}, []
    for where, row in file_rows(file.path, _COLUMNS, notes):
        if not isinstance(row, dict):
            raise DataError(f"{where}: {row}")
        used = [
            next((name for name in names if name in row), "") for names in (_IMAGES, _COLUMNS.label)
        ]
        image, kind = map(row.get, used)
        splits.add_values(columns, {name: value for name, value in row.items() if name not in used})
        # the package datasets stores only the path of an image that it did not read
        if isinstance(image, dict):
            image = image.get("path") if image.get("bytes") is None else image["bytes"]
        if isinstance(image, str):  # longer than a path can be, it is an image in base64
            # of Windows
            paths = [
                files.join(folder, one) for one in dict.fromkeys((image, image.replace("\\", "/")))
            ]
            image = (
                next(filter(files.exists, paths[:-1]), paths[-1]) if 0 < len(image) < 4096 else None
            )
        name = f"{file.name}{where.removeprefix(file.path)}"  # the same wherever the data lie
        yield name, image, kind if isinstance(kind, str | int | float) else None
    notes.append(
        f"{file.name}: images and their classes by the columns {' and '.join(map(repr, used))}"
    )
    notes += splits.check_columns(columns, file.path)


def _shard(file: File, notes: list[str]) -> Iterable[Row]:
    """The images of one of several tar files, such as WebDataset's, which has a file KEY.cls beside
    each KEY.jpg."""
    tar = ImageTar(file.path).of_split()
    return (
        (f"{file.name}/{name}", (tar, i), tar.classes[tar.labels[i]])
        for i, name in enumerate(tar.names)
    )


def _load(file: File) -> dict[str, np.ndarray]:
    what = f"{file.path}: damaged, or no arrays of numbers"
    with (
        decode_errors(what, "save it with numpy.savez"),
        np.load(cache.LocalCopy(file.path).path) as stored,
    ):
        return dict(stored)


def _pixels(file: File, notes: list[str]) -> Iterator[Row]:
    """The images of the array that the file is named by, encoded as PPM or PGM: they are read with
    any channels."""
    arrays, y = _load(file), re.sub("^x", "y", file.name.replace("images", "labels"))
    images, labels = arrays[file.name], arrays.get(y, np.empty(0))
    labels = (
        np.char.decode(labels, errors="backslashreplace") if labels.dtype.kind == "S" else labels
    )
    if (
        images.dtype != np.uint8
        or images.ndim < 3
        or images.shape[3:] not in ((), (1,), (3,))
        or labels.size != len(images)
    ):
        got = (
            f"{file.name} is {images.dtype} {list(images.shape)} and {y} has {labels.size} entries"
        )
        raise DataError(
            f"{file.path}: {got}: expected uint8 [images, height, width(, 1 or 3)], and a class for each"
        )
    for number, (image, label) in enumerate(zip(images, labels.ravel(), strict=True)):
        header = b"P%d %d %d 255\n" % (6 if image.shape[2:] == (3,) else 5, *image.shape[1::-1])
        yield f"image {number}", header + image.tobytes(), label


READERS = {
    **dict.fromkeys(".parquet .arrow .csv .tsv .jsonl .json".split(), _rows),
    ".tar": _shard,
    ".npz": _pixels,
}


def is_pathfinder(path: str) -> bool:
    """Whether a folder has Pathfinder's layout, even if the metadata are missing.

    Raises:
        DataError: it is the folder around those of the difficulties.
    """
    inside = files.subfolders(path)
    if curves := [name for name in inside if name.startswith("curv_")]:
        raise DataError(
            f"{path!r} holds one folder per difficulty of Pathfinder: give one of {', '.join(curves)}"
        )
    if inside == ("imgs",):
        parts = [
            files.join(path, "imgs", name) for name in files.subfolders(files.join(path, "imgs"))
        ]
        return any(name.startswith("sample_") for part in parts[:1] for name in files.listdir(part))
    return {"metadata", "imgs"} <= {*inside}


class PathfinderImages(ImageSource):
    """The images of one difficulty, ordered by name, but those without bytes, which Long Range
    Arena's reader leaves out too. An item raises BadRecord if its file is gone.

    Raises:
        DataError: a part is missing, a line has another form, or an image that a line names is not
            there.
    """

    def __init__(self, path: str):
        self.path, self.classes = str(path), ("apart", "joined")
        contents = {file.name: file for file in files.find_files(self.path)}
        lists = sorted(name for name in contents if re.fullmatch(r"metadata/[^/]+\.npy", name))
        if not lists:
            raise DataError(
                f"{self.path!r} has images and no metadata/*.npy with their labels: copy it as well"
            )
        labels = dict(label for name in lists for label in _pathfinder_labels(contents[name]))
        if missing := sorted(labels.keys() - contents.keys()):
            raise DataError(
                f"{self.path!r}: {len(missing)} of {len(labels)} images are missing, as {missing[0]!r}"
            )
        self.names = sorted(name for name in labels if contents[name].size)
        if not self.names:
            raise DataError(
                f"{self.path!r} holds no image that has bytes; copy or download it again"
            )
        self.labels = np.array([labels[name] for name in self.names], np.int32)
        self._files = [contents[name] for name in self.names]

    def read(self, index: int) -> bytes:
        return read_image(self._files[index])


def _pathfinder_labels(file: File) -> Iterator[tuple[str, int]]:
    """The name of each image below the folder, and its label, by one file of lines."""
    for number, line in enumerate(
        files.read_small(file.path).decode("utf-8", "replace").split("\n"), start=1
    ):
        words = line.split()
        if words and (len(words) < 4 or words[3] not in ("0", "1")):
            expected = "expected FOLDER FILE NUMBER LABEL, the label 0 or 1"
            raise DataError(f"{file.path}, line {number}: {' '.join(words)[:60]!r}; {expected}")
        if words:
            yield f"{words[0]}/{words[1]}", int(words[3])
