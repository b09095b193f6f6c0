import io
import itertools
import json
import os
import pickle
import sys
import threading
from pathlib import Path

import fsspec
import numpy as np
import pytest

from gmlp_flax.data.text import prepare as prepare_module
from gmlp_flax.data.text.corpora import Corpus, MemoryPart, Selection, open_corpus
from gmlp_flax.data.text.prepare import (
    cached_tokenizer,
    encode_documents,
    prepare,
    prepare_in_cache,
    sample_documents,
)
from gmlp_flax.data.text.prepared import Prepared
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from gmlp_flax.io.records import BadRecords
from tests.data.text.preparing import TEXTS, content, corpus, stream, tokenizer
from tests.failures import raised

EACH_PART = {"shard_bytes": 1, "workers": 1}  # a shard for each part, made in this process


def ids(made: Prepared) -> list[int]:
    return made.read(0, made.tokens).tolist()


class Interrupting(MemoryPart):
    """A part that interrupts the work until that is allowed."""

    allowed = threading.Event()

    def documents(self, bad=None):
        if not self.allowed.is_set():
            raise KeyboardInterrupt
        return super().documents(bad)


class Ending(MemoryPart):
    """A part that ends worker processes."""

    def documents(self, bad=None):
        if os.environ["PARENT"] != str(os.getpid()):
            os._exit(1)
        return super().documents(bad)


class Endless(MemoryPart):
    """A part without an end."""

    def documents(self, bad=None):
        return itertools.repeat("the quick brown fox " * 1000)


class Damaged(MemoryPart):
    """A part that cannot be read."""

    def documents(self, bad=None):
        raise DataError("a damaged part")


@pytest.fixture
def interrupted(monkeypatch):
    """A corpus of three parts, of which the last interrupts the work until `Interrupting.allowed`
    is set."""
    monkeypatch.setattr(Interrupting, "allowed", threading.Event())
    whole = corpus(3)
    return Corpus("texts", (*whole.parts[:2], Interrupting(*whole.parts[2])), whole.fingerprint)


def test_shards_are_of_consecutive_parts_and_equal_size(tmp_path):
    total = sum(part.size for part in corpus(10).parts)
    for shard_bytes, shards in ((1, 10), (total // 3, 3), (total + 1, 1)):
        made = prepare(
            corpus(10), tokenizer(), tmp_path / str(shards), shard_bytes=shard_bytes, workers=1
        )
        sizes = [shard["tokens"] for shard in made.index["shards"]]
        assert ids(made) == stream(TEXTS) and len(sizes) == shards and max(sizes) < 2 * min(sizes)
    names = ["ids-00000-of-00001.array_record", "index.json", "tokenizer.model"]
    assert sorted(content(tmp_path / "1")) == names


def test_workers_change_nothing(tmp_path):
    for workers in (1, 2):
        prepare(corpus(4), tokenizer(), tmp_path / str(workers), shard_bytes=1, workers=workers)
    assert content(tmp_path / "1") == content(tmp_path / "2")
    assert len(content(tmp_path / "1")) == 6


def test_finished_shards_are_kept(tmp_path, interrupted):
    with pytest.raises(KeyboardInterrupt):
        prepare(interrupted, tokenizer(), tmp_path / "a", **EACH_PART)
    assert "no prepared corpus in" in raised(DataError, Prepared, tmp_path / "a")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").glob("ids-*")}
    assert len(before) == 2
    (tmp_path / "a" / ".ids-00002-of-00003.array_record.12345678.tmp").touch()
    Interrupting.allowed.set()
    prepare(interrupted, tokenizer(), tmp_path / "a", **EACH_PART)
    assert {name: (tmp_path / "a" / name).stat().st_mtime_ns for name in before} == before
    assert sorted(path.name for path in (tmp_path / "a").glob(".*")) == [".lock"]
    prepare(corpus(3), tokenizer(), tmp_path / "b", **EACH_PART)
    assert content(tmp_path / "a") == content(tmp_path / "b")


@pytest.mark.parametrize("is_emptied", [False, True])
def test_a_remote_folder(tmp_path, monkeypatch, interrupted, is_emptied):
    """Shards are moved there as they are done; if somebody deletes them, they are made again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = f"memory://{tmp_path.name}/prepared"
    with pytest.raises(KeyboardInterrupt):
        prepare(interrupted, tokenizer(), target, **EACH_PART)
    assert len(files.find_files(target)) == 2
    if is_emptied:
        fsspec.filesystem("memory").rm(target, recursive=True)
    Interrupting.allowed.set()
    assert ids(prepare(interrupted, tokenizer(), target, **EACH_PART)) == stream(TEXTS)
    made = prepare(corpus(3), tokenizer(), tmp_path / "local", **EACH_PART)
    assert {file.name: files.read_small(file.path) for file in files.find_files(target)} == content(
        made.folder
    )
    assert not list((tmp_path / "gmlp_flax").glob("preparing-*"))


def test_bad_records_are_counted_over_all_parts(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for name, bad in (("a", 2), ("b", 1)):
        lines = [json.dumps({"text": text}) for text in TEXTS[:20]] + ["{"] * bad
        (text / f"{name}.jsonl").write_text("\n".join(lines))
    made = prepare(
        open_corpus(str(text)), tokenizer(), tmp_path / "out", max_bad_records=3, **EACH_PART
    )
    assert made.skipped == 3 and [shard["skipped"] for shard in made.index["shards"]] == [2, 1]
    assert "a.jsonl" in made.index["shards"][0]["skipped_first"][0]
    for folder, workers in (("out", 1), ("out1", 1), ("out2", 2)):
        with pytest.raises(DataError, match=r"[ab].jsonl, .*max_bad_records=2"):
            options = {"max_bad_records": 2, "shard_bytes": 1, "workers": workers}
            prepare(open_corpus(str(text)), tokenizer(), tmp_path / folder, **options)


def test_another_preparation(tmp_path):
    prepare(corpus(2), tokenizer(), tmp_path / "done")
    unfinished = tmp_path / "begun" / "unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "plan.json").write_bytes((tmp_path / "done" / "index.json").read_bytes())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    for folder in (tmp_path / "done", tmp_path / "begun"):
        for arguments, options, message in (
            ((corpus(2), Tokenizer.train(TEXTS, 310)), {}, "vocab_size 320, not 310"),
            ((corpus(2, TEXTS[1:]), tokenizer()), {}, "corpus"),
            ((corpus(2), tokenizer()), {"selection": Selection(0.1)}, "heldout_share 0.0, not 0.1"),
        ):
            told = raised(DataError, prepare, *arguments, folder, **options)
            assert message in told.partition("holds another preparation: ")[2]
    assert "mine' is not empty" in raised(
        DataError, prepare, corpus(2), tokenizer(), tmp_path / "mine"
    )


@pytest.mark.parametrize("make", [prepare, prepare_in_cache])
def test_an_empty_corpus_is_refused(tmp_path, make):
    (tmp_path / "empty.txt").write_text("\n\n")
    empty = open_corpus(str(tmp_path / "empty.txt"))
    for texts, selection, message in (
        (empty, Selection(), "holds no text"),
        (corpus(1), Selection(1e-9, "heldout"), "'texts' holds no text for the side 'heldout'"),
    ):
        with pytest.raises(DataError, match=message):
            make(texts, tokenizer(), tmp_path / "deep" / "er", selection=selection, workers=1)


def test_a_worker_that_dies_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PARENT", str(os.getpid()))
    whole = corpus(2)
    ending = Corpus("texts", tuple(Ending(*part) for part in whole.parts), whole.fingerprint)
    with pytest.raises(DataError, match="worker was ended from outside"):
        prepare(ending, tokenizer(), tmp_path, shard_bytes=1, workers=2)
    assert ids(prepare(whole, tokenizer(), tmp_path, **EACH_PART)) == stream(TEXTS)


def test_an_error_in_one_shard_ends_the_work_on_others(tmp_path):
    parts = corpus(2).parts
    endless = Corpus("texts", (Endless(*parts[0]), Damaged(*parts[1])), "fingerprint")
    assert "a damaged part" in raised(
        DataError, prepare, endless, tokenizer(), tmp_path, shard_bytes=1, workers=2
    )
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_bar_on_a_terminal(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(prepare_module, "DELAY", 0)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    prepare(corpus(2), tokenizer(), tmp_path, **EACH_PART)
    assert terminal.getvalue().startswith("tokenising texts\n") and "100%" in terminal.getvalue()


def test_cache(tmp_path):
    made = prepare_in_cache(corpus(2), tokenizer(), tmp_path)
    written = Path(made.folder, "index.json").stat().st_mtime_ns
    again = prepare_in_cache(corpus(2), tokenizer(), tmp_path)
    assert pickle.loads(pickle.dumps(again)).folder == made.folder and ids(again) == stream(TEXTS)
    assert Path(made.folder, "index.json").stat().st_mtime_ns == written
    assert (
        prepare_in_cache(corpus(2), tokenizer(), tmp_path, selection=Selection(0.5)).tokens
        < made.tokens
    )
    assert prepare_in_cache(corpus(2), Tokenizer.train(TEXTS, 310), tmp_path).tokens > made.tokens
    assert len(list(tmp_path.glob("prepared-*"))) == 3


@pytest.mark.parametrize("name", ["tokenizer.model", "ids-00000-of-00002.array_record"])
def test_a_damaged_cache_is_refused(tmp_path, name):
    folder = Path(prepare_in_cache(corpus(2), tokenizer(), tmp_path, **EACH_PART).folder)
    (folder / name).write_bytes(b"x")
    assert "delete its folder" in raised(
        DataError, prepare_in_cache, corpus(2), tokenizer(), tmp_path, **EACH_PART
    )


def test_a_shard_whose_record_is_damaged_is_made_again(tmp_path, interrupted):
    with pytest.raises(KeyboardInterrupt):
        prepare(interrupted, tokenizer(), tmp_path, **EACH_PART)
    unfinished = tmp_path / "unfinished"
    plan = (unfinished / "plan.json").read_bytes()
    (unfinished / "plan.json").write_text("[]")
    Interrupting.allowed.set()
    with pytest.raises(DataError, match=f"{unfinished}/plan.json holds a list"):
        prepare(interrupted, tokenizer(), tmp_path, **EACH_PART)
    (unfinished / "plan.json").write_bytes(plan)
    (unfinished / "shard-00000.json").write_text("[]")
    assert ids(prepare(interrupted, tokenizer(), tmp_path, **EACH_PART)) == stream(TEXTS)


def encode(documents: list[str], threads: int = 1) -> tuple[list[int], int]:
    """The ids of all documents, and their number."""
    batches = list(encode_documents(documents, tokenizer(), threads))
    return np.concatenate([tokens for tokens, _ in batches]).tolist(), sum(
        ended for _, ended in batches
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("pieces", [1, 3, 10**6])
def test_batches_change_nothing(monkeypatch, threads, pieces):
    monkeypatch.setattr(prepare_module, "BATCH", pieces)
    assert encode(TEXTS, threads) == (stream(TEXTS), len(TEXTS))
    assert list(encode_documents([], tokenizer())) == []


@pytest.mark.parametrize("piece", [30, 57])
def test_long_documents_are_cut_where_no_token_is(monkeypatch, piece):
    monkeypatch.setattr(prepare_module, "PIECE", piece)
    texts = ["the quick brown\nfox  jumps over \n lazy dogs " * 20, "the fox"]
    assert encode(texts) == (stream(texts), len(texts))
    # Without white space, the cut is at the limit.
    unbroken = ["x" * piece] * 2 + ["x" * 7]
    assert encode(["".join(unbroken)])[0][:-1] == [
        token for text in unbroken for token in tokenizer().encode(text)
    ]


def sample(parts, characters, selection=Selection()):
    return list(sample_documents(corpus(parts), selection, characters, BadRecords()))


def test_all_of_a_small_corpus():
    assert sample(3, sum(map(len, TEXTS))) == TEXTS


def test_a_share_of_each_part_of_a_large_one():
    total, parts = sum(map(len, TEXTS)), corpus(4).parts
    taken = sample(4, total // 2)
    assert total // 2 <= sum(map(len, taken)) <= total // 2 + 4
    for part in parts:
        begun = "".join(text for text in taken if text in part.texts)
        assert "".join(part.texts).startswith(begun) and abs(len(begun) - part.size / 2) < max(
            map(len, TEXTS)
        )


def test_heldout_documents_are_not_trained_on():
    chosen = Selection(0.3, "train")
    assert sample(1, 10**9, chosen) == list(chosen.pick(iter(TEXTS), True))


def test_cache_of_tokenizers(tmp_path):
    first = cached_tokenizer(corpus(2), 320, tmp_path)
    (file,) = tmp_path.glob("tokenizer-*.model")
    assert (
        cached_tokenizer(corpus(2), 320, tmp_path) == first == Tokenizer.load(file) == tokenizer()
    )
    file.write_bytes(file.read_bytes()[:-9])
    assert cached_tokenizer(corpus(2), 320, tmp_path) == first
    assert cached_tokenizer(corpus(2), 310, tmp_path).vocab_size == 310
    assert len(list(tmp_path.glob("tokenizer-*.model"))) == 2


@pytest.mark.parametrize("error", [DataError("line 3: found list"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [0, 50])
def test_what_stops_the_documents_is_raised_as_it_is(error, after):
    def documents():
        yield from TEXTS[:after]
        raise error

    with pytest.raises(type(error)) as caught:
        Tokenizer.train(documents(), 320)
    assert caught.value is error
