"""What a run folder says is true, and nothing of it is lost: real commands, and what they call in
this process."""

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
    """All files by path; pictures are drawn again by each command."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "figures" not in path.parts
    }


@pytest.fixture
def goes_on(workdir, capsys):
    """Trains on in this process with some keys changed; returns what is said."""

    def train(changes: dict[str, object], **options) -> str:
        config = gmlp_config.load(str(workdir / "config.json"))
        config.update_from_flattened_dict(changes)
        capsys.readouterr()
        loop.train(config, str(workdir), loop.TrainOptions(**options))
        return capsys.readouterr().err

    return train


def test_run_without_its_checkpoints_is_not_silently_restarted(
    commands, text, workdir, finished
):
    (workdir / "checkpoints").rename(workdir / "elsewhere")
    before = content(workdir)
    for lost in ("result.json", "metrics.jsonl", None):
        result = commands(text, f"--workdir={workdir}")
        assert_one_line_error(
            result, f"{workdir} has", "run.json", "no checkpoint to resume from", "--restart"
        )
        assert content(workdir) == before
        if lost:
            (workdir / lost).unlink()
            del before[lost]


@pytest.mark.parametrize("kept", ["metrics.jsonl", "damaged/8/file", "config.json"])
def test_each_file_of_a_run_prevents_a_silent_restart(commands, text, finished, tmp_path, kept):
    """So files of those names that are somebody else's are not written over either."""
    workdir = tmp_path / "run"
    (workdir / kept).parent.mkdir(parents=True)
    source = finished / kept
    (workdir / kept).write_bytes(source.read_bytes() if source.exists() else b"")
    before = content(workdir)
    assert_one_line_error(
        commands(text, f"--workdir={workdir}"),
        f"{workdir} has ",
        kept.partition("/")[0],
        "--restart",
    )
    assert content(workdir) == before


def test_restart_moves_the_run_away(workdir, finished, goes_on):
    shutil.rmtree(workdir / "figures")
    said = goes_on({"seed": 5, "steps": 6}, restart=True)
    assert f"the previous run is moved to {workdir}/before-1" in said
    assert content(workdir / "before-1") == content(finished)
    assert json.loads((workdir / "config.json").read_text())["seed"] == 5
    assert {line["step"] for line in metrics(workdir)} == {3, 6}
    ids = {json.loads((folder / "run.json").read_text())["id"] for folder in (workdir, finished)}
    assert len(ids) == 2
    assert pretrained.load(str(workdir / "before-1"), "8").step == 8


def test_run_without_an_id_keeps_its_checkpoints(commands, text, workdir):
    """It is not given another id, under which its checkpoints would be a stranger's."""
    (workdir / "run.json").unlink()
    before = content(workdir)
    result = commands(text, "--config.steps=20", f"--workdir={workdir}")
    assert_one_line_error(result, f"{workdir} has checkpoints but no run.json", "--restart")
    assert content(workdir) == before


def test_refused_command_leaves_no_folder(commands, text, finished, tmp_path):
    other = ["--config.model.d_model=12", f"--config.init_from={finished}"]
    for flags in (["--config.optimizer.freeze=('x',)"], other):
        assert_one_line_error(commands(text, *flags, f"--workdir={tmp_path / 'new' / 'run'}"))
        assert list(tmp_path.iterdir()) == []


def test_settings_before_any_step_are_not_recorded(workdir, finished, goes_on):
    said = goes_on({"optimizer.learning_rate": 0.9, "log.every": 1})
    assert (
        "note: config.optimizer.learning_rate was 0.001 and is now 0.9, which no step uses" in said
    )
    assert content(workdir) == content(finished)


@pytest.mark.parametrize(
    ("key", "value"), [("seed", 7), ("model.d_model", 12), ("optimizer.name", "lamb")]
)
def test_fixed_keys_must_not_change(finished, key, value):
    """The key is named with its old value, not what it changes in the state."""
    config = gmlp_config.load(str(finished / "config.json"))
    was = gmlp_config.flat(config)[key]
    config.update_from_flattened_dict({key: value})
    with pytest.raises(
        RunError, match=re.escape(f"config.{key} was {was!r}: use another --workdir")
    ):
        record.refuse_changes(str(finished), config)


def test_change_is_recorded_at_its_step(workdir, finished, goes_on):
    """Also of the mesh, and each is told. The same config again adds none, and one that goes back
    tells so."""
    changed = {"steps": 14, "optimizer.learning_rate": 0.002, "mesh.data": 1}
    assert "note: config.steps was 12 and is now 14" in goes_on(changed)
    goes_on(changed)
    changes = [line for line in metrics(workdir) if "changed" in line]
    first = {"steps": [12, 14], "optimizer.learning_rate": [0.001, 0.002], "mesh.data": [-1, 1]}
    assert changes == [{"step": 12, "changed": first}]
    assert metrics(workdir)[: len(metrics(finished))] == metrics(finished)
    goes_on({"steps": 15, "optimizer.learning_rate": 0.001, "mesh.data": -1})
    changes = [line for line in metrics(workdir) if "changed" in line]
    again = {"steps": [14, 15], "optimizer.learning_rate": [0.002, 0.001], "mesh.data": [1, -1]}
    assert changes == [{"step": 12, "changed": first}, {"step": 14, "changed": again}]
    assert gmlp_config.load(str(workdir / "config.json")).steps == 15
    assert not (workdir / "lease.json").exists()


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
    words = f"{workdir} is in use by process {lease['process']} on {lease['host']}, since {lease['since']}: wait for it"
    assert_one_line_error(second, words)
    assert (workdir / "config.json").read_bytes() == before


@pytest.mark.slow
def test_run_that_loses_its_folder_ends(commands, text, tmp_path):
    """It finds out at its next beat, ten seconds later at most."""
    workdir = tmp_path / "run"
    process = commands.start(
        text, "--config.steps=10000000", "--config.checkpoint.every=1000000", f"--workdir={workdir}"
    )
    await_line(process)
    lease = json.loads((workdir / "lease.json").read_text()) | {"token": "x", "host": "elsewhere"}
    (workdir / "lease.json").write_text(json.dumps(lease))
    line = process.communicate(timeout=60)[1].splitlines()[-1]
    assert process.returncode == 2
    assert line.startswith(f"error: {workdir} no longer belongs to this run: process ")
    assert " on elsewhere" in line
    assert not list((workdir / "checkpoints").glob("*"))
    assert json.loads((workdir / "lease.json").read_text()) == lease


def test_run_is_not_silently_resumed_on_other_data(
    commands, workdir, tmp_path, goes_on, monkeypatch
):
    """The same relative path leads to another file where the command is given now."""
    kept = json.loads((workdir / "run.json").read_text())["data"]["train"]["path"]
    shutil.copy(kept, tmp_path / "corpus.jsonl")
    with open(tmp_path / "corpus.jsonl", "a") as file:
        file.write(json.dumps({"text": "one more document"}) + "\n")
    before = content(workdir)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=f"config.data.train=corpus.jsonl.*{kept}.*--other_data"):
        goes_on({"data.train": "corpus.jsonl"})
    assert content(workdir) == before
    flags = f"--config={workdir}/config.json", f"--workdir={workdir}", "--config.steps=13"
    done = commands(*flags, "--config.data.train=corpus.jsonl", "--other_data", cwd=str(tmp_path))
    assert_done(done)
    assert "config.data.train=corpus.jsonl" in done.stderr
    assert (
        json.loads((workdir / "run.json").read_text())["data"]["train"]["path"]
        == f"{tmp_path}/corpus.jsonl"
    )
    goes_on({"data.train": "corpus.jsonl"})
