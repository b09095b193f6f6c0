"""`gmlp prepare` as a user runs it: results, resuming after SIGKILL, and one line for each
error."""

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gmlp_flax.data.text.packing import Packing
from gmlp_flax.data.text.prepared import Prepared, is_prepared
from gmlp_flax.data.text.tokenizer import Tokenizer
from tests import preloaded
from tests.data.text.preparing import content

STARTS = ("ba", "de", "ki", "lo", "mu")
ENDS = ("n", "r", "sta", "lle", "")
WORDS = [f"{start}{end}" for start in STARTS for end in ENDS]


def start(*words):
    return preloaded.start("-m", "gmlp_flax", "prepare", *words)


def run(*words) -> subprocess.CompletedProcess:
    """The result of a command that must succeed."""
    done = preloaded.gmlp("prepare", *words)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


def error(*words) -> str:
    """The last line of a command that must fail."""
    done = preloaded.gmlp("prepare", *words)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    return last


def write_lines(path, *texts):
    lines = [json.dumps({"text": text}) for text in texts]
    path.write_text("\n".join([*lines, ""]))


def write_corpus(folder, files, documents, words):
    rng = random.Random(files)
    folder.mkdir()
    for number in range(files):
        texts = []
        for _ in range(documents):
            count = rng.randint(1, words)
            texts.append(" ".join(rng.choices(WORDS, k=count)))
        write_lines(folder / f"part-{number:05}-of-{files:05}.jsonl", *texts)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small corpus, a tokenizer that was trained on it, and its tokens."""
    folder = tmp_path_factory.mktemp("corpus")
    text = write_corpus(folder / "text", 3, 40, 60)
    flags = (f"--out={folder}/p", "--vocab_size=300", f"--cache={folder}/c", "--workers=1")
    run(text, *flags)
    model_path = folder / "p" / "tokenizer.model"
    shutil.copy(model_path, folder / "t.model")
    return folder


def test_prepared_folder_is_trained_on(folder, tmp_path):
    out = f"--out={tmp_path}/p"
    trained = (f"--cache={folder}/c", "--vocab_size=300")
    done = run(folder / "text", out, *trained, "--workers=1")
    made = Prepared(tmp_path / "p")
    assert made.documents == 120
    expected = Tokenizer.load(folder / "t.model")
    assert made.tokenizer == expected
    window = Packing(made, 16)[0]
    assert len(window["tokens"]) == 16
    prepared = content(tmp_path / "p")
    assert prepared == content(folder / "p")
    words = done.stdout.split()
    assert words[:2] == ["documents", "120"]
    tokens = f"{made.tokens:,}"
    assert words[2:4] == ["tokens", tokens]
    assert f"--config.data.train={tmp_path}/p" in words
    assert "--config.model.vocab_size=300" in words
    assert "text read: 3 files (part-00000-of-00003.jsonl, " in done.stderr
    # A second time there is nothing to do; with the tokenizer's file it is the same.
    run(folder / "text", out, f"--tokenizer={folder}/t.model")
    prepared = content(tmp_path / "p")
    assert prepared == content(folder / "p")


def test_held_out_documents(folder, tmp_path):
    command = (folder / "text", f"--tokenizer={folder}/t.model", "--heldout_share=0.3")
    done = run(*command, f"--out={tmp_path}/heldout", "--side=heldout")
    assert f"--config.data.heldout={tmp_path}/heldout" in done.stdout
    assert "30 % of the documents held out" in done.stderr
    run(*command, f"--out={tmp_path}/train")
    heldout = Prepared(tmp_path / "heldout").documents
    assert 15 < heldout < 60
    train = Prepared(tmp_path / "train")
    assert train.documents == 120 - heldout


@pytest.mark.slow
def test_splits(folder, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    counts = (("train", 1), ("valid", 2), ("test", 3))
    for name, count in counts:
        lines = ["ban der"] * count
        write_lines(text / f"{name}.jsonl", *lines)
    (text / "notes.md").write_text("notes")
    model = f"--tokenizer={folder}/t.model"
    documents = {}
    for split in ("", "train", "dev", "test", "all"):
        out = tmp_path / f"out-{split}"
        done = run(text, model, f"--out={out}", f"--split={split}")
        documents[split] = Prepared(out).documents
        assert "not read (.md 1)" in done.stderr
        role = "heldout" if split in ("dev", "test") else "train"
        assert f"--config.data.{role}={out} " in done.stdout
    assert documents == {"": 1, "train": 1, "dev": 2, "test": 3, "all": 6}
    message = error(text, model, f"--out={tmp_path}/no", "--split=extra")
    assert "'extra'" in message
    assert "'validation'" in message


def test_tokenizer_trained_only_on_held_out_text_gets_a_note(tmp_path):
    """The tokens of the other split would then have another tokenizer."""
    text = tmp_path / "text"
    text.mkdir()
    words = ["one two three", "four five six", "seven eight nine"]
    notes = {}
    for split in ("train", "validation"):
        write_lines(text / f"{split}.jsonl", *words * 40)
    for split in ("train", "validation"):
        done = run(text, f"--out={tmp_path}/{split}", f"--split={split}", "--vocab_size=300")
        messages = done.stderr.splitlines()
        notes[split] = [line for line in messages if "--tokenizer" in line]
    assert notes["train"] == []
    [note] = notes["validation"]
    assert note.startswith("note: a tokenizer is trained on this split alone")


def test_bad_records(folder, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "ban der"}\n{broken\n' * 2)
    command = (path, f"--tokenizer={folder}/t.model")
    message = error(*command, f"--out={tmp_path}/a", "--max_bad_records=1")
    assert "max_bad_records=1" in message
    done = run(*command, f"--out={tmp_path}/b", "--max_bad_records=2")
    assert "skipped records  2\n" in done.stdout
    assert f"{path}, line 2" in done.stdout
    assert f"{path}, line 4" in done.stdout
    assert Prepared(tmp_path / "b").documents == 2


def test_vocabulary_of_words(tmp_path):
    """The output has the decision about lower case and the share of unknown tokens."""
    pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
    text = tmp_path / "a.jsonl"
    vocabulary = tmp_path / "vocab.txt"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ban", "der", "lo"]
    vocabulary.write_text("\n".join(words))
    write_lines(text, *["Ban der lo", "ban DER mun"] * 3)
    command = (text, f"--tokenizer={vocabulary}")
    assert "do_lower_case" in error(*command, f"--out={tmp_path}/a")
    done = run(*command, f"--out={tmp_path}/a", "--do_lower_case=True")
    assert "vocab.txt: text is lower-cased, accents are stripped" in done.stderr
    assert "16.7% of the tokens" in done.stderr
    done = run(*command, f"--out={tmp_path}/b", "--do_lower_case=False")
    assert "text is not lower-cased" in done.stderr
    assert "50.0% of the tokens" in done.stderr
    lower_cased = Prepared(tmp_path / "a")
    cased = Prepared(tmp_path / "b")
    first_ids = lower_cased.read(0, 4)
    assert first_ids.tolist() == [5, 6, 7, 3]
    cased_ids = cased.read(0, 4)
    assert cased_ids.tolist() == [1, 6, 7, 3]
    flags = (f"--out={tmp_path}/c", "--tokenizer=bytes", "--do_lower_case=True")
    message = error(text, *flags)
    assert "do_lower_case is True" in message


@pytest.mark.slow
def test_user_errors_are_one_line(folder, tmp_path):
    model = f"--tokenizer={folder}/t.model"
    out = f"--out={tmp_path}/out"
    text = folder / "text"
    table = tmp_path / "a.csv"
    table.write_text("text\nwords\n")
    missing = tmp_path / "missing"
    cases = (
        ("nothing at '", (missing, out, model)),
        ("is a table", (table, out, model)),
        ("--out", (text, model)),
        ("reading missing.model failed", (text, out, "--tokenizer=missing.model")),
        ("--vocab_size=0", (text, out, "--vocab_size=0")),
        ("vocab_size=200", (text, out, "--vocab_size=200")),
        ("--side=both: expected one of train, heldout", (text, out, model, "--side=both")),
        ("--heldout_share=0.0", (text, out, model, "--side=heldout")),
        ("--heldout_share=1.0", (text, out, model, "--heldout_share=1")),
        ("has no split 'dev'", (text, out, model, "--split=dev")),
        ("listops:tiny: expected 3 numbers", ("listops:tiny", out)),
        ("--lengths=9: expected 2 numbers", ("listops:1,1,1", out, "--lengths=9")),
    )
    for message, words in cases:
        error_message = error(*words, f"--cache={folder}/c")
        assert message in error_message
    assert not (tmp_path / "out").exists()
    run(text, out, model)
    message = error(text, out, model, "--heldout_share=0.5")
    assert "heldout_share 0.0, not 0.5" in message


def shards_done(folder):
    return len(list(folder.glob("unfinished/shard-*.json")))


def kill_at_work(process, folder, rng) -> None:
    """Kills a command after it has finished one to three more shards."""
    wanted = shards_done(folder) + rng.randint(1, 3)
    while process.poll() is None and shards_done(folder) < wanted:
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.02))
    process.kill()
    process.communicate()


def kill_at_start(process, seconds, rng) -> None:
    time.sleep(rng.uniform(0, seconds))
    process.kill()
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "files"),
    [
        pytest.param(4, 30),
        pytest.param(12, 80, marks=pytest.mark.nightly),
    ],
)
def test_killed_and_repeated_command_gives_the_same_bytes(folder, tmp_path, kills, files):
    text = write_corpus(tmp_path / "text", files, 300, 400)
    command = (text, f"--tokenizer={folder}/t.model", "--shard_bytes=100000")
    begin = time.perf_counter()
    run(*command, f"--out={tmp_path}/whole", "--workers=1")
    seconds = time.perf_counter() - begin
    killed = tmp_path / "killed"
    rng = random.Random(kills)
    halfway = 0
    for kill in range(kills):
        workers = 1 + kill % 3
        process = start(*command, f"--out={killed}", f"--workers={workers}")
        if kill % 4 == 3:
            kill_at_start(process, seconds / 3, rng)
        else:
            kill_at_work(process, killed, rng)
        if shards_done(killed):
            halfway += 1
        if is_prepared(killed):  # on a busy machine it may finish before the signal
            shutil.rmtree(killed)
    assert halfway, "it always finished before the signal: give it more files"
    run(*command, f"--out={killed}", "--workers=2")
    assert content(killed) == content(tmp_path / "whole")
    assert len(content(killed)) == files + 2
    hidden = []
    for path in killed.glob(".*"):
        hidden.append(path.name)
    assert hidden == [".lock"]


def are_alive(process_ids: list[str]) -> bool:
    """Whether any of some processes is still running."""
    return any(os.path.exists(f"/proc/{process_id}/exe") for process_id in process_ids)


def test_workers_end_with_a_killed_parent(folder, tmp_path):
    text = write_corpus(tmp_path / "text", 4, 6000, 400)
    flags = ("--shard_bytes=100000", f"--out={tmp_path}/p", "--workers=2")
    process = start(text, f"--tokenizer={folder}/t.model", *flags)
    pid = process.pid
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    if not listed.exists():
        process.kill()
        process.communicate()
        pytest.skip("this system does not list a process's children")
    children: list[str] = []
    while process.poll() is None and len(children) < 3:  # two workers and a resource tracker
        children = listed.read_text().split()
        time.sleep(0.01)
    assert len(children) == 3
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 120
    while are_alive(children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not are_alive(children)


def test_prepared_listops(tmp_path):
    """They are made only once."""
    folder = tmp_path / "a"
    command = ("listops:40,8,8", f"--out={folder}", "--lengths=10,60", "--depth=5", "--seed=2")
    done = run(*command)
    trees, use, more = done.stdout.splitlines()
    assert trees.split(maxsplit=1) == ["trees", "train 40, validation 8, test 8"]
    assert use.endswith(f"--config=lra_listops --config.data.train={folder}")
    facts = json.loads((folder / "listops.json").read_text())
    length = facts["longest"] + 2
    assert f"--config.model.length={length} " in more
    again = run(*command)
    assert again.stdout == done.stdout
    names = {path.name for path in folder.iterdir()}
    assert names == {"basic_test.tsv", "basic_train.tsv", "basic_val.tsv", "listops.json"}
    assert "'seed': 2" in error(*command, "--seed=3")
