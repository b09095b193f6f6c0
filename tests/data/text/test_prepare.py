"""A corpus to token ids on disk: the same bytes on any number of workers, and after interruptions."""

import io
import itertools
import json
import os
import pickle
import sys
import threading
from pathlib import Path

import fsspec
import pytest

from gmlp_flax.data.readers import text as text_reader
from gmlp_flax.data.text import prepare as preparation
from gmlp_flax.data.text.corpus import MemoryPart, in_memory
from gmlp_flax.data.text.prepare import (
    Limits,
    cached_tokenizer,
    prepare,
    prepare_in_cache,
    sample_documents,
)
from gmlp_flax.data.text.prepared import Prepared
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from gmlp_flax.io.records import BadRecords
from tests.data.text.preparing import TEXTS, content, corpus, of_parts, stream, tokenizer
from tests.failures import failure

EACH_PART = Limits(workers=1, shard_bytes=1)  # a shard for each part, made in this process


def ids(made: Prepared) -> list[int]:
    return made.read(0, made.tokens).tolist()


def read(path):
    return text_reader.read(str(path))[""]


class Interrupting(MemoryPart):
    """A part that interrupts the work until that is allowed."""

    allowed = threading.Event()

    def documents(self, bad):
        if not self.allowed.is_set():
            raise KeyboardInterrupt
        return super().documents(bad)


class Ending(MemoryPart):
    """A part that ends worker processes."""

    def documents(self, bad):
        if os.environ["PARENT"] != str(os.getpid()):
            os._exit(1)
        return super().documents(bad)


class Endless(MemoryPart):
    """A part without an end."""

    def documents(self, bad):
        return itertools.repeat("the quick brown fox " * 1000)


class Damaged(MemoryPart):
    """A part that cannot be read."""

    def documents(self, bad):
        raise DataError("a damaged part")


@pytest.fixture
def interrupted(monkeypatch):
    """A corpus of three parts, of which the last interrupts the work until `Interrupting.allowed`
    is set."""
    monkeypatch.setattr(Interrupting, "allowed", threading.Event())
    whole = corpus(3)
    first, second, third = whole.examples.parts
    return of_parts([first, second, Interrupting(*third)], whole.content)


def interrupt(interrupted, folder):
    with pytest.raises(KeyboardInterrupt):
        prepare(interrupted, tokenizer(), folder, EACH_PART)


# Shards


@pytest.mark.parametrize(("share", "shards"), [(0, 10), (1 / 3, 3), (0.4, 2), (1.1, 1)])
def test_shards_are_of_consecutive_parts_and_equal_size(tmp_path, share, shards):
    total = sum(part.size for part in corpus(10).examples.parts)
    limits = Limits(workers=1, shard_bytes=max(1, round(share * total)))
    made = prepare(corpus(10), tokenizer(), tmp_path, limits)
    assert ids(made) == stream(TEXTS)
    sizes = [shard["tokens"] for shard in made.index["shards"]]
    assert len(sizes) == shards
    assert max(sizes) < 2 * min(sizes)
    expected = {"index.json", "tokenizer.model"}
    for number in range(shards):
        expected.add(f"ids-{number:05}-of-{shards:05}.array_record")
    assert set(content(tmp_path)) == expected


def test_no_more_shards_than_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "MAX_SHARDS", 4)
    made = prepare(corpus(10), tokenizer(), tmp_path, EACH_PART)
    assert len(made.files) == 4
    assert ids(made) == stream(TEXTS)


def test_parts_without_documents(tmp_path):
    """Also the last one, which has no size."""
    first, second = corpus(2).examples.parts
    empty = MemoryPart("empty", ())
    parts = of_parts([empty, first, empty, second, empty])
    made = prepare(parts, tokenizer(), tmp_path, EACH_PART)
    assert ids(made) == stream(TEXTS)


def test_workers_change_nothing(tmp_path):
    for workers in (1, 2):
        limits = Limits(workers=workers, shard_bytes=1)
        prepare(corpus(4), tokenizer(), tmp_path / str(workers), limits)
    assert content(tmp_path / "1") == content(tmp_path / "2")
    assert len(content(tmp_path / "1")) == 6


@pytest.mark.parametrize("role", ["train", "heldout"])
def test_held_out_documents(tmp_path, role):
    chosen = corpus(3).hold_out(role, 0.3)
    made = prepare(chosen, tokenizer(), tmp_path, EACH_PART)
    assert ids(made) == stream(list(chosen.examples.read()))
    assert made.index["heldout_share"] == 0.3
    assert made.index["side"] == role


def test_lines_of_the_only_document_are_held_out(tmp_path):
    text = "".join(f"{sentence}\n" for sentence in TEXTS)
    roles = []
    for role in ("train", "heldout"):
        whole = in_memory("book", [text])
        made = prepare(whole.hold_out(role, 0.25), tokenizer(), tmp_path / role, EACH_PART)
        (document,) = whole.hold_out(role, 0.25).examples.read()
        assert ids(made) == stream([document])
        roles.append(document)
    assert "".join(roles) == text


def test_lone_surrogates_and_long_words(tmp_path):
    texts = ["a \ud800 b", "x" * 10_000, "\0", "日本 " * 3000]
    made = prepare(in_memory("odd", texts), tokenizer(), tmp_path, EACH_PART)
    assert made.documents == 4
    decoded = tokenizer().decode(made.read(0, made.tokens))
    assert "a ? b" in decoded
    assert decoded.count("x") == 10_000
    assert decoded.count("日本") == 3000


# Interruptions


def test_finished_shards_are_kept(tmp_path, interrupted):
    folder = tmp_path / "a"
    interrupt(interrupted, folder)
    assert "no prepared corpus" in failure(Prepared, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("ids-*")}
    assert len(before) == 2
    (folder / ".ids-00002-of-00003.array_record.12345678.tmp").touch()
    Interrupting.allowed.set()
    prepare(interrupted, tokenizer(), folder, EACH_PART)
    for path, time in before.items():
        assert path.stat().st_mtime_ns == time
    assert [path.name for path in folder.glob(".*")] == [".lock"]
    prepare(corpus(3), tokenizer(), tmp_path / "b", EACH_PART)
    assert content(folder) == content(tmp_path / "b")


@pytest.mark.parametrize("is_emptied", [False, True])
def test_a_remote_folder(tmp_path, cache_folder, interrupted, is_emptied):
    """Shards are moved there as they are done; if somebody deletes them, they are made again."""
    target = f"memory://{tmp_path.name}/prepared"
    interrupt(interrupted, target)
    assert len(files.find_files(target)) == 2
    if is_emptied:
        fsspec.filesystem("memory").rm(target, recursive=True)
    Interrupting.allowed.set()
    assert ids(prepare(interrupted, tokenizer(), target, EACH_PART)) == stream(TEXTS)
    prepare(corpus(3), tokenizer(), tmp_path / "local", EACH_PART)
    uploaded = {file.name: files.read_small(file.path) for file in files.find_files(target)}
    assert uploaded == content(tmp_path / "local")
    assert not list(cache_folder.glob("preparing-*"))


def test_a_damaged_plan_is_refused(tmp_path, interrupted):
    interrupt(interrupted, tmp_path)
    path = tmp_path / "unfinished" / "plan.json"
    path.write_text("[]")
    message = failure(prepare, interrupted, tokenizer(), tmp_path, EACH_PART)
    assert f"{path} holds a list" in message


@pytest.mark.parametrize("record", ["[]", "{}", '{"ids_bytes": 1}', ""])
def test_a_shard_whose_record_is_damaged_is_made_again(tmp_path, interrupted, record):
    interrupt(interrupted, tmp_path)
    Interrupting.allowed.set()
    (tmp_path / "unfinished" / "shard-00000.json").write_text(record)
    assert ids(prepare(interrupted, tokenizer(), tmp_path, EACH_PART)) == stream(TEXTS)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"x")])
def test_a_damaged_shard_is_made_again(tmp_path, interrupted, damage):
    interrupt(interrupted, tmp_path)
    Interrupting.allowed.set()
    damage(tmp_path / "ids-00001-of-00003.array_record")
    assert ids(prepare(interrupted, tokenizer(), tmp_path, EACH_PART)) == stream(TEXTS)


def test_a_worker_that_dies_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PARENT", str(os.getpid()))
    whole = corpus(2)
    ending = of_parts([Ending(*part) for part in whole.examples.parts], whole.content)
    limits = Limits(workers=2, shard_bytes=1)
    assert "fewer workers" in failure(prepare, ending, tokenizer(), tmp_path, limits)
    assert ids(prepare(whole, tokenizer(), tmp_path, EACH_PART)) == stream(TEXTS)


def test_an_error_in_one_shard_ends_the_work_on_others(tmp_path):
    first, second = corpus(2).examples.parts
    endless = of_parts([Endless(*first), Damaged(*second)])
    limits = Limits(workers=2, shard_bytes=1)
    assert failure(prepare, endless, tokenizer(), tmp_path, limits) == "a damaged part"
    assert not list(tmp_path.glob(".*.tmp"))


# What is refused


def broken_lines(folder):
    """Files of 20 documents, with two bad records and one."""
    folder.mkdir()
    for name, bad in (("a", 2), ("b", 1)):
        lines = [json.dumps({"text": text}) for text in TEXTS[:20]]
        lines += ["{"] * bad
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


def test_bad_records_are_counted_over_all_parts(tmp_path):
    text = broken_lines(tmp_path / "text")
    limits = Limits(workers=1, shard_bytes=1, max_bad_records=3)
    made = prepare(read(text), tokenizer(), tmp_path / "out", limits)
    assert made.skipped == 3
    assert [shard["skipped"] for shard in made.index["shards"]] == [2, 1]
    assert f"{text}/a.jsonl, line 21: not JSON" in made.skipped_first[0]
    assert ids(made) == 2 * stream(TEXTS[:20])


@pytest.mark.parametrize("workers", [1, 2])
def test_one_bad_record_too_many(tmp_path, workers):
    text = broken_lines(tmp_path / "text")
    limits = Limits(workers, max_bad_records=2, shard_bytes=1)
    message = failure(prepare, read(text), tokenizer(), tmp_path / "out", limits)
    assert ".jsonl, line 21" in message
    assert "max_bad_records=2" in message


def test_a_finished_folder_has_too_many_bad_records(tmp_path):
    text = broken_lines(tmp_path / "text")
    prepare(read(text), tokenizer(), tmp_path / "out", Limits(workers=1, max_bad_records=3))
    limits = Limits(workers=1, max_bad_records=2)
    message = failure(prepare, read(text), tokenizer(), tmp_path / "out", limits)
    assert "max_bad_records=2" in message


def test_bad_records_are_told_in_a_run(tmp_path, capsys):
    text = broken_lines(tmp_path / "text")
    limits = Limits(workers=1, max_bad_records=3)
    prepare_in_cache(read(text), tokenizer(), tmp_path / "cache", limits)
    assert f"{text}: 3 bad records skipped, the first: " in capsys.readouterr().err


def others():
    """Arguments of other preparations than that of corpus(2), and what differs."""
    return [
        (corpus(2), Tokenizer.train(TEXTS, 310), "vocab_size 320, not 310"),
        (corpus(2, TEXTS[1:]), tokenizer(), "corpus"),
        (corpus(3), tokenizer(), "corpus"),
        (corpus(2).hold_out("train", 0.1), tokenizer(), "heldout_share 0.0, not 0.1"),
        (corpus(2).hold_out("heldout", 0.1), tokenizer(), "side 'train', not 'heldout'"),
    ]


@pytest.mark.parametrize("is_begun", [False, True])
def test_another_preparation_is_refused(tmp_path, is_begun):
    folder = tmp_path / "done"
    prepare(corpus(2), tokenizer(), folder)
    before = content(folder)
    if is_begun:
        unfinished = tmp_path / "begun" / "unfinished"
        unfinished.mkdir(parents=True)
        (unfinished / "plan.json").write_bytes(before["index.json"])
        folder = tmp_path / "begun"
    for other, its_tokenizer, difference in others():
        message = failure(prepare, other, its_tokenizer, folder)
        assert str(folder) in message
        assert difference in message
    assert content(tmp_path / "done") == before


@pytest.mark.parametrize("name", ["thesis.tex", "in/thesis.tex", "ids-00000-of-00009.array_record"])
def test_a_folder_of_other_files_is_refused(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("words")
    assert f"{str(tmp_path)!r} is not empty" in failure(prepare, corpus(2), tokenizer(), tmp_path)
    assert path.read_text() == "words"


def test_a_file_in_place_of_a_folder(tmp_path):
    path = tmp_path / "thesis.tex"
    path.write_text("words")
    assert str(path) in failure(prepare, corpus(2), tokenizer(), path)
    assert path.read_text() == "words"


@pytest.mark.parametrize("make", [prepare, prepare_in_cache])
@pytest.mark.parametrize("role", ["", "heldout"])
def test_nothing_to_prepare(tmp_path, make, role):
    (tmp_path / "empty.txt").write_text("\n\n")
    nothing = read(tmp_path / "empty.txt")
    reason = "has no text: the file is empty"
    if role:
        nothing = corpus(2).hold_out(role, 1e-9)
        reason = "no text for 'heldout' with heldout_share=1e-09"
    for _ in range(2):
        message = failure(make, nothing, tokenizer(), tmp_path / "deep" / "er", EACH_PART)
        assert repr(nothing.name) in message
        assert reason in message
    assert not list(tmp_path.rglob("unfinished"))


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_on_a_terminal(tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(preparation, "DELAY", 0)
    monkeypatch.setattr(sys, "stderr", terminal)
    prepare(corpus(2), tokenizer(), tmp_path, EACH_PART)
    assert terminal.getvalue().startswith("tokenising texts\n")
    assert "100%" in terminal.getvalue()


# The cache


def test_a_corpus_is_prepared_once(tmp_path):
    made = prepare_in_cache(corpus(2), tokenizer(), tmp_path)
    index = Path(made.folder, "index.json")
    written = index.stat().st_mtime_ns
    again = prepare_in_cache(corpus(2), tokenizer(), tmp_path)
    assert again.folder == made.folder
    assert ids(pickle.loads(pickle.dumps(again))) == stream(TEXTS)
    assert index.stat().st_mtime_ns == written


def test_other_arguments_have_another_folder(tmp_path):
    folders = set()
    for other, its_tokenizer, _ in [(corpus(2), tokenizer(), ""), *others()]:
        made = prepare_in_cache(other, its_tokenizer, tmp_path)
        folders.add(made.folder)
        assert ids(made)[-1] == its_tokenizer.sep_id
    folders.add(prepare_in_cache(corpus(2), tokenizer(), tmp_path, EACH_PART).folder)
    assert len(folders) == 7


@pytest.mark.parametrize("name", ["tokenizer.model", "ids-00000-of-00002.array_record"])
def test_a_damaged_cache_is_refused(tmp_path, name):
    made = prepare_in_cache(corpus(2), tokenizer(), tmp_path, EACH_PART)
    Path(made.folder, name).write_bytes(b"x")
    message = failure(prepare_in_cache, corpus(2), tokenizer(), tmp_path, EACH_PART)
    assert f"{made.folder}/{name}" in message
    assert "delete its folder" in message


def test_a_tokenizer_is_trained_once(tmp_path):
    first = cached_tokenizer(corpus(2), 320, tmp_path)
    (path,) = tmp_path.glob("tokenizer-*.model")
    assert first == tokenizer()
    assert Tokenizer.load(path) == first
    assert cached_tokenizer(corpus(2), 320, tmp_path) == first
    path.write_bytes(path.read_bytes()[:-9])
    assert cached_tokenizer(corpus(2), 320, tmp_path) == first
    assert cached_tokenizer(corpus(2), 310, tmp_path).vocab_size == 310
    assert len(list(tmp_path.glob("tokenizer-*.model"))) == 2


def test_a_tokenizer_is_not_trained_on_bad_records(tmp_path):
    text = read(broken_lines(tmp_path / "text"))
    assert "line 21" in failure(cached_tokenizer, text, 320, tmp_path / "cache")
    assert cached_tokenizer(text, 310, tmp_path / "cache", 3).vocab_size == 310


def test_no_tokenizer_is_trained_on_empty_files(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(" \n")
    for text in (read(tmp_path), read(tmp_path).hold_out("train", 0.05)):
        message = failure(cached_tokenizer, text, 300, tmp_path / "cache")
        assert f"{str(tmp_path)!r} has no text: all 2 files are empty" in message
    nothing = in_memory("a list", [" "])
    assert "'a list' has no text: all documents are" in failure(
        cached_tokenizer, nothing, 300, tmp_path / "cache"
    )


# Text to train a tokenizer on


def sample(parts, characters):
    return list(sample_documents(corpus(parts), characters, BadRecords()))


def test_all_of_a_small_corpus():
    assert sample(3, sum(map(len, TEXTS))) == TEXTS


def test_a_share_of_each_part_of_a_large_one():
    total = sum(map(len, TEXTS))
    taken = sample(4, total // 2)
    assert total // 2 <= sum(map(len, taken)) <= total // 2 + 4
    longest = max(map(len, TEXTS))
    for part in corpus(4).examples.parts:
        begun = "".join(text for text in taken if text in part.texts)
        assert "".join(part.texts).startswith(begun)
        assert abs(len(begun) - part.size / 2) < longest


def test_heldout_documents_are_not_trained_on():
    train = corpus(1).hold_out("train", 0.3)
    taken = list(sample_documents(train, 10**9, BadRecords()))
    assert taken == list(train.examples.read())
    assert len(taken) < len(TEXTS)
