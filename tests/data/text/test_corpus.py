"""Corpora: parts of files, which documents are taken, and what identifies a corpus."""

import dataclasses
import itertools
import math
import os
import pickle
import shutil
import zlib

import pyarrow as pa
import pytest

from gmlp_flax.data import fingerprints
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.readers import text as text_reader
from gmlp_flax.data.text import corpus
from gmlp_flax.data.text.corpus import EVERYTHING, FilePart, Selection, describe, in_memory
from gmlp_flax.io import files
from gmlp_flax.io.records import BadRecords
from tests.data import writers
from tests.data.text.preparing import TEXTS
from tests.data.text.preparing import corpus as corpus_of
from tests.failures import failure

ROLES = ("train", "heldout")


def write_lines(path, *texts):
    records = [{"text": text} for text in texts]
    path.write_bytes(writers.json_lines(*records))
    return path


def read(path, split=""):
    return text_reader.read(str(path))[split]


def documents(path, split=""):
    return list(read(path, split).examples.read())


def file_at(path):
    (file,) = files.find_files(str(path))
    return file


# Parts of files


def test_blank_documents_are_left_out(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", "one", " \n\t", "", "\u2003", "two")
    assert documents(path) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"text": " "}\n'),
        ("a.jsonl", b""),
        ("a.json", b"\n\n"),
    ],
)
def test_files_without_a_document_are_refused(tmp_path, name, content):
    write_lines(tmp_path / "b.jsonl", "one")
    (tmp_path / name).write_bytes(content)
    assert f"{name}: an empty shard" in failure(documents, tmp_path)


@pytest.mark.parametrize(("name", "texts"), [("a.parquet", []), ("b.parquet", [" "])])
def test_columnar_files_without_a_document_are_refused(tmp_path, name, texts):
    column = pa.array(texts, pa.string())
    path = writers.parquet(tmp_path / name, text=column)
    message = failure(documents, path)
    assert f"{name}: an empty shard" in message


def test_empty_text_files_are_left_out(tmp_path):
    (tmp_path / "a.txt").write_text(" \n")
    (tmp_path / "b.txt").write_text("one")
    assert documents(tmp_path) == ["one"]


def test_bad_records_are_skipped_up_to_the_limit(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n{\n{"text": "two"}\n[]\n\xff\n{"text": "three"}\n')
    bad = BadRecords(3)
    texts = list(read(path).examples.read(bad))
    assert texts == ["one", "two", "three"]
    assert bad.count == 3
    assert bad.first[1].startswith(f"{path}, line 4: found list")
    assert f"{path}, line 2: not JSON" in failure(documents, path)
    message = failure(lambda: list(read(path).examples.read(BadRecords(2))))
    assert "line 5" in message
    assert "max_bad_records=2" in message


LINES = [f"document {number}" for number in range(50)]
CONTENT = writers.json_lines(*({"text": line} for line in LINES))


@pytest.mark.parametrize("size", [1, 40, 100, 10_000])
def test_json_lines_are_cut_into_equal_ranges(tmp_path, monkeypatch, size):
    monkeypatch.setattr(corpus, "PART_BYTES", size)
    path = tmp_path / "a.jsonl"
    path.write_bytes(CONTENT)
    cut = corpus.cut(file_at(path), "json_lines")
    parts = list(cut)
    expected = math.ceil(len(CONTENT) / size)
    assert len(parts) == expected
    sizes = [part.size for part in parts]
    tolerance = len(parts)
    assert sum(sizes) == pytest.approx(len(CONTENT), abs=tolerance)
    assert max(sizes) - min(sizes) <= 1
    found = []
    for part in parts:
        found += part.documents(BadRecords())
    assert found == LINES
    if len(parts) > 1:
        names = {part.name for part in parts}
        assert len(names) == len(parts)
        for name in names:
            assert name.startswith("a.jsonl, bytes ")


def test_row_groups_are_joined_into_parts(tmp_path, monkeypatch):
    texts = [f"document {number} {'x' * 50 * number}" for number in range(40)]
    path = writers.parquet(tmp_path / "a.parquet", 3, text=texts)
    monkeypatch.setattr(corpus, "PART_BYTES", 1500)
    cut = corpus.cut(file_at(path), "parquet")
    parts = list(cut)
    assert 3 < len(parts) < 14
    assert parts[0].start == 0
    assert parts[-1].stop is None
    for part, following in itertools.pairwise(parts):
        assert part.stop == following.start
        assert part.size >= 1500
    found = []
    for part in pickle.loads(pickle.dumps(parts)):
        found += part.documents(BadRecords())
    assert found == texts


@pytest.mark.parametrize(
    ("name", "reader", "count"),
    [
        ("a.txt", "text", None),
        ("a.arrow", "arrow", None),
        ("a.jsonl.gz", "json_lines", None),
        ("memory://a.tfrecord", "tfrecord", 100),
    ],
)
def test_unsplittable_files_are_one_part(monkeypatch, name, reader, count):
    monkeypatch.setattr(corpus, "PART_BYTES", 10)
    file = files.File(path=name, name=name, size=1000, version="")
    (part,) = corpus.cut(file, reader, count)
    assert part == FilePart(name, name, reader, 1000, 0, count)


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [
        pytest.param(30, 2, [(0, 1), (1, 2)], id="not more parts than records"),
        pytest.param(9, 5, [(0, 5)], id="a small shard"),
    ],
)
def test_shards_are_cut_between_records(monkeypatch, size, count, expected):
    monkeypatch.setattr(corpus, "PART_BYTES", 10)
    file = files.File(path="a", name="a", size=size, version="")
    parts = corpus.cut(file, "array_record", count)
    bounds = []
    for part in parts:
        bounds.append((part.start, part.stop))
    assert bounds == expected


# What identifies a corpus


def content_of(path):
    return read(path).content


def content_in_memory(texts: list[str]) -> str:
    return in_memory("x", texts).content


def test_a_moved_corpus_is_the_same_corpus(tmp_path, monkeypatch):
    folder = tmp_path / "a"
    folder.mkdir()
    write_lines(folder / "x.jsonl", "one", "two")
    before = read(folder)
    assert read(folder).digest == before.digest
    moved = shutil.copytree(folder, tmp_path / "moved")
    after = read(moved)
    assert after.content == before.content
    assert after.digest == before.digest
    monkeypatch.setattr(corpus, "PART_BYTES", 10)
    in_other_parts = read(moved)
    assert in_other_parts.content == before.content
    assert in_other_parts.digest != before.digest


def test_modified_files_are_another_corpus(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", "one")
    before = content_of(path)
    os.utime(path, (1, 1))
    assert content_of(path) != before


def test_each_split_is_another_corpus(tmp_path):
    write_lines(tmp_path / "train.jsonl", "one")
    whole = text_reader.read(str(tmp_path), ignore_splits=True)[""]
    assert read(tmp_path, "train").content != whole.content


def test_digests_depend_on_the_reader(tmp_path):
    """After an upgrade that reads a suffix in another way, the old ids must not be used."""
    before = read(write_lines(tmp_path / "a.jsonl", "one"))
    part, *_ = before.examples.parts
    other_part = dataclasses.replace(part, reader="text")
    parts = (other_part,)
    examples = dataclasses.replace(before.examples, parts=parts)
    after = dataclasses.replace(before, examples=examples)
    assert after.digest != before.digest


def test_files_of_equal_size_and_time_differ_by_their_ends(tmp_path):
    """Files in reproducible archives may have the same name, size and time."""
    contents = set()
    for folder, word in (("a", b"aaaa "), ("b", b"bbbb ")):
        path = tmp_path / folder / "x.txt"
        path.parent.mkdir()
        path.write_bytes(word * 40_000)
        os.utime(path, (0, 0))
        contents.add(content_of(path))
    assert len(contents) == 2


def test_fingerprints_are_those_of_the_files(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", "one")
    read_corpus = read(path)
    found = files.find_files(str(path))
    assert read_corpus.fingerprint == fingerprints.of_files(found)
    assert read_corpus.hold_out("train", 0.5).fingerprint == read_corpus.fingerprint


def test_documents_in_memory_are_a_corpus():
    found = in_memory("mine", ["one", " ", "two \ud800"])
    texts = list(found.examples.read())
    assert texts == ["one", "two \ud800"]
    assert found.name == "mine"
    (part,) = found.examples.parts
    assert part.name == "mine"
    assert part.size == 8
    assert found.fingerprint == {"documents": 2, "content": found.content}
    pickled = pickle.dumps(found)
    assert pickle.loads(pickled) == found


def test_content_in_memory_depends_on_where_documents_end():
    contents = {
        content_in_memory(["ab", "c"]),
        content_in_memory(["a", "bc"]),
        content_in_memory(["abc"]),
    }
    assert len(contents) == 3
    assert content_in_memory(["ab", "c"]) == content_in_memory(["ab", "c"])


@pytest.mark.parametrize(
    ("share", "end"),
    [
        (0, ""),
        (0.05, ", 5 % of the documents held out"),
        (-0.125, "12.5 %"),
    ],
)
def test_description_names_the_files_and_the_share(tmp_path, share, end):
    for number in range(5):
        write_lines(tmp_path / f"{number}.jsonl", "one")
    found = read(tmp_path)
    if share:
        found = found.hold_out("train", share)
    line = describe(found, "to train on")
    assert line.startswith("text to train on: 5 files (0.jsonl, 1.jsonl, 2.jsonl, and 2 more)")
    assert end in line


# Which documents are taken


def test_digests_depend_on_the_parts():
    assert corpus_of(2).digest == corpus_of(2).digest
    assert corpus_of(2).digest != corpus_of(3).digest


def pick(share, texts, is_whole=True):
    """The documents to train on, and the held-out documents."""
    picked = []
    for role in (TRAIN, HELDOUT):
        selection = Selection(share, role)
        documents_of_role = selection.pick(iter(texts), is_whole)
        picked.append(list(documents_of_role))
    return tuple(picked)


def is_heldout(text, share):
    return zlib.crc32(text.encode()) < share * 2**32


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_content_of_a_document_decides_its_role(is_whole):
    expected = {"train": [], "heldout": []}
    for text in TEXTS:
        role = "heldout" if is_heldout(text, 0.3) else "train"
        expected[role].append(text)
    train, heldout = pick(0.3, TEXTS, is_whole)
    assert train == expected["train"]
    assert heldout == expected["heldout"]
    picked = EVERYTHING.pick(iter(TEXTS), is_whole)
    assert list(picked) == TEXTS


def test_holding_out_keeps_the_content(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", *TEXTS)
    whole = read(path)
    heldout = whole.hold_out("heldout", 0.3)
    expected = []
    for text in TEXTS:
        if is_heldout(text, 0.3):
            expected.append(text)
    assert list(heldout.examples.read()) == expected
    assert heldout.content == whole.content
    pickled = pickle.dumps(heldout)
    assert pickle.loads(pickled) == heldout


def test_a_single_document_is_cut_at_a_line():
    train, heldout = pick(0.4, ["one\ntwo\nthree\nfour\n"])
    assert train == ["one\ntwo\n"]
    assert heldout == ["three\nfour\n"]
    document = "".join(f"line {number}\n" for number in range(100))
    (train,), (heldout,) = pick(0.2, [document])
    assert train + heldout == document
    assert train.endswith("\n")
    share = len(heldout) / len(document)
    assert 0.2 <= share < 0.22


def test_documents_of_a_larger_corpus_are_not_cut():
    train, heldout = pick(0.4, ["one\ntwo\nthree\nfour\n"], is_whole=False)
    assert len(train) + len(heldout) == 1


def test_a_search_holds_out_another_part():
    train, reported = pick(0.3, TEXTS)
    searched_train, searched = pick(-0.3, TEXTS)
    assert set(searched) <= set(train)
    held_out = {*reported, *searched}
    remaining = set(TEXTS) - held_out
    assert set(searched_train) == remaining


def test_a_search_holds_out_other_lines():
    numbers = range(100, 200)
    lines = [f"line {number}\n" for number in numbers]
    document = "".join(lines)
    (train,), (heldout,) = pick(-0.2, [document])
    assert train == "".join(lines[:60])
    assert heldout == "".join(lines[60:80])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("word " * 400, id="spaces"),
        pytest.param("word\n" + "word " * 400, id="an early line"),
        pytest.param("word\r" * 400, id="carriage returns"),
        pytest.param("日本語" * 700, id="no white space"),
        pytest.param("word\n" * 400, id="lines"),
    ],
)
@pytest.mark.parametrize("share", [0.1, -0.1])
def test_any_text_is_cut_near_its_share(text, share):
    """At a line, else at white space, else between two characters."""
    (train,), (heldout,) = pick(share, [text])
    heldout_part = len(heldout) / len(text)
    train_part = len(train) / len(text)
    assert heldout_part == pytest.approx(0.1, abs=0.011)
    if share > 0:
        assert train_part == pytest.approx(0.9, abs=0.011)
        assert train + heldout == text
    else:
        assert train_part == pytest.approx(0.8, abs=0.011)
    if "word" in text:
        assert train[-1].isspace()
        assert heldout.startswith("word")


@pytest.mark.parametrize("share", [0.3, -0.3])
def test_a_single_character_is_refused(share):
    message = failure(pick, share, ["a"])
    is_search = share < 0
    assert "heldout_share=0.3" in message
    assert ("data.search" in message) == is_search
