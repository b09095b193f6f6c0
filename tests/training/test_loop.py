"""Whole runs: their files, resuming, compilation."""

import json
import os
import shutil
import signal
from unittest import mock

import pytest

from gmlp_flax import config
from gmlp_flax.training import evaluation, loop, pretrained
from tests.failures import raised
from tests.runs.command import metrics
from tests.training import tiny


def test_result_and_metrics_agree(text_run):
    result = json.loads((text_run / "result.json").read_text())
    lines = [json.loads(line) for line in (text_run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [4, 8, 12]
    assert [line["step"] for line in lines if "eval" in line] == [6, 12]
    assert (result["step"], result["eval"]) == (12, lines[-1]["eval"])


def test_a_run_has_no_fewer_steps_than_it_took(text_run, tmp_path):
    run = shutil.copytree(text_run, tmp_path / "run")
    options = config.load(str(run / "config.json"))
    options.steps = 8
    with pytest.raises(loop.RunError, match="step 12, .*config.steps=8"):
        loop.train(options, str(run))


def test_restart_moves_nothing_but_a_run(text_run, tmp_path):
    """Above all not the folder of all runs, given by mistake."""
    shutil.copytree(text_run, tmp_path / "runs" / "one")
    with pytest.raises(loop.RunError, match="--restart: .*runs .*'one'"):
        loop.train(
            config.load(str(text_run / "config.json")),
            str(tmp_path / "runs"),
            loop.TrainOptions(restart=True),
        )
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["one"]


def test_an_evaluation_whose_data_cannot_be_read_leaves_a_checkpoint(tmp_path, monkeypatch):
    options = tiny.text_config(tmp_path)
    options.steps = options.checkpoint.every = options.eval.every = 3
    unreadable = mock.Mock(side_effect=loop.DataError("a held-out image cannot be decoded"))
    with monkeypatch.context() as broken:
        broken.setattr(evaluation.Evaluator, "__call__", unreadable)
        assert "cannot be decoded" in raised(
            loop.DataError, loop.train, options, str(tmp_path / "run")
        )
    assert (tmp_path / "run" / "checkpoints" / "3").exists()
    assert loop.train(options, str(tmp_path / "run"))["eval"]["examples"] > 0


def test_a_signal_ends_an_evaluation_and_the_run_that_goes_on_begins_with_it(tmp_path, monkeypatch):
    """All lines are those of a run that was not stopped, and so is the choice of the best
    checkpoint. The step is compiled once in each, for a state that comes from initialization or
    from a checkpoint."""
    made = []
    make = loop.Training
    monkeypatch.setattr(loop, "Training", lambda *given: made.append(make(*given)) or made[-1])
    options = tiny.text_config(tmp_path)
    workdir = tmp_path / "run"
    options.steps = options.checkpoint.every = 6
    options.log.every, options.eval.every, options.eval.batch_size = 3, 3, 8
    scored = []
    stopping_at = 0

    class Counted(evaluation.Evaluator):
        def __init__(self, *given):
            super().__init__(*given)
            self.score = self.step
            self.step = self.counted

        def counted(self, *batch):
            scored.append(batch)
            if len(scored) == stopping_at:
                os.kill(os.getpid(), signal.SIGTERM)
            return self.score(*batch)

    monkeypatch.setattr(loop, "Evaluator", Counted)
    begin = loop.stopping.Watchdog.begin
    begun = []
    monkeypatch.setattr(
        loop.stopping.Watchdog,
        "begin",
        lambda watchdog: begun.append(len(scored)) or begin(watchdog),
    )
    loop.train(options, str(tmp_path / "whole"))
    batches = len(scored) // 2
    assert batches > 2
    for stopping_at, saved, evaluated in (2, 3, []), (batches + 2, 6, [3]), (1, 6, [3]):
        scored.clear()
        begun.clear()
        assert loop.train(options, str(workdir)) is None
        assert len(scored) == stopping_at
        # the step after that evaluation is not compiled yet, and may take an hour again
        if stopping_at > batches:
            assert begun == [0, batches]
        assert max(int(path.name) for path in (workdir / "checkpoints").iterdir()) == saved
        assert [line["step"] for line in metrics(workdir) if "eval" in line] == evaluated
        assert not (workdir / "result.json").exists()
    stopping_at = 0
    assert loop.train(options, str(workdir))["step"] == 6
    assert metrics(workdir) == metrics(tmp_path / "whole")
    assert [training.step._cache_size() for training in made] == [1, 1, 1, 0, 0]
    losses = {line["step"]: line["eval"]["loss"] for line in metrics(workdir) if "eval" in line}
    assert pretrained.load(str(workdir), "best").step == min(losses, key=losses.__getitem__)


def test_the_result_is_written_last_and_deleted_first(tmp_path, monkeypatch):
    """A run that is killed before its result is written is not finished, and one that is killed
    while its figure is drawn leaves nothing of it behind. Nor is one that goes on finished: killed
    after config.json has more steps, a sweep would take the old result for the new one."""
    options = tiny.text_config(tmp_path)
    run = tmp_path / "run"
    write = loop.files.write
    options.steps = options.checkpoint.every = 3

    def killed_at_the_end(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(loop.run_folder.RunFolder, "write_result", killed_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            loop.train(options, str(run))
    assert not (run / "result.json").exists()
    assert (run / "checkpoints" / "3").exists()
    (run / "figures").mkdir()
    (run / "figures" / ".loss.png.01234567.tmp").touch()
    first = loop.train(options, str(run))
    assert first["step"] == 3
    assert (run / "result.json").exists()
    assert not [*run.rglob("*tmp*")]
    assert not (run / "lease.json").exists()

    def killed_in_a_step(path, content):
        if path.endswith("config.json"):
            raise KeyboardInterrupt
        write(path, content)

    options.steps = 6
    with monkeypatch.context() as patched:
        patched.setattr(loop.files, "write", killed_in_a_step)
        with pytest.raises(KeyboardInterrupt):
            loop.train(options, str(run))
    assert not (run / "result.json").exists()
    options.steps = 3
    assert loop.train(options, str(run))["eval"] == first["eval"]


@pytest.mark.parametrize(
    ("started", "typed"),
    [
        (
            ["python", "-m", "gmlp_flax", "train", "--restart", "--workdir=a b"],
            "python -m gmlp_flax train '--workdir=a b'",
        ),
        (["venv/bin/python", "mine.py", "--other-data"], "venv/bin/python mine.py"),
        (["/venv/bin/python", "/venv/bin/gmlp", "train", "--other_data=true"], "gmlp train"),
        (["/venv/bin/python", ".venv/bin/gmlp", "train"], ".venv/bin/gmlp train"),
    ],
)
def test_the_command_line_as_typed(monkeypatch, started, typed):
    """`gmlp` is a script, which the system starts as PYTHON PATH."""
    monkeypatch.setattr("sys.orig_argv", started)
    monkeypatch.setattr("shutil.which", {"gmlp": "/venv/bin/gmlp"}.get)
    assert loop.command_as_typed() == typed
