import json
import os
import pickle

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.errors import DataError
from gmlp_flax.io import records
from gmlp_flax.io.records import BadRecord, BadRecords, TFRecordFile
from tests.data import writers
from tests.failures import failure

SOME = [b"one", b"", b"three" * 1000, b"\x00\xff", b"five"]


def flip(path, offset: int, bit: int = 0):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(bytes(data))
    return path


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(0, 25), st.integers(0, 25))
def test_tfrecord_round_trip(tmp_path_factory, data, start, stop):
    path = writers.tfrecord(tmp_path_factory.mktemp("records") / "a.tfrecord", data)
    file = TFRecordFile(path)
    assert list(file.records()) == list(enumerate(data))
    assert len(file) == len(data)
    got = [file[i] for i in reversed(range(len(file)))]
    assert got == data[::-1]
    again = pickle.loads(pickle.dumps(file))
    assert [again[i] for i in range(len(again))] == data
    stop = min(stop, len(data))
    got = list(file.records(start, stop))
    expected = list(enumerate(data))[start:stop]
    assert got == expected


def test_remote_tfrecord(tmp_path):
    local = writers.tfrecord(tmp_path / "a.tfrecord", SOME)
    with fsspec.open("memory://records/a.tfrecord", "wb") as remote:
        remote.write(local.read_bytes())
    file = pickle.loads(pickle.dumps(TFRecordFile("memory://records/a.tfrecord")))
    assert len(file) == 5
    got = [file[i] for i in (4, 0, 2, 1, 3)]
    expected = [SOME[i] for i in (4, 0, 2, 1, 3)]
    assert got == expected
    expected = [(2, SOME[2]), (3, SOME[3])]
    assert list(file.records(2, 4)) == expected
    for index in (-1, 5):
        with pytest.raises(IndexError, match=f"record {index} of 5 in"):
            file[index]


@given(st.data())
def test_a_flipped_bit_of_a_tfrecord_is_always_found(tmp_path_factory, data):
    path = writers.tfrecord(tmp_path_factory.mktemp("records") / "a.tfrecord", SOME)
    offset = data.draw(st.integers(0, path.stat().st_size - 1))
    file = TFRecordFile(flip(path, offset, data.draw(st.integers(0, 7))))
    try:
        read = dict(file.records())
    except DataError as error:
        assert str(error).endswith("it again")
        return
    (number,) = (i for i, record in read.items() if isinstance(record, BadRecord))
    assert str(read[number]) == f"record {number}: fails its checksum"
    got = [read[i] for i in range(5) if i != number]
    expected = [SOME[i] for i in range(5) if i != number]
    assert got == expected
    with pytest.raises(BadRecord, match=f"record {number}: fails"):
        file[number]


def read_all(path, *span):
    return list(TFRecordFile(path).records(*span))


def test_truncated_tfrecord(tmp_path):
    whole = writers.tfrecord(tmp_path / "a.tfrecord", SOME).read_bytes()
    ends = {0}
    for record in SOME:
        ends.add(max(ends) + len(record) + 16)
    for size in [*range(60), len(whole) - 30, len(whole) - 20, len(whole) - 1]:
        path = tmp_path / "cut.tfrecord"
        path.write_bytes(whole[:size])
        if size in ends:  # whole records are left: found out where the number of records is known
            assert "records where 5 or more were expected" in failure(read_all, path, 0, 5)
        else:
            assert "cut.tfrecord, record " in failure(read_all, path)
            assert "the file is truncated" in failure(len, TFRecordFile(path))


def test_not_a_tfrecord(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_text("some text, longer than a header")
    assert "a.tfrecord, record 0: not a TFRecord file, or damaged" in failure(read_all, path)


def test_array_records(tmp_path):
    path = str(writers.array_record(tmp_path / "a.array_record", [b"%d" % i for i in range(1000)]))
    got = list(records.array_records(path, 250, 600))
    expected = [(i, b"%d" % i) for i in range(250, 600)]
    assert got == expected


def array_record_failure(path, stop: int | None) -> str:
    """The error of reading an array record."""
    return failure(lambda: list(records.array_records(str(path), 0, stop)))


def test_damaged_array_record(tmp_path):
    data = [bytes([i]) * 5000 + b"%d" % i for i in range(20)]
    path = writers.array_record(tmp_path / "a.array_record", data)
    whole = path.read_bytes()
    flip(path, 300)
    read = [record for _, record in records.array_records(str(path), 0, None)]
    [bad] = [i for i, record in enumerate(read) if isinstance(record, BadRecord)]
    error = read.pop(bad)
    assert str(error).startswith(f"record {bad}: Corrupted")
    del data[bad]
    assert read == data
    for damaged in (whole[: len(whole) // 2], b"no records at all", b""):
        path.write_bytes(damaged)
        some = array_record_failure(path, 20)
        assert "a.array_record: 0 records where 20 or more were expected" in some
        every = array_record_failure(path, None)
        assert "0 records where 1 or more" in every
    gone = array_record_failure(tmp_path / "gone", None)
    assert "gone failed" in gone


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), None])
def test_parquet_records(tmp_path, kind):
    """The last kind is a dictionary."""
    values = [f"text {i} €" for i in range(700)] + [None]
    column = pa.array(values, kind) if kind else pa.array(values).dictionary_encode()
    path = str(writers.parquet(tmp_path / "a.parquet", 300, text=column, id=list(range(701))))
    contents = [text.encode() for text in values[:-1]]
    expected = list(enumerate([*contents, None]))
    assert list(records.parquet_records(path, "text", 0, None)) == expected
    assert list(records.parquet_records(path, "text", 1, 2)) == expected[300:600]
    sizes = records.parquet_sizes(path)
    assert len(sizes) == 3
    assert min(sizes) > 0


def parquet_values(path, start: int = 0, stop: int | None = None) -> list[bytes | None]:
    return [value for _, value in records.parquet_records(str(path), "text", start, stop)]


def test_damaged_parquet(tmp_path):
    path = writers.parquet(tmp_path / "a.parquet", text=[f"text number {i}" for i in range(500)])
    whole = path.read_bytes()
    for data in (whole[:-50], whole[: len(whole) // 2], b"no parquet at all", b""):
        path.write_bytes(data)
        for read in (parquet_values, records.parquet_sizes):
            assert "a.parquet: truncated, damaged or not parquet (" in failure(
                lambda read=read: read(str(path))
            )
    path.write_bytes(whole)
    flip(path, 500)
    assert "a.parquet: truncated, damaged or not parquet (" in failure(lambda: parquet_values(path))


def test_parquet_without_the_column(tmp_path):
    path = writers.parquet(tmp_path / "a.parquet", text=[1, 2], body=["a", "b"])
    message = failure(lambda: parquet_values(path))
    assert "no column 'text' of strings, found 'text' (int64), 'body' (string);" in message


LABEL = {"names": ["neg", "pos"], "_type": "ClassLabel"}


def described(features: object) -> str:
    return json.dumps({"info": {"features": features}})


@pytest.mark.parametrize(
    ("description", "classes", "values"),
    [
        (described({"label": LABEL}), {"label": ("neg", "pos")}, ["pos", "neg", None, 2]),
        (described({"tags": [LABEL], "label": LABEL}), {"label": ("neg", "pos")}, ["pos", "neg"]),
        (
            described({"label": {"_type": "ClassLabel", "names": [7, 8]}}),
            {"label": ("7", "8")},
            ["8"],
        ),
        (described({"label": {"_type": "Value"}}), {}, [1, 0, -1, 2]),
        (described({"label": {"_type": "ClassLabel"}}), {}, [1, 0, -1, 2]),
        (described([1]), {}, [1, 0, -1, 2]),
        ("[]", {}, [1]),
        ("{", {}, [1]),
    ],
)
def test_classes_that_a_file_declares(tmp_path, description, classes, values):
    path = str(tmp_path / "a.parquet")
    table = pa.table({"label": [1, 0, -1, 2]})
    pq.write_table(table.replace_schema_metadata({"huggingface": description}), path)
    assert records.parquet_classes(path) == classes
    found = [row["label"] for _, row in records.parquet_rows(path, ("label",))]
    assert found[: len(values)] == values


def test_rows_of_parquet(tmp_path):
    """NaN is no number; a byte-order mark within a text is text."""
    columns = {"a": ["\ufeffx", "ü"], "b": [float("nan"), 2.5], "c": [True, False], "d": [1, 2]}
    path = writers.parquet(tmp_path / "a.parquet", **columns)
    found = list(records.parquet_rows(str(path), ("a", "b", "c", "x")))
    assert found == [
        (0, {"a": "\ufeffx", "b": None, "c": True}),
        (1, {"a": "ü", "b": 2.5, "c": False}),
    ]


def test_bad_records_are_counted_up_to_the_limit():
    bad = BadRecords(7)
    for i in range(7):
        bad.skip(f"a.jsonl, line {i}: wrong")
    assert bad.count == 7
    assert bad.first == [f"a.jsonl, line {i}: wrong" for i in range(5)]
    message = failure(lambda: bad.skip("a.jsonl, line 9: wrong"))
    assert message.startswith("a.jsonl, line 9: wrong (7 bad ")
    assert "max_bad_records=7" in message
    assert "max_bad_records=0" in failure(lambda: BadRecords().skip("x"))


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "x.array_record"
    with records.array_record_writer(path, "group_size:1") as write:
        for record in (b"one", b"", b"three"):
            write(record)
        assert not path.exists()
    got = list(records.array_records(str(path), 0, None))
    assert got == [(0, b"one"), (1, b""), (2, b"three")]
    assert os.listdir(tmp_path) == [path.name]
    with (
        pytest.raises(DataError, match="x.array_record/y failed"),
        records.array_record_writer(path / "y", ""),
    ):
        pass
