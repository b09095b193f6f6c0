"""The record in a run folder is true and complete: real commands, and the functions that they call
in this process."""

import json
import re
import shutil
from pathlib import Path

import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.errors import RunError
from gmlp_flax.training import loop, pretrained, record
from tests.runs.command import assert_done, assert_one_line_error, await_line, metrics


def content(folder: Path) -> dict[str, bytes]:
    """All files by path, except figures, which each command draws again."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "figures" not in path.parts:
            name = str(path.relative_to(folder))
            files[name] = path.read_bytes()
    return files


@pytest.fixture
def resume(workdir, capsys):
    """Resumes the run in this process with some keys changed, and returns what is printed."""

    def train(changes: dict[str, object], **options) -> str:
        config = gmlp_config.load(str(workdir / "config.json"))
        config.update_from_flattened_dict(changes)
        capsys.readouterr()
        train_options = loop.TrainOptions(**options)
        loop.train(config, str(workdir), train_options)
        return capsys.readouterr().err

    return train


def test_run_without_its_checkpoints_is_not_silently_restarted(commands, text, workdir, finished):
    (workdir / "checkpoints").rename(workdir / "elsewhere")
    before = content(workdir)
    for lost in ("result.json", "metrics.jsonl", None):
        result = commands(text, f"--workdir={workdir}")
        reason = f"{workdir} has"
        assert_one_line_error(
            result, reason, "run.json", "no checkpoint to resume from", "--restart"
        )
        assert content(workdir) == before
        if lost:
            (workdir / lost).unlink()
            del before[lost]


@pytest.mark.parametrize("kept", ["metrics.jsonl", "damaged/8/file", "config.json"])
def test_each_file_of_a_run_prevents_a_silent_restart(commands, text, finished, tmp_path, kept):
    """Files with these names may also be somebody else's, and are not overwritten."""
    workdir = tmp_path / "run"
    (workdir / kept).parent.mkdir(parents=True)
    source = finished / kept
    kept_bytes = source.read_bytes() if source.exists() else b""
    (workdir / kept).write_bytes(kept_bytes)
    before = content(workdir)
    name, _, _ = kept.partition("/")
    result = commands(text, f"--workdir={workdir}")
    assert_one_line_error(result, f"{workdir} has ", name, "--restart")
    assert content(workdir) == before


def id_of(folder: Path) -> str:
    return json.loads((folder / "run.json").read_text())["id"]


@pytest.mark.slow
def test_restart_moves_the_run_away(workdir, finished, resume):
    shutil.rmtree(workdir / "figures")
    moved = workdir / "before-1"
    stderr = resume({"seed": 5, "steps": 6}, restart=True)
    assert f"the previous run is moved to {moved}" in stderr
    assert content(moved) == content(finished)
    config = json.loads((workdir / "config.json").read_text())
    assert config["seed"] == 5
    steps = {line["step"] for line in metrics(workdir)}
    assert steps == {3, 6}
    assert id_of(workdir) != id_of(finished)
    previous = pretrained.load(str(moved), "8")
    assert previous.step == 8


def test_run_without_an_id_keeps_its_checkpoints(commands, text, workdir):
    """It does not get a new id, which would not be that of its checkpoints."""
    (workdir / "run.json").unlink()
    before = content(workdir)
    result = commands(text, "--config.steps=20", f"--workdir={workdir}")
    assert_one_line_error(result, f"{workdir} has checkpoints but no run.json", "--restart")
    assert content(workdir) == before


def test_refused_command_leaves_no_folder(commands, text, finished, tmp_path):
    other = ["--config.model.d_model=12", f"--config.init_from={finished}"]
    for flags in (["--config.optimizer.freeze=('x',)"], other):
        done = commands(text, *flags, f"--workdir={tmp_path / 'new' / 'run'}")
        assert_one_line_error(done)
        assert list(tmp_path.iterdir()) == []


def test_settings_before_any_step_are_not_recorded(workdir, finished, resume):
    stderr = resume({"optimizer.learning_rate": 0.9, "log.every": 1})
    note = "config.optimizer.learning_rate was 0.001 and is now 0.9, which no step uses"
    assert f"note: {note}" in stderr
    assert content(workdir) == content(finished)


@pytest.mark.parametrize(
    ("key", "value"), [("seed", 7), ("model.d_model", 12), ("optimizer.name", "lamb")]
)
def test_fixed_keys_must_not_change(finished, key, value):
    """The error names the key with its old value, and not the parts of the state that it changes."""
    config = gmlp_config.load(str(finished / "config.json"))
    before = gmlp_config.flat(config)[key]
    config.update_from_flattened_dict({key: value})
    message = re.escape(f"config.{key} was {before!r}: use another --workdir")
    with pytest.raises(RunError, match=message):
        record.refuse_changes(str(finished), config)


def changes_in(workdir) -> list[dict]:
    """The metrics lines about changes of the config."""
    return [line for line in metrics(workdir) if "changed" in line]


@pytest.mark.slow
def test_change_is_recorded_at_its_step(workdir, finished, resume):
    """Also a change of the mesh, and each is printed. The same config again adds no change, and a
    change back adds one."""
    changed = {"steps": 14, "optimizer.learning_rate": 0.002, "mesh.data": 1}
    assert "note: config.steps was 12 and is now 14" in resume(changed)
    resume(changed)
    values = {"steps": [12, 14], "optimizer.learning_rate": [0.001, 0.002], "mesh.data": [-1, 1]}
    first = {"step": 12, "changed": values}
    assert changes_in(workdir) == [first]
    before = metrics(finished)
    kept = metrics(workdir)[: len(before)]
    assert kept == before
    resume({"steps": 15, "optimizer.learning_rate": 0.001, "mesh.data": -1})
    values = {"steps": [14, 15], "optimizer.learning_rate": [0.002, 0.001], "mesh.data": [1, -1]}
    second = {"step": 14, "changed": values}
    assert changes_in(workdir) == [first, second]
    resumed = gmlp_config.load(str(workdir / "config.json"))
    assert resumed.steps == 15
    assert not (workdir / "lease.json").exists()


@pytest.mark.slow
def test_second_run_in_a_folder_is_refused(commands, text, tmp_path):
    workdir = tmp_path / "run"
    flags = [text, "--config.steps=100000", "--config.log.every=2", f"--workdir={workdir}"]
    first = commands.start(*flags)
    await_line(first)
    lease = json.loads((workdir / "lease.json").read_text())
    before = (workdir / "config.json").read_bytes()
    second = commands(*flags, "--config.seed=3")
    first.kill()
    first.communicate()
    holder = f"process {lease['process']} on {lease['host']}, since {lease['since']}"
    assert_one_line_error(second, f"{workdir} is in use by {holder}: wait for it")
    assert (workdir / "config.json").read_bytes() == before


@pytest.mark.slow
def test_run_that_loses_its_folder_ends(commands, text, tmp_path):
    """It detects the loss at its next heartbeat, at most ten seconds later."""
    workdir = tmp_path / "run"
    steps = ("--config.steps=10000000", "--config.checkpoint.every=1000000")
    process = commands.start(text, *steps, f"--workdir={workdir}")
    await_line(process)
    lease = json.loads((workdir / "lease.json").read_text())
    lease.update(token="x", host="elsewhere")
    (workdir / "lease.json").write_text(json.dumps(lease))
    _, stderr = process.communicate(timeout=60)
    line = stderr.splitlines()[-1]
    assert process.returncode == 2
    assert line.startswith(f"error: {workdir} no longer belongs to this run: process ")
    assert " on elsewhere" in line
    assert not list((workdir / "checkpoints").glob("*"))
    present = json.loads((workdir / "lease.json").read_text())
    assert present == lease


def training_path(workdir: Path) -> str:
    """The recorded path of the training data."""
    run = json.loads((workdir / "run.json").read_text())
    return run["data"]["train"]["path"]


@pytest.mark.slow
def test_run_is_not_silently_resumed_on_other_data(
    commands, workdir, tmp_path, resume, monkeypatch
):
    """The same relative path names another file in the current folder."""
    path = training_path(workdir)
    shutil.copy(path, tmp_path / "corpus.jsonl")
    with open(tmp_path / "corpus.jsonl", "a") as file:
        added_line = json.dumps({"text": "one more document"})
        file.write(added_line + "\n")
    before = content(workdir)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=f"config.data.train=corpus.jsonl.*{path}.*--other_data"):
        resume({"data.train": "corpus.jsonl"})
    assert content(workdir) == before
    flags = (f"--config={workdir}/config.json", f"--workdir={workdir}", "--config.steps=13")
    done = commands(*flags, "--config.data.train=corpus.jsonl", "--other_data", cwd=str(tmp_path))
    assert_done(done)
    assert "config.data.train=corpus.jsonl" in done.stderr
    assert training_path(workdir) == f"{tmp_path}/corpus.jsonl"
    resume({"data.train": "corpus.jsonl"})
