import importlib.resources
import shutil
import subprocess

import jax
import pytest

from gmlp_flax.training.environment import environment


def git(root, *command):
    who = ("-c", "user.name=n", "-c", "user.email=e")
    return subprocess.run(
        ["git", "-C", root, *who, *command], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_versions_and_devices():
    found = environment()
    assert found["packages"]["jax"] == jax.__version__ and found["packages"]["sentencepiece"]
    assert found["devices"] == {"kind": jax.devices()[0].device_kind, "count": jax.device_count(), "hosts": 1}


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_the_commit_is_that_of_our_own_code(tmp_path, monkeypatch):
    """A wheel that lies in somebody's repository has none."""
    package = tmp_path / "gmlp_flax"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(importlib.resources, "files", lambda _: package)
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "theirs")
    assert (environment()["git_commit"], environment()["git_dirty"]) == (None, False)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "ours")
    assert (environment()["git_commit"], environment()["git_dirty"]) == (git(tmp_path, "rev-parse", "HEAD"), False)
    (package / "__init__.py").write_text("x = 1\n")
    assert environment()["git_dirty"]
