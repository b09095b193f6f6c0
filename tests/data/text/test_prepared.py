"""Token ids on disk: any range of them can be read, and damage is reported."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gmlp_flax.data.text import prepared
from gmlp_flax.data.text.encoding import EncodedBatch
from gmlp_flax.data.text.prepare import Limits, prepare
from gmlp_flax.data.text.prepared import Prepared, ids_dtype, is_prepared, write_shard
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from tests.data import writers
from tests.data.text.preparing import TEXTS, corpus, stream, tokenizer
from tests.failures import failure, raised


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A corpus of three shards, in small blocks."""
    monkeypatch.setattr(prepared, "BLOCK", 64)
    prepare(corpus(3), tokenizer(), tmp_path / "p", Limits(workers=1, shard_bytes=1))
    return tmp_path / "p"


@pytest.mark.parametrize("where", [str, writers.remote])
def test_a_prepared_folder_has_the_ids_of_all_texts(folder, where):
    path = where(folder)
    made = Prepared(path)
    expected = stream(TEXTS)
    assert is_prepared(path)
    assert made.tokens == len(expected)
    assert made.documents == len(TEXTS)
    assert made.skipped == 0
    assert made.tokenizer == tokenizer()
    assert made.dtype == np.uint16
    ids = made.read(0, made.tokens)
    assert ids.tolist() == expected
    offsets = [0]
    for stop in (40, 80, 120):
        before = stream(TEXTS[:stop])
        offsets.append(len(before))
    assert made.offsets.tolist() == offsets
    names = [file.name for file in made.files]
    expected_names = []
    for shard in range(3):
        expected_names.append(f"ids-0000{shard}-of-00003.array_record")
    assert names == expected_names
    copy = pickle.loads(pickle.dumps(made))
    ids = copy.read(5, 50)
    assert ids.tolist() == expected[5:50]


def test_other_files_in_the_folder_are_ignored(folder):
    (folder / "lengths-00001-of-00003.npy").write_bytes(b"x")
    (folder / "README.md").write_bytes(b"x")
    made = Prepared(folder)
    assert len(made.files) == 3
    assert made.read(0, made.tokens).tolist() == stream(TEXTS)


@pytest.mark.parametrize("open_readers", [1, 64])
def test_any_range_can_be_read(folder, monkeypatch, open_readers):
    monkeypatch.setattr(prepared, "OPEN_READERS", open_readers)
    made = Prepared(folder)
    expected = stream(TEXTS)
    offsets = made.offsets.tolist()
    inner_offsets = offsets[1:-1]
    inside = [offset + 1 for offset in inner_offsets]
    distinct = {0, 1, 63, 64, 65, 128, *offsets, *inside}
    positions = sorted(distinct)
    for start in positions:
        for stop in positions:
            if start <= stop:
                ids = made.read(start, stop)
                assert ids.tolist() == expected[start:stop]


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        pytest.param(5, len(stream(TEXTS)) + 1, id="beyond the end"),
        pytest.param(-1, 5, id="before the start"),
        pytest.param(6, 5, id="backwards"),
    ],
)
def test_ranges_that_do_not_exist_are_refused(folder, start, stop):
    made = Prepared(folder)
    message = raised(IndexError, made.read, start, stop)
    assert f"ids {start} to {stop} of {made.tokens}" in message


def test_threads_can_read_at_the_same_time(folder):
    made = Prepared(folder)
    expected = stream(TEXTS)
    starts = range(0, made.tokens - 100, 37)

    def read(start):
        return made.read(start, start + 100).tolist()

    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(read, starts))
    for start, part in zip(starts, parts, strict=True):
        expected_part = expected[start : start + 100]
        assert part == expected_part


@pytest.mark.parametrize("size", [320, 400])
def test_token_counts_of_the_whole_corpus(folder, size):
    counts = Prepared(folder).counts(size)
    expected = np.bincount(stream(TEXTS), minlength=size)
    assert counts.tolist() == expected.tolist()


def test_token_counts_of_a_sample(folder):
    """Only the first block and the last are read."""
    ids = stream(TEXTS)
    last_block = (len(ids) - 1) // 64
    first = ids[:64]
    last = ids[64 * last_block :]
    of_both_ends = first + last
    expected = np.bincount(of_both_ends, minlength=320)
    counts = Prepared(folder).counts(320, most=128)
    assert counts.tolist() == expected.tolist()


def as_bytes(texts):
    """Each text's ids with [SEP], as the bytes of uint32."""
    contents = []
    for text in texts:
        ids = np.array(stream([text]), np.uint32)
        contents.append(ids.tobytes())
    return contents


@pytest.mark.parametrize(
    ("most", "texts"),
    [
        (1000, TEXTS),
        (6, [*TEXTS[:2], *TEXTS[40:42], *TEXTS[80:82]]),
        (1, [TEXTS[0], TEXTS[40], TEXTS[80]]),
    ],
)
def test_some_documents_of_each_shard(folder, most, texts):
    documents = list(Prepared(folder).some_documents(most))
    assert documents == as_bytes(texts)


def test_some_documents_of_one_remote_shard(folder):
    made = Prepared(writers.remote(folder))
    assert list(made.some_documents(3)) == as_bytes(TEXTS[:3])


def test_truncated_documents_are_left_out(folder, monkeypatch):
    """The third document of each shard is cut off."""
    tokens_of_two = len(stream(TEXTS[:2]))
    sample_tokens = 3 * (tokens_of_two + 1)
    monkeypatch.setattr(prepared, "SAMPLE_TOKENS", sample_tokens)
    made = Prepared(folder)
    documents = list(made.some_documents(1000))
    expected = as_bytes(TEXTS[:2])
    assert documents[:2] == expected
    assert set(documents) < set(as_bytes(TEXTS))


def test_shards_may_have_no_document_that_is_short_enough(folder, monkeypatch):
    monkeypatch.setattr(prepared, "SAMPLE_TOKENS", 3)
    made = Prepared(folder)
    assert list(made.some_documents(1000)) == []


def test_large_vocabularies_have_ids_of_four_bytes(tmp_path):
    assert ids_dtype(2**16).str == "<u2"
    assert ids_dtype(2**16 + 1).str == "<u4"
    path = prepared.shard_file(tmp_path, 0, 1)
    batch = EncodedBatch(np.array([70_000, 1], np.int32), 1, 5)
    result = write_shard(path, [batch], ids_dtype(2**17))
    assert result == {
        "documents": 1,
        "tokens": 2,
        "text_bytes": 5,
        "ids_bytes": path.stat().st_size,
    }
    written = np.array([70_000, 1], "<u4")
    assert written.tobytes() in path.read_bytes()


@pytest.mark.parametrize("sizes", [[], [0], [1], [64], [65], [30, 30, 4, 64, 200]])
def test_shards_do_not_depend_on_batches(tmp_path, monkeypatch, sizes):
    monkeypatch.setattr(prepared, "BLOCK", 64)
    dtype = ids_dtype(999)
    total = sum(sizes)
    ids = np.arange(total, dtype=np.int32)
    batches = []
    first = 0
    for size in sizes:
        part = ids[first : first + size]
        batches.append(EncodedBatch(part, 1, 3))
        first += size
    count = len(sizes)
    whole = EncodedBatch(ids, count, 3 * count)
    in_batches = prepared.shard_file(tmp_path, 0, 2)
    at_once = prepared.shard_file(tmp_path, 1, 2)
    result = write_shard(in_batches, batches, dtype)
    assert result == write_shard(at_once, [whole], dtype)
    assert result["tokens"] == total
    assert result["documents"] == len(sizes)
    assert in_batches.read_bytes() == at_once.read_bytes()


def test_an_error_of_writing_names_the_shard(tmp_path):
    (tmp_path / "file").touch()
    path = prepared.shard_file(tmp_path / "file", 0, 1)
    assert str(path) in failure(write_shard, path, [], ids_dtype(9))


# What is damaged


def remove(path):
    path.unlink()


def truncate(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1])


@pytest.mark.parametrize("damage", [remove, truncate])
def test_a_missing_or_truncated_shard_is_refused(folder, damage):
    path = folder / "ids-00001-of-00003.array_record"
    damage(path)
    message = failure(Prepared, folder)
    assert f"{path}: missing" in message
    assert "delete its folder" in message


def test_a_changed_byte_is_noticed_when_it_is_read(folder):
    path = folder / "ids-00001-of-00003.array_record"
    content = bytearray(path.read_bytes())
    next_ids = stream(TEXTS[40:41])
    ids = np.array(next_ids[:8], "<u2")
    position = content.index(ids.tobytes())
    content[position] ^= 1
    path.write_bytes(content)
    made = Prepared(folder)
    intact = made.read(0, 10)
    first_ids = stream(TEXTS)[:10]
    assert intact.tolist() == first_ids
    message = failure(made.read, 0, made.tokens)
    assert f"{path}: damaged" in message


def test_a_shard_of_another_corpus_is_noticed_when_it_is_read(folder, tmp_path):
    """It has the same size, but ids that the tokenizer does not have."""
    made = Prepared(folder)
    path = folder / "ids-00000-of-00003.array_record"
    tokens = int(made.offsets[1])
    other_ids = np.full(tokens, 999, np.int32)
    batch = EncodedBatch(other_ids, 40, 0)
    write_shard(path, [batch], ids_dtype(999))
    size = made.files[0].size
    assert path.stat().st_size == size
    message = failure(Prepared(folder).read, 0, 10)
    assert f"{path}: damaged" in message


def test_a_shard_removed_while_it_is_open_is_named(folder):
    made = Prepared(folder)
    path = folder / "ids-00002-of-00003.array_record"
    path.unlink()
    assert str(path) in failure(made.read, 0, made.tokens)


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_a_folder_that_is_not_prepared_is_refused(tmp_path, name):
    message = failure(Prepared, tmp_path / name)
    assert str(tmp_path) in message
    assert "gmlp prepare" in message
    assert not is_prepared(tmp_path / name)


def test_another_tokenizer_is_refused(folder):
    path = folder / TOKENIZER_FILE
    Tokenizer.train(TEXTS, 310).save(path)
    assert str(path) in failure(Prepared, folder)


def test_a_missing_tokenizer_is_refused(folder):
    path = folder / TOKENIZER_FILE
    path.unlink()
    assert str(path) in failure(Prepared, folder)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": 9}, "format 9, expected 2"),
        ({"format": None}, "format None, expected 2"),
        ({"shards": []}, "damaged"),
        ({"shards": {"0": 1}}, "damaged"),
        ({"shards": [3]}, "damaged"),
        ({"dtype": "O"}, "damaged"),
    ],
)
def test_an_invalid_index_is_refused(folder, changes, problem):
    path = folder / "index.json"
    index = json.loads(path.read_text())
    index.update(changes)
    path.write_text(json.dumps(index))
    message = failure(Prepared, folder)
    assert f"{path}: {problem}" in message


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": -1},
        {"tokens": 1.0},
        {"documents": True},
        {"documents": 2**53},
        {"skipped_first": 3},
        {"skipped_first": [3], "skipped": 1},
        {"skipped": 1},
    ],
)
def test_an_invalid_shard_in_the_index_is_refused(folder, changes):
    path = folder / "index.json"
    index = json.loads(path.read_text())
    index["shards"][0].update(changes)
    path.write_text(json.dumps(index))
    assert f"{path}: damaged" in failure(Prepared, folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "\ufffe"])
def test_an_index_that_is_not_an_object_is_refused(folder, content):
    path = folder / "index.json"
    path.write_text(content)
    assert str(path) in failure(Prepared, folder)
