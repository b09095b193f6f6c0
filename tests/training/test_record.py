"""The recorded settings of a run against those of its next steps, and its environment. Whole runs
are in tests/runs."""

import importlib.resources
import json
import os
import shutil
import subprocess
from pathlib import Path

import jax
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.checkpoints import run_folder
from gmlp_flax.data.holdout import ROLES
from gmlp_flax.data.text.corpus import in_memory
from gmlp_flax.data.text.prepare import Limits, prepare
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import RunError
from gmlp_flax.training import record
from tests.data.finetuning import squad_files
from tests.data.images import image_files
from tests.failures import raised
from tests.training import tiny


def test_changes_at_lost_steps_start_from_the_previous_value(tmp_path):
    before = gmlp_config.default()
    before.optimizer.grad_accum_steps = 4
    (tmp_path / "config.json").write_text(gmlp_config.to_json(before))
    after = gmlp_config.default()
    after.optimizer.grad_accum_steps = 4
    assert record.changes(str(tmp_path), after) == {}
    dropped = {"optimizer.accumulate": 2, "optimizer.rates": []}
    changes = record.changes(str(tmp_path), after, dropped)
    assert changes == {"optimizer.grad_accum_steps": (2, 4)}


def git(root, *command) -> str:
    """Runs git as a made-up user and returns what it prints."""
    user = ("-c", "user.name=n", "-c", "user.email=e")
    done = subprocess.run(
        ["git", "-C", root, *user, *command],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_versions_and_devices():
    found = record.environment()
    assert found["packages"]["jax"] == jax.__version__
    assert found["packages"]["sentencepiece"]
    assert found["devices"] == {
        "kind": jax.devices()[0].device_kind,
        "count": jax.device_count(),
        "hosts": 1,
    }


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_commit_is_the_one_of_the_package(tmp_path, monkeypatch):
    """A wheel inside somebody else's repository has no commit."""
    package = tmp_path / "gmlp_flax"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(importlib.resources, "files", lambda _: package)
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "theirs")
    found = record.environment()
    assert found["git_commit"] is None
    assert found["git_dirty"] is False
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "ours")
    found = record.environment()
    assert found["git_commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert found["git_dirty"] is False
    (package / "__init__.py").write_text("x = 1\n")
    assert record.environment()["git_dirty"]


def train_tokenizer() -> Tokenizer:
    text = " ".join(tiny.WORDS)
    return Tokenizer.train([text] * 9, 300)


def text_file(folder):
    config = gmlp_config.default()
    config.data.train = tiny.write_corpus(folder / "corpus.jsonl")
    return config


def prepared_ids(folder):
    config = text_file(folder)
    documents = [" ".join(tiny.WORDS[first:]) for first in range(30)]
    corpus = in_memory("texts", iter(documents))
    tokenizer = train_tokenizer()
    for role in ROLES:
        prepare(corpus, tokenizer, folder / role, Limits(workers=1))
        config.data[role] = str(folder / role)
    return config


def images(path):
    config = gmlp_config.default(task="image_classification")
    config.model.update(image_size=(8, 8), patch_size=(4, 4))
    config.data.update(train=str(path), heldout_share=0.3)
    return config


def two_classes() -> dict[str, bytes]:
    """Four images of each class, by path."""
    files = {}
    for index in range(4):
        files[f"cat/{index}.png"] = image_files.png(index)
    for index in range(4):
        files[f"dog/{index}.png"] = image_files.png(10 + index)
    return files


def image_folder(folder):
    return images(image_files.make_folder(folder / "photos", two_classes()))


def image_tar(folder):
    return images(image_files.make_tar(folder, two_classes()))


def image_tfds(folder):
    shards = {"train": [3, 2], "test": [2]}
    path = image_files.tfds_folder(folder / "1.0.0", shards, "tfrecord")
    return images(path)


def sentence_table(folder):
    config = gmlp_config.default(task="text_classification")
    config.glue.task = "own"
    lines = ["text,label\n"]
    for number in range(40):
        label = "b" if number % 2 else "a"
        lines.append(f"row {number},{label}\n")
    path = folder / "rows.csv"
    path.write_text("".join(lines))
    config.data.update(train=str(path), heldout_share=0.3)
    return config


def squad(folder):
    config = gmlp_config.default(task="question_answering")
    config.model.length = 96
    config.squad.update(stride=8, max_query=12)
    articles = [squad_files.colours(number) for number in range(6)]
    path = squad_files.write(folder / "squad.json", *articles)
    config.data.update(train=str(path), heldout_share=0.4)
    return config


def open_data(folder, make):
    """The data of a config, which `make` writes in a folder, with a tokenizer there."""
    (folder / "data").mkdir(parents=True)
    config = make(folder / "data")
    if config.task != "image_classification":
        config.data.cache = str(folder / "cache")
        config.model.vocab_size = 320
        if make is not prepared_ids:
            config.data.tokenizer = str(folder / "tokenizer.model")
            train_tokenizer().save(config.data.tokenizer)
    _, data = tiny.open_task(config, folder / "run")
    return data


def reopened(data):
    _, again = tiny.open_task(data.config, data.run_files.folder)
    return again


def begin(run, data):
    """Records the data of a task in a run folder, as its first step does."""
    folder = run_folder.RunFolder(str(run))
    folder.data = record.check_data(str(run), data, "")
    folder.begin_steps({})


def flipped(content: bytes, position: int) -> bytes:
    """The content with one bit of the byte at a position changed."""
    changed = bytearray(content)
    changed[position] ^= 1
    return bytes(changed)


def changed_text(content: bytes) -> bytes:
    return content.replace(b" the ", b" THE ", 1)


def changed_ids(content: bytes) -> bytes:
    return flipped(content, 40)


def other_image(_: bytes) -> bytes:
    return image_files.png(99)


def changed_pixels(content: bytes) -> bytes:
    return flipped(content, content.index(b"IDAT") + 30)


def changed_end(content: bytes) -> bytes:
    return flipped(content, -2)


def changed_row(content: bytes) -> bytes:
    return content.replace(b"row 3,", b"row z,")


def changed_answer(content: bytes) -> bytes:
    return content.replace(b"white", b"WHITE")


# For each kind, a file of the data and a change of its content that keeps its size.
KINDS = {
    text_file: ("corpus.jsonl", changed_text),
    prepared_ids: ("heldout/ids*", changed_ids),
    image_folder: ("photos/cat/0.png", other_image),
    image_tar: ("images.tar", changed_pixels),
    image_tfds: ("1.0.0/*train*00001*", changed_end),
    sentence_table: ("rows.csv", changed_row),
    squad: ("squad.json", changed_answer),
}


@pytest.mark.parametrize("make", KINDS)
def test_data_with_other_contents_are_refused_by_name(tmp_path, make):
    """Data that are moved, or copied with other times, count as the same. Data changed in one place do
    not."""
    run = tmp_path / "run"
    data = tmp_path / "there" / "data"
    begin(run, open_data(tmp_path / "here", make))
    kept = json.loads((run / "run.json").read_text())["data"]
    for role in ROLES:
        assert Path(kept[role]["path"]).is_absolute()
    moved = open_data(tmp_path / "there", make)
    for path in data.rglob("*"):
        os.utime(path, (1, 1))
    record.check_data(str(run), reopened(moved), "")
    name, change = KINDS[make]
    [file] = data.glob(name)
    file.write_bytes(change(file.read_bytes()))
    message = r"config.data.\w+=.*there.*, are not those of .*here.*\(.*different .*the advice"
    with pytest.raises(RunError, match=message):
        record.check_data(str(run), reopened(moved), "the advice")
    found = record.check_data(str(run), reopened(moved), "", chosen=True)
    assert found["train"]["path"].startswith(str(data))


def test_embedded_data_and_runs_without_fingerprints(tmp_path):
    run = str(tmp_path / "run")
    data = open_data(tmp_path, lambda _: tiny.image_config())
    record.check_data(run, data, "")  # no run yet
    begin(run, data)
    file = tmp_path / "run" / "run.json"
    kept = json.loads(file.read_text())
    assert kept["data"]["train"]["path"] == "embedded"
    kept["data"]["train"]["content"] = "another"
    file.write_text(json.dumps(kept))
    message = raised(RunError, record.check_data, run, data, "")
    assert "the training data, config.data.train=embedded, have changed since the run" in message
    assert "(different content)" in message
    record.check_data(run, data, "", roles=["heldout"])
    del kept["data"]  # as older versions left it
    file.write_text(json.dumps(kept))
    record.check_data(run, data, "")
