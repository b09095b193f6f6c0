"""Random trees of folders of images, as a folder and as a tar file, read and compared with an
oracle of 30 lines."""

import shutil
import unicodedata

from gmlp_flax.data.images.folders import ImageFolder, ImageTar
from gmlp_flax.errors import DataError
from tests.data.images import image_files

# Names of folders, and the splits that they stand for.
FOLDERS = dict.fromkeys(
    "archive x images cat dog 3 10 latest trains été été 猫 photos a-b x_y n01440764 2021-03-01 Kitchen".split(),
    "",
)
FOLDERS |= dict.fromkeys(
    "train Train TRAINING train2 seg_train training_set bullet_train".split(), "train"
)
FOLDERS |= dict.fromkeys("val valid Validation dev val_1 my-val".split(), "validation")
FOLDERS |= dict.fromkeys("test TEST test1 testing seg_test".split(), "test")
FILES = "a.png b.JPG c.jpe d e.avif f.JPG.jpeg_large g.tif".split()
OTHERS = ("notes.txt", "boxes.xml", ".hidden.png", "Thumbs.db")


def oracle(paths):
    """Split ("" if there are none) -> path -> class, or None if it must be refused; None if all
    must be."""
    whole = {path: path.split("/")[:-1] for path in paths}
    rows = {path: row[:-1] if row[-1:] == ["images"] else row for path, row in whole.items()}

    def tops(rows, depth):
        return {row[depth] if len(row) > depth else "" for row in rows.values()}

    def unwrapped(rows, depth, outside):
        while len(names := tops(rows, depth)) == 1 and "" not in (inner := tops(rows, depth + 1)):
            if outside and FOLDERS[min(names)] and not all(FOLDERS[name] for name in inner):
                break
            depth += 1
        return depth

    def classes(rows, depth):
        if "" in tops(rows, depth):
            return None
        inner = [
            tops({p: whole[p] for p in rows if rows[p][depth] == x}, depth + 1)
            for x in tops(rows, depth)
        ]
        deep = {name for names in inner for name in names}
        often = all(2 * sum(name in names for names in inner) > len(inner) for name in deep)
        if ("" not in deep and len(deep) > 1 < len(inner) and often) or any(
            FOLDERS.get(x) in ("validation", "test") for x in deep
        ):
            return None
        found = {path: unicodedata.normalize("NFC", row[depth]) for path, row in rows.items()}
        return (
            found
            if len({*found.values()}) == len({name.lower() for name in found.values()})
            else None
        )

    depth = unwrapped(rows, 0, True)
    names = tops(rows, depth)
    sides, others = (
        {name for name in names if name and FOLDERS[name]},
        {name for name in names if name and not FOLDERS[name]},
    )
    parts = {
        name: {path: row for path, row in rows.items() if row[depth : depth + 1] == [name]}
        for name in sides
    }
    begins = {name: unwrapped(part, depth + 1, False) for name, part in parts.items()}
    flat = {name for name in sides if len(tops(parts[name], begins[name])) == 1}
    if sides and others and all(FOLDERS[name] == "train" and name in flat for name in sides):
        sides = set()  # a class that is called so
    if sides and others:
        return None
    if not sides:
        return {"": classes(rows, depth)}
    found = {}
    for name in sorted(sides):
        own, before = classes(parts[name], begins[name]), found.get(FOLDERS[name], {})
        found[FOLDERS[name]] = None if own is None or before is None else before | own
    if len(found) > 1 and all(name in flat for name in sides if FOLDERS[name] == "test"):
        found.pop("test", None)
    return found


def tree(rng):
    """Names of images below random folders, none of which is also called as another one in its
    other Unicode form."""
    levels = [rng.sample([*FOLDERS], rng.randint(1, 4)) for _ in range(3)]
    if rng.random() < 0.5:
        levels[0] = [name for name in levels[0] if FOLDERS[name]] or ["train", "val_1"]
    paths = set()
    for _ in range(rng.randint(2, 16)):
        folders = [rng.choice(names) for names in levels][: rng.choice((0, 1, 1, 2, 2, 2, 3))]
        folders += ["images"] * (rng.random() < 0.1)
        paths.add("/".join([*folders, rng.choice(FILES)]))
    wrapper = "".join(
        f"{rng.choice(['photos', 'archive', 'x'])}/" for _ in range(rng.choice((0, 0, 0, 1, 2)))
    )
    return {wrapper + path for path in paths}


def make(folder):
    content = image_files.png(0)

    def check(rng):
        paths = tree(rng)
        expected = oracle(paths)
        others = {
            f"{path.rpartition('/')[0]}/{rng.choice(OTHERS)}".lstrip("/"): b"-"
            for path in rng.sample(sorted(paths), min(2, len(paths)))
        }
        shutil.rmtree(folder / "tree", ignore_errors=True)
        files = dict.fromkeys(sorted(paths), content) | others
        root = image_files.make_folder(folder / "tree", files)
        for kind, path in ((ImageFolder, root), (ImageTar, image_files.make_tar(folder, files))):
            assert read(kind, str(path)) == expected, (kind.__name__, sorted(paths))

    return check


def read(kind, path):
    try:
        source = kind(path)
    except DataError:
        return None
    found = {}
    for split in source.splits or [""]:
        try:
            part = source.of_split(split)
            found[split] = {
                name: part.classes[label]
                for name, label in zip(part.names, part.labels, strict=True)
            }
        except DataError:
            found[split] = None
    return found
