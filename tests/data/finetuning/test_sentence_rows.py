"""Rows from each kind of file, and messages of bad rows, before their values are used."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets as tfds

from gmlp_flax.data.finetuning.glue import GLUE_TASKS
from gmlp_flax.data.finetuning.sentence_rows import READERS, file_rows, require_features, tfds_rows
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, tfds_folders
from gmlp_flax.io.records import BadRecord
from tests.data import writers

SST2 = GLUE_TASKS["sst2"]


def rows(path, content, task="sst2"):
    """Line and record of each row; for a bad one, its message in < >."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = []
    for where, record in file_rows(str(path), GLUE_TASKS[task]):
        assert where.startswith(f"{path}, line ")
        bad = isinstance(record, BadRecord)
        found.append((int(where.rpartition(" ")[2]), f"<{record}>" if bad else record))
    return found


def test_suffixes(tmp_path):
    assert set(READERS) == {".tsv", ".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".txt"}
    with pytest.raises(DataError, match="has no format in which labelled sentences are read; expected .tsv, .jsonl"):
        rows(tmp_path / "a.xlsx", "sentence,label\n")


@pytest.mark.parametrize("suffix", [".tsv", ".txt", ".tsv.gz"])
def test_tab_separated(tmp_path, suffix):
    content = b"\xef\xbb\xbfsentence\tlabel\r\nfine\t1\r\n\r\n \ndull\t0\nbad\n\xe9\t1\n"
    found = rows(tmp_path / f"a{suffix}", gzip.compress(content) if suffix.endswith("gz") else content)
    assert found == [
        (2, {"sentence": "fine", "label": "1"}),
        (5, {"sentence": "dull", "label": "0"}),
        (6, "<1 columns, separated by tabs, where 2 were expected>"),
        (7, "<not UTF-8 (byte 0xe9); convert it, e.g. with iconv -t UTF-8>"),
    ]


def test_commas(tmp_path):
    content = b'\xef\xbb\xbf"sentence",label\r\nfine,1\r\n\r\n"said ""no"", and\n\nwent",0\nbad\n\xe9,1\n'
    assert (
        rows(tmp_path / "a.csv.gz", gzip.compress(content))
        == rows(tmp_path / "a.csv", content)
        == [
            (2, {"sentence": "fine", "label": "1"}),
            (4, {"sentence": 'said "no", and\n\nwent', "label": "0"}),
            (7, "<1 columns, separated by commas, where 2 were expected>"),
            (8, "<not UTF-8 (byte 0xe9); convert it, e.g. with iconv -t UTF-8>"),
        ]
    )
    long = "\n".join(
        f"line {number}" for number in range(20_000)
    )  # beyond the library's own limit of 131,072 characters
    assert rows(tmp_path / "a.csv", f'sentence,label\n"{long}",1\n') == [(2, {"sentence": long, "label": "1"})]
    with pytest.raises(DataError, match="line 1: no column 'sentence' in the header, found 'sentence;label'; give"):
        rows(tmp_path / "a.csv", "sentence;label\nfine;1\n")


@pytest.mark.parametrize(
    ("row", "reason"), [('"a" b,1', "',' expected after '\"'"), ('"open,1', "unexpected end of data")]
)
def test_stray_quotation_marks_end_the_reading(tmp_path, row, reason):
    """Where the next row begins is not known: what follows would be made-up rows."""
    with pytest.raises(DataError) as caught:
        rows(tmp_path / "a.csv", f"sentence,label\nfine,1\n{row}\nmore,1\n")
    assert str(caught.value) == f"{tmp_path}/a.csv, line 3: not CSV ({reason}); check its quotation marks"


def test_parquet(tmp_path):
    path = writers.parquet(
        tmp_path / "a.parquet",
        rows=2,
        sentence=pa.array([b"fine", b"\xff", b"dull"]).view(pa.string()),
        label=pa.array(["1", "0", "1"]).dictionary_encode(),
        idx=[4, 5, None],
        words=[["a"], [], None],
        hash=[b"\xff"] * 3,
        day=pa.array([1, 2, 3], pa.timestamp("ns")),
    )
    assert [(where, str(row) if isinstance(row, BadRecord) else row) for where, row in file_rows(str(path), SST2)] == [
        (f"{path}, row 0", {"sentence": "fine", "label": "1", "idx": 4}),
        (f"{path}, row 1", "not UTF-8 (byte 0xff); convert it, e.g. with iconv -t UTF-8"),
        (f"{path}, row 2", {"sentence": "dull", "label": "1", "idx": None}),
    ]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="a.parquet: truncated, damaged or not parquet"):
        list(file_rows(str(path), SST2))


def test_names_of_classes_in_parquet(tmp_path):
    features = {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}, "sentence": {"_type": "Value"}}
    table = pa.table({"sentence": ["fine", "dull", "new"], "label": [1, 0, -1]})
    for description, expected in (
        (json.dumps({"info": {"features": features}}), ["pos", "neg", None]),
        ("{", [1, 0, -1]),
        ("[]", [1, 0, -1]),
    ):
        pq.write_table(table.replace_schema_metadata({"huggingface": description}), tmp_path / "a.parquet")
        found = [record["label"] for _, record in file_rows(str(tmp_path / "a.parquet"), SST2)]
        assert found == expected
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 2, ["label", "label"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="a.parquet: two columns are named 'label': rename one"):
        list(file_rows(str(tmp_path / "a.parquet"), SST2))


def test_headers(tmp_path):
    row = {"source": "gj04", "label": "0", "star": "*", "sentence": "The ball wriggled."}
    assert rows(tmp_path / "a.tsv", "gj04\t0\t*\tThe ball wriggled.\n", "cola") == [(1, row)]
    assert rows(tmp_path / "a.tsv", "index\tsentence\n0\tgood\n", "cola") == [(2, {"index": "0", "sentence": "good"})]
    with pytest.raises(DataError, match="line 1: no column 'sentence1' or 'premise' in the header, found 'a', 'b';"):
        rows(tmp_path / "a.tsv", "a\tb\n", "mnli")


def test_json_lines(tmp_path):
    content = writers.json_lines({"sentence": "fine", "label": 1}) + b"\n[]\n{\n" + b'"\xff"\n'
    assert rows(tmp_path / "a.jsonl", content) == [
        (1, {"sentence": "fine", "label": 1}),
        (3, "<found list; expected an object>"),
        (4, "<not JSON (Expecting property name enclosed in double quotes); expected one object per line>"),
        (5, "<not UTF-8 (byte 0xff); convert it, e.g. with iconv -t UTF-8>"),
    ]


def folder(path, records, **features):
    path = str(writers.tfds_folder(path, {"train": [records]}, "tfrecord", **features))
    return tfds_folders.load(path, files.find_files(path))


def test_tfds(tmp_path):
    records = [writers.example(sentence=b"fine", label=1, idx=4), b"\xff no example", writers.example(sentence=b"\xff")]
    examples = tfds_rows(folder(tmp_path / "a", records), "train")
    found = [(where.rpartition(", ")[2], record) for where, record in examples]
    assert found[0] == ("record 0", {"sentence": "fine", "label": 1, "idx": 4})
    assert [(where, str(record).partition(" (")[0]) for where, record in found[1:]] == [
        ("record 1", "not a tf.train.Example"),
        ("record 2", "not UTF-8"),
    ]


def test_required_features(tmp_path):
    text, label = tfds.features.Text(), tfds.features.ClassLabel(names=["positive", "negative"])
    record = [writers.example(sentence=b"fine", label=1)]
    require_features(folder(tmp_path / "a", record, sentence=text), GLUE_TASKS["sst2"])
    with pytest.raises(DataError, match="has no feature 'sentence', found 'text'; give a data set of this task"):
        require_features(folder(tmp_path / "b", record), GLUE_TASKS["sst2"])
    with pytest.raises(DataError, match="has the labels positive, negative, but this task's are negative, positive"):
        require_features(folder(tmp_path / "c", record, sentence=text, label=label), GLUE_TASKS["sst2"])
