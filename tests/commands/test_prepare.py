"""`gmlp prepare` as a user runs it: results, resuming after SIGKILL, and one line for each
mistake."""

import json
import os
import random
import shutil
import subprocess
import time

import pytest

from gmlp_flax.data.text.packing import Packing
from gmlp_flax.data.text.prepared import Prepared, is_prepared
from gmlp_flax.data.text.tokenizer import Tokenizer
from tests import preloaded
from tests.data.conftest import shared_data  # noqa: F401 - a fixture
from tests.data.text.preparing import content

WORDS = [
    f"{start}{end}"
    for start in ("ba", "de", "ki", "lo", "mu")
    for end in ("n", "r", "sta", "lle", "")
]


def start(*words, **environment):
    return preloaded.start("-m", "gmlp_flax", "prepare", *words, **environment)


def run(*words) -> subprocess.CompletedProcess:
    return preloaded.gmlp("prepare", *words)


def error(*words) -> str:
    """The one line a command ends with that must not work."""
    done = run(*words)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr, (
        done.stderr
    )
    assert done.stderr.splitlines()[-1].startswith("error: ")
    return done.stderr.splitlines()[-1]


def write_corpus(folder, files, documents, words):
    rng = random.Random(files)
    folder.mkdir()
    for number in range(files):
        lines = (" ".join(rng.choices(WORDS, k=rng.randint(1, words))) for _ in range(documents))
        text = "".join(json.dumps({"text": line}) + "\n" for line in lines)
        (folder / f"part-{number:05}-of-{files:05}.jsonl").write_text(text)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small corpus, and a tokenizer of it."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder / "text", 3, 40, 60)
    done = run(
        folder / "text",
        f"--out={folder}/p",
        "--vocab_size=300",
        f"--cache={folder}/c",
        "--workers=1",
    )
    assert done.returncode == 0 and "300 pieces" in done.stdout, done.stderr
    (folder / "p" / "tokenizer.model").rename(folder / "t.model")
    return folder


def test_a_folder_to_train_on(folder, tmp_path):
    command = [
        folder / "text",
        f"--out={tmp_path}/p",
        "--vocab_size=300",
        f"--cache={folder}/c",
        "--workers=1",
    ]
    done = run(*command)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    made = Prepared(tmp_path / "p")
    assert made.documents == 120 and made.tokenizer == Tokenizer.load(folder / "t.model")
    assert f"documents        120\ntokens           {made.tokens:,} (" in done.stdout
    assert "skipped records  0\n" in done.stdout
    assert (
        f"--config.data.train={tmp_path}/p --config.model.vocab_size=300 (or more)" in done.stdout
    )
    assert len(Packing(made, 16)[0]["tokens"]) == 16
    # A second time there is nothing to do; with the tokenizer's file it is the same.
    before = content(tmp_path / "p")
    assert (
        run(*command, f"--tokenizer={folder}/t.model").returncode == 0
        and content(tmp_path / "p") == before
    )


def test_a_split_and_bad_records(folder, tmp_path):
    for split in ("train", "test"):
        (tmp_path / "split").mkdir(exist_ok=True)
        lines = '{"text": "ban der"}\n{broken\n' * (2 if split == "train" else 1)
        (tmp_path / "split" / f"{split}-00000-of-00001.jsonl").write_text(lines)
    command = [tmp_path / "split", f"--tokenizer={folder}/t.model", "--split=train"]
    assert "max_bad_records=1" in error(*command, f"--out={tmp_path}/a", "--max_bad_records=1")
    done = run(*command, f"--out={tmp_path}/b", "--max_bad_records=2")
    assert (
        "skipped records  2\n" in done.stdout
        and "train-00000-of-00001.jsonl, line 2" in done.stdout
    )
    assert Prepared(tmp_path / "b").documents == 2


def test_mistakes_are_one_line(folder, tmp_path):
    model, text, out = f"--tokenizer={folder}/t.model", folder / "text", f"--out={tmp_path}/out"
    for words, message in (
        ((tmp_path / "nowhere", out, model), "nothing at '"),
        ((text, out, "--tokenizer=nowhere.model"), "reading nowhere.model failed"),
        ((text, out, "--vocab_size=0"), "--vocab_size=0"),
        ((text, out, model, "--side=both"), "--side=both: expected one of train, heldout"),
        (("listops:tiny", out), "listops:tiny: expected 3 numbers"),
        (("listops:1,1,1", out, "--lengths=9"), "--lengths=9: expected 2 numbers"),
    ):
        assert message in error(*words)
    assert not (tmp_path / "out").exists()
    assert run(text, out, model).returncode == 0
    assert "heldout_share 0.0, not 0.5" in error(text, out, model, "--heldout_share=0.5")


def kill_at_work(command, folder, rng, within=None) -> None:
    """Starts the command and kills it: `within` so many seconds, or after it has finished one to
    three shards more."""
    process, before = start(*command), len(list(folder.glob("unfinished/shard-*.json")))
    if within is not None:
        time.sleep(rng.uniform(0, within))
    else:
        wanted = before + rng.randint(1, 3)
        while process.poll() is None and len(list(folder.glob("unfinished/shard-*.json"))) < wanted:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("kills", "files"), [(4, 30), pytest.param(12, 80, marks=pytest.mark.slow)]
)
def test_killed_and_run_again_gives_the_same_bytes(folder, tmp_path, kills, files):
    text = write_corpus(tmp_path / "text", files, 300, 400)
    command = [text, f"--tokenizer={folder}/t.model", "--shard_bytes=100000"]
    begin = time.perf_counter()
    whole = run(*command, f"--out={tmp_path}/whole", "--workers=1")
    assert whole.returncode == 0, whole.stderr
    while_it_starts = (time.perf_counter() - begin) / 3  # or a little later, whatever the machine
    killed, rng, halfway = tmp_path / "killed", random.Random(kills), 0
    for kill in range(kills):
        within = while_it_starts if kill % 4 == 3 else None
        kill_at_work(
            [*command, f"--out={killed}", f"--workers={1 + kill % 3}"], killed, rng, within
        )
        halfway += any(killed.glob("unfinished/shard-*.json"))
        if is_prepared(killed):  # on a busy machine it may come to its end before the signal
            shutil.rmtree(killed)
    assert halfway, "it always came to its end before the signal: give it more files"
    done = run(*command, f"--out={killed}", "--workers=2")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert content(killed) == content(tmp_path / "whole") and len(content(killed)) == files + 2
    assert sorted(path.name for path in killed.glob(".*")) == [".lock"]


def test_workers_end_with_a_killed_parent(folder, tmp_path):
    text = write_corpus(tmp_path / "text", 4, 6000, 400)
    process = start(
        text,
        f"--tokenizer={folder}/t.model",
        "--shard_bytes=100000",
        f"--out={tmp_path}/p",
        "--workers=2",
    )
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    if not os.path.exists(children):
        process.kill()
        process.communicate()
        pytest.skip("this system does not list a process's children")
    found = []
    while process.poll() is None and len(found) < 3:  # two workers and a resource tracker
        with open(children) as file:
            found = file.read().split()
        time.sleep(0.01)
    assert len(found) == 3
    process.kill()
    process.communicate()
    deadline = time.time() + 120
    while any(os.path.exists(f"/proc/{child}/exe") for child in found) and time.time() < deadline:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{child}/exe") for child in found)


def test_listops(tmp_path):
    """Made once."""
    words = (
        "listops:40,8,8",
        f"--out={tmp_path / 'a'}",
        "--lengths=10,60",
        "--depth=5",
        "--seed=2",
    )
    done = run(*words)
    assert done.returncode == 0, done.stderr
    trees, use, more = done.stdout.splitlines()
    assert trees.split(maxsplit=1) == ["trees", "train 40, validation 8, test 8"]
    assert (
        use.endswith(f"--config=lra_listops --config.data.train={tmp_path / 'a'}")
        and "model.length=" in more
    )
    assert run(*words).stdout == done.stdout
    assert {path.suffix for path in (tmp_path / "a").iterdir()} == {".json", ".tsv"}
