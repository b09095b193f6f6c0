"""Token ids on disk: any range of them, and what is damaged."""

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
def test_stream_and_totals(folder, where):
    path = where(folder)
    made = Prepared(path)
    expected = stream(TEXTS)
    assert is_prepared(path)
    assert made.tokens == len(expected)
    assert made.documents == len(TEXTS)
    assert made.skipped == 0
    assert made.tokenizer == tokenizer()
    assert made.dtype == np.uint16
    assert made.read(0, made.tokens).tolist() == expected
    ends = [len(stream(TEXTS[:stop])) for stop in (40, 80, 120)]
    assert made.offsets.tolist() == [0, *ends]
    names = [f"ids-0000{shard}-of-00003.array_record" for shard in range(3)]
    assert [file.name for file in made.files] == names
    copy = pickle.loads(pickle.dumps(made))
    assert copy.read(5, 50).tolist() == expected[5:50]


def test_other_files_change_nothing(folder):
    (folder / "lengths-00001-of-00003.npy").write_bytes(b"x")
    (folder / "README.md").write_bytes(b"x")
    made = Prepared(folder)
    assert len(made.files) == 3
    assert made.read(0, made.tokens).tolist() == stream(TEXTS)


@pytest.mark.parametrize("open_readers", [1, 64])
def test_any_range(folder, monkeypatch, open_readers):
    monkeypatch.setattr(prepared, "OPEN_READERS", open_readers)
    made = Prepared(folder)
    expected = stream(TEXTS)
    offsets = made.offsets.tolist()
    inside = [offset + 1 for offset in offsets[1:-1]]
    positions = sorted({0, 1, 63, 64, 65, 128, *offsets, *inside})
    for start in positions:
        for stop in positions:
            if start <= stop:
                assert made.read(start, stop).tolist() == expected[start:stop]


@pytest.mark.parametrize("place", ["beyond the end", "before the start", "backwards"])
def test_ranges_that_are_not_there(folder, place):
    made = Prepared(folder)
    ranges = {
        "beyond the end": (5, made.tokens + 1),
        "before the start": (-1, 5),
        "backwards": (6, 5),
    }
    start, stop = ranges[place]
    message = raised(IndexError, made.read, start, stop)
    assert f"ids {start} to {stop} of {made.tokens}" in message


def test_threads_read_at_once(folder):
    made = Prepared(folder)
    expected = stream(TEXTS)
    starts = range(0, made.tokens - 100, 37)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda start: made.read(start, start + 100), starts))
    for start, part in zip(starts, parts, strict=True):
        assert part.tolist() == expected[start : start + 100]


@pytest.mark.parametrize("size", [320, 400])
def test_counts(folder, size):
    counts = Prepared(folder).counts(size)
    expected = np.bincount(stream(TEXTS), minlength=size)
    assert counts.tolist() == expected.tolist()


def test_counts_of_some(folder):
    """Those of the first block and of the last."""
    ids = stream(TEXTS)
    start_of_last = (len(ids) - 1) // 64 * 64
    of_both_ends = ids[:64] + ids[start_of_last:]
    counts = Prepared(folder).counts(320, most=128)
    assert counts.tolist() == np.bincount(of_both_ends, minlength=320).tolist()


def as_bytes(texts):
    """Each text's ids with [SEP], as uint32."""
    return [np.array(stream([text]), np.uint32).tobytes() for text in texts]


@pytest.mark.parametrize(
    ("most", "texts"),
    [
        (1000, TEXTS),
        (6, [*TEXTS[:2], *TEXTS[40:42], *TEXTS[80:82]]),
        (1, [TEXTS[0], TEXTS[40], TEXTS[80]]),
    ],
)
def test_some_documents_of_each_shard(folder, most, texts):
    assert list(Prepared(folder).some_documents(most)) == as_bytes(texts)


def test_some_documents_of_one_remote_shard(folder):
    made = Prepared(writers.remote(folder))
    assert list(made.some_documents(3)) == as_bytes(TEXTS[:3])


def test_documents_that_are_cut_off_are_left_out(folder, monkeypatch):
    monkeypatch.setattr(prepared, "SAMPLE_TOKENS", 3 * (len(stream(TEXTS[:2])) + 1))
    found = list(Prepared(folder).some_documents(1000))
    assert found[:2] == as_bytes(TEXTS[:2])
    assert set(found) < set(as_bytes(TEXTS))
    monkeypatch.setattr(prepared, "SAMPLE_TOKENS", 3)
    assert list(Prepared(folder).some_documents(1000)) == []


def test_large_vocabularies(tmp_path):
    assert ids_dtype(2**16).str == "<u2"
    assert ids_dtype(2**16 + 1).str == "<u4"
    path = prepared.shard_file(tmp_path, 0, 1)
    ids = np.array([70_000, 1], np.int32)
    result = write_shard(path, [EncodedBatch(ids, 1, 5)], ids_dtype(2**17))
    size = path.stat().st_size
    assert result == {"documents": 1, "tokens": 2, "text_bytes": 5, "ids_bytes": size}
    assert np.array([70_000, 1], "<u4").tobytes() in path.read_bytes()


@pytest.mark.parametrize("sizes", [[], [0], [1], [64], [65], [30, 30, 4, 64, 200]])
def test_blocks_of_a_shard(tmp_path, monkeypatch, sizes):
    """The same bytes, whatever batches the ids come in."""
    monkeypatch.setattr(prepared, "BLOCK", 64)
    ids = np.arange(sum(sizes), dtype=np.int32)
    batches = []
    if sizes:
        for part in np.split(ids, np.cumsum(sizes)[:-1]):
            batches.append(EncodedBatch(part, 1, 3))
    paths = [prepared.shard_file(tmp_path, number, 2) for number in range(2)]
    first = write_shard(paths[0], batches, ids_dtype(999))
    second = write_shard(paths[1], [EncodedBatch(ids, len(sizes), 3 * len(sizes))], ids_dtype(999))
    assert first == second
    assert first["tokens"] == sum(sizes)
    assert first["documents"] == len(sizes)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_shard_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    path = prepared.shard_file(tmp_path / "file", 0, 1)
    assert str(path) in failure(write_shard, path, [], ids_dtype(9))


# What is damaged


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-1])]
)
def test_a_missing_or_truncated_shard(folder, damage):
    path = folder / "ids-00001-of-00003.array_record"
    damage(path)
    message = failure(Prepared, folder)
    assert f"{path}: missing" in message
    assert "delete its folder" in message


def test_a_changed_byte(folder):
    path = folder / "ids-00001-of-00003.array_record"
    content = bytearray(path.read_bytes())
    ids = np.array(stream(TEXTS[40:41])[:8], "<u2")
    content[content.index(ids.tobytes())] ^= 1
    path.write_bytes(content)
    made = Prepared(folder)
    assert made.read(0, 10).tolist() == stream(TEXTS)[:10]
    assert f"{path}: damaged" in failure(made.read, 0, made.tokens)


def test_a_shard_of_another_corpus(folder, tmp_path):
    """Of the same size, with ids that the tokenizer does not have."""
    made = Prepared(folder)
    path = folder / "ids-00000-of-00003.array_record"
    ids = np.full(int(made.offsets[1]), 999, np.int32)
    write_shard(path, [EncodedBatch(ids, 40, 0)], ids_dtype(999))
    assert path.stat().st_size == made.files[0].size
    assert f"{path}: damaged" in failure(Prepared(folder).read, 0, 10)


def test_a_shard_that_is_removed(folder):
    made = Prepared(folder)
    path = folder / "ids-00002-of-00003.array_record"
    path.unlink()
    assert str(path) in failure(made.read, 0, made.tokens)


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_a_folder_that_is_not_prepared(tmp_path, name):
    message = failure(Prepared, tmp_path / name)
    assert str(tmp_path) in message
    assert "gmlp prepare" in message
    assert not is_prepared(tmp_path / name)


def test_another_tokenizer(folder):
    Tokenizer.train(TEXTS, 310).save(folder / TOKENIZER_FILE)
    assert str(folder / TOKENIZER_FILE) in failure(Prepared, folder)


def test_no_tokenizer(folder):
    (folder / TOKENIZER_FILE).unlink()
    assert str(folder / TOKENIZER_FILE) in failure(Prepared, folder)


def with_shard(index, **changes):
    return {"shards": [{**index["shards"][0], **changes}, *index["shards"][1:]]}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda index: {"format": 9}, "format 9, expected 2"),
        (lambda index: {"format": None}, "format None, expected 2"),
        (lambda index: {"shards": []}, "damaged"),
        (lambda index: {"shards": {"0": 1}}, "damaged"),
        (lambda index: {"shards": [*index["shards"][:-1], 3]}, "damaged"),
        (lambda index: {"dtype": "O"}, "damaged"),
        (lambda index: with_shard(index, tokens=-1), "damaged"),
        (lambda index: with_shard(index, tokens=1.0), "damaged"),
        (lambda index: with_shard(index, documents=True), "damaged"),
        (lambda index: with_shard(index, documents=2**53), "damaged"),
        (lambda index: with_shard(index, skipped_first=3), "damaged"),
        (lambda index: with_shard(index, skipped_first=[3], skipped=1), "damaged"),
        (lambda index: with_shard(index, skipped=1), "damaged"),
    ],
    ids=range(13),
)
def test_an_index_by_another_hand(folder, change, problem):
    path = folder / "index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps({**index, **change(index)}))
    assert f"{path}: {problem}" in failure(Prepared, folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "\ufffe"])
def test_an_index_that_is_no_object(folder, content):
    path = folder / "index.json"
    path.write_text(content)
    assert str(path) in failure(Prepared, folder)
