"""A file of submitted rows: what is written is read back, and anything else is refused in one line."""

import dataclasses

import pytest

from gmlp_flax.errors import DataError
from gmlp_flax.reports.alternatives import submissions
from gmlp_flax.reports.alternatives.submissions import Submission
from tests.failures import raised

ROW = Submission(
    row="my_mixer",
    scale="cpu",
    config="0123456789ab",
    setting="ba9876543210",
    commit="3" * 40,
    version="0.3.0.dev0",
    parameters=400_000,
    tokens=1_843_200,
    rate=2e-3,
    rates=(1e-3, 2e-3, 1e-5),
    seeds=(0, 1, 2),
    perplexities=(60.25, 61.5, 60.0),
    median=60.25,
)


def test_rows_survive_a_round_trip(tmp_path):
    path = str(tmp_path / "rows.csv")
    other = dataclasses.replace(ROW, row="other", commit="unknown", version="unknown")
    submissions.append(path, ROW)
    submissions.append(path, other)
    assert submissions.read(path) == [ROW, other]
    header, first, _ = (tmp_path / "rows.csv").read_text().splitlines()
    assert header == ",".join(submissions.COLUMNS)
    assert first.startswith("my_mixer,cpu,0123456789ab,ba9876543210,3333")
    assert first.endswith(",400000,1843200,0.002,0.001 0.002 1e-05,0 1 2,60.25 61.5 60.0,60.25")


def test_spreadsheet_file_is_read(tmp_path):
    """With a byte order mark and Windows line endings."""
    path = tmp_path / "rows.csv"
    submissions.append(str(path), ROW)
    lines = path.read_bytes().replace(b"\n", b"\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + lines)
    assert submissions.read(str(path)) == [ROW]


def test_duplicate_row_is_refused(tmp_path):
    path = str(tmp_path / "rows.csv")
    submissions.append(path, ROW)
    before = (tmp_path / "rows.csv").read_bytes()
    assert "my_mixer" in raised(DataError, submissions.append, path, ROW)
    assert (tmp_path / "rows.csv").read_bytes() == before


def line(**changes: str) -> str:
    """The line of ROW with other cells."""
    cells = dict(zip(submissions.COLUMNS, ROW.cells(), strict=True))
    return ",".join((cells | changes).values())


HEADER = ",".join(submissions.COLUMNS)
HOSTILE = {
    "no rows at all": ("", "columns"),
    "other columns": ("row,perplexity\nx,1\n", "columns"),
    "not UTF-8": (b"\xff\xfe" + HEADER.encode(), "UTF-8"),
    "a zero byte": (f"{HEADER}\n\0\n", "line 2|NUL"),
    "an open quotation mark": (f'{HEADER}\n"{line()}\n', "unexpected end"),
    "a cell too few": (f"{HEADER}\na,b\n", "line 2 has 2 cells"),
    "an empty line": (f"{HEADER}\n\n", "line 2 has 0 cells"),
    "a formula": (line(row="=HYPERLINK(1)"), "row is '=HYPERLINK"),
    "markup": (line(row="<script>alert(1)</script>"), "row is '<script>"),
    "a table cell": (line(row="a|b"), "row is 'a|b'"),
    "a terminal's escape": (line(row="a\x1b[2J"), r"row is 'a\\x1b"),
    "a long name": (line(row="a" * 10_000), "row is 'aaaa"),
    "a row of ours": (line(row="bert"), "bert is a row of ours"),
    "no scale": (line(scale="huge"), "scale is 'huge'"),
    "no hash": (line(config="xyz"), "config is 'xyz'"),
    "no commit": (line(commit="main; rm"), "commit is"),
    "no version": (line(version="<b>"), "version is"),
    "a negative size": (line(parameters="-3"), "parameters is '-3'"),
    "a huge number": (line(tokens="9" * 5000), "tokens is '9999"),
    "Arabic digits": (line(tokens="\u0663"), "tokens is"),
    "an infinite perplexity": (line(perplexities="inf 61.5 60.0"), "perplexities is"),
    "no perplexity": (line(perplexities=""), "perplexities is"),
    "NaN": (line(perplexities="nan 61.5 60.0"), "perplexities is"),
    "a perplexity below 1": (line(perplexities="0.5 61.5 60.0", median="60.0"), "0.5"),
    "fewer perplexities than seeds": (line(perplexities="60.0", median="60.0"), "3 seeds and 1"),
    "a seed twice": (line(seeds="0 0 1"), "seeds is '0 0 1'"),
    "another median": (line(median="50.0"), "the median is 50.0"),
    "two medians": (line(median="60.25 1.0"), "median is '60.25 1.0'"),
    "a rate that was not tried": (line(rate="0.5"), "the rate 0.5"),
    "a row twice": (f"{line()}\n{line()}", "line 3: the row my_mixer"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_in_one_line(name, tmp_path):
    content, expected = HOSTILE[name]
    if isinstance(content, str):
        is_line = content and not content.startswith("row,")
        text = f"{HEADER}\n{content}\n" if is_line else content
        content = text.encode()
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=expected) as caught:
        submissions.read(str(path))
    message = str(caught.value)
    assert str(path) in message or "a row of ours" in message
    assert len(message) < 500
    assert message.isprintable()


def test_too_large_file_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [line()] * 1001
    text = "\n".join([HEADER, *rows])
    path.write_text(f"{text}\n")
    message = raised(DataError, submissions.read, str(path))
    assert "1,001 rows" in message
    path.write_bytes(b"x" * (submissions.MOST_BYTES + 1))
    message = raised(DataError, submissions.read, str(path))
    assert str(path) in message


@pytest.mark.parametrize("name", ["", "bert", "1st", "a b", "a" * 41, "ä"])
def test_invalid_names_are_refused(name):
    raised(DataError, submissions.check_name, name)
    submissions.check_name("my_mixer-2.0+x")
