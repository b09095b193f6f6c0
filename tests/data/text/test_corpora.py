import dataclasses
import gzip
import lzma
import os
import pickle
import shutil

import numpy as np
import pyarrow as pa
import pytest

from gmlp_flax.data import splits
from gmlp_flax.data.splits import Side
from gmlp_flax.data.text import corpora
from gmlp_flax.data.text.corpora import (
    EVERYTHING,
    Selection,
    describe,
    in_memory,
    open_corpus,
    open_side,
    split_names,
)
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, tfds_folders
from gmlp_flax.io.records import BadRecords
from tests import failures
from tests.data import writers
from tests.data.text.preparing import TEXTS as NUMBERED
from tests.data.text.preparing import corpus as cut_corpus

TEXTS = [f"document {i} " + "€" * (i % 7) for i in range(60)]


def lines(texts) -> bytes:
    return writers.json_lines(*({"text": text, "url": "http"} for text in texts))


def examples(texts) -> list[bytes]:
    return [writers.example(text=text.encode(), url=b"http") for text in texts]


def failure(path, split: str = "") -> str:
    return failures.failure(lambda: list(open_corpus(str(path), split).documents()))


def make(folder, *names):
    """A folder of files with one document each."""
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(writers.json_lines({"text": name}))
    return str(folder)


def hugging_face(folder, suffix: str, write) -> None:
    """20 documents in each of three files: two shards of train, one of validation."""
    folder.mkdir()
    for name, texts in (
        ("c4-train.00000-of-00002", TEXTS[:20]),
        ("c4-train.00001-of-00002", TEXTS[20:40]),
        ("c4-validation.00000-of-00001", TEXTS[40:]),
    ):
        write(folder / (name + suffix), texts)


FORMS = {
    ".json.gz": lambda path, texts: path.write_bytes(gzip.compress(lines(texts))),
    ".jsonl.xz": lambda path, texts: path.write_bytes(lzma.compress(lines(texts))),
    ".jsonl.zst": lambda path, texts: path.write_bytes(
        pa.Codec("zstd").compress(lines(texts), asbytes=True)
    ),
    ".ndjson": lambda path, texts: path.write_bytes(lines(texts)),
    ".json": lambda path, texts: path.write_bytes(lines(texts)),
    ".parquet": lambda path, texts: writers.parquet(path, 3, text=texts),
}


@pytest.fixture(params=[*FORMS, *tfds_folders.FORMATS])
def c4(request, tmp_path):
    """C4 in one of its forms: 40 training and 20 validation documents."""
    folder = tmp_path / "3.0.1"
    if request.param in FORMS:
        hugging_face(folder, request.param, FORMS[request.param])
    else:
        shards = {
            "train": [examples(TEXTS[:20]), examples(TEXTS[20:40])],
            "validation": [examples(TEXTS[40:])],
        }
        writers.tfds_folder(folder, shards, request.param)
    return folder


@pytest.mark.parametrize("where", [str, writers.remote])
def test_c4_in_every_form(c4, where):
    path = where(c4)
    assert split_names(path) == ("train", "validation")
    assert list(open_corpus(path, "train").documents()) == TEXTS[:40]
    assert list(open_corpus(path, "validation").documents()) == TEXTS[40:]
    whole = open_corpus(path)
    assert list(whole.documents()) == TEXTS
    assert [len(list(part.documents())) for part in pickle.loads(pickle.dumps(whole.parts))] == [
        20,
        20,
        20,
    ]
    assert sum(part.size for part in whole.parts) == sum(
        f.size for f in files.find_files(path) if "-of-" in f.name
    )


@pytest.mark.parametrize("where", [str, writers.remote])
def test_large_files_are_cut_into_parts(c4, where, monkeypatch):
    path = where(c4)
    monkeypatch.setattr(corpora, "PART_BYTES", 150)
    parts = open_corpus(path).parts
    read = [list(part.documents()) for part in parts]
    assert sum(read, []) == TEXTS
    assert len({part.name for part in parts}) == len(parts)
    uncut = files.compression(parts[0].path) or (
        files.is_remote(path) and "record" in parts[0].reader
    )
    most = sum(-(-file.size // 150) for file in files.find_files(path))
    assert len(parts) == 3 if uncut else 9 < len(parts) <= most


def test_fingerprint(c4, tmp_path, monkeypatch):
    corpus = open_corpus(str(c4))
    assert open_corpus(str(c4)).fingerprint == corpus.fingerprint
    with monkeypatch.context() as patch:
        patch.setattr(corpora, "PART_BYTES", 200)
        assert open_corpus(str(c4)).fingerprint == corpus.fingerprint
    assert open_corpus(str(c4), "train").fingerprint != corpus.fingerprint
    moved = shutil.copytree(c4, tmp_path / "moved" / "3.0.1")
    assert open_corpus(str(moved)).fingerprint == corpus.fingerprint
    shard = next(path for path in moved.iterdir() if "00001-of" in path.name)
    os.utime(shard, (1, 1))
    assert open_corpus(str(moved)).fingerprint != corpus.fingerprint


# A test's name must be the same in every worker, and gzip's bytes hold the time: ids are given.
@pytest.mark.parametrize(
    "name, data",
    [("a.json.gz", gzip.compress(b"\n")), ("a.jsonl", b'{"text": " "}\n'), ("c.jsonl", b"")],
    ids=["gz", "jsonl", "empty"],
)
def test_shard_without_a_document(tmp_path, name, data):
    (tmp_path / "b.jsonl").write_bytes(lines(["one"]))
    (tmp_path / name).write_bytes(data)
    assert f"{name}: an empty shard" in failure(tmp_path)


def test_names_that_tell_of_no_split(tmp_path):
    (tmp_path / "train-00000-of-00001.jsonl").write_bytes(lines(["one"]))
    (tmp_path / "README.md").write_text("no text of the corpus")
    (tmp_path / "dataset_infos.json").write_text("{}")
    assert split_names(str(tmp_path)) == ("train",)
    assert list(open_corpus(str(tmp_path)).documents()) == ["one"]
    (tmp_path / "notes.txt").write_text("two")
    assert split_names(str(tmp_path)) == ()
    assert "has no split 'train'" in failure(tmp_path, "train")
    assert list(open_corpus(str(tmp_path)).documents()) == ["two", "one"]
    # would be trained on
    (tmp_path / "validation-00000-of-00001.jsonl").write_bytes(lines(["three"]))
    message = failures.failure(split_names, str(tmp_path))
    assert (
        "notes.txt: a text file of no split, beside files of the splits train, validation"
        in message
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["c4-train.00000-of-00001.json.gz"], ["train"]),
        (["c4-validation-00000-of-00001-0a1b2c3d.parquet"], ["validation"]),
        (["train.jsonl"], ["train"]),
        (["test.jsonl", "valid.jsonl"], ["test", "valid"]),
        (["train.jsonl", "valid.jsonl.GZ", "test.jsonl"], ["test", "train", "valid"]),
        (["books-train.jsonl", "books_heldout.jsonl"], ["heldout", "train"]),
        (["train.txt", "deep/Dev/in/b.txt"], ["dev", "train"]),
        (["train_1.jsonl", "val_1.jsonl", "val_2.jsonl", "test_1.jsonl"], ["test", "train", "val"]),
        (["default/partial-train/0.jsonl", "default/validation/0.jsonl"], ["train", "validation"]),
        (["en-train-part1.jsonl", "en-validation-part1.jsonl"], ["train", "validation"]),
        (["Training/x.jsonl", "Testing/x.jsonl"], ["testing", "training"]),
        # the folder is around all files
        (["train-data/train.jsonl", "train-data/valid.jsonl"], ["train", "valid"]),
        # of two readings, the file's name says one
        (["train_test/train.jsonl", "x/test.jsonl"], ["test", "train"]),
        (["a.jsonl", "latest/b.txt", "trains.txt", "developers/contest.txt"], []),
        (["train.jsonl", "more.jsonl"], []),  # all of it is text to train on
    ],
)
def test_split_names(tmp_path, names, expected):
    assert sorted(split_names(make(tmp_path, *names))) == expected
    if "train" in expected and names[0].startswith("train"):
        assert [part.name for part in open_corpus(str(tmp_path), "train").parts] == [names[0]]


def test_another_reader_is_another_corpus(tmp_path):
    """As after an upgrade that reads a suffix otherwise: ids that were made of it are not taken."""
    (tmp_path / "a.ndjson").write_bytes(lines(["one"]))
    corpus = open_corpus(str(tmp_path / "a.ndjson"))
    part = dataclasses.replace(corpus.parts[0], reader="text")
    assert dataclasses.replace(corpus, parts=(part,)).digest != corpus.digest


def test_a_corpus_is_recognised_by_its_ends_too(tmp_path):
    """Two files of one name, size and time, as reproducible archives hold them."""
    for folder, word in (("a", b"aaaa "), ("b", b"bbbb ")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_bytes(word * 40_000)
        os.utime(tmp_path / folder / "x.txt", (0, 0))
    first, second = (open_corpus(str(tmp_path / folder)).fingerprint for folder in "ab")
    assert first != second


def test_folder_is_read_recursively_in_order_of_names(tmp_path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "c" / "2.txt").write_text("two")
    (tmp_path / "b" / "empty.txt").write_text(" \n")
    (tmp_path / "b" / "picture.png").write_bytes(b"\xff")
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "z.jsonl.xz").write_bytes(lzma.compress(lines(["three", " ", "four"])))
    corpus = open_corpus(str(tmp_path))
    assert [part.name for part in corpus.parts] == [
        "a.txt",
        "b/c/2.txt",
        "b/empty.txt",
        "z.jsonl.xz",
    ]
    assert list(corpus.documents()) == ["one", "two", "three", "four"]
    (tmp_path / "notes.md").write_text("of any name")
    assert list(open_corpus(str(tmp_path / "notes.md")).documents()) == ["of any name"]


def test_folders_without_text(tmp_path):
    assert "nothing at" in failure(tmp_path / "nowhere")
    (tmp_path / "a.png").touch()
    assert (
        ".txt, .tokens, .raw, .jsonl, .ndjson, .json, .parquet, .arrow, or text with .gz or .xz or .bz2 or .zst"
        in failure(tmp_path)
    )


def test_bad_records_are_skipped_up_to_the_limit(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(["one"]) + b"{\n" + lines(["two"]) + b"[]\n\xff\n" + lines(["three"]))
    bad = BadRecords(3)
    assert list(open_corpus(str(tmp_path)).documents(bad)) == ["one", "two", "three"]
    assert (bad.count, len(bad.first)) == (3, 3)
    assert bad.first[1].startswith(f"{path}, line 4: found list")
    assert f"{path}, line 2: not JSON" in failure(tmp_path)


def test_in_memory():
    corpus = in_memory("mine", ["one", " ", "two \ud800"])
    assert list(corpus.documents()) == ["one", "two \ud800"]
    assert [(part.name, part.size) for part in corpus.parts] == [("mine", 8)]
    assert pickle.loads(pickle.dumps(corpus)) == corpus

    prints = [
        in_memory("x", texts).fingerprint
        for texts in (["ab", "c"], ["a", "bc"], ["abc"], ["ab", "c"])
    ]
    assert len(set(prints)) == 3 and prints[0] == prints[3], (
        "of the content, and of the documents' ends"
    )
    assert cut_corpus(2).digest == cut_corpus(2).digest != cut_corpus(3).digest


def test_missing_shards_are_counted_without_a_list_of_all(tmp_path):
    (tmp_path / "a-3-of-99999999999.txt").write_text("text")
    assert "99999999998 of the 99999999999 shards of" in failure(tmp_path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["train_test.txt", "a.txt"], ["'train' or 'test'", "split=all"]),
        (["trainval/a.txt", "test/b.txt"], ["'train' or 'val'", "trainval/a.txt"]),
        (["test/how-to-train.txt", "train/a.txt"], ["'train' or 'test'", "test/how-to-train.txt"]),
        (
            ["corpus.jsonl", "corpus_test.jsonl"],
            ["corpus.jsonl: a text file of no split", "test", "split=all"],
        ),
        (["dev.jsonl", "more/a.jsonl"], ["more/a.jsonl: a text file of no split", "dev"]),
    ],
)
def test_names_that_can_be_read_in_two_ways(tmp_path, names, words):
    message = failures.failure(split_names, make(tmp_path, *names))
    assert all(word in message for word in words)
    assert len(open_corpus(str(tmp_path)).parts) == len(names)
    assert split_names(str(tmp_path / names[0])) == (), "a file that is given is what it is"


def save_to_disk(folder, texts, form="stream"):
    """A folder as the package datasets writes it; it may lie beside caches of its own."""
    new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    for name, rows in (("data-00000-of-00001", texts), ("cache-1f0e", ["of a map"])):
        writers.arrow(
            folder / f"{name}.arrow",
            pa.table({"text": rows, "n": list(range(len(rows)))}),
            new,
            rows=7,
        )
    (folder / "state.json").write_text(
        '{\n  "_data_files": [{"filename": "data-00000-of-00001.arrow"}]\n}'
    )
    (folder / "dataset_info.json").write_text("{\n}")
    return str(folder)


@pytest.mark.parametrize("form", ["stream", "file"])
def test_what_datasets_saves_to_disk(tmp_path, form):
    path = save_to_disk(tmp_path / "one", TEXTS, form)
    for where in (path, writers.remote(tmp_path / "one")):
        assert list(open_corpus(where).documents()) == TEXTS and split_names(where) == ()
    for name, texts in (
        ("train_sft", TEXTS[:30]),
        ("unsupervised", TEXTS[30:40]),
        ("test_sft", TEXTS[40:]),
    ):
        save_to_disk(tmp_path / "dict" / name, texts, form)
    (tmp_path / "dict" / "dataset_dict.json").write_text(
        '{"splits": ["train_sft", "unsupervised", "test_sft"]}'
    )
    path = str(tmp_path / "dict")
    assert split_names(path) == ("test_sft", "train_sft", "unsupervised")
    assert list(open_corpus(path, "train_sft").documents()) == TEXTS[:30]
    with pa.ipc.new_stream(
        str(tmp_path / "one" / "indices.arrow"), pa.schema({"indices": pa.int64()})
    ):
        pass  # of old versions: not all rows beside it are meant
    assert "no column 'text' of strings, found 'indices' (int64)" in failure(tmp_path / "one")


def test_a_damaged_arrow_file(tmp_path):
    save_to_disk(tmp_path / "a", TEXTS)
    data = (tmp_path / "a" / "data-00000-of-00001.arrow").read_bytes()
    (tmp_path / "b.arrow").write_bytes(data[:-1000])
    assert "b.arrow: truncated, damaged or not Arrow" in failure(tmp_path / "b.arrow")
    data = writers.table(
        tmp_path / "c.arrow", [{"text": "a first text"}, {"text": "and a second"}]
    ).read_bytes()
    offsets = np.array([0, 12, 24], np.int32).tobytes()
    assert data.count(offsets) == 1
    wild = np.array([0, 2**31 - 1, 24], np.int32).tobytes()  # which would end the process
    (tmp_path / "c.arrow").write_bytes(data.replace(offsets, wild))
    assert "c.arrow: truncated, damaged or not Arrow" in failure(tmp_path / "c.arrow")


def test_a_table_is_no_plain_text(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nwords,1\n")
    assert "a.csv' is a table" in failure(tmp_path / "a.csv") and "(found .csv; " in failure(
        tmp_path
    )


def picked(share: float, documents: list[str], whole: bool = True) -> tuple[list[str], list[str]]:
    train, heldout = (
        list(Selection(share, side).pick(iter(documents), whole)) for side in splits.SIDES
    )
    return train, heldout


@pytest.mark.parametrize("whole", [True, False])
def test_sides_are_by_content(whole):
    train, heldout = picked(0.3, NUMBERED, whole)
    assert heldout == [text for text in NUMBERED if splits.is_on("heldout", text, 0.3)]
    assert train == [text for text in NUMBERED if not splits.is_on("heldout", text, 0.3)]
    assert list(EVERYTHING.pick(iter(NUMBERED), whole)) == NUMBERED


def test_one_document_is_cut_at_a_line():
    text = "one\ntwo\nthree\nfour\n"
    assert picked(0.4, [text]) == (["one\ntwo\n"], ["three\nfour\n"])
    assert sorted(map(len, picked(0.4, [text], whole=False))) == [0, 1]
    document = "".join(f"line {i}\n" for i in range(100))
    (train,), (heldout,) = picked(0.2, [document])
    assert train + heldout == document and train.endswith("\n")
    assert 0.2 <= len(heldout) / len(document) < 0.22


def test_a_search_holds_out_another_part():
    (train, reported), (searched_train, searched) = picked(0.3, NUMBERED), picked(-0.3, NUMBERED)
    assert set(searched_train) == set(NUMBERED) - set(reported) - set(searched) and set(
        searched
    ) <= set(train)
    lines = [f"line {i}\n" for i in range(100, 200)]
    assert picked(-0.2, ["".join(lines)]) == (["".join(lines[:60])], ["".join(lines[60:80])])


def test_one_line_cannot_be_cut():
    assert "side 'train' with heldout_share=0.3" in failures.raised(
        DataError, picked, 0.3, ["one line"]
    )


@pytest.mark.parametrize(
    ("names", "options", "train", "heldout"),
    [
        (("train", "validation"), {}, ("train", 0.0), ("validation", 0.0)),
        (("train",), {}, ("train", 0.2), ("train", 0.2)),
        (("validation",), {}, ("", 0.2), ("", 0.2)),
        (
            ("train", "validation"),
            {"split": "validation"},
            ("validation", 0.2),
            ("validation", 0.2),
        ),
        (("train", "dev"), {"heldout_split": "dev"}, ("train", 0.0), ("dev", 0.0)),
        (("a", "b"), {}, ("", 0.2), ("", 0.2)),
        (("train", "validation"), {"split": "all"}, ("", 0.2), ("", 0.2)),
        (("train", "test"), {"split": "test"}, ("test", 0.2), ("test", 0.2)),
        (("test", "train_x", "valid", "dev"), {}, ("train", 0.0), ("dev", 0.0)),
    ],
)
def test_sides_of_a_corpus(tmp_path, names, options, train, heldout):
    make(tmp_path, *(f"{name}-00000-of-00001.jsonl" for name in names))
    for side, (split, share) in zip(splits.SIDES, (train, heldout), strict=True):
        corpus, selection = open_side(
            str(tmp_path), Side(side, **({"heldout_share": 0.2} | options))
        )
        assert corpus.name == (f"{tmp_path} ({split})" if split else str(tmp_path))
        assert selection == (Selection(share, side) if share else EVERYTHING)


def test_a_split_that_a_corpus_does_not_have(tmp_path):
    path = make(tmp_path, "train-00000-of-00001.jsonl")
    with pytest.raises(DataError, match="has no split 'dev': it has 'train'"):
        open_side(path, Side("heldout", heldout_split="dev", heldout_share=0.1))


def test_no_split_for_a_side(tmp_path):
    path = make(tmp_path, "test_1.jsonl", "valid_1.jsonl")
    with pytest.raises(
        DataError,
        match="splits 'test', 'valid', and none for the side 'train': name one with split",
    ):
        open_side(path, Side("train", heldout_share=0.1))
    path = make(tmp_path / "other", "test.jsonl", "train.jsonl")
    with pytest.raises(
        DataError,
        match="splits 'test', 'train', and none for the side 'heldout'.*with heldout_split",
    ):
        open_side(path, Side("heldout"))
    assert list(open_side(path, Side("heldout", heldout_split="test"))[0].documents()) == [
        "test.jsonl"
    ]


def test_the_files_of_the_sides_are_told(tmp_path):
    path = make(
        tmp_path,
        *(f"{name}_{i}.jsonl" for name in ("train", "val") for i in range(4)),
        "Test/a.jsonl",
        "b.md",
    )
    opened = [open_side(path, Side(side, heldout_share=0.1))[0] for side in splits.SIDES]
    assert describe(dict(zip(("to train on", "held out"), opened, strict=True))) == (
        "text: 4 files (train_0.jsonl, train_1.jsonl, train_2.jsonl, and 1 more) to train on; "
        "4 files (val_0.jsonl, val_1.jsonl, val_2.jsonl, and 1 more) held out; not read: 2 files (Test/a.jsonl, b.md)"
    )
    assert describe({"read": open_corpus(path, "test")}, 0.05).startswith(
        "text: 1 file (Test/a.jsonl) read; 5 % of the documents held out; not read: 9 files"
    )


def test_a_file_on_both_sides(tmp_path):
    path = make(tmp_path / "a", "x.jsonl", "in/y.jsonl")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "z.jsonl").symlink_to(tmp_path / "a" / "in" / "y.jsonl")
    (tmp_path / "c").symlink_to(tmp_path / "a")
    for other in ("a", "a/in", "a/in/y.jsonl", "b", "c", "c/in"):
        with pytest.raises(DataError, match="is held out and also trained on"):
            describe(
                {"to train on": open_corpus(path), "held out": open_corpus(str(tmp_path / other))}
            )


def test_wikitext_as_it_is_unpacked(tmp_path):
    for name in (
        "wiki.train.tokens",
        "wiki.valid.tokens",
        "wiki.test.tokens",
        "raw/wiki.train.raw",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f" = {name} = \n")
    assert [*open_corpus(str(tmp_path), "valid").documents()] == [" = wiki.valid.tokens = \n"]
    assert [*open_corpus(str(tmp_path / "raw")).documents()] == [" = raw/wiki.train.raw = \n"]
