"""Labelled text of the user's own, in every documented form, and what is refused."""

import datetime
import gzip
import json
import os
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets as tfds

from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.finetuning.text_tasks import TextTask, custom_task
from gmlp_flax.data.readers import labelled_text
from gmlp_flax.io.records import BadRecords
from tests.data import writers
from tests.failures import failure

OWN = custom_task(("text",), "label")
ROWS = [
    {"text": "plain", "label": "neg"},
    {"text": 'said "no", and more', "label": "pos"},
    {"text": "möchte\u2028映画", "label": "neg"},
]
TABLE = "text,label\na,neg\nb,pos\n"


def write(path, content: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def read(path, task: TextTask = OWN, limit: int = 0, **options) -> Splits:
    return labelled_text.read(str(path), task, BadRecords(limit), **options)


def read_all(path, *options) -> dict[str, Dataset]:
    return dict(read(path, *options))


def texts(dataset: Dataset) -> list[str]:
    return [" | ".join(row.texts) for row in dataset.examples.rows]


def names(dataset: Dataset) -> list[str]:
    """The class of each row."""
    return [dataset.classes[label] for label in dataset.labels]


def ids(dataset: Dataset) -> list[str]:
    return [row.id for row in dataset.examples.rows]


def table(path, rows: list[dict]) -> str:
    """Rows as a file of the form that the suffix says."""
    if path.suffix in (".csv", ".tsv"):
        delimiter = {".csv": ",", ".tsv": "\t"}[path.suffix]
        lines = [delimiter.join(rows[0])]
        for row in rows:
            cells = [str(cell).replace('"', '""') for cell in row.values()]
            lines.append(delimiter.join(f'"{cell}"' for cell in cells))
        return write(path, "\n".join(lines))
    return str(writers.table(path, rows))


@pytest.mark.smoke
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json", "parquet", "arrow"])
def test_a_file(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "json":
        write(path, writers.json_lines(*ROWS))
    else:
        table(path, ROWS)
    (split,) = read(path)
    dataset = read(path)[""]
    assert split == ""
    assert texts(dataset) == [row["text"] for row in ROWS]
    assert names(dataset) == ["neg", "pos", "neg"]
    assert ids(dataset) == ["0", "1", "2"]
    assert dataset.columns == ("text", "label")
    assert dataset.form == labelled_text.FORM
    assert [file.path for file in dataset.files] == [str(path)]
    assert dataset.notes == ()
    again = pickle.loads(pickle.dumps(dataset))
    assert again.examples.rows == dataset.examples.rows


def test_a_compressed_file_and_a_remote_one(tmp_path):
    write(tmp_path / "ä b.csv.gz", gzip.compress(TABLE.encode("utf-8-sig")))
    for path in (tmp_path / "ä b.csv.gz", f"{writers.remote(tmp_path)}/ä b.csv.gz"):
        assert texts(read(path)[""]) == ["a", "b"]


def test_a_remote_folder(tmp_path):
    write(tmp_path / "train.csv", TABLE)
    write(tmp_path / "test.csv", TABLE)
    assert set(read(writers.remote(tmp_path))) == {"train", "test"}


def test_pairs_and_other_columns(tmp_path):
    rows = [{"stars": i % 2, "a": f"first {i}", "id": "same", "b": f"second {i}"} for i in range(3)]
    path = table(tmp_path / "a.csv", rows)
    dataset = read(path, custom_task(("b", "a"), "stars"))[""]
    expected = [f"second {i} | first {i}" for i in range(3)]
    assert texts(dataset) == expected
    assert names(dataset) == ["0", "1", "0"]
    assert ids(dataset) == ["0", "1", "2"]
    assert dataset.columns == ("b", "a", "stars")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("text", "label", "missing"), [("texts", "score", "texts"), ("sentence", "label", "label")]
)
def test_a_wrong_column_is_answered_with_those_that_are_there(
    tmp_path, suffix, text, label, missing
):
    path = table(tmp_path / f"a.{suffix}", [{"sentence": "a", "score": i} for i in range(4)])
    message = failure(read_all, path, custom_task((text,), label))
    for key in (repr(missing), "'sentence'", "'score'", "own.text"):
        assert key in message


def test_labels_are_literal(tmp_path):
    """Whole numbers are ordered by size; empty cells have no label."""
    cells = ["10", "9", "-1", "", "007", " 9 "]
    path = write(tmp_path / "a.csv", "text,label\n" + "".join(f"x,{cell}\n" for cell in cells))
    dataset = read(path)[""]
    assert dataset.classes == ("-1", "007", "9", "10")
    assert names(dataset) == ["10", "9", "-1", "007", "9"]
    assert ids(dataset) == ["0", "1", "2", "4", "5"]
    (note,) = dataset.notes
    assert "1 row" in note


def test_labels_of_json(tmp_path):
    """NaN and null are missing: so pandas has a number that is missing, in JSON as Python writes
    it."""
    labels = [True, 1, "1", 1.5, float("nan"), None, "u\u0308", "ü"]
    rows = [{"text": "x", "label": label} for label in labels]
    dataset = read(write(tmp_path / "a.jsonl", writers.json_lines(*rows)))[""]
    assert names(dataset) == ["true", "1", "1", "1.5", "ü", "ü"]


def test_numbers_to_predict(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,1.5\nb,\nc,-2e3\n")
    dataset = read(path, custom_task(("text",), "label", numbers=True))[""]
    assert dataset.labels.tolist() == [1.5, -2000.0]
    assert dataset.classes == ()
    for cell in ("1;5", "x", "1_000"):
        write(tmp_path / "a.csv", f"text,label\na,{cell}\n")
        assert repr(cell) in failure(read_all, path, custom_task(("text",), "label", numbers=True))


def test_classes_that_differ_only_in_capitals(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,Pos\nb,pos\nc,neg\n")
    message = failure(read_all, path)
    assert "'Pos'" in message
    assert "'pos'" in message


def hugging_face(path, labels: list, class_names: list[str], **columns: list) -> str:
    """A parquet or .arrow file whose schema declares the classes."""
    features = {"label": {"names": class_names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    columns = {"text": [f"{path.parent.name} {i}" for i in range(len(labels))]} | columns
    written = pa.table(columns | {"label": labels}).replace_schema_metadata(metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".arrow":
        writers.arrow(path, written)
    else:
        pq.write_table(written, path)
    return str(path)


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_declared_classes_keep_their_order(tmp_path, suffix):
    """Also those without an example here."""
    path = hugging_face(tmp_path / f"a.{suffix}", [2, 0, -1], ["pos", "ok", "neg "])
    dataset = read(path)[""]
    assert dataset.classes == ("pos", "ok", "neg")
    assert dataset.labels.tolist() == [2, 0]
    hugging_face(tmp_path / f"a.{suffix}", [1, 3], ["pos", "ok", "neg"])
    assert "'3'" in failure(read_all, path)


@pytest.mark.parametrize(
    "layout",
    ["data/{}-00000-of-00001.parquet", "{}/data-00000-of-00001.arrow", "default/{}/0000.parquet"],
)
def test_folders_as_hugging_face_has_them(tmp_path, layout):
    sizes = {"train": 3, "validation": 2, "test": 1}
    for split, size in sizes.items():
        hugging_face(tmp_path / layout.format(split), [0] * size, ["x", "y"])
    write(tmp_path / "README.md", "")
    found = read_all(tmp_path)
    got = {split: len(dataset) for split, dataset in found.items()}
    assert got == sizes
    assert found["train"].classes == ("x", "y")
    (note,) = found["train"].notes
    assert ".md 1" in note


def test_a_folder_as_save_to_disk_writes_it(tmp_path):
    """Any name of a folder is a split there, also one that is no word for it."""
    write(tmp_path / "dataset_dict.json", "{}")
    for split in ("train", "dev", "extra"):
        hugging_face(tmp_path / split / "data-00000-of-00001.arrow", [1, 0], ["x", "y"])
        write(tmp_path / split / "state.json", "{}")
        write(tmp_path / split / "dataset_info.json", "{}")
        write(tmp_path / split / "cache-1f.arrow", "no rows")
    found = read_all(tmp_path)
    assert {split: len(dataset) for split, dataset in found.items()} == {
        "train": 2,
        "validation": 2,
        "extra": 2,
    }
    for dataset in found.values():
        assert dataset.notes == ()


def test_a_data_set_of_one_split_as_save_to_disk_writes_it(tmp_path):
    write(tmp_path / "state.json", "{}")
    hugging_face(tmp_path / "data-00000-of-00002.arrow", [1, 0], ["x", "y"])
    hugging_face(tmp_path / "data-00001-of-00002.arrow", [1], ["x", "y"])
    (dataset,) = read_all(tmp_path).values()
    assert ids(dataset) == ["0", "1", "2"]
    (tmp_path / "data-00000-of-00002.arrow").unlink()
    assert "1 of the 2 shards" in failure(read, tmp_path)


def test_a_file_for_each_split(tmp_path):
    """The columns of each are found by name, in any order."""
    write(tmp_path / "my_train.csv", "label,text\nneg,a\npos,b\n")
    write(tmp_path / "my_train_2.tsv.gz", gzip.compress(b"text\tmore\tlabel\nc\tx\tneg\n"))
    write(tmp_path / "Dev.jsonl", writers.json_lines({"text": "d", "label": "neg"}))
    write(tmp_path / ".hidden.csv", "x")
    found = read_all(tmp_path)
    assert set(found) == {"train", "validation"}
    assert texts(found["train"]) == ["a", "b", "c"]
    assert ids(found["train"]) == ["0", "1", "2"]
    assert names(found["train"]) == ["neg", "pos", "neg"]
    assert found["validation"].classes == ("neg",)
    assert [file.name for file in found["train"].files] == ["my_train.csv", "my_train_2.tsv.gz"]


def test_files_that_name_no_split_are_one_data_set(tmp_path):
    os.mkdir(tmp_path / "data")
    write(tmp_path / "elsewhere" / "c.csv", TABLE)
    write(tmp_path / "data" / "a.csv", TABLE)
    write(tmp_path / "data" / "sub" / "b.csv", TABLE)
    os.symlink(tmp_path / "elsewhere", tmp_path / "data" / "linked")
    dataset = read(tmp_path / "data")[""]
    assert [file.name for file in dataset.files] == ["a.csv", "linked/c.csv", "sub/b.csv"]
    assert ids(dataset) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("files", "key"),
    [
        (["train.csv", "notes.csv"], "'notes.csv'"),
        (["train.csv", "train_test.csv"], "'train_test.csv'"),
        (["my_train_v.csv"], "'my_train_v.csv'"),
        (["train/a.csv", "b.csv"], "'b.csv'"),
        (["train-00000-of-00002.csv"], "00001-of-00002"),
        (["a.csv", "b.parquet.gz"], "b.parquet.gz"),
        (["a.txt", "b.xlsx"], ".xlsx 1"),
        ([".a.csv"], "no files"),
        ([], "no files"),
    ],
)
def test_folders_that_are_refused(tmp_path, files, key):
    for name in files:
        write(tmp_path / name, TABLE)
    assert key in failure(read_all, tmp_path)


def test_all_files_as_one(tmp_path):
    """Whatever splits their names mean, and where only some do."""
    for name in ("train.csv", "train_test.csv", "notes.csv"):
        write(tmp_path / name, TABLE)
    found = read(tmp_path, ignore_splits=True)
    assert list(found) == [""]
    assert len(found[""]) == 6


def test_files_that_are_not_read_are_counted(tmp_path):
    for name in ("train.csv", "test.xlsx", "README.md", "b.md"):
        write(tmp_path / name, TABLE)
    (note,) = read(tmp_path)["train"].notes
    for key in ("3 files", ".md 2", ".xlsx 1"):
        assert key in note


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_rows_that_name_their_split(tmp_path, suffix):
    """Each is called by its position in the file."""
    words = ["Train", "dev", "train", "TEST"]
    rows = [{"text": f"t{i}", "label": "xy"[i % 2], "split": word} for i, word in enumerate(words)]
    path = table(tmp_path / f"a.{suffix}", rows)
    found = read_all(path)
    assert {split: ids(dataset) for split, dataset in found.items()} == {
        "train": ["0", "2"],
        "validation": ["1"],
        "test": ["3"],
    }
    assert found["train"].classes == ("x",)
    assert found["train"].columns == ("text", "label")
    whole = read(path, ignore_splits=True)
    assert list(whole) == [""]
    assert ids(whole[""]) == ["0", "1", "2", "3"]


def test_a_file_of_which_only_some_rows_name_a_split(tmp_path):
    """Also where the first JSON object does not."""
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 1, "split": "test"}]
    path = write(tmp_path / "a.jsonl", writers.json_lines(*rows))
    message = failure(read, path)
    assert "line 1" in message
    assert "line 2" in message
    assert len(read(path, ignore_splits=True)[""]) == 2
    path = write(tmp_path / "a.csv", "text,label,split\na,x,fold 1\n")
    message = failure(read, path)
    for key in ("line 2", "'fold 1'", "split=all"):
        assert key in message


def test_a_folder_whose_rows_name_splits(tmp_path):
    """What its files hold is no file for each split."""
    path = write(tmp_path / "a.csv", "text,label,split\na,x,train\nb,y,test\n")
    write(tmp_path / "README.md", "")
    message = failure(read, tmp_path)
    for key in (path, "'split'", "split=all"):
        assert key in message
    assert len(read(tmp_path, ignore_splits=True)[""]) == 2
    assert len(read(tmp_path, custom_task(("text",), "split"))[""]) == 2


def test_a_column_of_labels_called_split(tmp_path):
    path = write(tmp_path / "a.csv", "text,split\na,train\nb,infinitive\n")
    dataset = read(path, custom_task(("text",), "split"))[""]
    assert names(dataset) == ["train", "infinitive"]


def test_bad_rows_are_skipped_up_to_a_limit(tmp_path):
    """In a file that names splits, too; the others keep their positions."""
    lines = ["text,label,split", "a,x,train", "broken", "b,x,train", ",x,test", "c,y,test"]
    path = write(tmp_path / "a.csv", "\n".join(lines))
    found = dict(read(path, limit=2))
    assert ids(found["train"]) == ["0", "2"]
    assert ids(found["test"]) == ["4"]
    assert "line 3" in failure(read, path)
    assert "line 5" in failure(lambda: dict(read(path, limit=1)))


LIST = {"text": ["a"], "label": [["x", "y"]]}
STRUCT = {"text": [{"en": "a"}], "label": ["x"]}


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "text,label\n", "no example"),
        ("a.csv", "a,0\nb,1\n", "'text'"),
        ("a.csv", "text;label\na;0\n", "commas"),
        ("a.csv", "Text,Label\na,0\n", "'Text'"),
        ("a.csv", "text,label\na\n", "line 2"),
        ("a.csv", "text,label\na,0,1\n", "line 2"),
        ("a.csv", "text,label,label\na,0,1\n", "'label'"),
        ("a.csv", 'text,label\n"a" b,0\n', "line 2"),
        ("a.csv", "text,label\ra,0\rb,1\r", "line 1"),
        ("a.csv", "text,label\ncafé,0\n".encode("latin-1"), "line 2"),
        ("a.csv", "text,label\na,0\n".encode("utf-16"), "UTF-16"),
        ("a.tsv", "text,label\na,0\n", "tabs"),
        ("a.tsv", "text\tlabel\na\0b\t0\n", "line 2"),
        ("a.jsonl", "", "is empty"),
        ("a.jsonl", '{"text": "a"}\n', "'label'"),
        ("a.jsonl", '{"text": 3, "label": 1}\n', "int 3"),
        ("a.jsonl", '{"text": "a", "label": ["x"]}\n', "['x']"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "a"}\n', "line 2"),
        ("a.jsonl", '{"text": "a", "label": "\\ud83d"}\n', "\\ud83d"),
        ("a.jsonl", "{}\n", "found none"),
        ("a.json", json.dumps(ROWS, indent=1), "one object per line"),
        ("a.json", json.dumps(ROWS), "jq -c"),
        ("a.json", json.dumps({"text": {"0": "a"}, "label": {"0": 1}}), "dict"),
        ("a.parquet", b"PAR1", "parquet"),
        ("a.parquet", LIST, "['x', 'y']"),
        ("a.parquet", STRUCT, "dict"),
        ("a.parquet", {"text": [1], "label": [1]}, "int 1"),
        ("a.parquet", {"text": ["a"], "label": [datetime.date(2020, 1, 1)]}, "datetime"),
        ("a.parquet", {"text": pa.array([], pa.string()), "label": []}, "no example"),
        ("a.arrow", b"", "Arrow"),
        ("a.parquet.gz", b"", "parquet"),
        ("a.xlsx", b"", ".xlsx"),
        ("a", b"text,label\n", "is not a table"),
    ],
)
def test_files_that_are_refused(tmp_path, name, content, key):
    path = tmp_path / name
    if isinstance(content, dict):
        writers.parquet(path, **content)
    else:
        write(path, content)
    message = failure(read_all, path)
    assert str(path) in message
    assert key in message


def test_a_path_without_data(tmp_path):
    assert "none.csv" in failure(read, tmp_path / "none.csv")
    (tmp_path / "broken.csv").symlink_to(tmp_path / "none.csv")
    assert "broken.csv" in failure(read, tmp_path)


FEATURES = {
    "text": tfds.features.Text(),
    "stars": tfds.features.ClassLabel(names=["2", "1"]),
    "image": tfds.features.Image(),
}


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record", "parquet"])
def test_tfds(tmp_path, monkeypatch, file_format):
    """Records hold a class's position; -1 is none. Other features are not read."""
    shards = {}
    for split, stars in (("train", [[0, 1], [-1]]), ("test", [[1]])):
        shards[split] = [
            [writers.example(text=b"a %d" % star, stars=star, image=b"\x89") for star in shard]
            for shard in stars
        ]
    folder = tmp_path / "own" / "1.0.0"
    writers.tfds_folder(folder, shards, file_format, **FEATURES)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    task = custom_task(("text",), "stars")
    found = read_all("tfds:own", task)
    assert set(found) == {"train", "test"}
    dataset = found["train"]
    assert dataset.classes == ("2", "1")
    assert texts(dataset) == ["a 0", "a 1"]
    assert dataset.labels.tolist() == [0, 1]
    assert len(dataset.files) == 2
    assert len(dataset.notes) == 1
    assert "'text', 'stars'" in failure(read_all, folder, custom_task(("text",), "label"))


def test_equal_data_have_equal_fingerprints(tmp_path):
    """Whatever their form, time or place."""
    first = read(table(tmp_path / "a.csv", ROWS))[""]
    second = read(table(tmp_path / "b.parquet", ROWS))[""]
    assert first.fingerprint == second.fingerprint
    third = read(table(tmp_path / "c.csv", [*ROWS[:2], ROWS[2] | {"label": "pos"}]))[""]
    assert first.fingerprint != third.fingerprint
