"""Fixtures of the whole-run tests: real commands, as processes."""

import shutil

import pytest

from tests import buckets
from tests.runs.command import Commands, assert_done


@pytest.fixture(scope="session")
def commands() -> Commands:
    return Commands()


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> str:
    """The flag of a run of 12 steps, with a line of metrics every 3 and a checkpoint every 4."""
    folder = tmp_path_factory.mktemp("text")
    return f"--config=tests/runs/tiny_text.py:{folder}"


@pytest.fixture(scope="module")
def store():
    """A store in memory with the bucket `runs`."""
    if not buckets.installed():
        pytest.skip("needs gcsfs and gcp-storage-emulator")
    with buckets.store(seconds=3600) as found:
        found.make("runs")
        yield found


@pytest.fixture(scope="session")
def finished(commands, text, tmp_path_factory):
    """The folder of such a run, finished. It is only read: copy it to train further."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    assert_done(commands(text, f"--workdir={workdir}"))
    return workdir


@pytest.fixture
def workdir(finished, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(finished, tmp_path / "run")
