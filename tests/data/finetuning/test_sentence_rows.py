"""Rows from each kind of file and by split, and messages of bad rows, before their values are
used."""

import csv
import gzip
import io
import json
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax.data.finetuning.glue import GLUE_TASKS, own_task
from gmlp_flax.data.finetuning.sentence_rows import file_rows, rows_by_split, tfds_rows
from gmlp_flax.data.text import documents
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, tfds_folders
from gmlp_flax.io.records import BadRecord
from tests.data import writers
from tests.failures import raised

SST2 = GLUE_TASKS["sst2"]
NOT_UTF8 = "<not UTF-8 (byte 0x"


def rows(path, content, task="sst2"):
    """Line and record of each row; for a bad one, the beginning of its message in < >."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = []
    for where, record in file_rows(str(path), GLUE_TASKS[task], []):
        assert where.startswith(f"{path}, line ")
        bad = isinstance(record, BadRecord)
        found.append((int(where.rpartition(" ")[2]), f"<{record}>"[:19] if bad else record))
    return found


@pytest.mark.parametrize("suffix", [".tsv", ".txt", ".tsv.gz"])
def test_tab_separated(tmp_path, suffix):
    content = b"\xef\xbb\xbfsentence\tlabel\r\nfine\t1\r\n\r\n \ndull\t0\nbad\n\xe9\t1\n"
    assert rows(
        tmp_path / f"a{suffix}", gzip.compress(content) if suffix.endswith("gz") else content
    ) == [
        (2, {"sentence": "fine", "label": "1"}),
        (5, {"sentence": "dull", "label": "0"}),
        (6, "<1 columns where 2 "),
        (7, NOT_UTF8),
    ]


def test_commas(tmp_path):
    content = (
        b'\xef\xbb\xbf"sentence",label\r\nfine,1\r\n\r\n"said ""no"", and\n\nwent",0\nbad\n\xe9,1\n'
    )
    assert rows(tmp_path / "a.csv", content) == [
        (2, {"sentence": "fine", "label": "1"}),
        (4, {"sentence": 'said "no", and\n\nwent', "label": "0"}),
        (7, "<1 columns where 2 "),
        (8, NOT_UTF8),
    ]
    # beyond the library's own limit of 131,072 characters
    long = "\n".join(map(str, range(30_000)))
    assert rows(tmp_path / "a.csv", f'sentence,label\n"{long}",1\n') == [
        (2, {"sentence": long, "label": "1"})
    ]


@pytest.mark.parametrize("row", ['"a" b,1', '"open,1'])
def test_stray_quotation_marks_end_the_reading(tmp_path, row):
    """The start of the next row is not known: what follows would be made-up rows."""
    with pytest.raises(DataError, match=r"a\.csv, line 3: not CSV"):
        rows(tmp_path / "a.csv", f"sentence,label\nfine,1\n{row}\nmore,1\n")


OWN = own_task(("text",), "label")
EXAMPLES = [
    ("plain", "0"),
    ('said "no"', "1"),
    ('"all of it"', "0"),
    ("two\nlines", "1"),
    ("a, b; c", "0"),
]


def own(path, content) -> tuple[list[tuple[str, str]], list[str]]:
    """Text and label of each row, and what was assumed."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    notes = []
    found = [(record["text"], record["label"]) for _, record in file_rows(str(path), OWN, notes)]
    return found, [note.partition(str(path))[2] for note in notes]


def table(rows, delimiter, quoting=csv.QUOTE_MINIMAL, header=("text", "label")) -> str:
    """As pandas writes it, which calls this library."""
    content = io.StringIO()
    csv.writer(content, delimiter=delimiter, quoting=quoting, lineterminator="\n").writerows(
        [header, *rows]
    )
    return content.getvalue()


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize(
    ("name", "delimiter", "said"),
    [
        ("a.csv", ",", None),
        ("a.csv", ";", " has ';' between its columns, by its header"),
        ("a.csv", "\t", " has '\\t' between its columns, by its header"),
        ("a.tsv", "\t", None),
        ("a.tsv", ",", " has ',' between its columns, by its header"),
        ("a.txt", "|", " has '|' between its columns, by its header"),
    ],
)
def test_own_tables_as_pandas_writes_them(tmp_path, name, delimiter, said, quoting):
    found, notes = own(tmp_path / name, table(EXAMPLES, delimiter, quoting))
    assert found == EXAMPLES
    quoted = ["lose their quotation marks"] if delimiter == "\t" else []
    assert len(notes) == bool(said) + len(quoted) and (not said or notes[0] == said)
    assert all(words in notes[-1] for words in quoted)


@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("csv", ";"), ("tsv", "\t")])
def test_own_lines_that_end_in_carriage_returns(tmp_path, suffix, delimiter):
    content = f"text{delimiter}label\ra{delimiter}0\rb{delimiter}1\r"
    assert f"a.{suffix}, line 1: not CSV" in raised(
        DataError, own, tmp_path / f"a.{suffix}", content
    )


def test_own_texts_in_needless_marks(tmp_path):
    """All texts, but no labels and no header, as a script may write them."""
    content = "text\tlabel\n" + "".join(
        '"{}"\t{}\n'.format(text.replace('"', '""'), label) for text, label in EXAMPLES
    )
    assert own(tmp_path / "a.tsv", content)[0] == EXAMPLES


def test_own_marks_within_cells_are_the_same_in_both_readings(tmp_path):
    """As in a quoted table that has lost the first half of a text with a line feed."""
    found, notes = own(
        tmp_path / "a.tsv", 'text\tlabel\n"said ""no"""\t1\n5" nails\t0\nlines"\t1\n'
    )
    assert (
        found == [('said "no"', "1"), ('5" nails', "0"), ('lines"', "1")]
        and "lose their" in notes[0]
    )


def test_own_marks_that_belong_to_the_text(tmp_path):
    """A mark within a cell would have been doubled; no rules of quoting allow the first row."""
    rows = [('"No," he said.', "0"), ('5" nails', "1"), ('"Fine"', "1")]
    content = "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)
    found, (note,) = own(tmp_path / "a.tsv", content)
    assert found == rows and note.startswith(
        ", line 2: the cell '\"No,\" he said.' and the like keep their"
    )
    found, notes = own(tmp_path / "a.tsv", 'text\tlabel\n5" nails\t1\n')
    assert found == [('5" nails', "1")] and not notes


@pytest.mark.parametrize(
    "rows",
    [
        ['"Fine"\t1', "dull\t0"],
        ['"said ""no"""\t1', '"No," he said.\t0'],
        ['"No\t1', "dull\t0", 'yes"\t1'],
    ],
)
def test_own_marks_that_can_be_read_in_two_ways(tmp_path, rows):
    with pytest.raises(DataError, match="line 2: .* can be read in two ways"):
        own(tmp_path / "a.tsv", "\n".join(["text\tlabel", *rows, ""]))


def test_own_tables_with_a_byte_order_mark(tmp_path):
    rows = [("möchte", "a"), ("\U0001f3ac", "ü")]
    for name, content in (
        ("a.csv", table(rows, ";")),
        ("a.tsv", table(rows, "\t")),
        (
            "a.jsonl",
            "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows),
        ),
    ):
        assert own(tmp_path / name, content.encode("utf-8-sig"))[0] == rows
    with pytest.raises(DataError, match="a zero byte, as UTF-16 has.*iconv -f UTF-16"):
        own(tmp_path / "a.csv", table(rows, ";").encode("utf-16"))


def test_marks_in_published_tables_are_kept(tmp_path):
    content = 'sentence\tlabel\n"said ""no"""\t1\n'
    assert rows(tmp_path / "a.tsv", content) == [(2, {"sentence": '"said ""no"""', "label": "1"})]


def test_json_lines(tmp_path):
    content = (
        writers.json_lines({"sentence": "fine", "label": 1})
        + b"\n[]\n{\n"
        + b'"\xff"\n'
        + b"[" * 100_000
    )
    assert rows(tmp_path / "a.jsonl", content) == [
        (1, {"sentence": "fine", "label": 1}),
        (3, "<found list; expect"),
        (4, "<not JSON (Expectin"),
        (5, NOT_UTF8),
        (6, "<not JSON (nested t"),
    ]


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\t\n\r\0\ufeff", codec="utf-8"), min_size=1),
            st.integers(),
        ),
        min_size=1,
    ).filter(lambda rows: all(text.strip() for text, _ in rows))
)
@settings(max_examples=50)
def test_any_sentence_survives_both_formats(tmp_path_factory, sentences):
    """Quotation marks that never close and characters at which str.splitlines cuts among them."""
    folder = tmp_path_factory.mktemp("rows")
    sentences = [('"A quote that never ends', 0), ("a\u2028line\x85and\x0cfeed", 1), *sentences]
    tsv = rows(
        folder / "a.tsv",
        "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in sentences),
    )
    lines = writers.json_lines(*({"sentence": text, "label": label} for text, label in sentences))
    for found in (tsv, rows(folder / "a.jsonl", lines)):
        assert [(row["sentence"], int(row["label"])) for _, row in found] == sentences


def test_parquet(tmp_path):
    path = writers.parquet(
        tmp_path / "a.parquet",
        rows=2,
        sentence=pa.array([b"fine", b"\xff", b"dull"]).view(pa.string()),
        label=pa.array(["1", "0", "1"]).dictionary_encode(),
        idx=[4, 5, None],
        words=[["a"], [], None],
        day=pa.array([1, 2, 3], pa.timestamp("ns")),
    )
    (_, first), (where, second), (_, third) = file_rows(str(path), SST2, [])
    assert first == {"sentence": "fine", "label": "1", "idx": 4} and where == f"{path}, row 1"
    assert second["sentence"] == b"\xff" and third == {
        "sentence": "dull",
        "label": "1",
        "idx": None,
    }


def test_names_of_classes_in_parquet(tmp_path):
    features = {
        "label": {"names": ["neg", "pos"], "_type": "ClassLabel"},
        "sentence": {"_type": "Value"},
    }
    table = pa.table({"sentence": ["fine", "dull", "new"], "label": [1, 0, -1]})
    for description, expected in (
        (json.dumps({"info": {"features": features}}), ["pos", "neg", None]),
        ("{", [1, 0, -1]),
        ("[]", [1, 0, -1]),
    ):
        pq.write_table(
            table.replace_schema_metadata({"huggingface": description}), tmp_path / "a.parquet"
        )
        assert [
            record["label"] for _, record in file_rows(str(tmp_path / "a.parquet"), SST2, [])
        ] == expected
    pq.write_table(
        pa.Table.from_arrays([pa.array([1])] * 2, ["label", "label"]), tmp_path / "a.parquet"
    )
    assert "'label'" in raised(DataError, file_rows, str(tmp_path / "a.parquet"), SST2, [])


def test_headers(tmp_path):
    row = {"source": "gj04", "label": "0", "star": "*", "sentence": "The ball wriggled."}
    assert rows(tmp_path / "a.tsv", "gj04\t0\t*\tThe ball wriggled.\n", "cola") == [(1, row)]
    assert rows(tmp_path / "a.tsv", "index\tsentence\n0\tgood\n", "cola") == [
        (2, {"index": "0", "sentence": "good"})
    ]
    for content, words in (
        ("a\tb\n", "'sentence1' or 'premise'"),
        ("sentence1\tsentence1\tlabel\n", "'sentence1'"),
    ):
        with pytest.raises(DataError, match=f"line 1: .*{words}"):
            rows(tmp_path / "a.tsv", content, "mnli")


def test_no_line_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST", 1000)
    with pytest.raises(DataError, match="line 2 has more than"):
        rows(tmp_path / "a.tsv.xz", lzma.compress(b"sentence\tlabel\n" + b"x" * 5000))


def folder(path, records, **features):
    return str(writers.tfds_folder(path, {"train": [records]}, "tfrecord", **features))


def test_tfds(tmp_path):
    records = [
        writers.example(sentence=b"fine", label=1, idx=4),
        b"\xff no example",
        writers.example(sentence=b"\xff"),
    ]
    path = folder(tmp_path / "a", records)
    found = [*tfds_rows(tfds_folders.load(path, files.find_files(path)), "train")]
    assert [where.rpartition(", ")[2] for where, _ in found] == ["record 0", "record 1", "record 2"]
    assert found[0][1] == {"sentence": "fine", "label": 1, "idx": 4}
    assert [str(record).partition(" (")[0] for _, record in found[1:]] == [
        "not a tf.train.Example",
        "not UTF-8",
    ]


def shard(folder, name, **columns):
    columns = {"premise": [name], "hypothesis": ["h"], "label": [0]} | columns
    writers.parquet(folder / f"{name}.parquet", **columns)


def test_shards_of_splits(tmp_path):
    """Hugging Face's layout; two sets of one split are refused."""
    names = ("train-00000-of-00002", "train-00001-of-00002", "validation_matched-00000-of-00001")
    for name in names:
        shard(tmp_path, name)
    by_split = rows_by_split(str(tmp_path), GLUE_TASKS["mnli"], [])
    assert {split: [row["premise"] for _, row in rows] for split, rows in by_split.items()} == {
        "train": [*names[:2]],
        "validation_matched": [names[2]],
    }
    shard(tmp_path, "train-00000-of-00001")
    assert "two files of the split 'train'" in raised(
        DataError, rows_by_split, str(tmp_path), GLUE_TASKS["mnli"], []
    )


def test_a_folder_of_several_formats(tmp_path):
    """One that has all splits is read; without one, a split would be left out, and another trained
    on in its place."""
    (tmp_path / "train.csv").write_text("sentence,label\nfine,1\n")
    (tmp_path / "test.tsv").write_text("sentence\tlabel\nnot read\t1\n")
    assert "no format with all of its splits test, train" in raised(
        DataError, rows_by_split, str(tmp_path), SST2, []
    )
    (tmp_path / "test.csv").write_text("sentence,label\ngood,1\n")
    by_split = rows_by_split(str(tmp_path), SST2, [])
    found = {split: [row["sentence"] for _, row in rows] for split, rows in by_split.items()}
    assert found == {"train": ["fine"], "test": ["good"]}


def test_paths_without_data(tmp_path):
    (tmp_path / "empty").mkdir()
    for path, words in (
        (tmp_path / "none.tsv", "nothing at"),
        (tmp_path / "empty", "expected train.tsv and dev.tsv"),
    ):
        with pytest.raises(DataError, match=words):
            rows_by_split(str(path), SST2, [])
    with pytest.raises(
        DataError,
        match="a.xlsx.* expected .tsv, .jsonl, .ndjson, .json, .csv, .parquet, .arrow, .txt",
    ):
        rows(tmp_path / "a.xlsx", "sentence,label\n")


@pytest.mark.parametrize(
    "header",
    [
        ("Text", "LABEL"),
        (" text", "label "),
        ("Sentence", "category"),
        ("review", "sentiment"),
        ("tweet", "Target"),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_own_columns_of_usual_names(tmp_path, header, suffix):
    found = [dict(zip(header, row, strict=True)) for row in EXAMPLES]
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(found), buffer := io.BytesIO())
        content = buffer.getvalue()
    elif suffix == ".json":
        content = json.dumps(found)
    else:
        content = table(EXAMPLES, ",\t"[suffix == ".tsv"], header=header)
        content = writers.json_lines(*found) if suffix == ".jsonl" else content
    texts, notes = own(tmp_path / f"a{suffix}", content)
    read = [
        f"{name!r} as {own!r}"
        for name, own in zip(header, ("text", "label"), strict=True)
        if name != own
    ]
    assert texts == EXAMPLES and notes[-1] == f": read are the columns {' and '.join(read)}"


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        (("review", "content", "label"), "text"),
        (("Text", "TEXT", "label"), "text"),
        (("review", "class", "category"), "label"),
        (("text", "neg", "pos"), "label"),
    ],
)
def test_own_columns_of_which_several_fit(tmp_path, header, missing):
    with pytest.raises(DataError, match=f"no column '{missing}' in the header"):
        own(tmp_path / "a.csv", table([("a", "b", "c")], ",", header=header))


def test_own_columns_that_the_config_names_are_no_others(tmp_path):
    (tmp_path / "a.csv").write_text("sentiment,target\na,b\n")
    assert [
        row for _, row in file_rows(str(tmp_path / "a.csv"), own_task(("sentiment",), "label"), [])
    ] == [{"sentiment": "a", "label": "b"}]


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"', "\ufeffsep=;\r"])
def test_the_first_line_that_tells_excel_the_delimiter(tmp_path, line):
    found, notes = own(tmp_path / "a.csv", f"{line}\n{table(EXAMPLES, ';')}")
    assert found == EXAMPLES and notes == [" has ';' between its columns, by its header"]
    assert "line 3: not CSV" in raised(
        DataError, own, tmp_path / "a.csv", f'{line}\ntext;label\n"a" b;0\n'
    )
