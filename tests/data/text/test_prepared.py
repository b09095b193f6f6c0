import json
import re

import numpy as np
import pytest

from gmlp_flax.data.text import prepared
from gmlp_flax.data.text.prepare import prepare
from gmlp_flax.data.text.prepared import Prepared, ids_dtype, is_prepared, overlap_note, write_shard
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import DataError
from tests.data.text.preparing import TEXTS, corpus, stream, tokenizer
from tests.failures import raised


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A corpus of three shards, in small blocks."""
    monkeypatch.setattr(prepared, "BLOCK", 64)
    prepare(corpus(3), tokenizer(), tmp_path / "p", shard_bytes=1, workers=1)
    return tmp_path / "p"


def test_stream_and_totals(folder):
    made, expected = Prepared(folder), stream(TEXTS)
    assert is_prepared(folder) and not is_prepared(folder.parent)
    assert (made.tokens, made.documents, made.skipped) == (len(expected), len(TEXTS), 0)
    assert made.tokenizer == tokenizer() and made.dtype == np.uint16
    assert made.read(0, made.tokens).tolist() == expected
    assert made.offsets.tolist() == [0, *(len(stream(TEXTS[: 40 * i])) for i in (1, 2, 3))]
    assert made.counts(320).tolist() == np.bincount(expected, minlength=320).tolist()


@pytest.mark.parametrize("readers", [1, 64])
def test_any_range(folder, monkeypatch, readers):
    monkeypatch.setattr(prepared, "OPEN_READERS", readers)
    made, expected = Prepared(folder), stream(TEXTS)
    positions = sorted(
        {0, 1, 63, 64, 65, 128, *made.offsets.tolist(), *(made.offsets[1:-1] + 1).tolist()}
    )
    for start in positions:
        for stop in (position for position in positions if position >= start):
            assert made.read(start, stop).tolist() == expected[start:stop]
    with pytest.raises(IndexError, match=f"ids 5 to {len(expected) + 1} of {len(expected)}"):
        made.read(5, len(expected) + 1)


def test_large_vocabularies(tmp_path):
    assert [ids_dtype(size).str for size in (2**16, 2**16 + 1)] == ["<u2", "<u4"]
    file = prepared.shard_file(tmp_path, 0, 1)
    result = write_shard(file, [(np.array([70_000, 1], np.int32), 1)], ids_dtype(2**17))
    assert (result["tokens"], result["documents"]) == (2, 1)
    assert np.array([70_000, 1], "<u4").tobytes() in file.read_bytes()
    result = write_shard(prepared.shard_file(tmp_path, 1, 2), [], ids_dtype(9))
    assert (result["tokens"], result["documents"]) == (0, 0)


def test_a_shard_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"writing .*ids-00000-of-00001.array_record failed"):
        write_shard(prepared.shard_file(tmp_path / "file", 0, 1), [], ids_dtype(9))


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-1])]
)
def test_missing_or_truncated_shard(folder, damage):
    (path,) = folder.glob("ids-00001-of-*")
    damage(path)
    with pytest.raises(DataError, match=f"{re.escape(str(path))}: missing, or not of the "):
        Prepared(folder)


def test_changed_byte(folder):
    (path,) = folder.glob("ids-00001-of-*")
    data = bytearray(path.read_bytes())
    position = data.index(np.array(stream(TEXTS[40:41])[:8], "<u2").tobytes())
    data[position] ^= 1
    path.write_bytes(data)
    made = Prepared(folder)
    with pytest.raises(DataError, match=f"{re.escape(str(path))}: damaged"):
        made.read(0, made.tokens)


def test_folders_of_earlier_versions(folder):
    """Files of lengths change nothing, but count among the files that recognise the data of a
    run."""
    before = Prepared(folder)
    (folder / "lengths-00001-of-00003.npy").write_bytes(b"x")
    made = Prepared(folder)
    names = [f"ids-0000{shard}-of-00003.array_record" for shard in range(3)]
    assert [file.name for file in before.files] == names
    assert [file.name for file in made.files] == [
        *names[:2],
        "lengths-00001-of-00003.npy",
        names[2],
    ]
    assert made.read(0, made.tokens).tolist() == stream(TEXTS)


def test_another_tokenizer_or_index(folder, tmp_path):
    with pytest.raises(DataError, match="no prepared corpus in .*gmlp prepare"):
        Prepared(tmp_path)
    Tokenizer.train(TEXTS, 310).save(folder / TOKENIZER_FILE)
    with pytest.raises(DataError, match=TOKENIZER_FILE):
        Prepared(folder)
    index = json.loads((folder / prepared.INDEX).read_text())
    (folder / prepared.INDEX).write_text(json.dumps(index | {"format": 9}))
    assert "index.json: format 9, expected 1" in raised(DataError, Prepared, folder)
    shards = index["shards"]
    for wrong in (
        {"shards": []},
        {"shards": [*shards[:-1], 3]},
        {"dtype": "O"},
        {"shards": [shards[0] | {"tokens": -1}]},
        {"shards": [shards[0] | {"skipped_first": 3}]},
        {"format": None},
        "{",
        "[]",
    ):
        (folder / prepared.INDEX).write_text(
            wrong if isinstance(wrong, str) else json.dumps(index | wrong)
        )
        with pytest.raises(DataError, match=r"index.json.* (damaged|expected|not JSON)"):
            Prepared(folder)


NUMBERED = [f"Text {i} of {i * i} words." for i in range(200)]


def made(folder, texts, parts=3):
    return prepare(corpus(parts, texts), tokenizer(), folder, workers=1, shard_bytes=1)


@pytest.mark.parametrize("equal", [0, 1, 2, 100])
def test_equal_documents_are_counted(tmp_path, equal):
    train, heldout = (
        made(tmp_path / "a", NUMBERED[:100]),
        made(tmp_path / "b", NUMBERED[100 - equal : 200 - equal]),
    )
    note = overlap_note(train, heldout)
    assert bool(note) == (equal > 1), "one per cent is not worth a line"
    if note:
        assert (
            f"{equal} of 100 held-out documents ({equal:.1f}%)" in note
            and "at 100 of the 100 training" in note
        )


def test_repeated_documents_count_each_time(tmp_path):
    train, heldout = made(tmp_path / "a", NUMBERED[:50]), made(tmp_path / "b", NUMBERED[49:52] * 2)
    assert "2 of 6 held-out documents" in overlap_note(train, heldout)


def test_the_work_is_bounded(tmp_path, monkeypatch):
    train, heldout = made(tmp_path / "a", NUMBERED, 20), made(tmp_path / "b", NUMBERED, 20)
    monkeypatch.setattr(prepared, "COMPARED", 16)
    monkeypatch.setattr(prepared, "SEARCHED", 32)
    assert "16 of 16 held-out documents (100.0%)" in (note := overlap_note(train, heldout))
    assert "at 32 of the 200 training" in note
    monkeypatch.setattr(prepared, "TOKENS", 16)  # one a shard: no document is so short
    assert overlap_note(train, heldout) == ""
