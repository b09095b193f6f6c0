"""Rows of each kind of file, compared with what other libraries wrote."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax.data import rows
from gmlp_flax.io import files
from gmlp_flax.io.records import BadRecord
from tests.data import writers
from tests.failures import failure, raised

ZSTD = pa.Codec("zstd")
PACKERS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: ZSTD.compress(content, asbytes=True),
}


def write(path, content: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def read(path: str, **options) -> list[tuple[int, object]]:
    """The number of each row's line, and the row or, of a bad one, the beginning of its message."""
    found = []
    for where, row in rows.read_rows(path, **options):
        file, _, number = where.rpartition(", ")
        assert file == path
        shown = str(row)[:10] if isinstance(row, BadRecord) else row
        found.append((int(number.split()[1]), shown))
    return found


def values(path: str, **options) -> list[object]:
    return [row for _, row in read(path, **options)]


def table(cells: list[list[str]], delimiter: str, **options) -> str:
    """Cells as Python's own library writes them."""
    content = io.StringIO()
    csv.writer(content, delimiter=delimiter, **options).writerows(cells)
    return content.getvalue()


@pytest.mark.smoke
@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_cells_by_rfc_4180(tmp_path, suffix, delimiter, packing):
    """A byte-order mark, CRLF, blank lines, marks, line breaks in cells, and two bad rows."""
    lines = [
        b'\xef\xbb\xbf"sentence",label\r\n',
        b"fine,1\r\n",
        b"\r\n",
        b'"said ""no"", and\n\nwent",0\n',
        b"bad\n",
        b"\xe9,1\n",
        b'5" nails, 2',
    ]
    content = b"".join(lines)
    if delimiter == "\t":
        content = content.replace(b",", b"\t").replace(b'""\t and', b'"", and')
    path = write(tmp_path / f"a{suffix}{packing}", PACKERS[packing](content))
    assert read(path) == [
        (2, {"sentence": "fine", "label": "1"}),
        (4, {"sentence": 'said "no", and\n\nwent', "label": "0"}),
        (7, "found 1 ce"),
        (8, "not UTF-8 "),
        (9, {"sentence": '5" nails', "label": " 2"}),
    ]


@pytest.mark.parametrize("packing", PACKERS)
def test_marks_that_are_text(tmp_path, packing):
    """As in GLUE's tables: quotation marks are characters, and lines of blanks are no rows."""
    content = (
        b'\xef\xbb\xbfsentence\tlabel\r\n"fine\t1\r\n\r\n \n"said ""no"""\t0\nbad\n\xe9\t1\n\t\n'
    )
    path = write(tmp_path / f"a.tsv{packing}", PACKERS[packing](content))
    assert read(path, quoted=False) == [
        (2, {"sentence": '"fine', "label": "1"}),
        (5, {"sentence": '"said ""no"""', "label": "0"}),
        (6, "found 1 ce"),
        (7, "not UTF-8 "),
        (8, {"sentence": "", "label": ""}),
    ]


def test_commas_are_always_quoted(tmp_path):
    path = write(tmp_path / "a.csv", 'a,b\n"1,2",3\n')
    assert values(path, quoted=False) == [{"a": "1,2", "b": "3"}]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("tsv", "\t")])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_tables_as_other_programs_write_them(tmp_path, suffix, delimiter, quoting, line_end):
    texts = ["plain", 'said "no"', '"all of it"', "two\nlines", "a, b; c", "tab\there", ""]
    cells = [["text", "label"]] + [[text, str(i)] for i, text in enumerate(texts)]
    content = table(cells, delimiter, quoting=quoting, lineterminator=line_end)
    path = write(tmp_path / f"a.{suffix}", content)
    expected = [{"text": text, "label": str(i)} for i, text in enumerate(texts)]
    assert values(path) == expected


def test_a_cell_longer_than_the_library_allows(tmp_path):
    long = "\n".join(map(str, range(30_000)))
    assert len(long) > 131_072
    path = write(tmp_path / "a.csv", f'sentence,label\n"{long}",1\n')
    assert read(path) == [(2, {"sentence": long, "label": "1"})]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('text,label\nfine,1\n"a" b,1\nmore,1\n', 3),
        ('text,label\nfine,1\n"open,1\nmore,1\n', 3),
        ('text,label\n"a\nb",1\n"open', 4),
        ("text,label\ra,0\rb,1\r", 1),
        ("text,label\na,0\rb,1\n", 2),
    ],
)
def test_what_is_no_csv_ends_the_reading(tmp_path, content, line):
    """The start of the next row is not known: what follows would be made-up rows."""
    path = write(tmp_path / "a.csv", content)
    assert failure(read, path).startswith(f"{path}, line {line}: ")


@pytest.mark.parametrize("quoted", [True, False])
@pytest.mark.parametrize(
    ("content", "line", "encoding"),
    [
        ("a\tb\n1\t2\n".encode("utf-16"), 1, "UTF-16LE"),
        ("a\tb\n1\t2\n".encode("utf-16-le"), 1, "UTF-16LE"),
        ("a\tb\n1\t2\n".encode("utf-16-be"), 1, "UTF-16BE"),
        ("\u4e00".encode("utf-16"), 1, "UTF-16"),
        (b"a\tb\n1\t\0\n", 2, "UTF-16"),
        (b"caf\xe9\tb\n1\t2\n", 1, "WINDOWS-1252"),
    ],
)
def test_tables_of_other_encodings(tmp_path, content, line, encoding, quoted):
    path = write(tmp_path / "a.tsv", content)
    message = failure(read, path, quoted=quoted)
    assert message.startswith(f"{path}, line {line}: not UTF-8")
    assert f"iconv -f {encoding}" in message


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"", "is empty"),
        (b"\n\r\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"text,label,text\n", "'text'"),
        (b",text,\n", "''"),
    ],
)
def test_headers_that_cannot_be_used(tmp_path, content, key):
    path = write(tmp_path / "a.csv", content)
    for function in (read, rows.column_names):
        message = failure(function, path)
        assert message.startswith(path)
        assert key in message


def test_a_given_header(tmp_path):
    path = write(tmp_path / "a.tsv", "1\t\t2\nx\ty\n")
    assert rows.first_cells(path) == ("1", "", "2")
    assert rows.first_cells(write(tmp_path / "b.tsv", "")) == ()
    assert read(path, header=("a", "b", "c")) == [
        (1, {"a": "1", "b": "", "c": "2"}),
        (2, "found 2 ce"),
    ]


def test_wide_headers_are_quick(tmp_path):
    names = [f"column {i}" for i in range(50_000)]
    path = write(tmp_path / "a.csv", ",".join(names) + "\n")
    assert rows.column_names(path) == tuple(names)


def test_json_lines(tmp_path):
    good = {"sentence": "fine\u2028\x85", "label": 1, "more": [None, {"a": 1.5}]}
    lines = [
        b"\xef\xbb\xbf" + json.dumps(good, ensure_ascii=False).encode(),
        b"",
        b"  \t",
        b"[]",
        b"{",
        b'"\xff"',
        b"[" * 100_000,
        b'{"a": %s}' % (b"9" * 301),
        b'{"a": 9%s}\r' % (b"0" * 30),
        b'{"\\ud83d": "\\u0000", "b": NaN}',
        b"null",
        b'{"a": 1}'.decode().encode("utf-16-le"),
    ]
    for name in ("a.jsonl", "a.json", "A.JSONL.gz"):
        content = b"\n".join(lines)
        path = write(tmp_path / name, gzip.compress(content) if name[-1] == "z" else content)
        found = read(path)
        assert found[0] == (1, good)
        got = [line for line, _ in found]
        assert got == [1, 4, 5, 6, 7, 8, 9, 10, 11, 12]
        assert [row for _, row in found[1:6]] == [
            "found list",
            "not JSON (",
            "not UTF-8 ",
            "not JSON (",
            "not JSON (",
        ]
        assert found[6] == (9, {"a": 9 * 10**30})
        odd = found[7][1]
        assert odd["\ud83d"] == "\0"
        assert odd["b"] != odd["b"]
        assert [row for _, row in found[8:]] == ["found None", "not UTF-8 "]


def test_columns_of_json_lines_are_those_of_the_first_object(tmp_path):
    path = write(tmp_path / "a.jsonl", '[1]\n{"b": 1, "a": 2}\n{"c": 3}\n')
    assert rows.column_names(path) == ("b", "a")


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        (json.dumps([{"text": "a"}], indent=1), "line 1: not JSON"),
        ('[{"text": "a"}]', "jq -c"),
        ("3\n4\n", "line 1: found int"),
    ],
)
def test_json_without_an_object_has_no_columns(tmp_path, content, key):
    assert key in failure(rows.column_names, write(tmp_path / "a.json", content))


ANY_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
ANY_CELL = st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r\0\ufeff"))


@given(st.lists(ANY_TEXT, min_size=1, max_size=8))
@settings(max_examples=40)
def test_any_text_survives_every_format(tmp_path_factory, texts):
    """Quotation marks that never close, and characters at which str.splitlines cuts."""
    folder = tmp_path_factory.mktemp("rows")
    texts = ['"A mark that never closes', "a\u2028line\x85and\x0cfeed", *texts]
    cells = [["text", "number"]] + [[text, str(i)] for i, text in enumerate(texts)]
    for suffix, delimiter in rows.DELIMITERS.items():
        path = write(folder / f"a{suffix}", table(cells, delimiter))
        assert [row["text"] for row in values(path)] == texts
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    path = write(folder / "a.jsonl", "\n".join(lines))
    assert [row["text"] for row in values(path)] == texts
    written = pa.table({"text": texts})
    pq.write_table(written, folder / "a.parquet")
    writers.arrow(folder / "a.arrow", written)
    for name in ("a.parquet", "a.arrow"):
        got = [row["text"] for row in values(str(folder / name))]
        assert got == texts


@given(st.lists(ANY_CELL.filter(lambda text: text.strip(" ")), min_size=1, max_size=8))
@settings(max_examples=40)
def test_any_cell_survives_a_table_without_quotation_marks(tmp_path_factory, texts):
    lines = "".join(f"{text}\t{i}\n" for i, text in enumerate(texts))
    path = write(tmp_path_factory.mktemp("rows") / "a.tsv", f"text\tnumber\n{lines}")
    assert [row["text"] for row in values(path, quoted=False)] == texts


def test_parquet(tmp_path):
    """Strings that are no UTF-8 come out as bytes, NaN as None."""
    path = str(
        writers.parquet(
            tmp_path / "a.parquet",
            rows=2,
            sentence=pa.array([b"fine", b"\xff", b"\xef\xbb\xbfdull"]).view(pa.string()),
            label=pa.array(["1", "0", None]).dictionary_encode(),
            idx=[4, 2**63 - 1, None],
            share=[0.5, float("nan"), 2.0],
            words=[["a"], [], None],
            day=pa.array([1, 2, 3], pa.timestamp("ns")),
        )
    )
    names = ("sentence", "label", "idx", "share", "words", "day")
    assert rows.column_names(path) == names
    first = {"sentence": "fine", "label": "1", "idx": 4, "share": 0.5, "words": ["a"]}
    second = {"sentence": b"\xff", "label": "0", "idx": 2**63 - 1, "share": None, "words": []}
    third = {"sentence": "\ufeffdull", "label": None, "idx": None, "share": 2.0, "words": None}
    got = read(path, columns=names[:5])
    assert got == [(0, first), (1, second), (2, third)]
    assert values(path, columns=("idx", "nothing")) == [
        {"idx": 4},
        {"idx": 2**63 - 1},
        {"idx": None},
    ]


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow(tmp_path, new):
    written = pa.table({"text": ["a", "ü", None], "n": pa.array([1, 2, 3], pa.int8())})
    path = str(writers.arrow(tmp_path / "a.arrow", written, new, rows=2))
    assert rows.column_names(path) == ("text", "n")
    assert read(path) == [
        (0, {"text": "a", "n": 1}),
        (1, {"text": "ü", "n": 2}),
        (2, {"text": None, "n": 3}),
    ]


def test_two_columns_of_parquet_with_one_name(tmp_path):
    written = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["label", "label"])
    pq.write_table(written, tmp_path / "a.parquet")
    assert "'label'" in failure(rows.column_names, str(tmp_path / "a.parquet"))


def test_declared_classes(tmp_path):
    """The numbers of classes that the package datasets named come out as these names."""
    features = {
        "label": {"names": ["neg", "pos"], "_type": "ClassLabel"},
        "text": {"dtype": "string", "_type": "Value"},
        "tags": [{"names": ["x"], "_type": "ClassLabel"}],
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    written = pa.table({"text": ["a", "b", "c", "d"], "label": [1, 0, -1, 7]})
    path = str(tmp_path / "a.parquet")
    pq.write_table(written.replace_schema_metadata(metadata), path)
    assert rows.declared_classes(path, "label") == ("neg", "pos")
    assert rows.declared_classes(path, "text") == ()
    assert [row["label"] for row in values(path)] == ["pos", "neg", None, 7]
    arrow = writers.arrow(tmp_path / "a.arrow", written.replace_schema_metadata(metadata))
    assert rows.declared_classes(str(arrow), "label") == ("neg", "pos")
    assert rows.declared_classes(write(tmp_path / "a.csv", "label\n"), "label") == ()


@pytest.mark.parametrize("name", ["a.txt", "a", "a.xlsx", "a.PARQUET.tar", "csv"])
def test_files_that_are_no_tables(name):
    for function in (rows.require_suffix, rows.read_rows, rows.column_names):
        message = failure(function, name)
        assert repr(name) in message
        assert ".jsonl" in message


@pytest.mark.parametrize("name", ["a.parquet.gz", "a.ARROW.zst"])
def test_compressed_columns(name):
    message = failure(rows.require_suffix, name)
    assert repr(name) in message
    assert "decompress" in message


@pytest.mark.parametrize(
    "name", ["a.csv", "A.CSV", "a.tsv.GZ", "x.y.jsonl", "a.json.xz", "a.Arrow"]
)
def test_files_that_are_tables(name):
    rows.require_suffix(name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b""),
        ("a.parquet", b"PAR1 and no more"),
        ("a.arrow", b""),
        ("a.arrow", b"ARROW1 and no more"),
        ("a.csv.gz", b""),
        ("a.csv.gz", b"text,label\n"),
        ("a.jsonl.xz", lzma.compress(b'{"text": "a"}' * 99)[:-20]),
        ("a.tsv.bz2", bz2.compress(b"text\tlabel\n")[:-5]),
        ("a.csv.zst", b"text,label\n"),
    ],
)
def test_damaged_files(tmp_path, name, content):
    path = write(tmp_path / name, content)
    assert path in failure(read, path)


def test_folders_and_missing_files(tmp_path):
    (tmp_path / "a.csv").mkdir()
    for name in ("a.csv", "b.tsv", "c.jsonl", "d.parquet"):
        assert str(tmp_path / name) in failure(read, str(tmp_path / name))


def test_no_line_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "LONGEST", 1000)
    path = write(tmp_path / "a.tsv.xz", lzma.compress(b"sentence\tlabel\n" + b"x" * 5000))
    assert "line 2 has more than" in failure(read, path)
    cell = ("x" * 90 + "\n") * 30
    path = write(tmp_path / "a.csv", f'sentence,label\n"{cell}",1\n')
    assert "line 2: not CSV" in failure(read, path)


def test_a_remote_table(tmp_path):
    write(tmp_path / "ä b.csv", "text\n1\n")
    path = f"{writers.remote(tmp_path)}/ä b.csv"
    assert read(path) == [(2, {"text": "1"})]


@given(st.binary(max_size=60).map(lambda data: data.replace(b"\xff", b"\n")), st.data())
@settings(max_examples=60)
def test_lines_of_a_range_of_bytes(tmp_path_factory, content, data):
    """Each line is read once, in the range where it begins."""
    path = write(tmp_path_factory.mktemp("lines") / "a.txt", content)
    cuts = data.draw(st.lists(st.integers(1, 60), max_size=4, unique=True))
    stops = [*sorted(cuts), None]
    found = []
    start = 0
    for stop in stops:
        part = list(rows.numbered_lines(path, start, stop))
        got = [number for number, _ in part]
        expected = list(range(1, len(part) + 1))
        assert got == expected
        found += [line for _, line in part]
        start = stop
    assert b"".join(found) == content
    for line in found[:-1]:
        assert line.index(b"\n") == len(line) - 1


def test_names_of_lines():
    assert rows.line_name(3, 0) == "line 3"
    assert "1,000" in rows.line_name(3, 1000)


@pytest.mark.parametrize(
    "line", [b"[]", b"{", b'"a"', b"\xff", b"", b"{}{}", b"\xff\xfe{", b"{\0}"]
)
def test_lines_without_an_object(line):
    raised(BadRecord, rows.json_object, line)


def test_a_line_with_an_object():
    assert rows.json_object(b'\xef\xbb\xbf {"a": [1, "\\u00e9"]} \n') == {"a": [1, "é"]}


def found_in(folder) -> tuple[str, tuple[files.File, ...]]:
    return str(folder), files.find_files(str(folder))


def test_tables_of_a_folder(tmp_path):
    """Files that describe others, as the package datasets writes them, hold no rows."""
    names = ["a.csv", "b/c.parquet", "b/d.JSONL.gz", "n.txt", "README.md", "x.md", ".hidden.csv"]
    described = ["dataset_info.json", "b/state.json", "dataset_dict.json", "b/cache-1a.arrow"]
    for name in names + described:
        write(tmp_path / name, "")
    os.symlink(tmp_path / "a.csv", tmp_path / "z.tsv")
    path, found = found_in(tmp_path)
    tables = rows.find_by_suffix(path, found)
    assert [file.name for file in tables] == ["a.csv", "b/c.parquet", "b/d.JSONL.gz", "z.tsv"]
    note = rows.unread_files_note(path, found, tables)
    assert path in note
    assert "3 files not read (.md 2, .txt 1)" in note
    assert rows.unread_files_note(path, tables, tables) == ""
    few = rows.find_by_suffix(path, found, (".parquet",))
    assert [file.name for file in few] == ["b/c.parquet"]


def test_folders_without_tables(tmp_path):
    path, found = found_in(tmp_path)
    assert "(no files)" in failure(rows.find_by_suffix, path, found)
    write(tmp_path / "a.txt", "x")
    write(tmp_path / "state.json", "{}")
    path, found = found_in(tmp_path)
    assert ".txt 1" in failure(rows.find_by_suffix, path, found)
    write(tmp_path / "b.parquet.gz", "x")
    path, found = found_in(tmp_path)
    assert "b.parquet.gz" in failure(rows.find_by_suffix, path, found)


def test_shards(tmp_path):
    """One of a set may be given alone, but a folder must hold all."""
    one = tmp_path / "train-00000-of-00002.csv"
    write(one, "text,label\n")
    path, found = found_in(tmp_path)
    assert "1 of the 2 shards" in failure(rows.find_by_suffix, path, found)
    assert not rows.is_file(path, found)
    path, found = found_in(one)
    assert rows.is_file(path, found)
    assert rows.find_by_suffix(path, found) == list(found)
