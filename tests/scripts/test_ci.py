"""What checks a change: .ci/run, the GitHub workflow that calls it, and the hooks of a commit."""

import re
import shlex
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_workflow_runs_the_whole_check_on_the_pythons_with_constraints():
    (job,) = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"].values()
    tested = {
        re.search(r"[\d.]+(?=\.txt)", path.name)[0] for path in ROOT.glob("constraints-*.txt")
    }
    assert set(job["strategy"]["matrix"]["python"]) == tested == {"3.11", "3.13"}
    got = [step["run"] for step in job["steps"] if "run" in step]
    assert got == [".ci/run"]


def test_the_nightly_workflow_runs_the_nightly_tests_too():
    workflow = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
    (job,) = workflow["jobs"].values()
    got = [step["run"] for step in job["steps"] if "run" in step]
    assert got == [".ci/run --nightly"]
    triggers = workflow[True]  # YAML reads the key `on` as a bool
    assert set(triggers) == {"schedule", "workflow_dispatch", "pull_request"}


def test_hooks_are_the_commands_of_the_check():
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    check = (ROOT / ".ci/run").read_text()
    for hook in repo["hooks"]:
        program, command, *_ = shlex.split(hook["entry"])
        assert re.search(rf"^{re.escape(program)} {command}\b", check, re.M)
