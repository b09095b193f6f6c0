"""Images with a table of their classes, beside them or by its own path."""

import csv
import json
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


def read_all(store, ignore_splits=False):
    """Split -> image -> class."""
    splits = image_tables.read(store, ignore_splits)
    return {split: classes_by_name(splits[split]) for split in splits}


def lines(rows, suffix):
    """Rows as a file."""
    if suffix == "jsonl":
        return writers.json_lines(*rows)
    text = ",".join(rows[0]) + "\n"
    for row in rows:
        text += ",".join(map(str, row.values())) + "\n"
    return text.encode()


@pytest.mark.parametrize("name", ["labels.csv", "metadata.csv", "metadata.jsonl"])
def test_a_table_in_the_root(tmp_path, name):
    rows = [{"file_name": file, "label": CLASSES[file], "note": "x"} for file in NAMES]
    images = {file: file.encode() for file in NAMES}
    others = empty_files("b/notes.txt", ".x.png")
    table = {name: lines(rows, name.rpartition(".")[2])}
    store = opened(tmp_path, images | others | table)
    assert image_tables.matches(store)
    splits = image_tables.read(store)
    assert list(splits) == [""]
    dataset = pickle.loads(pickle.dumps(splits[""]))
    assert classes_by_name(dataset) == CLASSES
    assert images_by_name(dataset) == images
    assert dataset.columns == ("file_name", "label")
    assert dataset.stratified
    (note,) = dataset.notes
    assert "1 file " in note
    assert ".txt 1" in note


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_each_split_has_a_table_and_the_same_file_names(tmp_path, suffix):
    """As the package datasets has folders of images."""
    files = {}
    for split, kinds in (("train", ["cat", "dog", "cat"]), ("Test", ["dog", "cat"])):
        rows = [{"file_name": f"{i}.png", "label": kind} for i, kind in enumerate(kinds)]
        files |= empty_files(*(f"{split}/{i}.png" for i in range(len(kinds))))
        files[f"{split}/metadata.{suffix}"] = lines(rows, suffix)
    store = opened(tmp_path, files)
    assert image_tables.matches(store)
    assert read_all(store) == {
        "test": {"Test/0.png": "dog", "Test/1.png": "cat"},
        "train": {"train/0.png": "cat", "train/1.png": "dog", "train/2.png": "cat"},
    }
    (joined,) = read_all(store, ignore_splits=True).values()
    assert joined["Test/0.png"] == joined["train/1.png"] == "dog"
    assert len(joined) == 5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["train", "TEST", " dev "], {"train": "0", "test": "b", "validation": "2"}),
        (["", "", ""], {"": "0b2"}),
        (["valid", "valid", "valid"], {"validation": "0b2"}),
    ],
)
def test_splits_by_a_column(tmp_path, values, expected):
    table = "file_name,label,split\n"
    for name, value in zip(NAMES, values, strict=True):
        table += f"{name},{CLASSES[name]},{value}\n"
    store = opened(tmp_path, empty_files(*NAMES) | {"labels.csv": table.encode()})
    found = read_all(store)
    got = {split: "".join(sorted(name[0] for name in found[split])) for split in found}
    assert got == {split: "".join(sorted(letters)) for split, letters in expected.items()}
    assert read_all(store, ignore_splits=True) == {"": CLASSES}


def test_splits_by_the_folders_of_a_single_table(tmp_path):
    names = ("train/1.png", "train/x/2.png", "VAL/3.png")
    table = HEADER + b"".join(f"{name},a\n".encode() for name in names)
    store = opened(tmp_path, empty_files(*names) | {"metadata.csv": table})
    found = read_all(store)
    assert {split: list(found[split]) for split in found} == {
        "train": ["train/1.png", "train/x/2.png"],
        "validation": ["VAL/3.png"],
    }
    assert list(read_all(store, ignore_splits=True)) == [""]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("train/1.png,a\n2.png,b\n", ["line 2", "line 3"]),
        ("train/1.png,a\ncat/2.png,b\n", ["line 2", "line 3"]),
    ],
)
def test_rows_of_which_some_name_a_split(tmp_path, rows, words):
    names = [row.partition(",")[0] for row in rows.splitlines()]
    table = {"labels.csv": HEADER + rows.encode()}
    message = failure(image_tables.read, opened(tmp_path, empty_files(*names) | table))
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
def test_tables_that_are_written_in_other_ways(tmp_path, table, expected):
    store = opened(tmp_path, empty_files(*NAMES) | {"labels.csv": table})
    assert classes_by_name(image_tables.read(store)[""]).items() >= expected.items()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, "3"), ("3", "3"), (True, "true"), (1.0, "1.0"), (2**70, str(2**70)), ("\ud83d", None)],
)
def test_labels_of_json(tmp_path, value, expected):
    rows = [{"file_name": "0.png", "label": value}, {"file_name": "1.png", "label": "x"}]
    table = {"metadata.jsonl": writers.json_lines(*rows)}
    store = opened(tmp_path, empty_files("0.png", "1.png") | table)
    splits = image_tables.read(store)
    if expected is None:
        failure(splits.__getitem__, "").encode()
    else:
        assert classes_by_name(splits[""])["0.png"] == expected


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (b"", ["labels.csv", "empty"]),
        (b"\n\n", ["labels.csv", "empty"]),
        (HEADER, ["labels.csv", "no rows"]),
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
def test_tables_that_are_refused(tmp_path, table, words):
    store = opened(tmp_path, empty_files(*NAMES) | {"labels.csv": table})

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
def test_lines_of_json_that_are_refused(tmp_path, line, words):
    store = opened(tmp_path, empty_files("0.png") | {"metadata.jsonl": line})

    def read():
        return image_tables.read(store)[""]

    message = failure(read)
    for word in words:
        assert word in message


def test_two_tables(tmp_path):
    table = {"labels.csv": TABLE, "metadata.csv": TABLE}
    message = failure(image_tables.read, opened(tmp_path / "a", empty_files(*NAMES) | table))
    for name in table:
        assert name in message
    in_split = {f"train/{name}": data for name, data in table.items()}
    images = empty_files(*(f"train/{name}" for name in NAMES))
    splits = image_tables.read(opened(tmp_path / "b", images | in_split))
    assert "train/labels.csv and train/metadata.csv" in failure(splits.__getitem__, "train")


def test_a_split_without_a_table_is_refused_only_if_it_is_read(tmp_path):
    files = empty_files("train/0.png", "val/0.png")
    splits = image_tables.read(
        opened(tmp_path, files | {"train/labels.csv": HEADER + b"0.png,a\n"})
    )
    assert len(splits["train"]) == 1
    assert "'val/'" in failure(splits.__getitem__, "validation")


def test_a_folder_of_one_split_whose_rows_name_another(tmp_path):
    table = b"file_name,label,split\n0.png,a,train\n1.png,b,"
    images = empty_files("train/0.png", "train/1.png")
    same = image_tables.read(opened(tmp_path / "a", images | {"train/labels.csv": table}))
    assert len(same["train"]) == 2
    other = image_tables.read(
        opened(tmp_path / "b", images | {"train/labels.csv": table + b"test"})
    )
    message = failure(other.__getitem__, "train")
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
def test_where_a_table_counts(tmp_path, name, expected):
    store = opened(tmp_path, empty_files("train/cat/0.png", name))
    assert image_tables.matches(store) == expected


def test_a_tar_file_with_a_table_is_refused(tmp_path):
    store = stores.open_tar(str(make_tar(tmp_path, {"0.png": b"", "labels.csv": TABLE})))
    assert "'labels.csv'" in failure(image_tables.matches, store)


def test_a_table_beside_class_folders_is_refused_by_its_columns(tmp_path):
    files = empty_files("cat/1.png", "dog/2.png") | {"labels.csv": b"id,breed\n1,x\n"}
    message = failure(image_tables.read, opened(tmp_path, files))
    assert "'id', 'breed'" in message
    assert "folders" in message


def test_names_in_the_other_form_of_unicode(tmp_path):
    """A Mac's zip files have NFD, and an editor writes NFC."""
    composed = unicodedata.normalize("NFC", "é.png")
    taken_apart = unicodedata.normalize("NFD", composed)
    table = {"labels.csv": HEADER + f"{composed},a\n".encode()}
    splits = image_tables.read(opened(tmp_path, empty_files(taken_apart) | table))
    assert "NFD" in failure(splits.__getitem__, "")


def test_a_remote_folder(tmp_path):
    files = {name: name.encode() for name in NAMES} | {"labels.csv": TABLE}
    path = writers.remote(make_folder(tmp_path / "root", files))
    dataset = image_tables.read(stores.open_folder(path))[""]
    assert classes_by_name(dataset) == CLASSES
    assert images_by_name(dataset)["b/1.png"] == b"b/1.png"


def listed_table(path, suffix=".csv"):
    """A table of any name, whose images lie elsewhere too."""
    make_folder(path, {f"images/{i}.png": png(i) for i in range(3)})
    make_folder(path / "images", {"unlisted.png": b""})
    names = ["images/0.png", str(path / "images/1.png"), "../x/images/2.png"]
    rows = [{"file_name": name, "label": label} for name, label in zip(names, "aba", strict=True)]
    table = path / f"own{suffix}"
    if suffix == ".jsonl":
        table.write_bytes(writers.json_lines(*rows))
    else:
        with open(table, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], delimiter="\t" if suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return str(table)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_the_path_of_a_table(tmp_path, suffix):
    path = listed_table(tmp_path / "x", suffix)
    splits = image_tables.read_table(path)
    assert list(splits) == [""]
    dataset = pickle.loads(pickle.dumps(splits[""]))
    got = list(images_by_name(dataset).values())
    expected = [png(0), png(1), png(2)]
    assert got == expected
    assert list(classes_by_name(dataset).values()) == ["a", "b", "a"]
    assert [file.path for file in dataset.files] == [path]
    assert dataset.examples.size(2) == len(png(2))
    assert dataset.stratified


def test_a_table_in_the_current_folder(tmp_path, monkeypatch):
    listed_table(tmp_path / "x")
    monkeypatch.chdir(tmp_path / "x")
    dataset = image_tables.read_table("own.csv")[""]
    assert dataset.examples[0]["image"] == png(0)


def test_splits_of_a_listed_table(tmp_path):
    rows = "file_name,label,split\n0.png,a,train\n1.png,b,val\n2.png,a,train\n"
    make_folder(tmp_path, {f"{i}.png": png(i) for i in range(3)} | {"t.csv": rows.encode()})
    splits = image_tables.read_table(str(tmp_path / "t.csv"))
    got = {split: len(splits[split]) for split in splits}
    assert got == {"train": 2, "validation": 1}
    assert splits["validation"].examples[0]["image"] == png(1)
    joined = image_tables.read_table(str(tmp_path / "t.csv"), ignore_splits=True)
    assert len(joined[""]) == 3


def test_remote_images_of_a_table(tmp_path):
    path = writers.remote(make_folder(tmp_path / "y", {"0.png": png(0), "1.png": png(1)}))
    table = HEADER + f"{path}/0.png,a\n{path}/1.png,b\n".encode()
    make_folder(tmp_path, {"t.csv": table})
    dataset = image_tables.read_table(str(tmp_path / "t.csv"))[""]
    assert dataset.examples[1]["image"] == png(1)
    remote_table = writers.remote(make_folder(tmp_path / "z", {"t.csv": HEADER + b"0.png,a\n"}))
    dataset = image_tables.read_table(f"{remote_table}/t.csv")[""]
    assert dataset.examples.images == [f"{remote_table}/0.png"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["t.csv", "empty"]),
        (HEADER, ["t.csv", "no rows"]),
        (b"image,label\n0.png,a\n", ["'file_name'", "'image', 'label'"]),
        (HEADER + b"0.png,a\n0.png,b\n", ["line 3", "'0.png'"]),
    ],
)
def test_listed_tables_that_are_refused(tmp_path, data, words):
    (tmp_path / "t.csv").write_bytes(data)
    message = failure(image_tables.read_table, str(tmp_path / "t.csv"))
    for word in words:
        assert word in message


def test_images_of_a_table_that_are_gone(tmp_path):
    names = ["gone.png", "a\0b.png", "x" * 300, "dir"]
    (tmp_path / "dir").mkdir()
    rows = [{"file_name": name, "label": "a"} for name in names]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    dataset = image_tables.read_table(str(path))[""]
    for index in range(len(names)):
        assert dataset.examples.content(index) == b""
    assert dataset.fingerprint["images"] == len(names)


def test_a_folder_called_as_a_table(tmp_path):
    os.makedirs(tmp_path / "labels.csv")
    assert not image_tables.matches(opened(tmp_path, empty_files("0.png")))
    failure(image_tables.read_table, str(tmp_path / "labels.csv"))
