"""Text in its documented forms, in folders, buckets and TFDS, with splits by name."""

import gzip
import itertools
import lzma
import math
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


def document(number: int) -> str:
    euros = "€" * (number % 7)
    return f"document {number} {euros}"


TEXTS = [document(number) for number in range(60)]


def lines(texts) -> bytes:
    records = [{"text": text, "url": "http"} for text in texts]
    return writers.json_lines(*records)


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
    documents = {}
    for split, dataset in found.items():
        documents[split] = list(dataset.examples.read())
    return documents


# Forms


def zstandard(content: bytes) -> bytes:
    return pa.Codec("zstd").compress(content, asbytes=True)


PACKERS = {
    ".json.gz": gzip.compress,
    ".jsonl.xz": lzma.compress,
    ".jsonl.zst": zstandard,
    ".JSONL": bytes,
    ".json": bytes,
}


def write_texts(path, form, texts):
    """Writes texts as a file of this suffix."""
    if form == ".parquet":
        writers.parquet(path, 3, text=texts)
    elif form == ".arrow":
        writers.arrow(path, pa.table({"text": texts}))
    else:
        pack = PACKERS[form]
        path.write_bytes(pack(lines(texts)))


FORMS = [*PACKERS, ".parquet", ".arrow"]
SHARDS = {
    "c4-train.00000-of-00002": TEXTS[:20],
    "c4-train.00001-of-00002": TEXTS[20:40],
    "c4-validation.00000-of-00001": TEXTS[40:],
}


@pytest.fixture(params=[*FORMS, *tfds_folders.FORMATS])
def c4(request, tmp_path):
    """C4 in one of its forms: 40 documents to train on and 20 of validation."""
    form = request.param
    folder = tmp_path / "3.0.1"
    if form in tfds_folders.FORMATS:
        train = [examples(TEXTS[:20]), examples(TEXTS[20:40])]
        shards = {"train": train, "validation": [examples(TEXTS[40:])]}
        return writers.tfds_folder(folder, shards, form)
    folder.mkdir()
    for name, texts in SHARDS.items():
        path = folder / f"{name}{form}"
        write_texts(path, form, texts)
    return folder


@pytest.mark.parametrize("where", [str, writers.remote])
def test_c4_is_read_in_every_form(c4, where):
    path = where(c4)
    assert read(path) == {"train": TEXTS[:40], "validation": TEXTS[40:]}
    assert read(path, ignore_splits=True) == {"": TEXTS}


@pytest.mark.parametrize("where", [str, writers.remote])
def test_splits_have_names_and_files(c4, where):
    path = where(c4)
    found = text_reader.read(path)
    assert found.path == path
    train = found["train"]
    assert train.split == "train"
    assert train.name == f"{path} (train)"
    assert train.notes == ()
    shards = []
    for file in files.find_files(path):
        if "-of-" in file.name:
            shards.append(file)
    train_shards = shards[:2]
    assert list(train.files) == train_shards
    part_sizes = []
    for part in train.examples.parts:
        part_sizes.append(part.size)
    assert part_sizes == [file.size for file in train_shards]
    pickled = pickle.dumps(found["validation"])
    validation = pickle.loads(pickled)
    texts = list(validation.examples.read())
    assert texts == TEXTS[40:]


@pytest.mark.parametrize("where", [str, writers.remote])
def test_large_files_are_cut_into_parts(c4, where, monkeypatch):
    path = where(c4)
    monkeypatch.setattr(corpus, "PART_BYTES", 150)
    assert read(path, ignore_splits=True) == {"": TEXTS}
    whole = text_reader.read(path, ignore_splits=True)[""]
    parts = whole.examples.parts
    names = {part.name for part in parts}
    assert len(names) == len(parts)
    reader = parts[0].reader
    form = compression.compression(parts[0].path)
    is_compressed = bool(form)
    is_remote_shard = files.is_remote(path) and "record" in reader
    if is_compressed or is_remote_shard or reader == "arrow":
        assert len(parts) == 3
    else:
        most_by_file = []
        for file in whole.files:
            most_by_file.append(math.ceil(file.size / 150))
        most = sum(most_by_file)
        assert 9 < len(parts) <= most


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_plain_text_files_are_one_document(tmp_path, suffix):
    content = "one\n\ntwo €\n".encode()
    path = tmp_path / f"train.txt{suffix}"
    encoded = gzip.compress(content) if suffix else content
    path.write_bytes(encoded)
    assert read(path) == {"": ["one\n\ntwo €\n"]}, "the name of a single file means no split"
    assert read(tmp_path) == {"train": ["one\n\ntwo €\n"]}


def test_folders_are_read_in_the_order_of_names(tmp_path):
    contents = {
        "b/c/2.txt": "two",
        "b/empty.txt": " \n",
        ".hidden.txt": "hidden",
        ".git/x.txt": "hidden",
        "a.txt": "one",
        "z.jsonl": lines(["three", " ", "four"]).decode(),
    }
    for name, content in contents.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert read(tmp_path) == {"": ["one", "two", "three", "four"]}
    found = text_reader.read(str(tmp_path))[""]
    names = [part.name for part in found.examples.parts]
    assert names == ["a.txt", "b/c/2.txt", "b/empty.txt", "z.jsonl"]
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


def test_broken_links_are_refused(tmp_path):
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "gone")
    assert "a.jsonl" in failure(read, tmp_path)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_files_may_have_any_name(tmp_path, form):
    accented = unicodedata.normalize(form, "été 1.jsonl")
    long = "x" * 240 + ".jsonl"
    names = [accented, long, "日本.jsonl", "a b\nc.jsonl"]
    path = make(tmp_path, *names)
    assert read(path) == {"": sorted(names)}


# What is refused


HALF_OF_A_GZIP = gzip.compress(b"text" * 99)[:20]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        pytest.param("corpus", b"x", "is not a text file", id="no suffix"),
        pytest.param("notes.md", b"x", "is not a text file", id="markdown"),
        pytest.param("wiki.train.tokens", b"x", "is not a text file", id="wikitext"),
        pytest.param("a.ndjson", b"x", "is not a text file", id="other JSON"),
        pytest.param("a.tar.gz", b"x", "is not a text file", id="an archive"),
        pytest.param("a.csv", b"x", "is a table", id="a table"),
        pytest.param("a.tsv.gz", b"x", "is a table", id="a compressed table"),
        pytest.param("a.parquet.gz", b"x", "decompress it", id="compressed parquet"),
        pytest.param("a.parquet", b"x", "not parquet", id="invalid parquet"),
        pytest.param("a.arrow", b"x", "not Arrow", id="invalid Arrow"),
        pytest.param("a.parquet", b"", "not parquet", id="empty parquet"),
        pytest.param("a.jsonl", b"", "empty shard", id="empty JSON lines"),
        pytest.param("a.txt.gz", b"", "a.txt.gz", id="empty gzip"),
        pytest.param("a.txt.gz", b"text", "not a .gz archive", id="invalid gzip"),
        pytest.param("a.txt.gz", HALF_OF_A_GZIP, "truncated", id="truncated gzip"),
        pytest.param("a.txt", b"\xe9", "not UTF-8", id="Latin-1"),
        pytest.param("dataset_info.json", b"{\n}", "line 1", id="metadata"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, problem):
    path = tmp_path / name
    path.write_bytes(content)
    message = failure(read, path)
    assert problem in message
    assert str(path) in message


def test_missing_files_are_refused(tmp_path):
    path = tmp_path / "nowhere"
    message = failure(read, path)
    assert "nothing at" in message
    assert str(path) in message


@pytest.mark.parametrize(
    "names", [[], ["a.txt"]], ids=["empty", "a folder with the name of a file"]
)
def test_folders_without_files_are_refused(tmp_path, names):
    for name in names:
        (tmp_path / name).mkdir()
    message = failure(read, tmp_path)
    assert "no files" in message
    assert str(tmp_path) in message


def test_folders_without_text_are_refused(tmp_path):
    for name in ("a.png", "b.png", "c.csv"):
        (tmp_path / name).touch()
    message = failure(read, tmp_path)
    assert ".png 2, .csv 1" in message
    assert ".txt, .jsonl, .json, .parquet, .arrow" in message
    (tmp_path / "d.parquet.gz").touch()
    assert "decompress it" in failure(read, tmp_path)


def test_missing_shards_are_counted(tmp_path):
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
def test_files_and_folders_name_their_split(tmp_path, names, expected):
    """The text of each file is its name."""
    found = read(make(tmp_path, *names))
    assert sorted(found) == expected
    documents = itertools.chain(*found.values())
    assert sorted(documents) == sorted(names)
    in_order = sorted(names, key=lambda name: name.split("/"))
    assert read(tmp_path, ignore_splits=True) == {"": in_order}


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
def test_ambiguous_and_partial_names_of_splits_are_refused(tmp_path, names, words):
    path = make(tmp_path, *names)
    message = failure(read, path)
    for word in words:
        assert word in message
    whole = read(path, ignore_splits=True)
    assert len(whole[""]) == len(names)
    single = read(tmp_path / names[0])
    assert list(single) == [""], "the name of a single file means no split"


@pytest.mark.parametrize(
    ("names", "options", "train", "heldout"),
    [
        (("train", "validation"), {}, ["train"], ["validation"]),
        (("train", "dev"), {"heldout_split": "dev"}, ["train"], ["dev"]),
        (("train", "valid", "test"), {"heldout_split": "test"}, ["train"], ["test"]),
        (("train", "test"), {"split": "test", "heldout_split": "train"}, ["test"], ["train"]),
    ],
)
def test_runs_read_existing_splits_whole(tmp_path, names, options, train, heldout):
    make(tmp_path, *names)
    for name in names:
        path = tmp_path / name
        path.rename(tmp_path / f"{name}.jsonl")
    found = text_reader.read(str(tmp_path))
    expected_by_role = (("train", train), ("heldout", heldout))
    for role, expected in expected_by_role:
        request = Request(role, heldout_share=0.2, **options)
        chosen = splits.choose(found, request)
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
    """Writes a folder and a cache like the package datasets."""
    numbers = range(len(texts))
    rows = pa.table({"text": texts, "n": numbers})
    cached_rows = pa.table({"text": ["of a map"]})
    path = folder / "data-00000-of-00001.arrow"
    writers.arrow(path, rows, new, rows=7)
    writers.arrow(folder / "cache-1f0e.arrow", cached_rows, new)
    (folder / "state.json").write_text('{\n  "_data_files": []\n}')
    (folder / "dataset_info.json").write_text("{\n}")
    return folder


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
@pytest.mark.parametrize("where", [str, writers.remote])
def test_folders_of_save_to_disk_are_read(tmp_path, new, where):
    folder = save_to_disk(tmp_path, TEXTS, new)
    path = where(folder)
    assert read(path) == {"": TEXTS}
    dataset = text_reader.read(path)[""]
    assert dataset.notes == ()


def test_splits_of_save_to_disk_are_read(tmp_path):
    train = TEXTS[:30]
    extra = TEXTS[30:40]
    dev = TEXTS[40:]
    save_to_disk(tmp_path / "train_sft", train)
    save_to_disk(tmp_path / "extra", extra)
    save_to_disk(tmp_path / "dev", dev)
    (tmp_path / "dataset_dict.json").write_text('{"splits": []}')
    expected = {"train_sft": train, "extra": extra, "validation": dev}
    assert read(tmp_path) == expected
    assert read(writers.remote(tmp_path)) == expected


def test_files_of_indices_are_refused(tmp_path):
    """A file of indices selects rows, which is not supported."""
    save_to_disk(tmp_path, TEXTS)
    writers.arrow(tmp_path / "indices.arrow", pa.table({"indices": [1, 2]}))
    message = failure(read, tmp_path)
    assert "indices.arrow: no column 'text'" in message
    assert "'indices' (int64)" in message


def test_truncated_arrow_files_are_refused(tmp_path):
    path = save_to_disk(tmp_path, TEXTS) / "data-00000-of-00001.arrow"
    content = path.read_bytes()
    path.write_bytes(content[:-1000])
    assert f"{path}: truncated, damaged or not Arrow" in failure(read, path)


def test_invalid_offsets_in_arrow_files_are_refused(tmp_path):
    """PyArrow itself would crash."""
    rows = pa.table({"text": ["a first text", "and a second"]})
    path = writers.arrow(tmp_path / "a.arrow", rows)
    offsets = np.int32([0, 12, 24]).tobytes()
    invalid_offsets = np.int32([0, 2**31 - 1, 24]).tobytes()
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, invalid_offsets))
    assert f"{path}: truncated, damaged or not Arrow" in failure(read, path)


def test_tfds_folders_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    shards = {"train": [examples(TEXTS)]}
    folder = writers.tfds_folder(tmp_path / "c4/en/3.0.1", shards, "array_record")
    found = text_reader.read("tfds:c4/en")
    assert found.path == str(folder)
    texts = list(found["train"].examples.read())
    assert texts == TEXTS
    assert "tfds:nowhere" in failure(text_reader.read, "tfds:nowhere")


def test_tfds_folders_without_text_are_refused(tmp_path):
    import tensorflow_datasets as tfds

    features = {"body": tfds.features.Text()}
    shards = {"train": [[writers.example(body=b"one")]]}
    writers.tfds_folder(tmp_path / "1.0.0", shards, "tfrecord", **features)
    message = failure(read, tmp_path / "1.0.0")
    assert "'text'" in message
    assert "'body'" in message


def test_missing_tfds_shards_are_refused(tmp_path):
    train = [examples(["one"]), examples(["two"])]
    shards = {"train": train, "test": [examples(["three"])]}
    folder = writers.tfds_folder(tmp_path / "1.0.0", shards, "tfrecord")
    (folder / "c4-train.tfrecord-00001-of-00002").unlink()
    found = text_reader.read(str(folder))
    texts = list(found["test"].examples.read())
    assert texts == ["three"]
    missing = "c4-train.tfrecord-00001-of-00002"
    assert missing in failure(lambda: found["train"])
    assert missing in failure(read, folder, ignore_splits=True)
