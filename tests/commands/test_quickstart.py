"""Both quickstarts as a user runs them, shortened to a few steps."""

import os
import re
import shutil

import pytest

from tests import preloaded


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", pytest.param("image", marks=pytest.mark.nightly)])
def test_quickstart_shows_everything(kind, tmp_path):
    command = ("quickstart", kind, f"--workdir={tmp_path}/run", "--steps=12")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = preloaded.gmlp(*command, **cache)
    assert done.returncode == 0, done.stderr
    assert re.search(r"step 12/12 +loss \d+\.\d+ +[\d,]+ (tokens|images)/s +ETA 00:00", done.stderr)
    numbers = re.findall(r"^  (?:token|the|this).* (\d+\.\d)%?$", done.stdout, re.M)
    scores = [float(number) for number in numbers]
    assert len(scores) == (4 if kind == "text" else 3)
    assert min(scores) > 0
    answers = re.findall(r"(?:\S+ +\d+\.\d% *){5}$", done.stdout, re.M)
    assert len(answers) == 3
    for name in ("loss.png", "filters.png"):
        assert os.path.getsize(tmp_path / "run" / "figures" / name) > 5000
        assert f"figures/{name}" in done.stdout
    # A second quickstart starts over; it does not show the finished run as its own.
    if kind == "image":
        again = preloaded.gmlp(*command, **cache)
        assert again.returncode == 0
        assert "step 12/12" in again.stderr
        assert "resuming" not in again.stderr
        assert os.path.exists(tmp_path / "run" / "before-1" / "result.json")


def files_in(run) -> set:
    """All paths in a folder."""
    return set(run.rglob("*"))


def test_existing_run_is_left_alone(text_run, tmp_path):
    run = shutil.copytree(text_run, tmp_path / "run")
    before = files_in(run)
    done = preloaded.gmlp("quickstart", "text", f"--workdir={run}", "--steps=2")
    assert done.returncode == 2
    message = f"--workdir={run} holds another run than this quickstart: give another folder"
    assert done.stderr.splitlines()[-1] == f"error: {message}"
    assert files_in(run) == before


def test_invalid_steps_are_refused():
    message = preloaded.refused("quickstart", "text", "--steps=0")
    assert "--steps=0" in message
    message = preloaded.refused("quickstart", "texts")
    assert "texts" in message
