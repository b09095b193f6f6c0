"""The documents of one file, by its format."""

import gzip
import itertools
import json
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data import rows
from gmlp_flax.data.text import documents
from gmlp_flax.io.records import BadRecord
from tests.data import writers
from tests.failures import failure

CP1252 = "iconv -f WINDOWS-1252 -t UTF-8"


def read(reader: str, path, start: int = 0, stop: int | None = None) -> list[str]:
    """Documents, and the messages of bad records in < >."""
    items = []
    read_documents = documents.READERS[reader]
    for item in read_documents(str(path), start, stop):
        text = f"<{item}>" if isinstance(item, BadRecord) else item
        items.append(text)
    return items


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"one\ntwo \xe2\x82\xac\n", "one\ntwo €\n"),
        (b"\xef\xbb\xbfone\r\n", "one\r\n"),
        (b"", ""),
        (b'{"text": "one"}\n', '{"text": "one"}\n'),
        (b"one" * 500 + b"\0", "one" * 500 + "\0"),
    ],
)
def test_a_text_file_is_one_unchanged_document(tmp_path, content, text):
    (tmp_path / "a.txt").write_bytes(content)
    assert read("text", tmp_path / "a.txt") == [text]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"one\ncaf\xe9\n", f"line 2: not UTF-8 (byte 0xe9); convert it, e.g. with {CP1252}"),
        ("\ntwo€\n".encode("utf-16"), "line 2: not UTF-8 (a zero byte, as UTF-16 has); convert it"),
        (
            "one\ntwo\0 and caf\u00e9\n".encode(),
            "line 2: not UTF-8 (a zero byte, which no text has); remove it, e.g. with tr -d '\\000'",
        ),
        (b"\x1f\x8b\x08", "line 1: not UTF-8 (byte 0x8b)"),
    ],
)
def test_text_in_another_encoding_is_refused(tmp_path, content, message):
    (tmp_path / "a.txt").write_bytes(content)
    error_message = failure(read, "text", tmp_path / "a.txt")
    assert f"a.txt, {message}" in error_message


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-32-be"])
def test_chinese_text_in_another_encoding_is_refused(tmp_path, encoding):
    """In UTF-16 it may have no zero byte."""
    content = "\u4e2d\u6587\u6587\u672c".encode(encoding)
    assert (b"\0" in content) == encoding.startswith("utf-32")
    (tmp_path / "a.txt").write_bytes(content)
    message = failure(read, "text", tmp_path / "a.txt")
    codec = encoding[:6].upper()
    assert f"iconv -f {codec} -t UTF-8" in message


@pytest.mark.parametrize(
    ("name", "reader", "message"),
    [
        ("a.txt.gz", "text", "a.txt.gz has more than 100 bytes"),
        ("a.jsonl.gz", "json_lines", "a.jsonl.gz, line 2 has more than"),
    ],
)
def test_documents_have_a_maximum_size(tmp_path, monkeypatch, name, reader, message):
    """A small compressed file may unpack to any size."""
    monkeypatch.setattr(rows, "LONGEST", 100)
    long_text = "a" * 200
    content = writers.json_lines({"text": "b"}, {"text": long_text})
    compressed = gzip.compress(content)
    (tmp_path / name).write_bytes(compressed)
    error_message = failure(read, reader, tmp_path / name)
    assert message in error_message


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"text": ', "not JSON (Expecting value)"),
        (b'{"text": "caf\xe9"}', f"not UTF-8 (byte 0xe9); convert it, e.g. with {CP1252}"),
        ('{"text": "one"}'.encode("utf-16-le"), "not UTF-8 (a zero byte"),
        (b'{"body": "x", "id": 1}', "found fields 'body', 'id'"),
        (b'{"text": 3}', "the field 'text' holds int 3"),
        (b'{"text": null}', "the field 'text' is null"),
        (b'{"text": ["one", "two"]}', "the field 'text' holds list ['one', 'two']"),
        (b"{}", "found fields none"),
        (b"[1]", "found list"),
        (b'"one"', "found str"),
        (b"[" * 100_000, "not JSON (nested too deep)"),
        (b'{"text": "x", "n": ' + b"9" * 5000 + b"}", "not JSON (a number of 5,000 digits)"),
        (b"plain words", "not JSON"),
    ],
    ids=[
        "an unfinished object",
        "Latin-1",
        "UTF-16",
        "other fields",
        "a number as text",
        "a null as text",
        "a list as text",
        "an empty object",
        "a list",
        "a string",
        "nested too deep",
        "a long number",
        "plain words",
    ],
)
def test_bad_json_lines_are_bad_records(tmp_path, line, problem):
    path = tmp_path / "a.jsonl"
    first_line = b'\xef\xbb\xbf{"text": "one"}\r\n \n'
    path.write_bytes(first_line + line + b'\n{"text": "two\\n\\u20ac"}')
    first, bad, last = read("json_lines", path)
    assert first == "one"
    assert bad.startswith(f"<line 3: {problem}")
    assert last == "two\n€"
    assert read("json_lines", path, 5)[0] == bad.replace("line 3", "line 2 after byte 5")


def test_lone_surrogates_are_kept(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "\\ud83d"}\n')
    assert read("json_lines", tmp_path / "a.jsonl") == ["\ud83d"]


@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_of_rows_is_not_json_lines(tmp_path, indent):
    """As pandas writes it by default."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "one"}, {"text": "two"}], indent=indent))
    items = read("json_lines", path)
    assert items[0].startswith("<line 1: ")
    assert "expected one object per line" in items[0]
    assert "one" not in items


@given(
    st.lists(st.one_of(st.text(max_size=20), st.none()), max_size=20),
    st.lists(st.integers(0, 500)),
    st.booleans(),
)
def test_byte_ranges_cover_json_lines_once(tmp_path_factory, texts, cuts, ends_with_line_feed):
    """None stands for a line that does not parse."""
    path = tmp_path_factory.mktemp("ranges") / "a.jsonl"
    lines = []
    for text in texts:
        record = json.dumps({"text": text}, ensure_ascii=False)
        lines.append("broken" if text is None else record)
    content = "\n".join(lines).encode()
    if ends_with_line_feed:
        content += b"\n"
    path.write_bytes(content)
    size = len(content)
    inside = [cut for cut in cuts if cut < size]
    bounds = [0, *sorted(inside), None]
    in_ranges = []
    for start, stop in itertools.pairwise(bounds):
        in_ranges += read("json_lines", path, start, stop)
    whole = read("json_lines", path)
    expected = []
    for number, text in enumerate(texts, start=1):
        line_text = f"<line {number}: not JSON" if text is None else text
        expected.append(line_text)
    found = []
    for item in whole:
        found.append(item.partition(" (Expecting")[0])
    assert found == expected
    found_in_ranges = [without_number(item) for item in in_ranges]
    found_whole = [without_number(item) for item in whole]
    assert found_in_ranges == found_whole


def without_number(item):
    return re.sub("<line [^:]*", "<line", item)


def test_parquet_rows_are_documents(tmp_path):
    text = pa.array([b"one", b"caf\xe9", None, "€".encode(), b""], pa.binary())
    path = writers.parquet(tmp_path / "a.parquet", 2, text=text)
    assert read("parquet", path) == [
        "one",
        f"<row 1: not UTF-8 (byte 0xe9); convert it, e.g. with {CP1252} if that byte is 'é' (Latin-1)>",
        "<row 2: null; expected a string>",
        "€",
        "",
    ]
    assert read("parquet", path, 1)[0].startswith("<row 2: ")
    assert read("parquet", path, 1, 2)[1:] == ["€"]


DICTIONARY = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), DICTIONARY])
def test_text_columns_may_have_any_string_type(tmp_path, kind):
    texts = pa.array(["one", "€", "one"])
    column = texts.cast(kind)
    table = pa.table({"text": column, "label": [1, 2, 3]})
    parquet = tmp_path / "a.parquet"
    pa.parquet.write_table(table, parquet)
    assert read("parquet", parquet) == ["one", "€", "one"]
    arrow = writers.arrow(tmp_path / "a.arrow", table)
    assert read("arrow", arrow) == ["one", "€", "one"]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (pa.table({"body": ["one"]}), "'body' (string)"),
        (pa.table({"text": [{"en": "one"}]}), "'text' (struct<en: string>)"),
        (pa.table({"text": [["one"]]}), "'text' (list<"),
        (pa.table({"text": [1]}), "'text' (int64)"),
        (pa.table({"text": [None]}), "'text' (null)"),
        (pa.table({"Text": ["one"]}), "'Text' (string)"),
    ],
)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_files_without_a_text_column_are_refused(tmp_path, suffix, table, found):
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pa.parquet.write_table(table, path)
    else:
        writers.arrow(path, table)
    message = failure(read, "parquet", path)
    assert str(path) in message
    assert found in message


def test_two_columns_with_one_name_are_refused(tmp_path):
    columns = [pa.array(["one"]), pa.array(["two"])]
    table = pa.Table.from_arrays(columns, names=["text", "text"])
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(table, path)
    message = failure(read, "parquet", path)
    assert "a.parquet" in message


EXAMPLES = [
    writers.example(text="one €".encode(), url=b"http"),
    writers.example(url=b"http"),
    writers.example(text=b"caf\xe9"),
    b"\xff not an example",
    writers.example(text=[b"one", b"two"]),
    writers.example(text=3),
    b"",
    writers.example(text=b"last"),
]
PROBLEMS = [
    "<record 1: found features 'url'; expected one string 'text'>",
    "<record 2: not UTF-8 (byte 0xe9)",
    "<record 3: not a tf.train.Example>",
    "<record 4: found features 'text'; expected one string 'text'>",
    "<record 5: found features 'text'; expected one string 'text'>",
    "<record 6: found features none; expected one string 'text'>",
]


@pytest.mark.parametrize("reader", ["tfrecord", "array_record", "tfds_parquet"])
def test_examples_of_tfds_are_documents(tmp_path, reader):
    path = tmp_path / "a"
    if reader == "tfds_parquet":
        writers.parquet(path, 2, data=EXAMPLES)
    else:
        write = getattr(writers, reader)
        write(path, EXAMPLES)
    first, *bad, last = read(reader, path)
    assert first == "one €"
    for item, problem in zip(bad, PROBLEMS, strict=True):
        assert item.startswith(problem)
    assert last == "last"
    last_read = read(reader, path, 3)[-1]
    assert last_read == "last"
