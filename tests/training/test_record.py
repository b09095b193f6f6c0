"""The settings of a run beside those of the steps to come, and its environment; whole runs are in
tests/runs."""

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


def git(root, *command):
    who = ("-c", "user.name=n", "-c", "user.email=e")
    return subprocess.run(
        ["git", "-C", root, *who, *command], check=True, capture_output=True, text=True
    ).stdout.strip()


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
    """A wheel that lies in somebody's repository has none."""
    package = tmp_path / "gmlp_flax"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(importlib.resources, "files", lambda _: package)
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "theirs")
    assert (record.environment()["git_commit"], record.environment()["git_dirty"]) == (None, False)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "ours")
    assert (record.environment()["git_commit"], record.environment()["git_dirty"]) == (
        git(tmp_path, "rev-parse", "HEAD"),
        False,
    )
    (package / "__init__.py").write_text("x = 1\n")
    assert record.environment()["git_dirty"]


def text_file(folder):
    config = gmlp_config.default()
    config.data.train = tiny.write_corpus(folder / "corpus.jsonl")
    return config


def prepared_ids(folder):
    config = text_file(folder)
    texts = in_memory("texts", (" ".join(tiny.WORDS[i:]) for i in range(30)))
    tokenizer = Tokenizer.train([" ".join(tiny.WORDS)] * 9, 300)
    for role in ROLES:
        prepare(texts, tokenizer, folder / role, Limits(workers=1))
        config.data[role] = str(folder / role)
    return config


def images(path):
    config = gmlp_config.default(task="image_classification")
    config.model.update(image_size=(8, 8), patch_size=(4, 4))
    config.data.update(train=str(path), heldout_share=0.3)
    return config


def image_files_of(classes):
    return {
        f"{name}/{i}.png": image_files.png(10 * j + i)
        for j, name in enumerate(classes)
        for i in range(4)
    }


def image_folder(folder):
    return images(image_files.make_folder(folder / "photos", image_files_of(("cat", "dog"))))


def image_tar(folder):
    return images(image_files.make_tar(folder, image_files_of(("cat", "dog"))))


def image_tfds(folder):
    return images(
        image_files.tfds_folder(folder / "1.0.0", {"train": [3, 2], "test": [2]}, "tfrecord")
    )


def sentence_table(folder):
    config = gmlp_config.default(task="text_classification")
    config.glue.task = "own"
    (folder / "rows.csv").write_text(
        "text,label\n" + "".join(f"row {i},{'ab'[i % 2]}\n" for i in range(40))
    )
    config.data.update(train=str(folder / "rows.csv"), heldout_share=0.3)
    return config


def squad(folder):
    config = gmlp_config.default(task="question_answering")
    config.model.length = 96
    config.squad.update(stride=8, max_query=12)
    path = squad_files.write(folder / "squad.json", *map(squad_files.colours, range(6)))
    config.data.update(train=str(path), heldout_share=0.4)
    return config


def open_data(folder, make):
    """The data of a config, made in a folder, with a vocabulary there."""
    (folder / "data").mkdir(parents=True)
    config = make(folder / "data")
    if config.task != "image_classification":
        config.data.cache = str(folder / "cache")
        config.model.vocab_size = 320
        if make is not prepared_ids:
            config.data.tokenizer = str(folder / "tokenizer.model")
            Tokenizer.train([" ".join(tiny.WORDS)] * 9, 300).save(config.data.tokenizer)
    _, data = tiny.open_task(config, folder / "run")
    return data


def reopened(data):
    _, again = tiny.open_task(data.config, data.run_files.folder)
    return again


def begin(run, data):
    """Notes the data of a task in a run folder, as its first step does."""
    folder = run_folder.RunFolder(str(run))
    folder.data = record.check_data(str(run), data, "")
    folder.begin_steps({})


def flipped(content, position):
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


# Of each kind, a file of the data, and its content after a change that keeps its size.
KINDS = {
    text_file: ("corpus.jsonl", lambda content: content.replace(b" the ", b" THE ", 1)),
    prepared_ids: ("heldout/ids*", lambda content: flipped(content, 40)),
    image_folder: ("photos/cat/0.png", lambda _: image_files.png(99)),
    image_tar: ("images.tar", lambda content: flipped(content, content.index(b"IDAT") + 30)),
    image_tfds: ("1.0.0/*train*00001*", lambda content: flipped(content, -2)),
    sentence_table: ("rows.csv", lambda content: content.replace(b"row 3,", b"row z,")),
    squad: ("squad.json", lambda content: content.replace(b"white", b"WHITE")),
}


@pytest.mark.parametrize("make", KINDS)
def test_data_with_other_contents_are_refused_by_name(tmp_path, make):
    """Of each kind: moved, or copied with other times, they are the same; changed in one place,
    they are not."""
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
    (file,) = data.glob(name)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(
        RunError,
        match=r"config.data.\w+=.*there.*, are not those of .*here.*\(.*different .*the advice",
    ):
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
