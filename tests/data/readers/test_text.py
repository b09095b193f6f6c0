"""Text in its documented forms, in folders, buckets and TFDS, split by words in names."""

import gzip
import lzma
import pickle
import unicodedata

import numpy as np
import pyarrow as pa
import pytest

from gmlp_flax.data import splits
from gmlp_flax.data.readers import text as text_reader
from gmlp_flax.data.splits import Request
from gmlp_flax.data.text import corpus
from gmlp_flax.io import compression, files, tfds_folders
from tests.data import writers
from tests.failures import failure

TEXTS = [f"document {number} " + "€" * (number % 7) for number in range(60)]


def lines(texts) -> bytes:
    return writers.json_lines(*({"text": text, "url": "http"} for text in texts))


def examples(texts) -> list[bytes]:
    return [writers.example(text=text.encode(), url=b"http") for text in texts]


def make(folder, *names):
    """A folder of files with one document each, the file's name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(lines([name]))
    return str(folder)


def read(path, ignore_splits: bool = False):
    """Split -> its documents."""
    found = text_reader.read(str(path), ignore_splits)
    return {split: list(corpus.examples.read()) for split, corpus in found.items()}


# Forms


def write_zstandard(path, texts):
    compressed = pa.Codec("zstd").compress(lines(texts), asbytes=True)
    path.write_bytes(compressed)


FORMS = {
    ".json.gz": lambda path, texts: path.write_bytes(gzip.compress(lines(texts))),
    ".jsonl.xz": lambda path, texts: path.write_bytes(lzma.compress(lines(texts))),
    ".jsonl.zst": write_zstandard,
    ".JSONL": lambda path, texts: path.write_bytes(lines(texts)),
    ".json": lambda path, texts: path.write_bytes(lines(texts)),
    ".parquet": lambda path, texts: writers.parquet(path, 3, text=texts),
    ".arrow": lambda path, texts: writers.arrow(path, pa.table({"text": texts})),
}
SHARDS = {
    "c4-train.00000-of-00002": TEXTS[:20],
    "c4-train.00001-of-00002": TEXTS[20:40],
    "c4-validation.00000-of-00001": TEXTS[40:],
}


@pytest.fixture(params=[*FORMS, *tfds_folders.FORMATS])
def c4(request, tmp_path):
    """C4 in one of its forms: 40 documents to train on and 20 of validation."""
    folder = tmp_path / "3.0.1"
    write = FORMS.get(request.param)
    if write is None:
        train = [examples(TEXTS[:20]), examples(TEXTS[20:40])]
        shards = {"train": train, "validation": [examples(TEXTS[40:])]}
        return writers.tfds_folder(folder, shards, request.param)
    folder.mkdir()
    for name, texts in SHARDS.items():
        write(folder / f"{name}{request.param}", texts)
    return folder


@pytest.mark.parametrize("where", [str, writers.remote])
def test_c4_in_every_form(c4, where):
    path = where(c4)
    assert read(path) == {"train": TEXTS[:40], "validation": TEXTS[40:]}
    assert read(path, ignore_splits=True) == {"": TEXTS}
    found = text_reader.read(path)
    assert found.path == path
    assert found["train"].split == "train"
    assert found["train"].name == f"{path} (train)"
    assert found["train"].notes == ()
    shards = [file for file in files.find_files(path) if "-of-" in file.name]
    assert found["train"].files == tuple(shards[:2])
    part_sizes = [part.size for part in found["train"].examples.parts]
    assert part_sizes == [file.size for file in shards[:2]]
    copy = pickle.loads(pickle.dumps(found["validation"]))
    assert list(copy.examples.read()) == TEXTS[40:]


@pytest.mark.parametrize("where", [str, writers.remote])
def test_large_files_are_cut_into_parts(c4, where, monkeypatch):
    path = where(c4)
    monkeypatch.setattr(corpus, "PART_BYTES", 150)
    assert read(path, ignore_splits=True) == {"": TEXTS}
    whole = text_reader.read(path, ignore_splits=True)[""]
    parts = whole.examples.parts
    assert len({part.name for part in parts}) == len(parts)
    is_compressed = bool(compression.compression(parts[0].path))
    is_remote_shard = files.is_remote(path) and "record" in parts[0].reader
    if is_compressed or is_remote_shard or parts[0].reader == "arrow":
        assert len(parts) == 3
    else:
        assert 9 < len(parts) <= sum(-(-file.size // 150) for file in whole.files)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_plain_text(tmp_path, suffix):
    content = "one\n\ntwo €\n".encode()
    path = tmp_path / f"train.txt{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    assert read(path) == {"": ["one\n\ntwo €\n"]}, "a file that is given is what it is"
    assert read(tmp_path) == {"train": ["one\n\ntwo €\n"]}


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    for name, content in {
        "b/c/2.txt": "two",
        "b/empty.txt": " \n",
        ".hidden.txt": "hidden",
        ".git/x.txt": "hidden",
        "a.txt": "one",
        "z.jsonl": lines(["three", " ", "four"]).decode(),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert read(tmp_path) == {"": ["one", "two", "three", "four"]}
    found = text_reader.read(str(tmp_path))[""]
    names = ["a.txt", "b/c/2.txt", "b/empty.txt", "z.jsonl"]
    assert [part.name for part in found.examples.parts] == names
    assert found.notes == ()


def test_other_files_are_counted(tmp_path):
    path = make(tmp_path, "train.jsonl", "valid.jsonl")
    for name in ("a.PNG", "b.png", "c.md", "Makefile", "dataset_infos.json", "cache-1f.arrow"):
        (tmp_path / name).write_bytes(b"\xff")
    found = text_reader.read(path)
    assert list(found) == ["train", "validation"]
    for dataset in found.values():
        (note,) = dataset.notes
        assert "4 files" in note
        assert ".png 2" in note
        assert ".md 1" in note
        assert "no suffix 1" in note


def test_links_are_followed(tmp_path):
    path = make(tmp_path / "real", "in/a.jsonl")
    folder = tmp_path / "linked"
    folder.mkdir()
    (folder / "x.jsonl").symlink_to(f"{path}/in/a.jsonl")
    (folder / "y").symlink_to(path)
    assert read(folder) == {"": ["in/a.jsonl", "in/a.jsonl"]}
    (folder / "y" / "around").symlink_to(folder)
    assert "more than 30" in failure(read, folder)


def test_a_link_to_nothing(tmp_path):
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "gone")
    assert "a.jsonl" in failure(read, tmp_path)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_of_any_kind(tmp_path, form):
    names = [
        unicodedata.normalize(form, name) for name in ("été 1.jsonl", "日本.jsonl", "a b\nc.jsonl")
    ]
    names.append(f"{'x' * 240}.jsonl")
    path = make(tmp_path, *names)
    assert read(path) == {"": sorted(names)}


# What is refused


def refuse(name, content: bytes = b"x"):
    def write(folder):
        (folder / name).write_bytes(content)
        return folder / name

    return write


REFUSED = {
    "nothing": (lambda folder: folder / "nowhere", "nothing at"),
    "an empty folder": (lambda folder: folder, "no files"),
    "a folder called as a file": (lambda folder: (folder / "a.txt").mkdir() or folder, "no files"),
    "no suffix": (refuse("corpus"), "is not a text file"),
    "markdown": (refuse("notes.md"), "is not a text file"),
    "wikitext": (refuse("wiki.train.tokens"), "is not a text file"),
    "other JSON": (refuse("a.ndjson"), "is not a text file"),
    "an archive": (refuse("a.tar.gz"), "is not a text file"),
    "a table": (refuse("a.csv"), "is a table"),
    "a compressed table": (refuse("a.tsv.gz"), "is a table"),
    "compressed parquet": (refuse("a.parquet.gz"), "decompress it"),
    "no parquet": (refuse("a.parquet"), "not parquet"),
    "no Arrow": (refuse("a.arrow"), "not Arrow"),
    "empty parquet": (refuse("a.parquet", b""), "not parquet"),
    "empty JSON lines": (refuse("a.jsonl", b""), "empty shard"),
    "empty gzip": (refuse("a.txt.gz", b""), "a.txt.gz"),
    "no gzip": (refuse("a.txt.gz", b"text"), "not a .gz archive"),
    "half of a gzip": (refuse("a.txt.gz", gzip.compress(b"text" * 99)[:20]), "truncated"),
    "Latin-1": (refuse("a.txt", "é".encode("latin-1")), "not UTF-8"),
    "a description of data": (refuse("dataset_info.json", b"{\n}"), "line 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(tmp_path, case):
    write, problem = REFUSED[case]
    path = write(tmp_path)
    message = failure(read, path)
    assert problem in message
    assert str(path) in message


def test_a_folder_without_text(tmp_path):
    for name in ("a.png", "b.png", "c.csv"):
        (tmp_path / name).touch()
    message = failure(read, tmp_path)
    assert ".png 2, .csv 1" in message
    assert ".txt, .jsonl, .json, .parquet, .arrow" in message
    (tmp_path / "d.parquet.gz").touch()
    assert "decompress it" in failure(read, tmp_path)


def test_missing_shards(tmp_path):
    make(tmp_path, "train-00000-of-00003.jsonl", "train-00002-of-00003.jsonl")
    message = failure(read, tmp_path)
    assert "1 of the 3 shards of 'train'" in message
    assert "00001-of-00003" in message
    (tmp_path / "a-3-of-99999999999.txt").write_text("text")
    assert "99999999998 of the 99999999999 shards of 'a'" in failure(read, tmp_path)


# Splits


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train.jsonl"], ["train"]),
        (["test.jsonl", "valid.jsonl"], ["test", "validation"]),
        (["train.jsonl", "DEV.jsonl", "testing.jsonl"], ["test", "train", "validation"]),
        (["c4-validation-00000-of-00001-0a1b2c3d.jsonl"], ["validation"]),
        (["wiki.train.jsonl", "wiki.valid.jsonl"], ["train", "validation"]),
        (["train_1.jsonl", "val_1.jsonl", "val_2.jsonl"], ["train", "validation"]),
        (["Training/x.jsonl", "Eval/in/y.jsonl"], ["train", "validation"]),
        (["data/train/test.jsonl", "data/val/train.jsonl"], ["train", "validation"]),
        (["train/validation/x.jsonl"], ["train"]),
        (["a.jsonl", "latest/b.jsonl", "trains.jsonl", "contest.jsonl"], [""]),
        (["trainset.jsonl", "testdata/a.jsonl"], [""]),
    ],
)
def test_names_of_splits(tmp_path, names, expected):
    found = read(make(tmp_path, *names))
    assert sorted(found) == expected
    assert sorted(sum(found.values(), [])) == sorted(names)
    assert read(tmp_path, ignore_splits=True) == {
        "": sorted(names, key=lambda name: name.split("/"))
    }


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["train_test.jsonl"], ["'train'", "'test'"]),
        (["my-test-data.jsonl", "train.jsonl"], ["my-test-data.jsonl", "'test'"]),
        (["corpus.jsonl", "corpus_test.jsonl"], ["'corpus.jsonl'", "'corpus_test.jsonl'"]),
        (["train/a.jsonl", "more/b.jsonl"], ["'train/a.jsonl'", "'more/b.jsonl'"]),
        (["train/a.jsonl", "test.jsonl"], ["'train/a.jsonl'", "'test.jsonl'"]),
        (["train.jsonl", "README.txt"], ["'train.jsonl'", "'README.txt'"]),
    ],
)
def test_names_that_mean_a_split_or_not(tmp_path, names, words):
    path = make(tmp_path, *names)
    message = failure(read, path)
    for word in words:
        assert word in message
    assert len(read(path, ignore_splits=True)[""]) == len(names)
    assert list(read(tmp_path / names[0])) == [""], "a file that is given is what it is"


@pytest.mark.parametrize(
    ("names", "options", "train", "heldout"),
    [
        (("train", "validation"), {}, ["train"], ["validation"]),
        (("train", "dev"), {"heldout_split": "dev"}, ["train"], ["dev"]),
        (("train", "valid", "test"), {"heldout_split": "test"}, ["train"], ["test"]),
        (("train", "test"), {"split": "test", "heldout_split": "train"}, ["test"], ["train"]),
    ],
)
def test_splits_that_a_run_reads(tmp_path, names, options, train, heldout):
    make(tmp_path, *names)
    for name in names:
        (tmp_path / name).rename(tmp_path / f"{name}.jsonl")
    found = text_reader.read(str(tmp_path))
    for role, expected in (("train", train), ("heldout", heldout)):
        chosen = splits.choose(found, Request(role, heldout_share=0.2, **options))
        assert list(chosen.examples.read()) == expected
        assert chosen.examples.selection.share == 0


def test_a_share_of_the_only_split_is_held_out(tmp_path):
    (tmp_path / "train.jsonl").write_bytes(lines(TEXTS))
    found = text_reader.read(str(tmp_path))
    taken = []
    for role in ("train", "heldout"):
        chosen = splits.choose(found, Request(role, heldout_share=0.2))
        assert chosen.examples.selection == (0.2, role)
        taken += chosen.examples.read()
    assert taken != TEXTS
    assert sorted(taken) == sorted(TEXTS)


# Folders of other packages


def save_to_disk(folder, texts, new=pa.ipc.new_stream):
    """A folder as the package datasets writes it, with a cache of its own."""
    table = pa.table({"text": texts, "n": list(range(len(texts)))})
    writers.arrow(folder / "data-00000-of-00001.arrow", table, new, rows=7)
    writers.arrow(folder / "cache-1f0e.arrow", pa.table({"text": ["of a map"]}), new)
    (folder / "state.json").write_text('{\n  "_data_files": []\n}')
    (folder / "dataset_info.json").write_text("{\n}")
    return folder


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
@pytest.mark.parametrize("where", [str, writers.remote])
def test_what_datasets_saves_to_disk(tmp_path, new, where):
    path = where(save_to_disk(tmp_path, TEXTS, new))
    assert read(path) == {"": TEXTS}
    assert text_reader.read(path)[""].notes == ()


def test_splits_that_datasets_saves_to_disk(tmp_path):
    saved = {"train_sft": TEXTS[:30], "extra": TEXTS[30:40], "dev": TEXTS[40:]}
    for name, texts in saved.items():
        save_to_disk(tmp_path / name, texts)
    (tmp_path / "dataset_dict.json").write_text('{"splits": []}')
    expected = {"train_sft": TEXTS[:30], "extra": TEXTS[30:40], "validation": TEXTS[40:]}
    assert read(tmp_path) == expected
    assert read(writers.remote(tmp_path)) == expected


def test_rows_that_an_old_version_chose(tmp_path):
    """Not all rows beside a file of indices are meant."""
    save_to_disk(tmp_path, TEXTS)
    writers.arrow(tmp_path / "indices.arrow", pa.table({"indices": [1, 2]}))
    message = failure(read, tmp_path)
    assert "indices.arrow: no column 'text'" in message
    assert "'indices' (int64)" in message


def test_a_damaged_arrow_file(tmp_path):
    path = save_to_disk(tmp_path, TEXTS) / "data-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes()[:-1000])
    assert f"{path}: truncated, damaged or not Arrow" in failure(read, path)


def test_offsets_that_would_end_the_process(tmp_path):
    path = writers.arrow(tmp_path / "a.arrow", pa.table({"text": ["a first text", "and a second"]}))
    offsets = np.array([0, 12, 24], np.int32).tobytes()
    wild = np.array([0, 2**31 - 1, 24], np.int32).tobytes()
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, wild))
    assert f"{path}: truncated, damaged or not Arrow" in failure(read, path)


def test_tfds_folders_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    folder = writers.tfds_folder(
        tmp_path / "c4" / "en" / "3.0.1", {"train": [examples(TEXTS)]}, "array_record"
    )
    found = text_reader.read("tfds:c4/en")
    assert found.path == str(folder)
    assert list(found["train"].examples.read()) == TEXTS
    assert "tfds:nowhere" in failure(text_reader.read, "tfds:nowhere")


def test_tfds_folders_without_text(tmp_path):
    import tensorflow_datasets as tfds

    features = {"body": tfds.features.Text()}
    shards = {"train": [[writers.example(body=b"one")]]}
    writers.tfds_folder(tmp_path / "1.0.0", shards, "tfrecord", **features)
    message = failure(read, tmp_path / "1.0.0")
    assert "'text'" in message
    assert "'body'" in message


def test_shards_that_tfds_has_not_written(tmp_path):
    shards = {"train": [examples(["one"]), examples(["two"])], "test": [examples(["three"])]}
    folder = writers.tfds_folder(tmp_path / "1.0.0", shards, "tfrecord")
    (folder / "c4-train.tfrecord-00001-of-00002").unlink()
    found = text_reader.read(str(folder))
    assert list(found["test"].examples.read()) == ["three"]
    assert "c4-train.tfrecord-00001-of-00002" in failure(lambda: found["train"])
    assert "c4-train.tfrecord-00001-of-00002" in failure(read, folder, ignore_splits=True)
