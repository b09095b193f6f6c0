"""How the names in a folder or a tar file of images are read: which are splits, and the class of
each image.

The first folder below the root is the class; folders below it count to it. If the first folders
have words of splits in their names (see splits.split_words), they are the splits, and the folders
in them the classes. A folder called `images` is part of the folder around it (Tiny-ImageNet's
form). A folder that holds nothing but one folder of folders is a wrapper, which is looked into.
What can be read in two ways is refused.

Images of one folder, or of none, get their classes from a table in or beside it: a .csv or .tsv
file, val_annotations.txt (Tiny-ImageNet) or LOC_val_solution.csv (Kaggle's ImageNet), with the
images' file names, with or without their suffix, in one column. The other column is the class, or
else the one whose name is in CLASS_COLUMNS. A file NAME.cls beside each image (WebDataset) holds
its class.
"""

import contextlib
import csv
import functools
import io
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable

from gmlp_flax.data import splits
from gmlp_flax.data.finetuning.glue import MISSING
from gmlp_flax.data.finetuning.sentences import check_names, class_name
from gmlp_flax.data.splits import TRAIN_SPLIT
from gmlp_flax.errors import DataError, decode_errors, listed
from gmlp_flax.io import files, json_files
from gmlp_flax.io.records import decode_utf8

EXPECTED = "expected one folder of images per class"
TABLES = "val_annotations.txt, LOC_val_solution.csv, or a .csv or .tsv table with their file names and classes"
CLASS_COLUMNS = "label labels class classes classid classname category target breed species".split()

_BESIDE = ".xml .txt .csv .tsv .json .jsonl .mat .npy .md .html .pdf .py .cls .db".split()
_IMAGES = re.compile(r"(jpeg|raw)?[ _-]?(images?|imgs?|photos?|rgb|inputs?)", re.IGNORECASE)
_MASKS = re.compile(
    r"masks?|labels?|annotations?|segmentation.*|gt|ground[ _-]?truths?|depth", re.IGNORECASE
)
_MASK = re.compile(
    r"[ _-](mask|seg|segmentation|label|annotation|gt)s?([ _-]?\d+)?$", re.IGNORECASE
)
_PART = re.compile(
    r"(.*[ _-])?(part|fold|batch|chunk|shard|images?|imgs?|folder|vol|volume|set)s?[ _-]*\d+",
    re.IGNORECASE,
)
# then boxes follow
_FIRST_WORD = ("val_annotations.txt", "loc_val_solution.csv", "loc_train_solution.csv")
_ABOVE = 3  # folders between Kaggle's ILSVRC/Data/CLS-LOC/val and LOC_val_solution.csv


def suffix(name: str) -> str:
    """The suffix of a file's name in small letters, with its dot, or ""."""
    return os.path.splitext(name)[1].lower()


def is_junk(name: str) -> bool:
    """Whether an operating system or a program left the file or folder there for itself."""
    return name.startswith((".", "__MACOSX", "$RECYCLE.BIN", "@eaDir"))


def is_hidden(path: str) -> bool:
    """Whether a part of a path is junk."""
    return any(map(is_junk, path.split("/")))


def is_label(name: str) -> bool:
    """Whether a file may hold classes or splits of images."""
    return _is_table(name) or suffix(name) == ".cls" or _is_list(name)


def _is_list(name: str) -> bool:
    return suffix(name) == ".txt" and bool(splits.split_words(os.path.basename(name)))


class Layout:
    """Reads the names of a folder's or a tar file's content; `/` stands between folders, and hidden
    names are left out.

    Args:
        path: of the folder or tar file, for tables beside it and for messages.
        images: names of the files that are images.
        others: names of all other files.
        folders: names of all folders, as far as they are known.
        read: a file's content by its name.

    Attributes:
        splits: TFDS's name of each split -> its folders; {} if there are no splits.
        without_classes: the folders of the split test, if it is one of several and its images have
            no classes.
        notes: what was assumed, a line each.

    Raises:
        DataError: there is no image, or the folders can be read in two ways.
    """

    def __init__(
        self,
        path: str,
        images: Iterable[str],
        others: Iterable[str],
        folders: Iterable[str],
        read: Callable[[str], bytes],
    ):
        self.images, self.others = (
            sorted(name for name in x if not is_hidden(name)) for x in (images, others)
        )
        self.path, self.notes, self._read, self._used = path, [], read, set()
        self._folders = {name for name in folders if not is_hidden(name)}
        self._folders |= {name.rpartition("/")[0] for name in self.others if "/" in name}
        if not self.images:
            found = listed(sorted({suffix(name) for name in self.others} - {""}))
            expected = f"{EXPECTED}, with files that Pillow reads{found and f' (found {found}; unpack archives)'}"
            raise DataError(f"{path!r} has no classes, as there are no images: {expected}")
        base = self._unwrap("", self.images, to_splits=True)
        tops = _by_folder(self.images, base)
        self._bases = [base]
        self.splits: dict[str, list[str]] = {}
        self.without_classes: list[str] = []
        sides = [top for top in tops if splits.split_words(top)]
        if sides and self._are_splits(base, tops, sides):
            for top in sides:
                self.splits.setdefault(splits.split_of(top), []).append(f"{base}{top}/")
            if len(self.splits) > 1 and not any(
                map(self._is_labelled, self.splits.get("test", [base]))
            ):
                self.without_classes = self.splits.pop("test")

    def classes(self, split: str = "") -> dict[str, str]:
        """The class of each image of a split, or of all images if there are no splits.

        Raises:
            DataError: there is an image without a class, or the images can be read in two ways.
        """
        found: dict[str, str] = {}
        if not self.splits:
            self._check_lists()
        of_path = next(iter(splits.split_words(os.path.basename(files.absolute(self.path)))), "")
        for folder in self.splits.get(split, self._bases):
            images = [name for name in self.images if name.startswith(folder)]
            found |= self._classes(self._unwrap(folder, images), images, split or of_path)
        return found

    def _check_lists(self) -> None:
        """Raises DataError if a text file lists the images of a split, as those of CUB-200 and
        Food-101 do."""
        keys = _keys(self.images)
        for name in filter(_is_list, self.others):
            text = self._read(name).decode("utf-8", "replace").lstrip("\ufeff")
            if (
                re.match(r"\d+ [01]\s", text)
                or text.partition("\n")[0].partition(" ")[0].strip() in keys
            ):
                advice = "sort the images into train/CLASS and test/CLASS, or move the list away to train on all"
                raise DataError(
                    f"{self.path!r}: {name} lists images of a split, which is not read: {advice}"
                )

    def about_others(self) -> list[str]:
        """A line that counts the files that are neither images nor were read as tables, by suffix,
        if any."""
        kinds = Counter(
            suffix(name) or "no suffix" for name in self.others if name not in self._used
        ).most_common()
        counts = listed((f"{kind} {count:,}" for kind, count in kinds), 4)
        total = sum(count for _, count in kinds)
        unused = [name for name in self.others if _is_table(name) and name not in self._used]
        # else of another split
        tables = listed([name for name in unused if not splits.split_words(name)], 3)
        counts += f"; not read for classes: {tables}" if tables else ""
        return (
            [f"{self.path!r}: ignored {total:,} files that are no images ({counts})"]
            if kinds
            else []
        )

    def _note(self, line: str) -> None:
        if (line := f"{self.path!r}: {line}") not in self.notes:
            self.notes.append(line)

    def _unwrap(self, base: str, images: list[str], to_splits: bool = False) -> str:
        """The folder inside `base` that has several folders, or images, or is the only folder
        `to_splits`."""
        while (
            len(tops := _by_folder(images, base)) == 1 and "" not in tops and not self._unread(base)
        ):
            (top,) = tops
            inner = _by_folder(images, f"{base}{top}/")
            is_split = to_splits and splits.split_words(top)
            if "" in inner or (is_split and not all(map(splits.split_words, inner))):
                break
            base = f"{base}{top}/"
            self._note(f"{base} is the only folder with images, and is read in its place")
        return base

    def _unread(self, base: str) -> list[str]:
        """The first folders below `base` that may be meant as classes: without images, empty or of
        unknown files."""
        full = {
            name[len(base) :].partition("/")[0] for name in self.images if name.startswith(base)
        }
        inside = {
            name[len(base) :].partition("/")[0]
            for name in self._folders
            if f"{name}/".startswith(base)
        }
        unread = sorted(inside - full - {""})
        kinds = {
            name: {suffix(x) for x in self.others if x.startswith(f"{base}{name}/")}
            for name in unread
        }
        return [name for name in unread if not kinds[name] or kinds[name] - {*_BESIDE}]

    def _are_splits(self, base: str, tops: dict[str, list[str]], sides: list[str]) -> bool:
        """Whether the folders with words of splits are splits, and not classes as all others."""
        if not (others := [top for top in tops if top and top not in sides]):
            return True
        # A class may be called "train" or "bullet train"; a split without class folders or a table
        # cannot be read.
        if all(
            {*splits.split_words(x)} == {TRAIN_SPLIT} and not self._is_labelled(f"{base}{x}/")
            for x in sides
        ):
            self._note(
                f"{listed(map(repr, sides))} is taken as a class, like the {len(others)} folders beside it"
            )
            return False
        classes = f"as classes like {listed(map(repr, others))} beside them"
        raise self._ambiguous(
            sides, "as splits", classes, "move the folders of one kind away, or rename them"
        )

    def _ambiguous(self, names: Iterable[str], one: str, other: str, advice: str) -> DataError:
        return DataError(
            f"{self.path!r}: {listed(map(repr, names))} can be read {one}, or {other}: {advice}"
        )

    def _is_labelled(self, folder: str) -> bool:
        images = [name for name in self.images if name.startswith(folder)]
        split = splits.split_of(folder[:-1].rpartition("/")[2])
        with contextlib.suppress(DataError):  # which reading it will raise
            return len(_by_folder(images, self._unwrap(folder, images))) > 1 or bool(
                self._by_table(images, split)
            )
        return True

    def _classes(self, base: str, images: list[str], split: str) -> dict[str, str]:
        tops = _by_folder(images, base)
        if len(tops) == 1 and (found := self._by_table(images, split)):
            table, classes = found
            self._note(f"the classes of {len(images):,} images are those of {table}")
            return classes
        if {*tops} == {""}:
            unused = "".join(f", and {table} names none of them" for table in self._tables(split))
            what = f"{os.path.join(self.path, base)!r} has no classes: {len(images):,} images in no class folders"
            raise DataError(f"{what}{unused}; {EXPECTED}, or in or beside their folder {TABLES}")
        if "" in tops:
            raise DataError(
                f"{self.path!r}: image {tops[''][0]!r} lies outside of the class folders; move it into one"
            )
        if unread := self._unread(base):
            expected = f"{EXPECTED}, in formats that Pillow reads"
            raise DataError(
                f"{self.path!r}: class folder {base + unread[0]!r} is empty: {expected}; fill or remove it"
            )
        self._check_deeper(base, tops)
        names = {top: unicodedata.normalize("NFC", top) for top in tops}
        if len({*names.values()}) < len(names):
            self._note("folders whose names differ in nothing but their Unicode form are one class")
        sizes = {names[top]: len(members) for top, members in tops.items()}
        self.notes += check_names(sizes, f"of {self.path!r}", unit="images")
        return {name: names[top] for top, members in tops.items() for name in members}

    def _check_deeper(self, base: str, tops: dict[str, list[str]]) -> None:
        """Says that folders inside class folders count to these; raises DataError if they are
        called as splits, or are the same in most class folders, and no dates: they may be the
        classes, or images and their masks; and if class folders are called as parts, or images as
        masks."""
        inside = {f"{base}{top}/": members for top, members in tops.items()}
        deeper = sorted(
            {
                top + inner
                for top, members in inside.items()
                for inner in _by_folder(members, top)
                if inner
            }
        )
        pairs = {
            (top, name[len(top) :].rpartition("/")[0].partition("/")[0])
            for top in inside
            for name in inside[top]
        }
        times = Counter(inner for _, inner in pairs)
        may_be_classes = "" not in times and not any(re.search(r"\d{4}", name) for name in times)
        if len(tops) > 1 < len(times) and may_be_classes and min(times.values()) > len(tops) / 2:
            both = f"{listed(map(repr, sorted(tops)), 3)}, or {listed(map(repr, sorted(times)), 3)} in each of them"
            advice = "put the images of a class directly into its folder, and masks elsewhere"
            raise DataError(f"{self.path!r}: the classes may be {both}: {advice}")
        for folder in deeper:
            if {*splits.split_words(folder.rpartition("/")[2])} - {TRAIN_SPLIT}:
                advice = "put the splits first, as train/CLASS and val/CLASS, or rename it"
                raise self._ambiguous([folder], "as a split of a class", "as a part of it", advice)
        if len(tops) > 1 and all(map(_PART.fullmatch, tops)):
            advice = "put the images of each class into one folder, or rename the classes"
            raise self._ambiguous(tops, "as classes", "as parts of the data", advice)
        if any(map(_IMAGES.fullmatch, tops)) and (masks := [*filter(_MASKS.fullmatch, tops)]):
            raise self._ambiguous(
                masks, "as classes", "as masks of the images beside them", "move the masks away"
            )
        stems = {os.path.splitext(name)[0] for members in tops.values() for name in members}
        marks = {stem: match for stem in sorted(stems) if (match := _MASK.search(stem))}
        if masks := [stem for stem, match in marks.items() if stem[: match.start()] in stems]:
            raise self._ambiguous(
                masks, "as images", "as masks of those without this ending", "move the masks away"
            )
        if deeper:
            self._note(
                f"{len(deeper):,} folders inside class folders count to these, such as {deeper[0]!r}"
            )

    def _by_table(self, images: list[str], split: str) -> tuple[str, dict[str, str]] | None:
        """The table that has all `images`, and the class of each; None if no table has one of them.

        Raises:
            DataError: a table lacks images, or its columns or two tables can be read in two ways.
        """
        beside = {name: f"{os.path.splitext(name)[0]}.cls" for name in images}
        if {*beside.values()} <= {*self.others}:
            self._used |= {*beside.values()}
            with decode_errors(f"{self.path!r}: a file .cls is no text in UTF-8", "mend it"):
                classes = {x: class_name(decode_utf8(self._read(y))) for x, y in beside.items()}
            self.notes += check_names(
                Counter(classes.values()), f"in the files .cls of {self.path!r}"
            )
            return "the files .cls beside them", classes
        found, wanted = {}, set(images)
        for table in self._tables(split):
            # Numbers may name images of two splits. A table in a folder of images is for these.
            folder = table.rpartition("/")[0] if table in self.others else ""
            near = [
                name for name in self.images if name.startswith(folder and f"{folder}/")
            ] or self.images
            keys = _keys(
                [x for x in near if x in wanted or not splits.split_words(os.path.basename(table))]
            )
            found[table] = {
                name: value
                for name, value in self._lookup(table, keys, split).items()
                if name in wanted
            }
        known = [table for table in found if _is_first_word(table) and found[table]]
        found = {table: found[table] for table in known or found if found[table]}
        if not found:
            return None
        (table, classes), *others = sorted(found.items(), key=lambda item: -len(item[1]))
        if missing := [name for name in images if name not in classes]:
            raise DataError(
                f"{table}: no class for {len(missing):,} of {len(images):,} images, such as {missing[0]!r}"
            )
        if other := next(
            (name for name, own in others if any(classes[image] != own[image] for image in own)), ""
        ):
            raise DataError(
                f"{table!r} and {other!r} give other classes for the same images; remove one of them"
            )
        self._used.add(table)
        return table, classes

    def _tables(self, split: str) -> list[str]:
        """The tables in the folder or beside it that may be for a split, if that is known: one
        whose name has the word of a split is for the images of this split."""
        tables = [*filter(_is_table, self.others), *self._tables_beside]
        words = {table: splits.split_words(os.path.basename(table)) for table in tables}
        return [table for table in tables if not (words[table] and split) or split in words[table]]

    @functools.cached_property
    def _tables_beside(self) -> list[str]:
        """Paths of the tables beside the folder, and of Kaggle's above it."""
        folder, found = files.absolute(self.path), []
        for level in range(_ABOVE + 1):
            folder = folder.rpartition("/")[0]
            with contextlib.suppress(DataError):  # a folder above that may not be listed
                names = [name for name in files.listdir(folder) if _is_table(name)]
                found += [
                    files.join(folder, name) for name in names if level == 0 or _is_first_word(name)
                ]
        return found

    def _lookup(self, table: str, keys: dict[str, str], split: str) -> dict[str, str]:
        """The images among `keys` that a table has, and their classes."""
        with decode_errors(f"{table}: not a table in UTF-8", "save it as UTF-8, or remove it"):
            text = decode_utf8((self._read if table in self.others else files.read_small)(table))
            text = re.sub(r'\A"?sep=.[",;\t]*\s*\n', "", text)  # of Excel
            head = text.partition("\n")[0]
            rows = [
                row
                for row in csv.reader(io.StringIO(text), delimiter=max(",\t;", key=head.count))
                if row
            ]
            if suffix(table) == ".jsonl":  # metadata.jsonl of the package datasets
                records = [
                    json_files.loads(line) for line in text.splitlines() if line.strip()
                ] or [{}]
                rows = [
                    [*records[0]],
                    *([str(record.get(name, "")) for name in records[0]] for record in records),
                ]
            rows = [[cell.replace("\\", "/") for cell in row] for row in rows]  # of Windows
        width = max(map(len, rows), default=0)
        hits = [
            len({row[column] for row in rows if len(row) > column} & keys.keys())
            for column in range(width)
        ]
        if not any(hits) or width < 2:
            return {}
        name_column = hits.index(max(hits))
        class_column = _class_column(table, rows[0], name_column)
        columns = (
            dict(zip(rows[0], map(set, zip(*rows[1:], strict=False)), strict=False))
            if not split
            else {}
        )
        used = rows[0][name_column], rows[0][class_column]
        notes = splits.check_columns(
            {name: columns[name] for name in columns if name not in used}, table
        )
        found: dict[str, str] = {}
        for row in (row for row in rows if len(row) > name_column and row[name_column] in keys):
            image, value = (
                keys[row[name_column]],
                row[class_column].strip() if len(row) > class_column else "",
            )
            value = value.partition(" ")[0] if _is_first_word(table) else class_name(value)
            if value in MISSING or found.setdefault(image, value) != value:
                raise DataError(f"{table}: {row[name_column]!r} has no class, or two; mend it")
        notes += check_names(Counter(found.values()), f"among the classes of {table}")
        notes.append(
            f"{table}: images and their classes by the columns {used[0]!r} and {used[1]!r}"
        )
        self.notes += [line for line in notes if line not in self.notes]
        return found


def _by_folder(images: Iterable[str], base: str) -> dict[str, list[str]]:
    """First folder below `base` -> the images in it; "" for those right in `base`, or in its folder
    `images`."""
    found: dict[str, list[str]] = {}
    for name in images:
        place = f"/{name.rpartition('/')[0]}".removesuffix("/images")[1:]
        found.setdefault(f"{place}/"[len(base) :].partition("/")[0], []).append(name)
    return found


def _is_first_word(table: str) -> bool:
    return os.path.basename(table).lower() in _FIRST_WORD


def _is_table(name: str) -> bool:
    # A sample of a submission has the names of the test images, and made-up classes.
    return _is_first_word(name) or (
        suffix(name) in (".csv", ".tsv", ".jsonl")
        and "submission" not in os.path.basename(name).lower()
    )


def _keys(images: list[str]) -> dict[str, str]:
    """What a table may call each image -> its name: all ends of its path, with or without the
    suffix."""
    found: dict[str, str | None] = {}
    for name in images:
        parts = name.split("/")
        for end in {"/".join(parts[depth:]) for depth in range(len(parts))}:
            for key in dict.fromkeys(
                one.replace("\\", "/") for one in (end, os.path.splitext(end)[0])
            ):
                found[key] = None if key in found else name
    return {key: name for key, name in found.items() if name is not None}


def _class_column(table: str, header: list[str], name_column: int) -> int:
    if _is_first_word(table):
        return 1
    others = [column for column in range(len(header)) if column != name_column]
    called = [
        column
        for column in others
        if "".join(filter(str.isalnum, header[column])).lower() in CLASS_COLUMNS
    ]
    if len(others) == 1 and not splits.may_name_splits(header[others[0]]):
        return others[0]
    if len(called) == 1:
        return called[0]
    raise DataError(
        f"{table}: which of its columns {', '.join(map(repr, (header[column] for column in others)))} is the class is "
        f"not clear: keep one, or call one 'label'"
    )
