"""The table of engines, and the launch of several runs."""

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.launching import engines
from gmlp_flax.launching.engine import Job, Options

XPK = Options(topology="v5e:4x4", cluster="c", zone="z", project="p", image="i")
SKY = Options(topology="v5e:4x4")
GPU = Options(topology="gpu:h100x1")


def test_nothing_is_started_if_one_run_is_refused(monkeypatch, tmp_path):
    tool = tmp_path / "sky"
    tool.write_text('#!/bin/sh\ntouch "$0.called"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    jobs = [Job("a", "gs://b/x", ("--x",)), Job("b", "runs/x", ("--x",))]
    with pytest.raises(RunError, match="--workdir=runs/x would be lost"):
        engines.launch(engines.find("skypilot", SKY), jobs, dry_run=False)
    assert not (tmp_path / "sky.called").exists()


def test_a_missing_tool_is_said_before_anything_is_started(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, options, tool in (("xpk", XPK, "xpk"), ("skypilot", SKY, "sky"), ("slurm", GPU, "sbatch")):
        with pytest.raises(RunError, match=f"there is no {tool} here: "):
            engines.launch(engines.find(name, options), [Job("run", "gs://b/x", ("--x",))], dry_run=False)


def test_skypilot_copies_a_checkout(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="run this in a checkout of the repository"):
        engines.launch(engines.find("skypilot", SKY), [Job("run", "gs://b/x", ("--x",))], dry_run=True)


def test_all_runs_are_tried_and_the_first_failure_is_the_code(monkeypatch, tmp_path, capfd):
    """The tool finds the specification in a file, which is gone afterwards."""
    tool = tmp_path / "sky"
    tool.write_text('#!/bin/sh\ngrep name: "$5" && echo "$5" >>"$0.files" && grep -q "name: b" "$5"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    jobs = [Job(name, "gs://b/x", ("--x",)) for name in ("a", "b")]
    assert engines.launch(engines.find("skypilot", SKY), jobs, dry_run=False) == 1
    out, err = capfd.readouterr()
    assert (out, err) == ("name: a\nname: b\n", "a: ended with code 1\n")
    for line in (tmp_path / "sky.files").read_text().splitlines():
        assert line.endswith(".yaml") and not (tmp_path / line).exists()
