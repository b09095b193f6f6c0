"""The settings of a run beside those of the steps to come, and its environment; whole runs are in tests/runs."""

import importlib.resources
import shutil
import subprocess

import jax
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.config import schema
from gmlp_flax.training import record


def test_changes_of_an_older_run_are_told_by_today_s_names(tmp_path):
    """A line of metrics.jsonl whose steps are lost may have the name that a key had when it was written."""
    before = gmlp_config.default()
    (tmp_path / "config.json").write_text(gmlp_config.to_json(before))
    after = gmlp_config.default()
    after.optimizer.grad_accum_steps = 4
    undone = {old: [2] if new.endswith("multipliers") else 2 for old, new in schema.RENAMED.items()}
    assert record.changes(str(tmp_path), after, undone) == {
        "optimizer.lr_multipliers": ([2], ()),
        "optimizer.grad_accum_steps": (2, 4),
    }


def git(root, *command):
    who = ("-c", "user.name=n", "-c", "user.email=e")
    return subprocess.run(
        ["git", "-C", root, *who, *command], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_versions_and_devices():
    found = record.environment()
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
    assert (record.environment()["git_commit"], record.environment()["git_dirty"]) == (None, False)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "ours")
    assert (record.environment()["git_commit"], record.environment()["git_dirty"]) == (
        git(tmp_path, "rev-parse", "HEAD"),
        False,
    )
    (package / "__init__.py").write_text("x = 1\n")
    assert record.environment()["git_dirty"]
