"""Lines of streams and files as inputs: how they are split, decoded and named, and bad lines."""

import io
import os

import pyarrow
import pyarrow.parquet
import pytest

from gmlp_flax.data import text_rows
from gmlp_flax.data.finetuning import text_tasks
from gmlp_flax.errors import DataError
from gmlp_flax.tasks.data.lines import CHUNK, Line, read_files, read_lines
from gmlp_flax.tasks.image_classification import ImagePredictor
from gmlp_flax.tasks.inference.prediction import PAUSE
from gmlp_flax.tasks.text import TextPredictor


class Lines(TextPredictor):
    """A predictor of which only the reading of files is tested."""

    def __init__(self):
        super().__init__(task=None)

    def prepare(self, given, truncate=False):
        raise NotImplementedError

    def encode(self, inputs):
        raise NotImplementedError


def lines_of(content: bytes, as_json: bool = False) -> list:
    """The lines of a stream in memory."""
    stream = io.BytesIO(content)
    return list(read_lines("here", stream, as_json))


def inputs_of(predictor, *paths) -> list:
    """The inputs that are read from files, folders and patterns."""
    names = [str(path) for path in paths]
    return list(read_files(names, predictor, as_json=False))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n \r\n\t\n", []),
        (b"one", ["one"]),
        (b"one\ntwo\n", ["one", "two"]),
        (b" one\ttwo \r\nthree", ["one\ttwo", "three"]),
        ("ü 日本\n".encode(), ["ü 日本"]),
        (b"a\rb\n", ["a\rb"]),
        ("a\u2028b\n".encode(), ["a\u2028b"]),
        (b"\xef\xbb\xbfone\n", ["one"]),
        (b'{"input": "one"}\n', ['{"input": "one"}']),
    ],
)
def test_lines_end_only_at_line_feeds(content, expected):
    assert lines_of(content) == expected


def test_lines_have_their_line_numbers():
    """Blank lines are counted."""
    lines = lines_of(b"one\n\ntwo\nthree")
    assert [line.where for line in lines] == ["here, line 1", "here, line 3", "here, line 4"]
    for line in lines:
        assert line.record == {}
    assert Line("a.png").where == ""


def test_line_may_be_longer_than_a_chunk():
    long = "word " * CHUNK
    first, second = lines_of(f"{long}\nnext\n".encode())
    assert first == long.strip()
    assert second.where == "here, line 2"


def test_character_may_span_two_chunks():
    text = "a" * (CHUNK - 1) + "ü"
    assert lines_of(f"{text}\n".encode()) == [text]


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\n",
        b"a\x00b\n",
        "one\n".encode("utf-16"),
        "ü\n".encode("latin-1"),
    ],
)
def test_lines_that_are_not_utf8_are_errors_in_order(content):
    found = lines_of(b"one\n" + content + b"two\n")
    assert found[0] == "one"
    errors = [line for line in found if isinstance(line, DataError)]
    assert errors
    assert str(errors[0]).startswith("here, line 2: ")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf16_is_one_error(encoding):
    [error] = lines_of("one\ntwo\nthree\n".encode(encoding))
    assert isinstance(error, DataError)
    assert str(error).startswith("here: not UTF-8")
    advised = encoding.removesuffix("-le").removesuffix("-be").upper()
    assert f"iconv -f {advised}" in str(error)


@pytest.mark.parametrize("name", ["d.ndjson", "page.html", "table.xlsx", "notes.md"])
def test_files_of_other_suffixes_are_refused(tmp_path, name):
    path = tmp_path / name
    path.write_text("one\n")
    [error] = inputs_of(Lines(), path)
    assert isinstance(error, DataError)
    assert f"a {path.suffix} file is not read; expected one of .txt, .csv" in str(error)


def test_files_without_a_suffix_are_lines(tmp_path):
    """Such as /dev/fd/63, which bash gives for <(COMMAND)."""
    path = tmp_path / "63"
    path.write_text("one\ntwo\n")
    assert inputs_of(Lines(), path) == ["one", "two"]


def test_json_objects_keep_their_other_keys():
    plain, named = lines_of(b'plain\n{"id": 7, "input": "one\\ttwo"}\n', as_json=True)
    assert plain == "plain"
    assert plain.record == {}
    assert named == "one\ttwo"
    assert named.record == {"id": 7, "input": "one\ttwo"}


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"{}",
        b'{"input": 3}',
        b'{"input": null}',
        b'{"input": ["a"]}',
        b'{"a": 1} x',
    ],
)
def test_json_objects_without_an_input_are_errors(line):
    [error, after] = lines_of(line + b"\nafter\n", as_json=True)
    assert isinstance(error, DataError)
    assert str(error).startswith("here, line 1: ")
    assert after == "after"


def test_pause_is_yielded_when_no_line_is_ready():
    """As in a conversation: all lines written so far can be answered before the next ones."""
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as stream, open(write_end, "wb", buffering=0) as writer:
        lines = read_lines("stdin", stream)
        writer.write(b"one\ntwo\nthr")
        assert next(lines) == "one"
        assert next(lines) == "two"
        assert next(lines) == PAUSE
        writer.write(b"ee\n")
        assert next(lines) == "three"
        assert next(lines) == PAUSE
        writer.write(b"last")
        writer.close()
        assert list(lines) == ["last"]


def test_files_folders_and_patterns_of_lines(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("two\tthree\n")
    (tmp_path / "c.png").write_text("no text")
    found = inputs_of(Lines(), tmp_path / "a.txt", tmp_path, tmp_path / "b*")
    assert found == ["one", "one", "two\tthree", "two\tthree"]
    assert found[3].where == f"{tmp_path / 'b.txt'}, line 1"


def test_unreadable_file_is_an_error_among_others(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    error, line = inputs_of(Lines(), tmp_path / "none.txt", tmp_path / "a.txt")
    assert isinstance(error, DataError)
    assert "none.txt" in str(error)
    assert line == "one"


class Pairs(Lines):
    """A predictor that reads pairs from two columns."""

    def table_columns(self, path, header):
        task = text_tasks.custom_task(("premise", "hypothesis"), "label")
        return text_rows.resolve_columns(path, header, task).texts


CSV = b'label,text\nyes,"one, two"\nno,"a\nb"\n,\nno,last\n'


def test_rows_of_a_table_are_texts(tmp_path):
    """The header and the labels are not read. A row without a text is an error in its place."""
    path = tmp_path / "test.csv"
    path.write_bytes(CSV)
    first, second, error, last = inputs_of(Lines(), path)
    assert first == "one, two"
    assert second == "a\nb"
    assert last == "last"
    assert first.where == f"{path}, line 2"
    assert first.record == {"label": "yes"}
    assert f"{path}, line 5: the column 'text' is empty" in str(error)


def test_all_table_formats(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\none\tyes\n")
    (tmp_path / "b.jsonl").write_text('{"text": "two", "id": 7}\n')
    (tmp_path / "c.jsonl").write_text('{"input": "three", "text": "no"}\n')
    table = pyarrow.table({"text": ["four"], "label": [1]})
    pyarrow.parquet.write_table(table, tmp_path / "d.parquet")
    found = inputs_of(Lines(), tmp_path)
    assert found == ["one", "two", "three", "four"]
    records = [line.record for line in found]
    assert records == [{"label": "yes"}, {"id": 7}, {"text": "no"}, {}]


def test_texts_of_a_pair_are_separated_by_a_tab(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text('hypothesis,premise\n"b\tb",a\n')
    assert inputs_of(Pairs(), path) == ["a\tb b"]


def test_table_without_the_column_is_an_error_among_others(tmp_path):
    (tmp_path / "a.csv").write_text("review,label\ngood,yes\n")
    (tmp_path / "b.txt").write_text("one\n")
    error, line = inputs_of(Lines(), tmp_path)
    assert "a.csv: no column 'text', found" in str(error)
    assert "'review'" in str(error)
    assert line == "one"


def test_images_are_their_paths(tmp_path):
    for name in ("b.png", "a.jpg", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    predictor = ImagePredictor(task=None)
    lines = list(read_files([str(tmp_path)], predictor, as_json=True))
    first = str(tmp_path / "a.jpg")
    second = str(tmp_path / "b.png")
    assert sorted(lines) == [first, second]
    for line in lines:
        assert type(line) is Line
        assert line.where == ""
