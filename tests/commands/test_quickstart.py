"""The quickstart as a user runs it, both kinds, shortened to a few steps."""

import os
import re
import shutil

import pytest

from tests import preloaded


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "image"])
def test_quickstart_shows_everything(kind, tmp_path):
    command = ("quickstart", kind, f"--workdir={tmp_path}/run", "--steps=12")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = preloaded.gmlp(*command, **cache)
    assert done.returncode == 0, done.stderr
    assert re.search(r"step 12/12 +loss \d+\.\d+ +[\d,]+ (tokens|images)/s +ETA 00:00", done.stderr)
    scores = [
        float(number)
        for number in re.findall(r"^  (?:token|the|this).* (\d+\.\d)%?$", done.stdout, re.M)
    ]
    assert len(scores) == {"text": 4, "image": 3}[kind]
    assert min(scores) > 0
    assert len(re.findall(r"(?:\S+ +\d+\.\d% *){5}$", done.stdout, re.M)) == 3
    for name in ("loss.png", "filters.png"):
        assert os.path.getsize(tmp_path / "run" / "figures" / name) > 5000
        assert f"figures/{name}" in done.stdout
    # A second quickstart begins again; it does not show the finished run as its own.
    if kind == "image":
        again = preloaded.gmlp(*command, **cache)
        assert again.returncode == 0
        assert "step 12/12" in again.stderr
        assert "resuming" not in again.stderr
        assert os.path.exists(tmp_path / "run" / "before-1" / "result.json")


def test_existing_run_is_left_alone(text_run, tmp_path):
    run = shutil.copytree(text_run, tmp_path / "run")
    before = sorted(path.relative_to(run) for path in run.rglob("*"))
    done = preloaded.gmlp("quickstart", "text", f"--workdir={run}", "--steps=2")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2
    assert (
        last
        == f"error: --workdir={run} holds another run than this quickstart: give another folder"
    )
    got = sorted(path.relative_to(run) for path in run.rglob("*"))
    assert got == before


def test_invalid_steps_are_refused():
    for words in (["text", "--steps=0"], ["texts"]):
        assert words[-1] in preloaded.refused("quickstart", *words)
