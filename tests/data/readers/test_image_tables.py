"""Images with a table of their classes, in the same folder or at another path."""

import os
import pickle
import unicodedata

import pytest

from gmlp_flax.data.images import stores
from gmlp_flax.data.readers import image_tables
from tests.data import writers
from tests.data.images.image_files import (
    classes_by_name,
    empty_files,
    images_by_name,
    make_folder,
    make_tar,
    png,
)
from tests.failures import failure

NAMES = ("0.png", "b/1.png", "2.png")
CLASSES = {"0.png": "cat", "b/1.png": "dog", "2.png": "cat"}
HEADER = b"file_name,label\n"
TABLE = HEADER + b"0.png,cat\nb/1.png,dog\n2.png,cat\n"


def opened(path, files):
    return stores.open_folder(str(make_folder(path / "root", files)))


def opened_with_table(path, table):
    """The images of NAMES, with this table."""
    return opened(path, empty_files(*NAMES) | {"labels.csv": table})


def read_all(store, ignore_splits=False):
    """Split -> image -> class."""
    splits = image_tables.read(store, ignore_splits)
    return {split: classes_by_name(splits[split]) for split in splits}


def lines(rows, suffix):
    """The content of a table in the format of the suffix."""
    if suffix == "jsonl":
        return writers.json_lines(*rows)
    text_lines = [",".join(rows[0])]
    for row in rows:
        cells = map(str, row.values())
        text_lines.append(",".join(cells))
    return "\n".join(text_lines).encode()


@pytest.mark.parametrize("name", ["labels.csv", "metadata.csv", "metadata.jsonl"])
def test_tables_in_the_root_are_read(tmp_path, name):
    rows = []
    for file in NAMES:
        rows.append({"file_name": file, "label": CLASSES[file], "note": "x"})
    images = {file: file.encode() for file in NAMES}
    others = empty_files("b/notes.txt", ".x.png")
    _, suffix = name.split(".")
    table = {name: lines(rows, suffix)}
    store = opened(tmp_path, images | others | table)
    assert image_tables.matches(store)
    splits = image_tables.read(store)
    assert list(splits) == [""]
    pickled = pickle.dumps(splits[""])
    dataset = pickle.loads(pickled)
    assert classes_by_name(dataset) == CLASSES
    assert images_by_name(dataset) == images
    assert dataset.columns == ("file_name", "label")
    assert dataset.stratified
    (note,) = dataset.notes
    assert "1 file " in note
    assert ".txt 1" in note


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_each_split_may_have_a_table(tmp_path, suffix):
    """As in folders of images of the package datasets, splits have the same file names."""
    classes = {"train": ["cat", "dog", "cat"], "Test": ["dog", "cat"]}
    files = {}
    for split, class_names in classes.items():
        rows = []
        for number, class_name in enumerate(class_names):
            name = f"{number}.png"
            rows.append({"file_name": name, "label": class_name})
            files[f"{split}/{name}"] = b""
        files[f"{split}/metadata.{suffix}"] = lines(rows, suffix)
    store = opened(tmp_path, files)
    assert image_tables.matches(store)
    assert read_all(store) == {
        "test": {"Test/0.png": "dog", "Test/1.png": "cat"},
        "train": {"train/0.png": "cat", "train/1.png": "dog", "train/2.png": "cat"},
    }
    (joined,) = read_all(store, ignore_splits=True).values()
    assert joined["Test/0.png"] == "dog"
    assert joined["train/1.png"] == "dog"
    assert len(joined) == 5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            ["train", "TEST", " dev "],
            {"train": ["0.png"], "test": ["b/1.png"], "validation": ["2.png"]},
        ),
        (["", "", ""], {"": ["0.png", "2.png", "b/1.png"]}),
        (["valid", "valid", "valid"], {"validation": ["0.png", "2.png", "b/1.png"]}),
    ],
)
def test_a_column_may_name_splits(tmp_path, values, expected):
    table = "file_name,label,split\n"
    for name, value in zip(NAMES, values, strict=True):
        label = CLASSES[name]
        table += f"{name},{label},{value}\n"
    store = opened_with_table(tmp_path, table.encode())
    names = {}
    for split, images in read_all(store).items():
        names[split] = sorted(images)
    assert names == expected
    assert read_all(store, ignore_splits=True) == {"": CLASSES}


def test_folders_in_a_single_table_may_name_splits(tmp_path):
    names = ("train/1.png", "train/x/2.png", "VAL/3.png")
    rows = [{"file_name": name, "label": "a"} for name in names]
    table = {"metadata.csv": lines(rows, "csv")}
    store = opened(tmp_path, empty_files(*names) | table)
    found = read_all(store)
    assert set(found) == {"train", "validation"}
    assert list(found["train"]) == ["train/1.png", "train/x/2.png"]
    assert list(found["validation"]) == ["VAL/3.png"]
    assert list(read_all(store, ignore_splits=True)) == [""]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("train/1.png,a\n2.png,b\n", ["line 2", "line 3"]),
        ("train/1.png,a\ncat/2.png,b\n", ["line 2", "line 3"]),
    ],
)
def test_splits_in_only_some_rows_are_refused(tmp_path, rows, words):
    names = []
    for row in rows.splitlines():
        names.append(row.partition(",")[0])
    table = {"labels.csv": HEADER + rows.encode()}
    image_files = empty_files(*names)
    store = opened(tmp_path, image_files | table)
    message = failure(image_tables.read, store)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (b"\xef\xbb\xbf" + TABLE, CLASSES),
        (TABLE.replace(b"\n", b"\r\n"), CLASSES),
        (TABLE.replace(b"\n", b"\n\n") + b"\n\n", CLASSES),
        (TABLE.rstrip(b"\n"), CLASSES),
        (b'"file_name","label"\n"0.png","cat"\n"b/1.png","dog"\n"2.png",cat\n', CLASSES),
        (b"label,x,file_name\ncat,,0.png\ndog,,b/1.png\ncat,,2.png\n", CLASSES),
        (TABLE.replace(b"cat", b'" c,a\nt ""x"" "'), {"0.png": 'c,a\nt "x"'}),
        (TABLE.replace(b"cat", b"1").replace(b"dog", b"0.5"), {"0.png": "1", "b/1.png": "0.5"}),
        (TABLE.replace(b"cat", "e\u0301".encode()), {"0.png": "\u00e9"}),
        (TABLE.replace(b"cat", b"x" * 100_000), {"0.png": "x" * 100_000}),
        (TABLE.replace(b"cat", b"None"), {"0.png": "None"}),
    ],
)
def test_equivalent_tables_are_read(tmp_path, table, expected):
    store = opened_with_table(tmp_path, table)
    classes = classes_by_name(image_tables.read(store)[""])
    for name, expected_class in expected.items():
        assert classes[name] == expected_class


def json_table(path, label):
    """Two images, the first with this label."""
    rows = [{"file_name": "0.png", "label": label}, {"file_name": "1.png", "label": "x"}]
    table = {"metadata.jsonl": writers.json_lines(*rows)}
    store = opened(path, empty_files("0.png", "1.png") | table)
    return image_tables.read(store)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, "3"), ("3", "3"), (True, "true"), (1.0, "1.0"), (2**70, str(2**70))],
)
def test_json_labels_become_text(tmp_path, value, expected):
    splits = json_table(tmp_path, value)
    classes = classes_by_name(splits[""])
    assert classes["0.png"] == expected


def test_unprintable_json_labels_are_refused_in_printable_words(tmp_path):
    splits = json_table(tmp_path, "\ud83d")
    message = failure(splits.__getitem__, "")
    message.encode()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (b"", ["labels.csv", "empty"]),
        (b"\n\n", ["labels.csv", "empty"]),
        (HEADER, ["labels.csv", "no rows"]),
        (b"file_name;label\n0.png;cat\n", ["'file_name;label'", "separated by commas in .csv"]),
        (
            b"file_name,label,Split\n0.png,cat,train\n",
            ["line 2", "the column 'Split' is not read: rename it to 'split'"],
        ),
        (b"0.png,cat\nb/1.png,dog\n2.png,cat\n", ["'file_name'", "'0.png', 'cat'"]),
        (b"file_name,kind\n0.png,cat\n", ["'label'", "'file_name', 'kind'"]),
        (b"file,label\n0.png,cat\n", ["'file_name'", "'file', 'label'"]),
        (b"file_name;label\n0.png;cat\n", ["'file_name'", "'file_name;label'"]),
        (b"file_name,label,label\n0.png,cat,dog\n", ["'label'", "two columns"]),
        (TABLE.replace(b",cat\nb", b"\nb"), ["line 2", "1 cell"]),
        (TABLE.replace(b"dog", b"dog,3"), ["line 3", "3 cells"]),
        (TABLE.replace(b"dog", b""), ["line 3", "'label'"]),
        (TABLE.replace(b"dog", b"  "), ["line 3", "'label'"]),
        (TABLE.replace(b"b/1.png", b""), ["line 3", "'file_name'"]),
        (TABLE.replace(b"dog", b"d\xf6g"), ["line 3", "UTF-8"]),
        (TABLE.replace(b"dog", b"d\0g"), ["line 3", "zero byte"]),
        (TABLE.decode().encode("utf-16"), ["line 1", "UTF-16"]),
        (TABLE.replace(b"dog", b'"dog'), ["line 3"]),
        (TABLE.replace(b"\n", b"\r"), ["line 1"]),
        (TABLE.replace(b"2.png", b"0.png"), ["line 4", "'0.png'"]),
        (TABLE.replace(b"2.png,cat\n", b""), ["no row for 1 of 3", "'2.png'"]),
        (TABLE + b"3.png,cat\n", ["1 of 4 images", "'3.png'", "'0.png'"]),
        (TABLE.replace(b"0.png", b"./0.png"), ["'./0.png'", "'0.png'"]),
        (TABLE.replace(b"b/1.png", b"b\\1.png"), ["'b\\\\1.png'"]),
        (TABLE.replace(b"0.png", b"../0.png"), ["'../0.png'"]),
        (TABLE.replace(b"0.png", b"/0.png"), ["'/0.png'"]),
        (TABLE.replace(b"2.png,cat", b"2.png,Cat"), ["'cat' (1)", "'Cat' (1)"]),
        (b"file_name,label,split\n0.png,cat,extra\n", ["line 2", "'extra'"]),
        (b"file_name,label,split\n0.png,a,train\nb/1.png,b,\n2.png,b,train\n", ["line 3"]),
        (b"file_name,label,split\n0.png,a,0\nb/1.png,b,1\n2.png,b,1\n", ["line 2", "'0'"]),
    ],
)
def test_invalid_csv_tables_are_refused(tmp_path, table, words):
    store = opened_with_table(tmp_path, table)

    def read():
        splits = image_tables.read(store)
        return [splits[split] for split in splits]

    message = failure(read)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", ["metadata.jsonl", "no rows"]),
        (b"{", ["line 1", "JSON"]),
        (b"[]", ["line 1", "list"]),
        (b'["0.png", "cat"]', ["line 1", "list"]),
        (b'[{"file_name": "0.png", "label": "cat"}]', ["line 1", "list"]),
        (b'{"file_name": "0.png"}', ["line 1", "'label'", "'file_name'"]),
        (b"{}", ["line 1", "'file_name'", "none"]),
        (b'{"file_name": 3, "label": "cat"}', ["line 1", "'file_name'", "3"]),
        (b'{"file_name": ["0.png"], "label": "cat"}', ["line 1", "'file_name'"]),
        (b'{"file_name": null, "label": "cat"}', ["line 1", "'file_name'"]),
        (b'{"file_name": "0.png", "label": null}', ["line 1", "'label'"]),
        (b'{"file_name": "0.png", "label": NaN}', ["line 1", "'label'"]),
        (b'{"file_name": "0.png", "label": ["cat"]}', ["line 1", "'label'"]),
        (b'{"file_name": "0.png", "label": {"a": 1}}', ["line 1", "'label'"]),
        (b'{"file_name": "0.png", "label": ""}', ["line 1", "'label'"]),
        (b'{"file_name": "a\\u0000b.png", "label": "x"}', ["'a\\x00b.png'"]),
        (b'{"file_name": "0.png", "label": ' + b"9" * 5000 + b"}", ["line 1", "5,000 digits"]),
    ],
)
def test_invalid_json_tables_are_refused(tmp_path, line, words):
    table = {"metadata.jsonl": line}
    image_files = empty_files("0.png")
    store = opened(tmp_path, image_files | table)

    def read():
        return image_tables.read(store)[""]

    message = failure(read)
    for word in words:
        assert word in message


BOTH_TABLES = {"labels.csv": TABLE, "metadata.csv": TABLE}


def test_two_tables_in_the_root_are_refused(tmp_path):
    store = opened(tmp_path, empty_files(*NAMES) | BOTH_TABLES)
    message = failure(image_tables.read, store)
    for name in BOTH_TABLES:
        assert name in message


def test_two_tables_of_a_split_are_refused(tmp_path):
    files = {}
    for name, content in (empty_files(*NAMES) | BOTH_TABLES).items():
        files[f"train/{name}"] = content
    splits = image_tables.read(opened(tmp_path, files))
    message = failure(splits.__getitem__, "train")
    assert "train/labels.csv and train/metadata.csv" in message


def test_splits_without_a_table_are_refused_only_if_they_are_read(tmp_path):
    images = empty_files("train/0.png", "val/0.png")
    table = {"train/labels.csv": HEADER + b"0.png,a\n"}
    splits = image_tables.read(opened(tmp_path, images | table))
    assert len(splits["train"]) == 1
    assert "'val/'" in failure(splits.__getitem__, "validation")


@pytest.fixture
def train_folder(tmp_path):
    """Opens a folder called train, whose second row has this split."""

    def open_folder(split: str):
        table = f"file_name,label,split\n0.png,a,train\n1.png,b,{split}"
        images = empty_files("train/0.png", "train/1.png")
        return opened(tmp_path, images | {"train/labels.csv": table.encode()})

    return open_folder


def test_rows_of_a_split_folder_need_not_name_it(train_folder):
    splits = image_tables.read(train_folder(""))
    assert len(splits["train"]) == 2


def test_rows_of_a_split_folder_with_another_split_are_refused(train_folder):
    splits = image_tables.read(train_folder("test"))
    message = failure(splits.__getitem__, "train")
    assert "line 3" in message
    assert "'test'" in message


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("labels.csv", True),
        ("train/metadata.jsonl", True),
        ("cat/labels.csv", False),
        ("train/cat/labels.csv", False),
        ("my-labels.csv", False),
        ("Labels.csv", False),
        ("labels.tsv", False),
    ],
)
def test_tables_are_recognised_by_name_and_folder(tmp_path, name, expected):
    store = opened(tmp_path, empty_files("train/cat/0.png", name))
    assert image_tables.matches(store) == expected


def test_tables_in_tar_files_are_refused(tmp_path):
    path = make_tar(tmp_path, {"0.png": b"", "labels.csv": TABLE})
    store = stores.open_tar(str(path))
    assert "'labels.csv'" in failure(image_tables.matches, store)


def test_other_tables_next_to_class_folders_are_refused(tmp_path):
    files = empty_files("cat/1.png", "dog/2.png") | {"labels.csv": b"id,breed\n1,x\n"}
    store = opened(tmp_path, files)
    message = failure(image_tables.read, store)
    assert "'id', 'breed'" in message
    assert "folders" in message


def test_names_in_another_unicode_form_are_refused(tmp_path):
    """Zip files of macOS have NFD names, and editors write NFC."""
    composed = unicodedata.normalize("NFC", "é.png")
    decomposed = unicodedata.normalize("NFD", "é.png")
    table = {"labels.csv": HEADER + f"{composed},a\n".encode()}
    image_files = empty_files(decomposed)
    splits = image_tables.read(opened(tmp_path, image_files | table))
    assert "NFD" in failure(splits.__getitem__, "")


def test_remote_folders_are_read(tmp_path):
    images = {name: name.encode() for name in NAMES}
    table = {"labels.csv": TABLE}
    folder = make_folder(tmp_path / "root", images | table)
    store = stores.open_folder(writers.remote(folder))
    dataset = image_tables.read(store)[""]
    assert classes_by_name(dataset) == CLASSES
    assert images_by_name(dataset) == images


def listed_table(path, suffix=".csv"):
    """A table whose images are at relative and absolute paths; returns its path."""
    images = {f"images/{number}.png": png(number) for number in range(3)}
    make_folder(path, images | {"images/unlisted.png": b""})
    rows = [
        {"file_name": "images/0.png", "label": "a"},
        {"file_name": str(path / "images/1.png"), "label": "b"},
        {"file_name": "../x/images/2.png", "label": "a"},
    ]
    table = writers.table(path / f"own{suffix}", rows)
    return str(table)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_tables_may_be_read_by_path(tmp_path, suffix):
    path = listed_table(tmp_path / "x", suffix)
    splits = image_tables.read_table(path)
    assert list(splits) == [""]
    pickled = pickle.dumps(splits[""])
    dataset = pickle.loads(pickled)
    images = list(images_by_name(dataset).values())
    classes = list(classes_by_name(dataset).values())
    assert images == [png(0), png(1), png(2)]
    assert classes == ["a", "b", "a"]
    paths = [file.path for file in dataset.files]
    assert paths == [path]
    size = dataset.examples.size(2)
    assert size == len(png(2))
    assert dataset.stratified


def test_tables_in_the_current_folder_are_read(tmp_path, monkeypatch):
    listed_table(tmp_path / "x")
    monkeypatch.chdir(tmp_path / "x")
    dataset = image_tables.read_table("own.csv")[""]
    assert dataset.examples[0]["image"] == png(0)


def test_tables_by_path_may_name_splits(tmp_path):
    table = b"file_name,label,split\n0.png,a,train\n1.png,b,val\n2.png,a,train\n"
    images = {}
    for number in range(3):
        images[f"{number}.png"] = png(number)
    make_folder(tmp_path, images | {"t.csv": table})
    path = str(tmp_path / "t.csv")
    splits = image_tables.read_table(path)
    sizes = {}
    for split in splits:
        sizes[split] = len(splits[split])
    assert sizes == {"train": 2, "validation": 1}
    example = splits["validation"].examples[0]
    assert example["image"] == png(1)
    joined = image_tables.read_table(path, ignore_splits=True)
    assert len(joined[""]) == 3


def test_local_tables_may_have_remote_images(tmp_path):
    images = make_folder(tmp_path / "y", {"0.png": png(0), "1.png": png(1)})
    address = writers.remote(images)
    table = f"file_name,label\n{address}/0.png,a\n{address}/1.png,b\n"
    path = tmp_path / "t.csv"
    path.write_text(table)
    dataset = image_tables.read_table(str(path))[""]
    image = dataset.examples[1]["image"]
    assert image == png(1)


def test_images_of_remote_tables_are_remote(tmp_path):
    content = HEADER + b"0.png,a\n"
    folder = make_folder(tmp_path / "z", {"t.csv": content})
    address = writers.remote(folder)
    dataset = image_tables.read_table(f"{address}/t.csv")[""]
    assert dataset.examples.images == [f"{address}/0.png"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["t.csv", "empty"]),
        (HEADER, ["t.csv", "no rows"]),
        (b"image,label\n0.png,a\n", ["'file_name'", "'image', 'label'"]),
        (HEADER + b"0.png,a\n0.png,b\n", ["line 3", "'0.png'"]),
    ],
)
def test_invalid_tables_by_path_are_refused(tmp_path, data, words):
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    message = failure(image_tables.read_table, str(path))
    for word in words:
        assert word in message


def test_missing_images_have_no_content(tmp_path):
    names = ["gone.png", "a\0b.png", "x" * 300, "dir"]
    (tmp_path / "dir").mkdir()
    rows = [{"file_name": name, "label": "a"} for name in names]
    path = tmp_path / "t.jsonl"
    path.write_bytes(writers.json_lines(*rows))
    dataset = image_tables.read_table(str(path))[""]
    for index in range(len(names)):
        assert dataset.examples.content(index) == b""
    assert dataset.fingerprint["images"] == len(names)


def test_folders_with_the_name_of_a_table_are_ignored(tmp_path):
    table = tmp_path / "root" / "labels.csv"
    os.makedirs(table)
    store = opened(tmp_path, empty_files("0.png"))
    assert not image_tables.matches(store)
    failure(image_tables.read_table, str(table))
