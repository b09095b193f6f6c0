import json
import pickle
import threading
from pathlib import Path

import fsspec
import pytest

from gmlp_flax.data.text import prepare as prepare_module
from gmlp_flax.data.text import prepared
from gmlp_flax.data.text.corpora import Corpus, MemoryPart, open_corpus
from gmlp_flax.data.text.prepare import cached, prepare
from gmlp_flax.data.text.selection import Selection
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from tests.data.text.preparing import TEXTS, content, corpus, stream, tokenizer


def test_all_documents_in_order(tmp_path):
    made = prepare(corpus(1), tokenizer(), tmp_path)
    assert made.read(0, made.tokens).tolist() == stream(TEXTS)
    assert sorted(content(tmp_path)) == [
        "ids-00000-of-00001.array_record",
        "index.json",
        "lengths-00000-of-00001.npy",
        "tokenizer.model",
    ]


def test_shards_are_of_consecutive_parts_and_equal_size(tmp_path):
    total = sum(part.size for part in corpus(10).parts)
    for shard_bytes, shards in ((1, 10), (total // 3, 3), (total + 1, 1)):
        made = prepare(corpus(10), tokenizer(), tmp_path / str(shards), shard_bytes=shard_bytes, workers=1)
        assert len(made.index["shards"]) == shards
        assert made.read(0, made.tokens).tolist() == stream(TEXTS)
        sizes = [shard["tokens"] for shard in made.index["shards"]]
        assert max(sizes) < 2 * min(sizes)


def test_workers_change_nothing(tmp_path):
    for workers in (1, 2):
        prepare(corpus(4), tokenizer(), tmp_path / str(workers), shard_bytes=1, workers=workers)
    assert content(tmp_path / "1") == content(tmp_path / "2")
    assert len(content(tmp_path / "1")) == 10


class Interrupting(MemoryPart):
    """A part that interrupts the work once."""

    allowed = threading.Event()

    def documents(self, bad=None):
        if not self.allowed.is_set():
            raise KeyboardInterrupt
        return super().documents(bad)


def test_finished_shards_that_are_gone_from_a_remote_folder(tmp_path, monkeypatch):
    """Somebody has emptied it: an index over shards that are missing would end every later command."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    whole, target = corpus(3), f"memory://{tmp_path.name}/prepared"
    monkeypatch.setattr(Interrupting, "allowed", threading.Event())
    broken = Corpus("texts", (*whole.parts[:2], Interrupting(*whole.parts[2])), whole.fingerprint)
    with pytest.raises(KeyboardInterrupt):
        prepare(broken, tokenizer(), target, shard_bytes=1, workers=1)
    assert len(files.find_files(target)) == 4
    fsspec.filesystem("memory").rm(target, recursive=True)
    Interrupting.allowed.set()
    made = prepare(broken, tokenizer(), target, shard_bytes=1, workers=1)
    assert made.read(0, made.tokens).tolist() == stream(TEXTS)


def test_finished_shards_are_kept(tmp_path, monkeypatch):
    whole = corpus(3)
    parts = (*whole.parts[:2], Interrupting(*whole.parts[2]))
    monkeypatch.setattr(Interrupting, "allowed", threading.Event())
    broken = Corpus("texts", parts, whole.fingerprint)
    with pytest.raises(KeyboardInterrupt):
        prepare(broken, tokenizer(), tmp_path / "a", shard_bytes=1, workers=1)
    with pytest.raises(DataError, match="no prepared corpus in .*; make it, or finish it"):
        prepared.Prepared(tmp_path / "a")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").glob("ids-*")}
    assert len(before) == 2
    (tmp_path / "a" / ".ids-00002-of-00003.array_record.12345678.tmp").touch()
    Interrupting.allowed.set()
    prepare(broken, tokenizer(), tmp_path / "a", shard_bytes=1, workers=2)
    assert {name: (tmp_path / "a" / name).stat().st_mtime_ns for name in before} == before
    assert sorted(path.name for path in (tmp_path / "a").glob(".*")) == [".lock"]
    prepare(whole, tokenizer(), tmp_path / "b", shard_bytes=1, workers=1)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_selection(tmp_path):
    for side in ("train", "heldout"):
        made = prepare(corpus(2), tokenizer(), tmp_path / side, selection=Selection(0.2, side))
        expected = list(Selection(0.2, side).pick(iter(TEXTS), False))
        assert made.read(0, made.tokens).tolist() == stream(expected) and made.documents == len(expected) > 0


def test_bad_records_are_counted_over_all_parts(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for name, bad in (("a", 2), ("b", 1)):
        lines = [json.dumps({"text": text}) for text in TEXTS[:20]] + ["{"] * bad
        (text / f"{name}.jsonl").write_text("\n".join(lines))
    options = {"shard_bytes": 1, "workers": 1}
    made = prepare(open_corpus(str(text)), tokenizer(), tmp_path / "out", max_bad_records=3, **options)
    assert made.skipped == 3 and [shard["skipped"] for shard in made.index["shards"]] == [2, 1]
    assert "a.jsonl" in made.index["shards"][0]["skipped_first"][0]
    for workers in (1, 2):
        with pytest.raises(DataError, match=r"[ab].jsonl, .*max_bad_records=2"):
            options = {"max_bad_records": 2, "shard_bytes": 1, "workers": workers}
            prepare(open_corpus(str(text)), tokenizer(), tmp_path / f"out{workers}", **options)


def test_another_preparation(tmp_path):
    prepare(corpus(2), tokenizer(), tmp_path / "done")
    unfinished = tmp_path / "begun" / "unfinished"
    unfinished.mkdir(parents=True)
    plan = {name: value for name, value in json.loads((tmp_path / "done" / "index.json").read_text()).items()}
    (unfinished / "plan.json").write_text(json.dumps(plan))
    other = Tokenizer.train(TEXTS, 310)
    for folder in (tmp_path / "done", tmp_path / "begun"):
        with pytest.raises(DataError, match=r"another preparation: tokenizer '\w+', not '\w+'; vocab_size 3"):
            prepare(corpus(2), other, folder)
        with pytest.raises(DataError, match="holds another preparation: corpus"):
            prepare(corpus(2, TEXTS[1:]), tokenizer(), folder)
        with pytest.raises(DataError, match="holds another preparation: heldout_share 0.0, not 0.1"):
            prepare(corpus(2), tokenizer(), folder, selection=Selection(0.1))
    (unfinished / "plan.json").write_text("{")
    with pytest.raises(DataError, match="plan.json: damaged; remove .*begun"):
        prepare(corpus(2), tokenizer(), tmp_path / "begun")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(DataError, match="mine' is not empty and holds no preparation; give a folder of its own"):
        prepare(corpus(2), tokenizer(), tmp_path / "mine")


def test_nothing_selected(tmp_path):
    with pytest.raises(DataError, match="of 'texts' leave nothing on the side 'heldout' with heldout_share=1e-09"):
        prepare(corpus(1), tokenizer(), tmp_path, selection=Selection(1e-9, "heldout"))


@pytest.mark.parametrize("make", [prepare, cached])
def test_an_empty_corpus_leaves_no_folder(tmp_path, make):
    (tmp_path / "empty.txt").write_text("\n\n")
    empty = open_corpus(str(tmp_path / "empty.txt"))
    for selection in (Selection(), Selection(0.1, "heldout")):
        with pytest.raises(DataError, match="holds no text|leave nothing on the side"):
            make(empty, tokenizer(), tmp_path / "deep" / "er", selection=selection, workers=1)
        assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match="holds no text"):
        prepare(empty, tokenizer(), tmp_path / "mine", workers=1)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [".lock"], "a folder that was there stays"


def test_a_worker_that_dies_is_one_line(tmp_path, monkeypatch):
    class Broken:
        def submit(self, *_):
            future = prepare_module.futures.Future()
            future.set_exception(prepare_module.BrokenProcessPool("gone"))
            return future

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(prepare_module, "_executor", lambda _: Broken())
    with pytest.raises(DataError, match="a worker process was ended from outside, .*; run again with fewer workers"):
        prepare(corpus(2), tokenizer(), tmp_path)


def test_cached(tmp_path, monkeypatch):
    calls, run = [], prepare_module._run
    monkeypatch.setattr(prepare_module, "_run", lambda *arguments: calls.append(1) or run(*arguments))
    made = cached(corpus(2), tokenizer(), tmp_path)
    assert pickle.loads(pickle.dumps(cached(corpus(2), tokenizer(), tmp_path))).folder == made.folder
    assert len(calls) == 1 and made.read(0, made.tokens).tolist() == stream(TEXTS)
    assert cached(corpus(2), tokenizer(), tmp_path, selection=Selection(0.5)).tokens < made.tokens
    assert cached(corpus(2), Tokenizer.train(TEXTS, 310), tmp_path).tokens > made.tokens
    assert len(list(tmp_path.glob("prepared-*"))) == 3 == len(calls)
    (path,) = (tmp_path / made.folder).glob("ids-*")
    path.write_bytes(path.read_bytes()[:-9])
    again = cached(corpus(2), tokenizer(), tmp_path)
    assert again.folder == made.folder and again.read(0, made.tokens).tolist() == stream(TEXTS)


def test_threads_that_want_the_same_make_it_once(tmp_path, monkeypatch):
    calls, run = [], prepare_module._run
    monkeypatch.setattr(prepare_module, "_run", lambda *arguments: calls.append(1) or run(*arguments))
    threads = [threading.Thread(target=cached, args=(corpus(2), tokenizer(), tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


@pytest.mark.parametrize(
    "name", ["index.json", "tokenizer.model", "ids-00000-of-00002.array_record", "lengths-00001-of-00002.npy"]
)
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"x"),
        lambda path: path.write_bytes(path.read_bytes()[:199] + b"damaged" + path.read_bytes()[206:]),
    ],
)
def test_a_damaged_cache_is_made_again(tmp_path, name, damage):
    options = {"shard_bytes": 1, "workers": 1}
    folder = Path(prepare_module.cached(corpus(2), tokenizer(), tmp_path, **options).folder)
    whole = content(folder)
    damage(folder / name)
    assert content(folder) != whole
    again = prepare_module.cached(corpus(2), tokenizer(), tmp_path, **options)
    assert content(folder) == whole and again.read(0, again.tokens).tolist() == stream(TEXTS)


@pytest.mark.parametrize("name", ["plan.json", "shard-00000.json"])
@pytest.mark.parametrize("content_", ["", "[]", "{}", '{"format": 7}'])
def test_damaged_work_in_the_cache_is_done_again(tmp_path, monkeypatch, name, content_):
    options = {"shard_bytes": 1, "workers": 1}
    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "_finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare_module.cached(corpus(2), tokenizer(), tmp_path, **options)
    (folder,) = tmp_path.glob("prepared-*")
    (folder / "unfinished" / name).write_text(content_)
    again = prepare_module.cached(corpus(2), tokenizer(), tmp_path, **options)
    assert again.read(0, again.tokens).tolist() == stream(TEXTS)
