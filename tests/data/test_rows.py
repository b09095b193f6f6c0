"""Rows of each kind of file, mostly written by other libraries."""

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import math
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
        file, _, line = where.rpartition(", ")
        assert file == path
        _, number = line.split()
        if isinstance(row, BadRecord):
            row = str(row)[:10]
        found.append((int(number), row))
    return found


def values(path: str, **options) -> list[object]:
    return [row for _, row in read(path, **options)]


def texts_of(path: str, **options) -> list[str]:
    return [row["text"] for row in values(path, **options)]


def table(cells: list[list[str]], delimiter: str, **options) -> str:
    """Cells as Python's own library writes them."""
    content = io.StringIO()
    writer = csv.writer(content, delimiter=delimiter, **options)
    writer.writerows(cells)
    return content.getvalue()


def numbered(texts: list[str]) -> list[list[str]]:
    """The cells of a table of texts and their positions."""
    cells = [["text", "label"]]
    for number, text in enumerate(texts):
        cells.append([text, str(number)])
    return cells


@pytest.mark.smoke
@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_quoted_cells_follow_rfc_4180(tmp_path, suffix, delimiter, packing):
    """With a byte-order mark, CRLF, blank lines, quoted cells with line breaks, and two bad rows."""
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
def test_quotation_marks_may_be_text(tmp_path, packing):
    """As in GLUE's tables, quotation marks are characters, and blank lines are skipped."""
    lines = [
        b"\xef\xbb\xbfsentence\tlabel\r\n",
        b'"fine\t1\r\n',
        b"\r\n",
        b" \n",
        b'"said ""no"""\t0\n',
        b"bad\n",
        b"\xe9\t1\n",
        b"\t\n",
    ]
    content = PACKERS[packing](b"".join(lines))
    path = write(tmp_path / f"a.tsv{packing}", content)
    assert read(path, quoted=False) == [
        (2, {"sentence": '"fine', "label": "1"}),
        (5, {"sentence": '"said ""no"""', "label": "0"}),
        (6, "found 1 ce"),
        (7, "not UTF-8 "),
        (8, {"sentence": "", "label": ""}),
    ]


def test_csv_files_are_always_quoted(tmp_path):
    path = write(tmp_path / "a.csv", 'a,b\n"1,2",3\n')
    assert values(path, quoted=False) == [{"a": "1,2", "b": "3"}]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("tsv", "\t")])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_tables_of_other_programs_are_read(tmp_path, suffix, delimiter, quoting, line_end):
    texts = ["plain", 'said "no"', '"all of it"', "two\nlines", "a, b; c", "tab\there", ""]
    cells = numbered(texts)
    content = table(cells, delimiter, quoting=quoting, lineterminator=line_end)
    path = write(tmp_path / f"a.{suffix}", content)
    _, *rows = cells
    expected = []
    for text, label in rows:
        expected.append({"text": text, "label": label})
    assert values(path) == expected


def test_cells_may_be_longer_than_the_csv_module_allows(tmp_path):
    long = "\n".join(map(str, range(30_000)))
    assert len(long) > 131_072
    path = write(tmp_path / "a.csv", f'sentence,label\n"{long}",1\n')
    row = {"sentence": long, "label": "1"}
    assert read(path) == [(2, row)]


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
def test_invalid_csv_ends_reading(tmp_path, content, line):
    """The start of the next row is unknown, so that further rows would be wrong."""
    path = write(tmp_path / "a.csv", content)
    message = failure(read, path)
    assert message.startswith(f"{path}, line {line}: ")


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
def test_tables_in_other_encodings_are_refused(tmp_path, content, line, encoding, quoted):
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
def test_invalid_headers_are_refused(tmp_path, content, key):
    path = write(tmp_path / "a.csv", content)
    for function in (read, rows.column_names):
        message = failure(function, path)
        assert message.startswith(path)
        assert key in message


def test_headerless_tables_get_the_given_header(tmp_path):
    path = write(tmp_path / "a.tsv", "1\t\t2\nx\ty\n")
    assert rows.first_cells(path) == ("1", "", "2")
    assert read(path, header=("a", "b", "c")) == [
        (1, {"a": "1", "b": "", "c": "2"}),
        (2, "found 2 ce"),
    ]


def test_an_empty_table_has_no_first_cells(tmp_path):
    path = write(tmp_path / "a.tsv", "")
    assert rows.first_cells(path) == ()


def test_wide_headers_are_read_quickly(tmp_path):
    names = [f"column {number}" for number in range(50_000)]
    header = ",".join(names)
    path = write(tmp_path / "a.csv", header + "\n")
    assert rows.column_names(path) == tuple(names)


GOOD_OBJECT = {"sentence": "fine\u2028\x85", "label": 1, "more": [None, {"a": 1.5}]}
JSON_LINES = [
    b"\xef\xbb\xbf" + json.dumps(GOOD_OBJECT, ensure_ascii=False).encode(),
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
    '{"a": 1}'.encode("utf-16-le"),
]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "A.JSONL.gz"])
def test_json_lines_are_rows_or_bad_records(tmp_path, name):
    content = b"\n".join(JSON_LINES)
    if name.endswith(".gz"):
        content = gzip.compress(content)
    by_line = dict(read(write(tmp_path / name, content)))
    surrogate = by_line.pop(10)
    assert surrogate["\ud83d"] == "\0"
    assert math.isnan(surrogate["b"])
    assert by_line == {
        1: GOOD_OBJECT,
        4: "found list",
        5: "not JSON (",
        6: "not UTF-8 ",
        7: "not JSON (",
        8: "not JSON (",
        9: {"a": 9 * 10**30},
        11: "found None",
        12: "not UTF-8 ",
    }
    assert list(by_line) == sorted(by_line)


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
def test_json_without_objects_is_refused(tmp_path, content, key):
    path = write(tmp_path / "a.json", content)
    assert key in failure(rows.column_names, path)


ANY_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
ANY_CELL = st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r\0\ufeff"))


@given(st.lists(ANY_TEXT, min_size=1, max_size=8))
@settings(max_examples=40)
def test_any_text_survives_every_format(tmp_path_factory, texts):
    """Some texts have an open quotation mark, or characters at which str.splitlines cuts."""
    folder = tmp_path_factory.mktemp("rows")
    texts = ['"A mark that never closes', "a\u2028line\x85and\x0cfeed", *texts]
    cells = numbered(texts)
    for suffix, delimiter in rows.DELIMITERS.items():
        content = table(cells, delimiter)
        path = write(folder / f"a{suffix}", content)
        assert texts_of(path) == texts
    lines = []
    for text in texts:
        lines.append(json.dumps({"text": text}, ensure_ascii=False))
    content = "\n".join(lines)
    path = write(folder / "a.jsonl", content)
    assert texts_of(path) == texts
    written = pa.table({"text": texts})
    parquet = folder / "a.parquet"
    arrow = folder / "a.arrow"
    pq.write_table(written, parquet)
    writers.arrow(arrow, written)
    for path in (parquet, arrow):
        assert texts_of(str(path)) == texts


NOT_BLANK = ANY_CELL.filter(lambda text: text.strip(" "))


@given(st.lists(NOT_BLANK, min_size=1, max_size=8))
@settings(max_examples=40)
def test_any_cell_survives_a_table_without_quoting(tmp_path_factory, texts):
    lines = ["\t".join(cells) for cells in numbered(texts)]
    folder = tmp_path_factory.mktemp("rows")
    path = write(folder / "a.tsv", "\n".join(lines) + "\n")
    assert texts_of(path, quoted=False) == texts


@pytest.fixture
def parquet_file(tmp_path):
    """Two row groups, with a string that is not UTF-8, nulls and NaN."""
    words = pa.array([b"fine", b"\xff", b"\xef\xbb\xbfdull"])
    path = writers.parquet(
        tmp_path / "a.parquet",
        rows=2,
        sentence=words.view(pa.string()),
        label=pa.array(["1", "0", None]).dictionary_encode(),
        idx=[4, 2**63 - 1, None],
        share=[0.5, float("nan"), 2.0],
        words=[["a"], [], None],
        day=pa.array([1, 2, 3], pa.timestamp("ns")),
    )
    return str(path)


def test_parquet_rows_are_plain_values(parquet_file):
    """Invalid UTF-8 is read as bytes, and NaN as None."""
    names = ("sentence", "label", "idx", "share", "words", "day")
    assert rows.column_names(parquet_file) == names
    first = {"sentence": "fine", "label": "1", "idx": 4, "share": 0.5, "words": ["a"]}
    second = {"sentence": b"\xff", "label": "0", "idx": 2**63 - 1, "share": None, "words": []}
    third = {"sentence": "\ufeffdull", "label": None, "idx": None, "share": 2.0, "words": None}
    found = read(parquet_file, columns=names[:5])
    expected = [(0, first), (1, second), (2, third)]
    assert found == expected


def test_missing_columns_are_skipped(parquet_file):
    found = values(parquet_file, columns=("idx", "nothing"))
    assert found == [{"idx": 4}, {"idx": 2**63 - 1}, {"idx": None}]


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_streams_and_files_are_read(tmp_path, new):
    numbers = pa.array([1, 2, 3], pa.int8())
    written = pa.table({"text": ["a", "ü", None], "n": numbers})
    arrow_path = tmp_path / "a.arrow"
    path = str(writers.arrow(arrow_path, written, new, rows=2))
    assert rows.column_names(path) == ("text", "n")
    assert read(path) == [
        (0, {"text": "a", "n": 1}),
        (1, {"text": "ü", "n": 2}),
        (2, {"text": None, "n": 3}),
    ]


def test_parquet_columns_with_one_name_are_refused(tmp_path):
    path = tmp_path / "a.parquet"
    first = pa.array([1])
    columns = [first, pa.array([2])]
    written = pa.Table.from_arrays(columns, ["label", "label"])
    pq.write_table(written, path)
    assert "'label'" in failure(rows.column_names, str(path))


def declaring_table() -> pa.Table:
    """Rows whose metadata declares names of classes, as the package datasets writes them."""
    features = {
        "label": {"names": ["neg", "pos"], "_type": "ClassLabel"},
        "text": {"dtype": "string", "_type": "Value"},
        "tags": [{"names": ["x"], "_type": "ClassLabel"}],
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    rows_to_write = pa.table({"text": ["a", "b", "c", "d"], "label": [1, 0, -1, 7]})
    return rows_to_write.replace_schema_metadata(metadata)


def test_numbers_of_declared_classes_become_names(tmp_path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(declaring_table(), path)
    assert rows.declared_classes(path, "label") == ("neg", "pos")
    assert rows.declared_classes(path, "text") == ()
    labels = []
    for row in values(path):
        labels.append(row["label"])
    assert labels == ["pos", "neg", None, 7]


def test_arrow_files_declare_classes_too(tmp_path):
    path = writers.arrow(tmp_path / "a.arrow", declaring_table())
    assert rows.declared_classes(str(path), "label") == ("neg", "pos")


def test_csv_files_declare_no_classes(tmp_path):
    path = write(tmp_path / "a.csv", "label\n")
    assert rows.declared_classes(path, "label") == ()


@pytest.mark.parametrize("name", ["a.txt", "a", "a.xlsx", "a.PARQUET.tar", "csv"])
def test_other_suffixes_are_refused(name):
    for function in (rows.require_suffix, rows.read_rows, rows.column_names):
        message = failure(function, name)
        assert repr(name) in message
        assert ".jsonl" in message


@pytest.mark.parametrize("name", ["a.parquet.gz", "a.ARROW.zst"])
def test_compressed_parquet_and_arrow_files_are_refused(name):
    message = failure(rows.require_suffix, name)
    assert repr(name) in message
    assert "decompress" in message


@pytest.mark.parametrize(
    "name", ["a.csv", "A.CSV", "a.tsv.GZ", "x.y.jsonl", "a.json.xz", "a.Arrow"]
)
def test_suffixes_of_tables_are_accepted(name):
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
def test_damaged_files_are_named(tmp_path, name, content):
    path = write(tmp_path / name, content)
    assert path in failure(read, path)


def test_folders_and_missing_files_are_refused(tmp_path):
    (tmp_path / "a.csv").mkdir()
    for name in ("a.csv", "b.tsv", "c.jsonl", "d.parquet"):
        path = str(tmp_path / name)
        assert path in failure(read, path)


def test_lines_have_a_maximum_length(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "LONGEST", 1000)
    content = b"sentence\tlabel\n" + b"x" * 5000
    path = write(tmp_path / "a.tsv.xz", lzma.compress(content))
    assert "line 2 has more than" in failure(read, path)


def test_cells_of_several_lines_have_a_maximum_length(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "LONGEST", 1000)
    line = "x" * 90 + "\n"
    cell = line * 30
    path = write(tmp_path / "a.csv", f'sentence,label\n"{cell}",1\n')
    assert "line 2: not CSV" in failure(read, path)


def test_remote_tables_are_read(tmp_path):
    write(tmp_path / "ä b.csv", "text\n1\n")
    path = f"{writers.remote(tmp_path)}/ä b.csv"
    assert read(path) == [(2, {"text": "1"})]


CONTENTS = st.binary(max_size=60).map(lambda content: content.replace(b"\xff", b"\n"))
CUTS = st.lists(st.integers(1, 60), max_size=4, unique=True)


@given(CONTENTS, CUTS)
@settings(max_examples=60)
def test_lines_are_read_once_in_the_range_where_they_begin(tmp_path_factory, content, cuts):
    folder = tmp_path_factory.mktemp("lines")
    path = write(folder / "a.txt", content)
    bounds = [0, *sorted(cuts), None]
    lines = []
    for start, stop in itertools.pairwise(bounds):
        numbers = []
        for number, line in rows.numbered_lines(path, start, stop):
            numbers.append(number)
            lines.append(line)
        expected = list(range(1, len(numbers) + 1))
        assert numbers == expected
    assert b"".join(lines) == content
    for line in lines[:-1]:
        last = len(line) - 1
        assert line.index(b"\n") == last


def test_line_names_have_the_start_of_their_range():
    assert rows.line_name(3, 0) == "line 3"
    assert "1,000" in rows.line_name(3, 1000)


@pytest.mark.parametrize(
    "line", [b"[]", b"{", b'"a"', b"\xff", b"", b"{}{}", b"\xff\xfe{", b"{\0}"]
)
def test_lines_without_an_object_are_bad_records(line):
    raised(BadRecord, rows.json_object, line)


def test_lines_may_have_a_byte_order_mark_and_blanks():
    found = rows.json_object(b'\xef\xbb\xbf {"a": [1, "\\u00e9"]} \n')
    assert found == {"a": [1, "é"]}


def found_in(folder) -> tuple[str, tuple[files.File, ...]]:
    folder_path = str(folder)
    return folder_path, files.find_files(folder_path)


def names_of(found) -> list[str]:
    return [file.name for file in found]


def test_tables_of_a_folder_are_found_by_suffix(tmp_path):
    """The package datasets writes files that describe others and hold no rows."""
    names = ["a.csv", "b/c.parquet", "b/d.JSONL.gz", "n.txt", "README.md", "x.md", ".hidden.csv"]
    descriptions = ["dataset_info.json", "b/state.json", "dataset_dict.json", "b/cache-1a.arrow"]
    for name in names + descriptions:
        write(tmp_path / name, "")
    os.symlink(tmp_path / "a.csv", tmp_path / "z.tsv")
    path, found = found_in(tmp_path)
    tables = rows.find_by_suffix(path, found)
    assert names_of(tables) == ["a.csv", "b/c.parquet", "b/d.JSONL.gz", "z.tsv"]
    parquet = rows.find_by_suffix(path, found, (".parquet",))
    assert names_of(parquet) == ["b/c.parquet"]
    note = rows.unread_files_note(path, found, tables)
    assert path in note
    assert "3 files not read (.md 2, .txt 1)" in note
    assert rows.unread_files_note(path, tables, tables) == ""


def test_folders_without_tables_are_refused(tmp_path):
    path, found = found_in(tmp_path)
    assert "(no files)" in failure(rows.find_by_suffix, path, found)
    write(tmp_path / "a.txt", "x")
    write(tmp_path / "state.json", "{}")
    path, found = found_in(tmp_path)
    assert ".txt 1" in failure(rows.find_by_suffix, path, found)
    write(tmp_path / "b.parquet.gz", "x")
    path, found = found_in(tmp_path)
    assert "b.parquet.gz" in failure(rows.find_by_suffix, path, found)


def test_folders_must_have_all_shards(tmp_path):
    write(tmp_path / "train-00000-of-00002.csv", "text,label\n")
    path, found = found_in(tmp_path)
    assert "1 of the 2 shards" in failure(rows.find_by_suffix, path, found)
    assert not rows.is_file(path, found)


def test_a_single_shard_may_be_read(tmp_path):
    shard = tmp_path / "train-00000-of-00002.csv"
    write(shard, "text,label\n")
    path, found = found_in(shard)
    assert rows.is_file(path, found)
    assert rows.find_by_suffix(path, found) == list(found)
