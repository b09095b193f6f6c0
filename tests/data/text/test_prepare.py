"""Token ids on disk are the same for any number of workers, and after interruptions."""

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


def total_size(texts) -> int:
    return sum(map(len, texts))


def read(path):
    return text_reader.read(str(path))[""]


class Interrupting(MemoryPart):
    """A part that raises KeyboardInterrupt until `allowed` is set."""

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
    """A corpus of three parts, of which the last one is `Interrupting`."""
    monkeypatch.setattr(Interrupting, "allowed", threading.Event())
    whole = corpus(3)
    first, second, third = whole.examples.parts
    third_part = Interrupting(*third)
    return of_parts([first, second, third_part], whole.content)


def interrupt(interrupted, folder):
    with pytest.raises(KeyboardInterrupt):
        prepare(interrupted, tokenizer(), folder, EACH_PART)


# Shards


def limits_of(corpus, share: float) -> Limits:
    """Shards of this share of the bytes of a corpus."""
    total = sum(part.size for part in corpus.examples.parts)
    shard_bytes = max(1, round(share * total))
    return Limits(workers=1, shard_bytes=shard_bytes)


@pytest.mark.parametrize(("share", "shards"), [(0, 10), (1 / 3, 3), (0.4, 2), (1.1, 1)])
def test_shards_have_consecutive_parts_and_similar_sizes(tmp_path, share, shards):
    whole = corpus(10)
    limits = limits_of(whole, share)
    made = prepare(whole, tokenizer(), tmp_path, limits)
    assert ids(made) == stream(TEXTS)
    sizes = []
    for shard in made.index["shards"]:
        sizes.append(shard["tokens"])
    assert len(sizes) == shards
    assert max(sizes) < 2 * min(sizes)


def test_prepared_folders_have_an_index_a_tokenizer_and_shards(tmp_path):
    prepare(corpus(2), tokenizer(), tmp_path, EACH_PART)
    assert set(content(tmp_path)) == {
        "index.json",
        "tokenizer.model",
        "ids-00000-of-00002.array_record",
        "ids-00001-of-00002.array_record",
    }


def test_there_are_no_more_shards_than_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "MAX_SHARDS", 4)
    made = prepare(corpus(10), tokenizer(), tmp_path, EACH_PART)
    assert len(made.files) == 4
    assert ids(made) == stream(TEXTS)


def test_empty_parts_are_skipped(tmp_path):
    """The last one may be empty too."""
    first, second = corpus(2).examples.parts
    empty = MemoryPart("empty", ())
    documents = [empty, first, empty, second, empty]
    parts = of_parts(documents)
    made = prepare(parts, tokenizer(), tmp_path, EACH_PART)
    assert ids(made) == stream(TEXTS)


def test_files_do_not_depend_on_the_number_of_workers(tmp_path):
    for workers in (1, 2):
        limits = Limits(workers=workers, shard_bytes=1)
        folder = tmp_path / str(workers)
        prepare(corpus(4), tokenizer(), folder, limits)
    assert content(tmp_path / "1") == content(tmp_path / "2")
    assert len(content(tmp_path / "1")) == 6


@pytest.mark.parametrize("role", ["train", "heldout"])
def test_the_documents_of_a_role_are_prepared(tmp_path, role):
    chosen = corpus(3).hold_out(role, 0.3)
    made = prepare(chosen, tokenizer(), tmp_path, EACH_PART)
    documents = chosen.examples.read()
    assert ids(made) == stream(list(documents))
    assert made.index["heldout_share"] == 0.3
    assert made.index["side"] == role


def test_lines_of_a_single_document_are_held_out(tmp_path):
    text = "".join(f"{sentence}\n" for sentence in TEXTS)
    whole = in_memory("book", [text])
    documents = []
    for role in ("train", "heldout"):
        chosen = whole.hold_out(role, 0.25)
        folder = tmp_path / role
        made = prepare(chosen, tokenizer(), folder, EACH_PART)
        (document,) = chosen.examples.read()
        assert ids(made) == stream([document])
        documents.append(document)
    assert "".join(documents) == text


def test_lone_surrogates_and_long_words_are_prepared(tmp_path):
    texts = ["a \ud800 b", "x" * 10_000, "\0", "日本 " * 3000]
    odd = in_memory("odd", texts)
    made = prepare(odd, tokenizer(), tmp_path, EACH_PART)
    assert made.documents == 4
    made_ids = made.read(0, made.tokens)
    decoded = tokenizer().decode(made_ids)
    assert "a ? b" in decoded
    assert decoded.count("x") == 10_000
    assert decoded.count("日本") == 3000


# Interruptions


def test_finished_shards_are_kept(tmp_path, interrupted):
    folder = tmp_path / "a"
    interrupt(interrupted, folder)
    assert "no prepared corpus" in failure(Prepared, folder)
    before = {}
    for path in folder.glob("ids-*"):
        before[path] = path.stat().st_mtime_ns
    assert len(before) == 2
    temporary = folder / ".ids-00002-of-00003.array_record.12345678.tmp"
    temporary.touch()
    Interrupting.allowed.set()
    prepare(interrupted, tokenizer(), folder, EACH_PART)
    for path, time in before.items():
        assert path.stat().st_mtime_ns == time
    hidden = []
    for path in folder.glob(".*"):
        hidden.append(path.name)
    assert hidden == [".lock"]
    uninterrupted = tmp_path / "b"
    prepare(corpus(3), tokenizer(), uninterrupted, EACH_PART)
    assert content(folder) == content(uninterrupted)


@pytest.mark.parametrize("is_emptied", [False, True])
def test_shards_are_moved_to_a_remote_folder(tmp_path, cache_folder, interrupted, is_emptied):
    """Each is moved as it is done; shards that somebody deletes are made again."""
    target = f"memory://{tmp_path.name}/prepared"
    interrupt(interrupted, target)
    assert len(files.find_files(target)) == 2
    if is_emptied:
        fsspec.filesystem("memory").rm(target, recursive=True)
    Interrupting.allowed.set()
    made = prepare(interrupted, tokenizer(), target, EACH_PART)
    assert ids(made) == stream(TEXTS)
    local = tmp_path / "local"
    prepare(corpus(3), tokenizer(), local, EACH_PART)
    uploaded = {}
    for file in files.find_files(target):
        uploaded[file.name] = files.read_small(file.path)
    assert uploaded == content(local)
    assert not list(cache_folder.glob("preparing-*"))


def test_a_damaged_plan_is_refused(tmp_path, interrupted):
    interrupt(interrupted, tmp_path)
    path = tmp_path / "unfinished" / "plan.json"
    path.write_text("[]")
    message = failure(prepare, interrupted, tokenizer(), tmp_path, EACH_PART)
    assert f"{path} holds a list" in message


@pytest.mark.parametrize("record", ["[]", "{}", '{"ids_bytes": 1}', ""])
def test_shards_with_a_damaged_record_are_made_again(tmp_path, interrupted, record):
    interrupt(interrupted, tmp_path)
    Interrupting.allowed.set()
    (tmp_path / "unfinished" / "shard-00000.json").write_text(record)
    made = prepare(interrupted, tokenizer(), tmp_path, EACH_PART)
    assert ids(made) == stream(TEXTS)


def overwrite(path):
    path.write_bytes(b"x")


@pytest.mark.parametrize("damage", [Path.unlink, overwrite])
def test_damaged_shards_are_made_again(tmp_path, interrupted, damage):
    interrupt(interrupted, tmp_path)
    Interrupting.allowed.set()
    damage(tmp_path / "ids-00001-of-00003.array_record")
    made = prepare(interrupted, tokenizer(), tmp_path, EACH_PART)
    assert ids(made) == stream(TEXTS)


def test_a_dead_worker_is_reported_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PARENT", str(os.getpid()))
    whole = corpus(2)
    parts = []
    for part in whole.examples.parts:
        parts.append(Ending(*part))
    ending = of_parts(parts, whole.content)
    limits = Limits(workers=2, shard_bytes=1)
    message = failure(prepare, ending, tokenizer(), tmp_path, limits)
    assert "fewer workers" in message
    made = prepare(whole, tokenizer(), tmp_path, EACH_PART)
    assert ids(made) == stream(TEXTS)


def test_an_error_in_one_shard_stops_the_others(tmp_path):
    first, second = corpus(2).examples.parts
    endless = Endless(*first)
    damaged = Damaged(*second)
    parts = of_parts([endless, damaged])
    limits = Limits(workers=2, shard_bytes=1)
    message = failure(prepare, parts, tokenizer(), tmp_path, limits)
    assert message == "a damaged part"
    assert not list(tmp_path.glob(".*.tmp"))


# What is refused


def broken_lines(folder):
    """Two files of 20 documents, the first with two bad records, the second with one."""
    folder.mkdir()
    for name, bad in (("a", 2), ("b", 1)):
        lines = []
        for text in TEXTS[:20]:
            lines.append(json.dumps({"text": text}))
        lines += ["{"] * bad
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


def test_bad_records_are_counted_over_all_parts(tmp_path):
    text = broken_lines(tmp_path / "text")
    limits = Limits(workers=1, shard_bytes=1, max_bad_records=3)
    documents = read(text)
    made = prepare(documents, tokenizer(), tmp_path / "out", limits)
    assert made.skipped == 3
    by_shard = []
    for shard in made.index["shards"]:
        by_shard.append(shard["skipped"])
    assert by_shard == [2, 1]
    assert f"{text}/a.jsonl, line 21: not JSON" in made.skipped_first[0]
    documents = stream(TEXTS[:20])
    assert ids(made) == 2 * documents


@pytest.mark.parametrize("workers", [1, 2])
def test_too_many_bad_records_are_refused(tmp_path, workers):
    text = broken_lines(tmp_path / "text")
    limits = Limits(workers, max_bad_records=2, shard_bytes=1)
    documents = read(text)
    message = failure(prepare, documents, tokenizer(), tmp_path / "out", limits)
    assert ".jsonl, line 21" in message
    assert "max_bad_records=2" in message


def test_a_finished_folder_with_too_many_bad_records_is_refused(tmp_path):
    text = broken_lines(tmp_path / "text")
    folder = tmp_path / "out"
    prepare(read(text), tokenizer(), folder, Limits(workers=1, max_bad_records=3))
    stricter = Limits(workers=1, max_bad_records=2)
    message = failure(prepare, read(text), tokenizer(), folder, stricter)
    assert "max_bad_records=2" in message


def test_runs_report_bad_records(tmp_path, capsys):
    text = broken_lines(tmp_path / "text")
    limits = Limits(workers=1, max_bad_records=3)
    prepare_in_cache(read(text), tokenizer(), tmp_path / "cache", limits)
    stderr = capsys.readouterr().err
    assert f"{text}: 3 bad records skipped, the first: " in stderr


def other_preparations():
    """Arguments of other preparations than that of corpus(2), and what differs."""
    whole = corpus(2)
    other_tokenizer = Tokenizer.train(TEXTS, 310)
    train = whole.hold_out("train", 0.1)
    heldout = whole.hold_out("heldout", 0.1)
    return [
        (whole, other_tokenizer, "vocab_size 320, not 310"),
        (corpus(2, TEXTS[1:]), tokenizer(), "corpus"),
        (corpus(3), tokenizer(), "corpus"),
        (train, tokenizer(), "heldout_share 0.0, not 0.1"),
        (heldout, tokenizer(), "side 'train', not 'heldout'"),
    ]


@pytest.mark.parametrize("is_begun", [False, True])
def test_folders_of_another_preparation_are_refused(tmp_path, is_begun):
    done = tmp_path / "done"
    prepare(corpus(2), tokenizer(), done)
    before = content(done)
    folder = done
    if is_begun:
        folder = tmp_path / "begun"
        plan = folder / "unfinished" / "plan.json"
        plan.parent.mkdir(parents=True)
        plan.write_bytes(before["index.json"])
    for other, its_tokenizer, difference in other_preparations():
        message = failure(prepare, other, its_tokenizer, folder)
        assert str(folder) in message
        assert difference in message
    assert content(done) == before


@pytest.mark.parametrize("name", ["thesis.tex", "in/thesis.tex", "ids-00000-of-00009.array_record"])
def test_a_folder_of_other_files_is_refused(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("words")
    documents = corpus(2)
    message = failure(prepare, documents, tokenizer(), tmp_path)
    assert f"{str(tmp_path)!r} is not empty" in message
    assert path.read_text() == "words"


def test_a_file_in_place_of_a_folder_is_refused(tmp_path):
    path = tmp_path / "thesis.tex"
    path.write_text("words")
    assert str(path) in failure(prepare, corpus(2), tokenizer(), path)
    assert path.read_text() == "words"


@pytest.mark.parametrize("make", [prepare, prepare_in_cache])
@pytest.mark.parametrize("role", ["", "heldout"])
def test_a_corpus_without_text_is_refused(tmp_path, make, role):
    (tmp_path / "empty.txt").write_text("\n\n")
    nothing = read(tmp_path / "empty.txt")
    reason = "has no text: the file is empty"
    if role:
        nothing = corpus(2).hold_out(role, 1e-9)
        reason = "no text for 'heldout' with heldout_share=1e-09"
    folder = tmp_path / "deep" / "er"
    for _ in range(2):
        message = failure(make, nothing, tokenizer(), folder, EACH_PART)
        assert repr(nothing.name) in message
        assert reason in message
    assert not list(tmp_path.rglob("unfinished"))


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_terminals_show_a_progress_bar(tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(preparation, "DELAY", 0)
    monkeypatch.setattr(sys, "stderr", terminal)
    prepare(corpus(2), tokenizer(), tmp_path, EACH_PART)
    output = terminal.getvalue()
    assert output.startswith("tokenizing texts\n")
    assert "100%" in output


# The cache


def test_a_corpus_is_prepared_once(tmp_path):
    made = prepare_in_cache(corpus(2), tokenizer(), tmp_path)
    index = Path(made.folder, "index.json")
    written = index.stat().st_mtime_ns
    again = prepare_in_cache(corpus(2), tokenizer(), tmp_path)
    copy = pickle.loads(pickle.dumps(again))
    assert again.folder == made.folder
    assert ids(copy) == stream(TEXTS)
    assert index.stat().st_mtime_ns == written


def test_each_preparation_has_its_own_folder(tmp_path):
    folders = set()
    for other, its_tokenizer, _ in other_preparations():
        made = prepare_in_cache(other, its_tokenizer, tmp_path)
        folders.add(made.folder)
        last = ids(made)[-1]
        assert last == its_tokenizer.sep_id
    made = prepare_in_cache(corpus(2), tokenizer(), tmp_path)
    documents = corpus(2)
    in_shards = prepare_in_cache(documents, tokenizer(), tmp_path, EACH_PART)
    folders |= {made.folder, in_shards.folder}
    assert len(folders) == 7


@pytest.mark.parametrize("name", ["tokenizer.model", "ids-00000-of-00002.array_record"])
def test_a_damaged_cache_is_refused(tmp_path, name):
    documents = corpus(2)
    made = prepare_in_cache(documents, tokenizer(), tmp_path, EACH_PART)
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


def test_training_a_tokenizer_on_empty_files_is_refused(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(" \n")
    whole = read(tmp_path)
    for text in (whole, whole.hold_out("train", 0.05)):
        message = failure(cached_tokenizer, text, 300, tmp_path / "cache")
        assert f"{str(tmp_path)!r} has no text: all 2 files are empty" in message
    nothing = in_memory("a list", [" "])
    message = failure(cached_tokenizer, nothing, 300, tmp_path / "cache")
    assert "'a list' has no text: all documents are" in message


# Text to train a tokenizer on


def sample(parts, characters):
    return list(sample_documents(corpus(parts), characters, BadRecords()))


def test_a_small_corpus_is_sampled_whole():
    assert sample(3, total_size(TEXTS)) == TEXTS


def test_a_large_corpus_is_sampled_from_the_start_of_each_part():
    half = total_size(TEXTS) // 2
    taken = sample(4, half)
    assert half <= total_size(taken) <= half + 4
    longest = max(map(len, TEXTS))
    for part in corpus(4).examples.parts:
        of_part = [text for text in taken if text in part.texts]
        begun = "".join(of_part)
        whole = "".join(part.texts)
        assert whole.startswith(begun)
        expected = part.size / 2
        assert abs(len(begun) - expected) < longest


def test_tokenizers_are_not_trained_on_held_out_documents():
    train = corpus(1).hold_out("train", 0.3)
    taken = list(sample_documents(train, 10**9, BadRecords()))
    assert taken == list(train.examples.read())
    assert len(taken) < len(TEXTS)
