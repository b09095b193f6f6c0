"""Random trees of folders of images, with and without tables of their classes, read as a folder and
as a tar file, and compared with a slow reading of the documented forms."""

import csv
import io
import shutil
import unicodedata

from gmlp_flax.data.readers import images as image_reader
from gmlp_flax.errors import DataError
from tests.data.images import image_files

SPLITS = {
    "train": "train",
    "TRAINING": "train",
    "val": "validation",
    "Valid": "validation",
    "dev": "validation",
    "test": "test",
    "Testing": "test",
}
OTHERS = (
    "archive",
    "cat",
    "Cat",
    "dog",
    "a",
    "A",
    "3",
    "10",
    "latest",
    "train2",
    "seg_train",
    "test-1",
    "train_interior",
    "so so",
    "2021-03-01",
    "\u00e9t\u00e9",
    "e\u0301te\u0301",
    "\u732b",
)
IMAGES = ("a.png", "b.JPG", "c.jpe", "e.avif", "g.tif")
NO_IMAGES = ("notes.txt", "boxes.xml", ".hidden.png", "Thumbs.db", "labels.txt")
TABLES = ("labels.csv", "metadata.csv")


def make(folder):
    content = image_files.png(0)

    def check(rng):
        files, rows = _tree(rng, content)
        root = folder / "tree"
        shutil.rmtree(root, ignore_errors=True)
        image_files.make_folder(root, files)
        tar = image_files.make_tar(folder, files)
        for path in (root, tar):
            expected = _expected(files, rows, is_tar=path == tar)
            found = _read(str(path))
            assert found == expected, (path.name, sorted(files), rows, found, expected)

    return check


def _read(path):
    """Split -> image -> class, or None for a split that is refused; None if all are."""
    try:
        splits = image_reader.read(path)
    except DataError as error:
        assert "\n" not in str(error)
        return None
    found = {}
    for split in splits:
        try:
            found[split] = image_files.classes_by_name(splits[split])
        except DataError as error:
            assert "\n" not in str(error)
            found[split] = None
    return found


def _tree(rng, content):
    """Files by name, and the rows of each table by its name."""
    paths = _paths(rng)
    files = dict.fromkeys(sorted(paths), content)
    most = min(2, len(paths))
    for path in rng.sample(sorted(paths), most):
        folder, _, _ = path.rpartition("/")
        no_image = rng.choice(NO_IMAGES)
        name = f"{folder}/{no_image}" if folder else no_image
        files[name] = b"-"
    rows = {}
    if rng.random() < 0.4:
        tops = {path.partition("/")[0] for path in paths if "/" in path}
        prefixes = [""] if rng.random() < 0.5 else [f"{top}/" for top in sorted(tops)]
        for prefix in prefixes:
            name = prefix + rng.choice(TABLES)
            rows[name] = _rows(rng, prefix, paths)
            files[name] = _table(rows[name])
    return files, rows


def _paths(rng):
    """Paths of images in random folders."""
    levels = []
    for _ in range(3):
        count = rng.randint(1, 4)
        names = rng.sample([*SPLITS, *OTHERS], count)
        levels.append(names)
    kind = rng.random()
    if kind < 0.4:
        split_count = rng.randint(1, 3)
        levels[0] = rng.sample([*SPLITS], split_count)
        other_count = rng.randint(1, 4)
        levels[1] = rng.sample(OTHERS, other_count)
    elif kind < 0.8:
        other_count = rng.randint(1, 4)
        levels[0] = rng.sample(OTHERS, other_count)
    possible = [(1,), (2,), (0, 1), (1, 2), (2, 3), (0, 1, 2, 3)]
    depths = rng.choice(possible)
    paths = set()
    for _ in range(rng.randint(2, 14)):
        folders = [rng.choice(names) for names in levels]
        chosen = folders[: rng.choice(depths)]
        paths.add("/".join([*chosen, rng.choice(IMAGES)]))
    return paths


def _rows(rng, prefix, paths):
    """(path, label, split) of the images under a prefix, mostly correct."""
    inside = []
    for path in sorted(paths):
        if path.startswith(prefix):
            inside.append(path)
    words = rng.choice([("",), ("",), ("train", "dev"), ("test", "")])
    rows = []
    for path in inside:
        label = rng.choice(["cat", "dog ", "10", 'a "b", c'])
        relative = path[len(prefix) :]
        rows.append((relative, label, rng.choice(words)))
    change = rng.random()
    if change < 0.1:
        rows.pop()
    elif change < 0.2:
        rows.append(("gone.png", "cat", ""))
    return rows


def _table(rows):
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["file_name", "label", "split"])
    writer.writerows(rows)
    return file.getvalue().encode()


def _expected(files, rows, is_tar):
    """What `_read` should give, by the documented forms alone."""
    images = [name for name in files if _is_image(name)]
    others = [name for name in files if not _is_hidden(name)]
    tables = {}
    for name, table in rows.items():
        folder, slash, _ = name.partition("/")
        if not slash or folder in SPLITS:
            tables[name] = table
    if tables and is_tar:
        return None
    if tables:
        return _by_tables(images, tables)
    groups = _groups(images)
    if groups is None:
        return None
    for prefix in groups.values():
        if _have_inner_splits(_under(images, prefix)):
            return None
    found = {}
    for split, prefix in groups.items():
        labels = _by_folders(_under(images, prefix), _under(others, prefix))
        found[split] = _with_prefix(prefix, labels)
    return found


def _is_hidden(name):
    return any(part.startswith(".") for part in name.split("/"))


def _is_image(name):
    base = name.rpartition("/")[2]
    return base in IMAGES and not _is_hidden(name)


def _under(names, prefix):
    """The names under a prefix, without it."""
    return [name[len(prefix) :] for name in names if name.startswith(prefix)]


def _with_prefix(prefix, labels):
    if labels is None:
        return None
    return {prefix + name: label for name, label in labels.items()}


def _top(name):
    """The first folder of a name, or ""."""
    folder, slash, _ = name.partition("/")
    return folder if slash else ""


def _groups(images):
    """Split -> prefix; None if only some first folders are splits, or two are the same."""
    tops = sorted({_top(name) for name in images})
    splits = []
    for top in tops:
        if top in SPLITS:
            splits.append(top)
    if not splits:
        named = [top for top in tops if top]
        may_be_splits = len(named) > 1 and all(map(_mentions_split, named))
        return None if may_be_splits else {"": ""}
    if len(splits) < len(tops):
        return None
    groups = {SPLITS[top]: f"{top}/" for top in splits}
    return groups if len(groups) == len(splits) else None


def _mentions_split(name):
    letters = ""
    for char in name:
        letters += char if char.isalpha() else " "
    words = letters.lower().split()
    if not words:
        return False
    splits = {word.lower() for word in SPLITS}
    return words[0] in splits or words[-1] in splits


def _have_inner_splits(names):
    """Whether a folder inside a class folder, of two or more, has the name of a split."""
    if len({_top(name) for name in names}) < 2:
        return False
    for name in names:
        parts = name.split("/")
        if len(parts) > 2 and parts[1] in SPLITS:
            return True
    return False


def _class(folder):
    return unicodedata.normalize("NFC", folder).strip()


def _by_folders(images, others):
    """The class of each image, or None for images outside class folders or an empty folder."""
    tops = {_top(name) for name in images}
    if "" in tops:
        return None
    is_deep = any(name.count("/") > 1 for name in images)
    if len(tops) == 1 and is_deep:
        return None
    found = {name: _class(_top(name)) for name in images}
    for name in others:
        if _top(name) and _class(_top(name)) not in found.values():
            return None
    return found if _are_different(found.values()) else None


def _are_different(labels):
    """Whether no two classes of more than one letter differ only in case."""
    words = set()
    for label in labels:
        if len(label) > 1:
            words.add(label)
    lowered = {word.lower() for word in words}
    return len(words) == len(lowered)


def _by_tables(images, tables):
    """By a table in ROOT, or by one in the folder of each split."""
    in_root = [name for name in tables if "/" not in name]
    if in_root:
        return _by_root_table(images, tables[in_root[0]])
    groups = _groups(images)
    if groups is None:
        return None
    found = {}
    for split, prefix in groups.items():
        inside = []
        for name, rows in tables.items():
            if name.startswith(prefix):
                inside.append(rows)
        images_inside = _under(images, prefix)
        labels = _by_split_table(images_inside, inside, split)
        found[split] = _with_prefix(prefix, labels)
    return found


def _by_root_table(images, rows):
    """The splits of the rows of a table in ROOT."""
    words = {}
    for file, _, word in rows:
        words[file] = word
    if not any(words.values()):
        words = {file: _top(file) for file in words}
        known = {word.lower() for word in words.values() if word in SPLITS}
        meant = {SPLITS[word] for word in words.values() if word in SPLITS}
        if len(known) > len(meant):  # folders of two names mean one split
            return None
    splits = {file: SPLITS.get(word, "") for file, word in words.items()}
    have_splits = {bool(split) for split in splits.values()}
    if len(have_splits) != 1:  # no row, or some with a split and some without
        return None
    is_whole = set(splits) == set(images)
    found = {}
    for file, label, _ in rows:
        if not is_whole:
            found[splits[file]] = None
            continue
        labels = found.setdefault(splits[file], {})
        labels[file] = label.strip()
    return found


def _by_split_table(images, tables, split):
    """Image -> class, of the images in the folder of a split."""
    if len(tables) != 1 or not tables[0]:
        return None
    found = {}
    for file, label, word in tables[0]:
        if word and SPLITS[word] != split:
            return None
        found[file] = label.strip()
    return found if set(found) == set(images) else None
