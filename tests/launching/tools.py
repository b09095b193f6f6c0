"""The real tools of the engines, if they are here: importable, or on PATH from an environment of
their own."""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@functools.cache
def python_with(package: str, tool: str) -> str:
    """A Python that imports a package; skips the test if there is none."""
    if importlib.util.find_spec(package):
        return sys.executable
    beside = Path(shutil.which(tool) or "/nowhere").resolve().parent / "python"
    if not beside.exists():
        pytest.skip(
            f"needs {package}: pip install it, here or in an environment of its own whose {tool} is on PATH"
        )
    return str(beside)


def run(python: str, *words: str, home: Path, **options) -> subprocess.CompletedProcess:
    """Runs a Python of a tool; it finds no settings, and tells nobody that it is used."""
    settings = home / ".config/xpk/config.yaml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("configs: {send-telemetry: 'false'}\n")
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    environment["HOME"] = str(home)
    environment["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"
    return subprocess.run(
        [python, *words],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
