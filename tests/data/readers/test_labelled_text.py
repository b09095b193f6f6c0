"""A user's own labelled text, in every documented form, and other forms, which are refused."""

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

CUSTOM = custom_task(("text",), "label")
NUMBERS = custom_task(("text",), "label", numbers=True)
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


def read(path, task: TextTask = CUSTOM, limit: int = 0, **options) -> Splits:
    return labelled_text.read(str(path), task, BadRecords(limit), **options)


def read_all(path, *options) -> dict[str, Dataset]:
    return dict(read(path, *options))


def texts(dataset: Dataset) -> list[str]:
    return [" | ".join(row.texts) for row in dataset.examples.rows]


def sizes(found: dict[str, Dataset]) -> dict[str, int]:
    """The number of examples of each split."""
    return {split: len(dataset) for split, dataset in found.items()}


def names(dataset: Dataset) -> list[str]:
    """The class of each row."""
    return [dataset.classes[label] for label in dataset.labels]


def ids(dataset: Dataset) -> list[str]:
    return [row.id for row in dataset.examples.rows]


def table(path, rows: list[dict]) -> str:
    """Writes rows in the format of the suffix, and returns the path."""
    if path.suffix in (".csv", ".tsv"):
        delimiter = "," if path.suffix == ".csv" else "\t"
        lines = [delimiter.join(rows[0])]
        for row in rows:
            cells = map(quoted, row.values())
            lines.append(delimiter.join(cells))
        return write(path, "\n".join(lines))
    return str(writers.table(path, rows))


def quoted(cell: object) -> str:
    escaped = str(cell).replace('"', '""')
    return f'"{escaped}"'


@pytest.mark.smoke
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json", "parquet", "arrow"])
def test_each_kind_of_file_is_read(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "json":
        write(path, writers.json_lines(*ROWS))
    else:
        table(path, ROWS)
    (split,) = read(path)
    dataset = read(path)[""]
    assert split == ""
    expected = [row["text"] for row in ROWS]
    assert texts(dataset) == expected
    assert names(dataset) == ["neg", "pos", "neg"]
    assert ids(dataset) == ["0", "1", "2"]
    assert dataset.columns == ("text", "label")
    assert dataset.form == labelled_text.FORM
    paths = [file.path for file in dataset.files]
    assert paths == [str(path)]
    assert dataset.notes == ()
    again = pickle.loads(pickle.dumps(dataset))
    assert again.examples.rows == dataset.examples.rows


def test_compressed_and_remote_files_are_read(tmp_path):
    path = tmp_path / "ä b.csv.gz"
    content = TABLE.encode("utf-8-sig")
    write(path, gzip.compress(content))
    remote = f"{writers.remote(tmp_path)}/ä b.csv.gz"
    for place in (path, remote):
        dataset = read(place)[""]
        assert texts(dataset) == ["a", "b"]


def test_remote_folders_are_read(tmp_path):
    write(tmp_path / "train.csv", TABLE)
    write(tmp_path / "test.csv", TABLE)
    found = read(writers.remote(tmp_path))
    assert set(found) == {"train", "test"}


def test_pairs_and_other_columns_are_read(tmp_path):
    rows = []
    for number, stars in enumerate([0, 1, 0]):
        first = f"first {number}"
        second = f"second {number}"
        rows.append({"stars": stars, "a": first, "id": "same", "b": second})
    path = table(tmp_path / "a.csv", rows)
    task = custom_task(("b", "a"), "stars")
    dataset = read(path, task)[""]
    assert texts(dataset) == ["second 0 | first 0", "second 1 | first 1", "second 2 | first 2"]
    assert names(dataset) == ["0", "1", "0"]
    assert ids(dataset) == ["0", "1", "2"]
    assert dataset.columns == ("b", "a", "stars")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("text", "label", "missing"),
    [
        ("texts", "score", "texts"),
        ("sentence", "label", "label"),
    ],
)
def test_missing_columns_are_refused_with_the_existing_ones(tmp_path, suffix, text, label, missing):
    rows = [{"sentence": "a", "score": score} for score in range(4)]
    file_path = tmp_path / f"a.{suffix}"
    path = table(file_path, rows)
    task = custom_task((text,), label)
    message = failure(read_all, path, task)
    for key in (repr(missing), "'sentence'", "'score'", "own.text"):
        assert key in message


def test_labels_are_read_literally(tmp_path):
    """Whole numbers are ordered by size; empty cells have no label."""
    cells = ["10", "9", "-1", "", "007", " 9 "]
    lines = ["text,label", *(f"x,{cell}" for cell in cells)]
    content = "\n".join(lines)
    path = write(tmp_path / "a.csv", content)
    dataset = read(path)[""]
    assert dataset.classes == ("-1", "007", "9", "10")
    assert names(dataset) == ["10", "9", "-1", "007", "9"]
    assert ids(dataset) == ["0", "1", "2", "4", "5"]
    (note,) = dataset.notes
    assert "1 row" in note


def test_json_labels_become_text(tmp_path):
    """NaN and null mean a missing label: pandas has NaN for it, which Python writes as JSON."""
    labels = [True, 1, "1", 1.5, float("nan"), None, "u\u0308", "ü"]
    rows = [{"text": "x", "label": label} for label in labels]
    content = writers.json_lines(*rows)
    path = write(tmp_path / "a.jsonl", content)
    dataset = read(path)[""]
    assert names(dataset) == ["true", "1", "1", "1.5", "ü", "ü"]


def test_numbers_are_read(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,1.5\nb,\nc,-2e3\n")
    dataset = read(path, NUMBERS)[""]
    assert dataset.labels.tolist() == [1.5, -2000.0]
    assert dataset.classes == ()


@pytest.mark.parametrize("cell", ["1;5", "x", "1_000"])
def test_invalid_numbers_are_refused(tmp_path, cell):
    path = write(tmp_path / "a.csv", f"text,label\na,{cell}\n")
    message = failure(read_all, path, NUMBERS)
    assert repr(cell) in message


def test_classes_that_differ_only_in_case_are_refused(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,Pos\nb,pos\nc,neg\n")
    message = failure(read_all, path)
    assert "'Pos'" in message
    assert "'pos'" in message


def hugging_face(path, labels: list, class_names: list[str], **columns: list) -> str:
    """A parquet or .arrow file whose schema declares the classes."""
    features = {"label": {"names": class_names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    texts = [f"{path.parent.name} {number}" for number in range(len(labels))]
    columns = {"text": texts, "label": labels} | columns
    plain = pa.table(columns)
    written = plain.replace_schema_metadata(metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".arrow":
        writers.arrow(path, written)
    else:
        pq.write_table(written, path)
    return str(path)


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_declared_classes_keep_their_order(tmp_path, suffix):
    """Classes without an example are kept, too."""
    file_path = tmp_path / f"a.{suffix}"
    path = hugging_face(file_path, [2, 0, -1], ["pos", "ok", "neg "])
    dataset = read(path)[""]
    assert dataset.classes == ("pos", "ok", "neg")
    assert dataset.labels.tolist() == [2, 0]


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_numbers_without_a_declared_class_are_refused(tmp_path, suffix):
    file_path = tmp_path / f"a.{suffix}"
    path = hugging_face(file_path, [1, 3], ["pos", "ok", "neg"])
    assert "'3'" in failure(read_all, path)


@pytest.mark.parametrize(
    "layout",
    ["data/{}-00000-of-00001.parquet", "{}/data-00000-of-00001.arrow", "default/{}/0000.parquet"],
)
def test_layouts_of_hugging_face_are_read(tmp_path, layout):
    expected = {"train": 3, "validation": 2, "test": 1}
    for split, size in expected.items():
        shard_path = tmp_path / layout.format(split)
        hugging_face(shard_path, [0] * size, ["x", "y"])
    write(tmp_path / "README.md", "")
    found = read_all(tmp_path)
    assert sizes(found) == expected
    assert found["train"].classes == ("x", "y")
    (note,) = found["train"].notes
    assert ".md 1" in note


def test_splits_of_save_to_disk_are_read(tmp_path):
    """Each folder is a split, even if its name is not a usual one."""
    write(tmp_path / "dataset_dict.json", "{}")
    for split in ("train", "dev", "extra"):
        folder = tmp_path / split
        hugging_face(folder / "data-00000-of-00001.arrow", [1, 0], ["x", "y"])
        write(folder / "state.json", "{}")
        write(folder / "dataset_info.json", "{}")
        write(folder / "cache-1f.arrow", "no rows")
    found = read_all(tmp_path)
    assert sizes(found) == {"train": 2, "validation": 2, "extra": 2}
    for dataset in found.values():
        assert dataset.notes == ()


def test_a_single_split_of_save_to_disk_is_read(tmp_path):
    write(tmp_path / "state.json", "{}")
    hugging_face(tmp_path / "data-00000-of-00002.arrow", [1, 0], ["x", "y"])
    hugging_face(tmp_path / "data-00001-of-00002.arrow", [1], ["x", "y"])
    (dataset,) = read_all(tmp_path).values()
    assert ids(dataset) == ["0", "1", "2"]
    (tmp_path / "data-00000-of-00002.arrow").unlink()
    assert "1 of the 2 shards" in failure(read, tmp_path)


def test_files_are_splits_by_name(tmp_path):
    """The columns of each file are found by name, in any order."""
    tabs = b"text\tmore\tlabel\nc\tx\tneg\n"
    dev = writers.json_lines({"text": "d", "label": "neg"})
    write(tmp_path / "my_train.csv", "label,text\nneg,a\npos,b\n")
    write(tmp_path / "my_train_2.tsv.gz", gzip.compress(tabs))
    write(tmp_path / "Dev.jsonl", dev)
    write(tmp_path / ".hidden.csv", "x")
    found = read_all(tmp_path)
    assert set(found) == {"train", "validation"}
    train = found["train"]
    assert texts(train) == ["a", "b", "c"]
    assert ids(train) == ["0", "1", "2"]
    assert names(train) == ["neg", "pos", "neg"]
    assert [file.name for file in train.files] == ["my_train.csv", "my_train_2.tsv.gz"]
    assert found["validation"].classes == ("neg",)


def test_files_without_a_split_in_their_names_are_one_data_set(tmp_path):
    folder = tmp_path / "data"
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere / "c.csv", TABLE)
    write(folder / "a.csv", TABLE)
    write(folder / "sub" / "b.csv", TABLE)
    os.symlink(elsewhere, folder / "linked")
    dataset = read(folder)[""]
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
def test_partial_splits_and_folders_without_tables_are_refused(tmp_path, files, key):
    for name in files:
        write(tmp_path / name, TABLE)
    assert key in failure(read_all, tmp_path)


def test_all_files_may_be_read_as_one_data_set(tmp_path):
    """The splits in their names are ignored."""
    for name in ("train.csv", "train_test.csv", "notes.csv"):
        write(tmp_path / name, TABLE)
    found = read(tmp_path, ignore_splits=True)
    assert list(found) == [""]
    assert len(found[""]) == 6


def test_unread_files_are_counted(tmp_path):
    for name in ("train.csv", "test.xlsx", "README.md", "b.md"):
        write(tmp_path / name, TABLE)
    (note,) = read(tmp_path)["train"].notes
    for key in ("3 files", ".md 2", ".xlsx 1"):
        assert key in note


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_rows_are_split_by_a_column(tmp_path, suffix):
    """The id of a row is its position in the file."""
    rows = [
        {"text": "a", "label": "x", "split": "Train"},
        {"text": "b", "label": "y", "split": "dev"},
        {"text": "c", "label": "x", "split": "train"},
        {"text": "d", "label": "y", "split": "TEST"},
    ]
    file_path = tmp_path / f"a.{suffix}"
    path = table(file_path, rows)
    found = read_all(path)
    train = found["train"]
    assert ids(train) == ["0", "2"]
    assert train.classes == ("x",)
    assert train.columns == ("text", "label")
    assert ids(found["validation"]) == ["1"]
    assert ids(found["test"]) == ["3"]
    assert len(found) == 3
    whole = read(path, ignore_splits=True)
    assert list(whole) == [""]
    whole_ids = ids(whole[""])
    assert whole_ids == ["0", "1", "2", "3"]


def test_column_of_splits_in_other_capitals_is_refused(tmp_path):
    """Otherwise all rows would be trained on."""
    path = write(tmp_path / "a.csv", b"text,label,Split\na,x,train\nb,y,test\n")
    assert "the column 'Split' is not read: rename it to 'split'" in failure(read, path)
    whole = read(path, ignore_splits=True)[""]
    assert ids(whole) == ["0", "1"]


def test_splits_in_only_some_rows_are_refused(tmp_path):
    """Here the first JSON object does not name one."""
    unsplit = {"text": "a", "label": 1}
    rows = [unsplit, {"text": "b", "label": 1, "split": "test"}]
    content = writers.json_lines(*rows)
    path = write(tmp_path / "a.jsonl", content)
    message = failure(read, path)
    assert "line 1" in message
    assert "line 2" in message
    whole = read(path, ignore_splits=True)[""]
    assert len(whole) == 2


def test_unknown_splits_of_rows_are_refused(tmp_path):
    path = write(tmp_path / "a.csv", "text,label,split\na,x,fold 1\n")
    message = failure(read, path)
    for key in ("line 2", "'fold 1'", "split=all"):
        assert key in message


def test_folders_whose_rows_name_splits_are_refused(tmp_path):
    """Only single files may have a column of splits."""
    path = write(tmp_path / "a.csv", "text,label,split\na,x,train\nb,y,test\n")
    write(tmp_path / "README.md", "")
    message = failure(read, tmp_path)
    for key in (path, "'split'", "split=all"):
        assert key in message
    whole = read(tmp_path, ignore_splits=True)
    assert len(whole[""]) == 2
    split_as_label = read(tmp_path, custom_task(("text",), "split"))
    assert len(split_as_label[""]) == 2


def test_the_label_column_may_be_called_split(tmp_path):
    path = write(tmp_path / "a.csv", "text,split\na,train\nb,infinitive\n")
    dataset = read(path, custom_task(("text",), "split"))[""]
    assert names(dataset) == ["train", "infinitive"]


def test_bad_rows_are_skipped_up_to_the_limit(tmp_path):
    """The other rows keep their positions, in a file with a column of splits, too."""
    lines = ["text,label,split", "a,x,train", "broken", "b,x,train", ",x,test", "c,y,test"]
    content = "\n".join(lines)
    path = write(tmp_path / "a.csv", content)
    found = dict(read(path, limit=2))
    assert ids(found["train"]) == ["0", "2"]
    assert ids(found["test"]) == ["4"]
    assert "line 3" in failure(read, path)
    assert "line 5" in failure(lambda: dict(read(path, limit=1)))


LIST_LABEL = {"text": ["a"], "label": [["x", "y"]]}
DICT_TEXT = {"text": [{"en": "a"}], "label": ["x"]}
NUMBER_TEXT = {"text": [1], "label": [1]}
DATE_LABEL = {"text": ["a"], "label": [datetime.date(2020, 1, 1)]}
NO_ROWS = {"text": pa.array([], pa.string()), "label": []}
BY_COLUMN = {"text": {"0": "a"}, "label": {"0": 1}}


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
        ("a.json", json.dumps(BY_COLUMN), "dict"),
        ("a.parquet", b"PAR1", "parquet"),
        ("a.parquet", LIST_LABEL, "['x', 'y']"),
        ("a.parquet", DICT_TEXT, "dict"),
        ("a.parquet", NUMBER_TEXT, "int 1"),
        ("a.parquet", DATE_LABEL, "datetime"),
        ("a.parquet", NO_ROWS, "no example"),
        ("a.arrow", b"", "Arrow"),
        ("a.parquet.gz", b"", "parquet"),
        ("a.xlsx", b"", ".xlsx"),
        ("a", b"text,label\n", "is not a table"),
    ],
)
def test_invalid_files_are_refused(tmp_path, name, content, key):
    path = tmp_path / name
    if isinstance(content, dict):
        writers.parquet(path, **content)
    else:
        write(path, content)
    message = failure(read_all, path)
    assert str(path) in message
    assert key in message


def test_missing_files_and_broken_links_are_refused(tmp_path):
    assert "none.csv" in failure(read, tmp_path / "none.csv")
    (tmp_path / "broken.csv").symlink_to(tmp_path / "none.csv")
    assert "broken.csv" in failure(read, tmp_path)


FEATURES = {
    "text": tfds.features.Text(),
    "stars": tfds.features.ClassLabel(names=["2", "1"]),
    "image": tfds.features.Image(),
}


def record(stars: int) -> bytes:
    return writers.example(text=b"a %d" % stars, stars=stars, image=b"\x89")


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record", "parquet"])
def test_tfds_folders_are_read(tmp_path, monkeypatch, file_format):
    """Labels are numbers of classes, and -1 means none. Other features are not read."""
    shards = {
        "train": [[record(0), record(1)], [record(-1)]],
        "test": [[record(1)]],
    }
    folder = tmp_path / "own" / "1.0.0"
    writers.tfds_folder(folder, shards, file_format, **FEATURES)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    found = read_all("tfds:own", custom_task(("text",), "stars"))
    assert set(found) == {"train", "test"}
    dataset = found["train"]
    assert dataset.classes == ("2", "1")
    assert texts(dataset) == ["a 0", "a 1"]
    assert dataset.labels.tolist() == [0, 1]
    assert len(dataset.files) == 2
    assert len(dataset.notes) == 1
    task = custom_task(("text",), "label")
    message = failure(read_all, folder, task)
    assert "'text', 'stars'" in message


def test_fingerprints_do_not_depend_on_format_time_and_path(tmp_path):
    csv = read(table(tmp_path / "a.csv", ROWS))[""]
    parquet = read(table(tmp_path / "b.parquet", ROWS))[""]
    assert csv.fingerprint == parquet.fingerprint


def test_fingerprints_depend_on_labels(tmp_path):
    first, second, third = ROWS
    relabelled = [first, second, third | {"label": "pos"}]
    original_path = table(tmp_path / "a.csv", ROWS)
    original = read(original_path)[""]
    changed_path = table(tmp_path / "b.csv", relabelled)
    changed = read(changed_path)[""]
    assert original.fingerprint != changed.fingerprint
