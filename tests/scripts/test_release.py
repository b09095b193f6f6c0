"""scripts/release.py and the workflow that it starts, without publishing."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "release.py"
RELEASE = runpy.run_path(str(SCRIPT))
URL = "https://example.org/me/gmlp_flax"


@pytest.fixture
def checkout(tmp_path):
    """A repository with the files that have the version, and the script."""
    for name in ("gmlp_flax/__init__.py", "CHANGELOG.md", "CITATION.cff", "scripts/release.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((ROOT / name).read_bytes())
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=all")
    return tmp_path


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True)


def refused(folder: Path, *words: str) -> str:
    """The line of the script in a checkout."""
    command = [sys.executable, folder / "scripts" / "release.py", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout
    [line] = done.stderr.splitlines()
    return line


def test_links_work_outside_the_repository():
    readme = (
        "[all](docs/keys.md#model) [paper](https://arxiv.org/abs/2105.08050) [here](#install)\n"
        '<source srcset="docs/a-dark.svg"><img src="docs/a-light.svg" width="400">\n'
    )
    assert RELEASE["absolute_links"](readme, URL, "v1.2.3") == (
        f"[all]({URL}/blob/v1.2.3/docs/keys.md#model) [paper](https://arxiv.org/abs/2105.08050) "
        "[here](#install)\n"
        f'<source srcset="{URL}/raw/v1.2.3/docs/a-dark.svg">'
        f'<img src="{URL}/raw/v1.2.3/docs/a-light.svg" width="400">\n'
    )
    absolute = RELEASE["absolute_links"]((ROOT / "README.md").read_text(), URL, "v1.2.3")
    assert not re.search(r'\]\((?!https?:|#)|src(set)?="(?!https?:)', absolute)


def test_invalid_releases_are_refused(checkout):
    assert "expected three numbers, such as 0.3.0" in refused(checkout, "publish", "0.3.0.dev0")
    assert "git has no remote origin" in refused(checkout, "publish", "0.3.0")
    git(checkout, "remote", "add", "origin", f"{URL}.git")
    git(checkout, "tag", "v0.3.0")
    assert "the tag v0.3.0 exists" in refused(checkout, "publish", "0.3.0")
    (checkout / "new").write_text("x")
    assert "uncommitted changes" in refused(checkout, "publish", "0.4.0")
    assert "expected build, try [PYTHON], or publish VERSION" in refused(checkout, "push")
    assert "dist/ has 0 wheels" in refused(checkout, "try")


def test_the_version_is_updated_in_every_file(checkout):
    script = runpy.run_path(str(checkout / "scripts" / "release.py"))
    script["write_version"]("7.8.9", "2030-01-02")
    init = (checkout / "gmlp_flax" / "__init__.py").read_text()
    assert script["version_in"](init) == "7.8.9"
    changelog = (checkout / "CHANGELOG.md").read_text()
    assert "## Unreleased\n\n## 7.8.9 - 2030-01-02\n\n### Added" in changelog
    citation = yaml.safe_load((checkout / "CITATION.cff").read_text())
    assert citation["version"] == "7.8.9"
    assert str(citation["date-released"]) == "2030-01-02"


def test_the_workflow_publishes_the_files_that_it_built_and_tried():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {"contents": "read"}
    assert jobs["publish"]["needs"] == ["build", "try"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"]["name"] == "pypi"
    assert jobs["publish"]["steps"][-1] == {"uses": "pypa/gh-action-pypi-publish@release/v1"}
    assert tuple(jobs["try"]["strategy"]["matrix"]["python"]) == RELEASE["PYTHONS"]
    commands = []
    for job in jobs.values():
        commands += [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [
        "python scripts/release.py build",
        "python scripts/release.py try ${{ matrix.python }}",
    ]
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()
