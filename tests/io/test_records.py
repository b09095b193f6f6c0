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
    path.write_bytes(data)
    return path


def by_index(file: TFRecordFile) -> list[bytes]:
    return [file[index] for index in range(len(file))]


DATA = st.lists(st.binary(max_size=300), max_size=20)


@given(DATA, st.integers(0, 25), st.integers(0, 25))
def test_tfrecord_files_are_read_in_order_and_by_index(tmp_path_factory, data, start, stop):
    folder = tmp_path_factory.mktemp("records")
    path = writers.tfrecord(folder / "a.tfrecord", data)
    file = TFRecordFile(path)
    numbered = list(enumerate(data))
    assert list(file.records()) == numbered
    assert len(file) == len(data)
    assert by_index(file) == data
    copy = pickle.loads(pickle.dumps(file))
    assert by_index(copy) == data
    stop = min(stop, len(data))
    part = list(file.records(start, stop))
    assert part == numbered[start:stop]


def test_remote_tfrecord_files_are_read(tmp_path):
    local = writers.tfrecord(tmp_path / "a.tfrecord", SOME)
    address = "memory://records/a.tfrecord"
    with fsspec.open(address, "wb") as remote:
        remote.write(local.read_bytes())
    pickled = pickle.dumps(TFRecordFile(address))
    file = pickle.loads(pickled)
    assert len(file) == 5
    for index in (4, 0, 2, 1, 3):
        assert file[index] == SOME[index]
    numbered = list(enumerate(SOME))
    found = list(file.records(2, 4))
    assert found == numbered[2:4]
    for index in (-1, 5):
        with pytest.raises(IndexError, match=f"record {index} of 5 in"):
            file[index]


@given(st.data())
def test_flipped_bits_of_tfrecord_files_are_always_noticed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("records")
    path = writers.tfrecord(folder / "a.tfrecord", SOME)
    last = path.stat().st_size - 1
    offset = data.draw(st.integers(0, last))
    bit = data.draw(st.integers(0, 7))
    file = TFRecordFile(flip(path, offset, bit))
    try:
        read = []
        for _, record in file.records():
            read.append(record)
    except DataError as error:
        assert str(error).endswith("it again")
        return
    bad = index_of_bad_record(read)
    expected = f"record {bad}: fails its checksum"
    assert str(read[bad]) == expected
    expected_records = list(SOME)
    expected_records[bad] = read[bad]
    assert read == expected_records
    with pytest.raises(BadRecord, match=expected):
        file[bad]


def read_all(path, *span):
    file = TFRecordFile(path)
    return list(file.records(*span))


def test_truncated_tfrecord_files_are_refused(tmp_path):
    whole = writers.tfrecord(tmp_path / "a.tfrecord", SOME).read_bytes()
    ends = {0}
    for record in SOME:
        ends.add(max(ends) + len(record) + 16)
    path = tmp_path / "cut.tfrecord"
    near_the_end = [len(whole) - missing for missing in (30, 20, 1)]
    for size in [*range(60), *near_the_end]:
        path.write_bytes(whole[:size])
        if size in ends:  # only the number of records shows that some are missing
            message = failure(read_all, path, 0, 5)
            assert "records where 5 or more were expected" in message
        else:
            assert "cut.tfrecord, record " in failure(read_all, path)
            assert "the file is truncated" in failure(len, TFRecordFile(path))


def index_of_bad_record(records: list) -> int:
    """The index of the only bad record."""
    [bad] = [index for index, record in enumerate(records) if isinstance(record, BadRecord)]
    return bad


def test_other_files_are_not_tfrecord_files(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_text("some text, longer than a header")
    message = failure(read_all, path)
    assert "a.tfrecord, record 0: not a TFRecord file, or damaged" in message


def test_ranges_of_array_records_are_read(tmp_path):
    data = [b"%d" % number for number in range(1000)]
    path = writers.array_record(tmp_path / "a.array_record", data)
    numbered = list(enumerate(data))
    found = records.array_records(str(path), 250, 600)
    assert list(found) == numbered[250:600]


def array_record_failure(path, stop: int | None) -> str:
    """The message of the error of reading an ArrayRecord file."""
    return failure(lambda: list(records.array_records(str(path), 0, stop)))


def test_damaged_array_records_are_bad_records(tmp_path):
    data = []
    for number in range(20):
        data.append(bytes([number]) * 5000 + b"%d" % number)
    path = writers.array_record(tmp_path / "a.array_record", data)
    flip(path, 300)
    read = []
    for _, record in records.array_records(str(path), 0, None):
        read.append(record)
    bad = index_of_bad_record(read)
    error = read.pop(bad)
    assert str(error).startswith(f"record {bad}: Corrupted")
    del data[bad]
    assert read == data


def test_truncated_and_other_files_are_not_array_records(tmp_path):
    path = writers.array_record(tmp_path / "a.array_record", [b"x" * 5000] * 20)
    whole = path.read_bytes()
    half = whole[: len(whole) // 2]
    for damaged in (half, b"no records at all", b""):
        path.write_bytes(damaged)
        of_range = array_record_failure(path, 20)
        assert "a.array_record: 0 records where 20 or more were expected" in of_range
        of_whole = array_record_failure(path, None)
        assert "0 records where 1 or more" in of_whole


def test_missing_array_records_are_named(tmp_path):
    assert "gone failed" in array_record_failure(tmp_path / "gone", None)


TEXTS = [f"text {number} €" for number in range(700)]


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(pa.array([*TEXTS, None], pa.string()), id="string"),
        pytest.param(pa.array([*TEXTS, None], pa.large_string()), id="large string"),
        pytest.param(pa.array([*TEXTS, None], pa.binary()), id="binary"),
        pytest.param(pa.array([*TEXTS, None]).dictionary_encode(), id="dictionary"),
    ],
)
def test_parquet_values_are_bytes_or_none(tmp_path, column):
    ids = list(range(701))
    path = str(writers.parquet(tmp_path / "a.parquet", 300, text=column, id=ids))
    contents = [text.encode() for text in TEXTS]
    numbered = list(enumerate([*contents, None]))
    found = list(records.parquet_records(path, "text", 0, None))
    assert found == numbered
    second_group = list(records.parquet_records(path, "text", 1, 2))
    assert second_group == numbered[300:600]
    sizes = records.parquet_sizes(path)
    assert len(sizes) == 3
    assert min(sizes) > 0


def parquet_values(path) -> list[bytes | None]:
    rows = records.parquet_records(str(path), "text", 0, None)
    return [value for _, value in rows]


DAMAGED_PARQUET = "a.parquet: truncated, damaged or not parquet ("


@pytest.fixture
def parquet_file(tmp_path):
    texts = [f"text number {number}" for number in range(500)]
    return writers.parquet(tmp_path / "a.parquet", text=texts)


@pytest.mark.parametrize("read", [parquet_values, records.parquet_sizes])
def test_truncated_and_other_files_are_not_parquet(parquet_file, read):
    whole = parquet_file.read_bytes()
    half = whole[: len(whole) // 2]
    contents = (whole[:-50], half, b"no parquet at all", b"")
    for data in contents:
        parquet_file.write_bytes(data)
        assert DAMAGED_PARQUET in failure(read, str(parquet_file))


def test_flipped_bits_of_parquet_files_are_noticed(parquet_file):
    flip(parquet_file, 500)
    assert DAMAGED_PARQUET in failure(parquet_values, parquet_file)


def test_missing_parquet_columns_are_refused(tmp_path):
    path = writers.parquet(tmp_path / "a.parquet", text=[1, 2], body=["a", "b"])
    message = failure(parquet_values, path)
    assert "no column 'text' of strings, found 'text' (int64), 'body' (string);" in message


LABEL = {"names": ["neg", "pos"], "_type": "ClassLabel"}
NUMBERED_LABEL = {"names": [7, 8], "_type": "ClassLabel"}
UNNAMED_LABEL = {"_type": "ClassLabel"}
NO_LABEL = {"_type": "Value"}


def described(features: object) -> str:
    return json.dumps({"info": {"features": features}})


@pytest.mark.parametrize(
    ("description", "classes", "values"),
    [
        (described({"label": LABEL}), {"label": ("neg", "pos")}, ["pos", "neg", None, 2]),
        (described({"tags": [LABEL], "label": LABEL}), {"label": ("neg", "pos")}, ["pos", "neg"]),
        (described({"label": NUMBERED_LABEL}), {"label": ("7", "8")}, ["8"]),
        (described({"label": NO_LABEL}), {}, [1, 0, -1, 2]),
        (described({"label": UNNAMED_LABEL}), {}, [1, 0, -1, 2]),
        (described([1]), {}, [1, 0, -1, 2]),
        ("[]", {}, [1]),
        ("{", {}, [1]),
    ],
)
def test_declared_classes_are_read_from_the_metadata(tmp_path, description, classes, values):
    path = str(tmp_path / "a.parquet")
    labels = [1, 0, -1, 2]
    plain = pa.table({"label": labels})
    described_table = plain.replace_schema_metadata({"huggingface": description})
    pq.write_table(described_table, path)
    assert records.parquet_classes(path) == classes
    found = []
    for _, row in records.parquet_rows(path, ("label",)):
        found.append(row["label"])
    assert found[: len(values)] == values


def test_parquet_rows_are_plain_values(tmp_path):
    """NaN is read as None, and a byte-order mark inside a text is kept."""
    path = writers.parquet(
        tmp_path / "a.parquet",
        a=["\ufeffx", "ü"],
        b=[float("nan"), 2.5],
        c=[True, False],
        d=[1, 2],
    )
    found = list(records.parquet_rows(str(path), ("a", "b", "c", "x")))
    assert found == [
        (0, {"a": "\ufeffx", "b": None, "c": True}),
        (1, {"a": "ü", "b": 2.5, "c": False}),
    ]


def test_bad_records_are_counted_up_to_the_limit():
    messages = [f"a.jsonl, line {number}: wrong" for number in range(8)]
    bad = BadRecords(7)
    for message in messages[:7]:
        bad.skip(message)
    assert bad.count == 7
    assert bad.first == messages[:5]
    message = failure(bad.skip, messages[7])
    assert message.startswith("a.jsonl, line 7: wrong (7 bad ")
    assert "max_bad_records=7" in message


def test_no_bad_records_are_allowed_by_default():
    bad = BadRecords()
    assert "max_bad_records=0" in failure(bad.skip, "x")


def test_files_appear_when_they_are_complete(tmp_path):
    path = tmp_path / "x.array_record"
    with records.array_record_writer(path, "group_size:1") as write:
        for record in (b"one", b"", b"three"):
            write(record)
        assert not path.exists()
    read = records.array_records(str(path), 0, None)
    written = list(read)
    expected = [(0, b"one"), (1, b""), (2, b"three")]
    assert written == expected
    assert os.listdir(tmp_path) == [path.name]


def test_errors_of_writing_records_name_the_file(tmp_path):
    (tmp_path / "x").touch()
    writer = records.array_record_writer(tmp_path / "x" / "y", "")
    with pytest.raises(DataError, match="x/y failed"), writer:
        pass
