import gzip
import itertools
import json
import re
import tarfile
import zipfile

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.text import documents
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecord
from tests.data import writers
from tests.failures import failure, raised

TOLD = "iconv -f WINDOWS-1252 -t UTF-8 if that byte is 'é' (Latin-1)"


def read(reader: str, path, start: int = 0, stop: int | None = None) -> list[str]:
    """Documents, and the messages of bad records in < >."""
    items = documents.READERS[reader](str(path), start, stop)
    return [f"<{item}>" if isinstance(item, BadRecord) else item for item in items]


def test_text(tmp_path):
    path = tmp_path / "notes.md"
    path.write_bytes(b"\xef\xbb\xbfone\ntwo \xe2\x82\xac\n")
    assert read("text", path) == ["one\ntwo €\n"]


@pytest.mark.parametrize(
    ("name", "reader", "what"),
    [
        ("a.txt.gz", "text", "a.txt.gz has more than 100 bytes"),
        ("a.jsonl.gz", "json_lines", "a.jsonl.gz, line 2 has more than 0 MiB"),
    ],
)
def test_no_document_fills_the_memory(tmp_path, monkeypatch, name, reader, what):
    """A small packed file unpacks to anything."""
    monkeypatch.setattr(documents, "LONGEST", 100)
    long = b'{"text": "' + b"a" * 200 + b'"}\n'
    with gzip.open(tmp_path / name, "wb") as stream:
        stream.write(b'{"text": "b"}\n' + long)
    with pytest.raises(DataError, match=what):
        read(reader, tmp_path / name)


@pytest.mark.parametrize(
    "data, message",
    [(b"one\ncaf\xe9\n", "byte 0xe9"), ("\ntwo€\n".encode("utf-16"), "a zero byte")],
)
def test_text_in_another_encoding(tmp_path, data, message):
    (tmp_path / "a.txt").write_bytes(data)
    assert f"a.txt, line 2: not UTF-8 ({message}" in raised(
        DataError, read, "text", tmp_path / "a.txt"
    )


def test_what_is_no_plain_text_is_named(tmp_path):
    """As an archive or a file without its suffix is given: it is no text that is damaged."""
    (tmp_path / "x").write_text("words")
    with (
        tarfile.open(tmp_path / "a.tar", "w") as tar,
        zipfile.ZipFile(tmp_path / "a.zip", "w") as archive,
    ):
        tar.add(tmp_path / "x", "x.txt")
        archive.write(tmp_path / "x", "x.txt")
    (tmp_path / "b").write_bytes(gzip.compress(b"words"))
    with gzip.open(tmp_path / "c.tar.gz", "wb") as stream:
        stream.write((tmp_path / "a.tar").read_bytes())
    writers.parquet(tmp_path / "d", text=["words"])
    for name, kind in {
        "a.tar": "tar",
        "a.zip": "zip",
        "b": "gzip",
        "c.tar.gz": "tar",
        "d": "parquet",
    }.items():
        assert f"{name}: no text but {kind}: unpack it" in raised(
            DataError, read, "text", tmp_path / name
        )


@pytest.mark.parametrize(
    ("content", "refused"),
    [
        ('{"text": "one"}\n{"text": "two"}\n', True),
        ('\ufeff[{"text": "one"}]', True),
        ('[\n {"text": "one"}\n]\n', True),
        ('{\n "text": "one"}', True),
        (r"{\rtf1\ansi one}", True),
        ("[1] A footnote.\n", False),
        ("[\n", False),
        ("{one} {two}", False),
        ('{"one", "two"}', False),
    ],
)
def test_a_text_file_that_is_none(tmp_path, content, refused):
    """Its signs would be learned as text, without a word."""
    (tmp_path / "a.txt").write_text(content)
    if refused:
        assert "a.txt: no text but JSON or RTF: write JSON lines" in raised(
            DataError, read, "text", tmp_path / "a.txt"
        )
    else:
        assert read("text", tmp_path / "a.txt") == [content]


@pytest.mark.parametrize(
    "line, found",
    [
        (b'{"text": ', "not JSON (Expecting value); expected one object per line"),
        (b'{"text": "caf\xe9"}', f"not UTF-8 (byte 0xe9); convert it, e.g. with {TOLD}"),
        (
            '{"text": "one"}'.encode("utf-16-le"),
            "not UTF-8 (a zero byte, as UTF-16 has); convert it",
        ),
        (
            b'{"body": "x", "id": 1}',
            "found fields 'body', 'id'; expected an object with a string field 'text'",
        ),
        (b'{"text": 3}', "found fields 'text'; expected"),
        (b"[1]", "found list; expected an object"),
    ],
)
def test_bad_json_lines(tmp_path, line, found):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}\n\n' + line + b'\n{"text": "two\\n\\u20ac"}')
    first, bad, last = read("json_lines", path)
    assert (first, last) == ("one", "two\n€")
    assert bad.startswith(f"<line 3: {found}")
    assert read("json_lines", path, 5)[0] == bad.replace("line 3", "line 2 after byte 5")


@pytest.mark.parametrize("reader", ["json_lines", "parquet"])
def test_a_column_that_names_splits(tmp_path, reader):
    texts, rows = [f"text {i}" for i in range(6)], ["train", "train", "test"] * 2
    for split, refused in (
        (rows, True),
        (["test"] * 6, False),
        (["web", "books", "code"] * 2, False),
    ):
        rows = [{"text": text, "split": name} for text, name in zip(texts, split, strict=True)]
        path = writers.table(
            tmp_path / f"a.{reader.removeprefix('json_').replace('lines', 'jsonl')}", rows
        )
        if refused:
            assert "the column 'split' seems to name splits ('test', 'train')" in failure(
                read, reader, path
            )
        else:
            assert read(reader, path) == texts


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-32-be"])
def test_chinese_text_in_another_encoding(tmp_path, encoding):
    """In UTF-16 it may have no zero byte."""
    (tmp_path / "a").write_bytes(data := "\u4e2d\u6587\u6587\u672c".encode(encoding))
    assert (b"\0" in data) == ("32" in encoding)
    assert f"iconv -f {encoding[:6].upper()} -t UTF-8" in failure(read, "text", tmp_path / "a")


def test_lone_surrogates_are_kept(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "\\ud83d"}\n')
    assert read("json_lines", tmp_path / "a.jsonl") == ["\ud83d"]


@given(
    st.lists(st.one_of(st.text(max_size=20), st.none()), max_size=20),
    st.lists(st.integers(0, 500)),
    st.booleans(),
)
def test_byte_ranges_cover_json_lines_once(tmp_path_factory, texts, cuts, ended):
    """None stands for a line that does not parse."""
    path = tmp_path_factory.mktemp("ranges") / "a.jsonl"
    lines = [
        "broken" if text is None else json.dumps({"text": text}, ensure_ascii=False)
        for text in texts
    ]
    data = "\n".join(lines).encode() + b"\n" * ended
    path.write_bytes(data)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(data)), None]
    pieces = [read("json_lines", path, a, b) for a, b in itertools.pairwise(bounds)]
    whole = read("json_lines", path)
    assert [re.sub("<line [^:]*", "<line", item) for item in sum(pieces, [])] == [
        re.sub("<line [^:]*", "<line", item) for item in whole
    ]
    wrong = [number for number, text in enumerate(texts, start=1) if text is None]
    bad = [
        f"<line {number}: not JSON (Expecting value); expected one object per line>"
        for number in wrong
    ]
    assert [item for item in whole if item.startswith("<line")] == bad
    assert [text for text in texts if text is not None] == [
        item for item in whole if item not in bad
    ]


def test_parquet(tmp_path):
    text = pa.array([b"one", b"caf\xe9", None, "€".encode()], pa.binary())
    path = writers.parquet(tmp_path / "a.parquet", 2, text=text)
    assert read("parquet", path) == [
        "one",
        f"<row 1: not UTF-8 (byte 0xe9); convert it, e.g. with {TOLD}>",
        "<row 2: null; expected a string>",
        "€",
    ]
    assert read("parquet", path, 1)[0].startswith("<row 2: ")


EXAMPLES = [
    writers.example(text="one €".encode(), url=b"http"),
    writers.example(url=b"http"),
    writers.example(text=b"caf\xe9"),
    b"\xff not an example",
    writers.example(text=b"last"),
]


@pytest.mark.parametrize("reader", ["tfrecord", "array_record", "tfds_parquet"])
def test_examples(tmp_path, reader):
    path = tmp_path / "a"
    if reader == "tfds_parquet":
        writers.parquet(path, 2, data=EXAMPLES)
    else:
        getattr(writers, reader)(path, EXAMPLES)
    assert read(reader, path) == [
        "one €",
        "<record 1: found features 'url'; expected one string 'text'>",
        f"<record 2: not UTF-8 (byte 0xe9); convert it, e.g. with {TOLD}>",
        "<record 3: not a tf.train.Example>",
        "last",
    ]
    assert read(reader, path, 2)[-1:] == ["last"]


ROWS = [{"text": "a", "label": 0}, {"text": "b", "label": 1}, {"text": "c", "label": 1}]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_one_list_as_pandas_writes_it(tmp_path, suffix, indent):
    path, content = (
        tmp_path / f"a.json{suffix}",
        b"\xef\xbb\xbf" + json.dumps(ROWS, indent=indent).encode(),
    )
    path.write_bytes(gzip.compress(content) if suffix else content)
    assert [json.loads(line) for _, line in documents.json_lines(str(path))] == ROWS
    assert read("json_lines", path) == ["a", "b", "c"] and read("json_lines", path, 30) == []


def test_rows_of_a_list_that_are_no_objects(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('["a", {"text": "b"}]')
    assert read("json_lines", path) == ["<line 1: found str; expected an object>", "b"]


def test_a_list_without_its_end(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(ROWS, indent=1)[:40])
    assert "a.json: not JSON" in failure(read, "json_lines", tmp_path / "a.json")
