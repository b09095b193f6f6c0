"""The checks of a change: .ci/run, the GitHub workflow that calls it, and the hooks of a commit."""

import re
import shlex
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def read_yaml(path):
    text = (ROOT / path).read_text()
    return yaml.safe_load(text)


def commands_of(job):
    """The commands that a job of a workflow runs."""
    return [step["run"] for step in job["steps"] if "run" in step]


def test_the_workflow_runs_the_whole_check_on_the_pythons_with_constraints():
    [job] = read_yaml(".github/workflows/ci.yml")["jobs"].values()
    versions = set()
    for path in ROOT.glob("constraints-*.txt"):
        versions.add(path.stem.removeprefix("constraints-"))
    assert versions == {"3.11", "3.13"}
    matrix = job["strategy"]["matrix"]
    assert set(matrix["python"]) == versions
    assert commands_of(job) == [".ci/run"]


def test_the_nightly_workflow_runs_the_nightly_tests_too():
    workflow = read_yaml(".github/workflows/nightly.yml")
    [job] = workflow["jobs"].values()
    assert commands_of(job) == [".ci/run --nightly"]
    triggers = workflow[True]  # YAML reads the key `on` as a bool
    assert set(triggers) == {"schedule", "workflow_dispatch", "pull_request"}


def test_hooks_are_the_commands_of_the_check():
    [repo] = read_yaml(".pre-commit-config.yaml")["repos"]
    check = (ROOT / ".ci/run").read_text()
    for hook in repo["hooks"]:
        program, command, *_ = shlex.split(hook["entry"])
        assert re.search(rf"^{re.escape(program)} {command}\b", check, re.M)
