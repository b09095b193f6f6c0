"""Builds, checks and publishes a release. It needs only Python, git and a package index.

python scripts/release.py build             # dist/: wheel and sdist of the last commit, as twine wants them
python scripts/release.py try               # the wheel in fresh environments of Python 3.11 and 3.13
python scripts/release.py publish 0.3.0     # both, after writing the version; then it commits, tags and pushes

The pushed tag starts .github/workflows/release.yml, which builds and tries the same again and publishes
it on PyPI. CONTRIBUTING.md says what is set up once before.
"""

import datetime
import glob
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.13")  # those that have a file of constraints
INIT = "gmlp_flax/__init__.py"
VERSION = re.compile(r'^__version__ = "(.*)"$', re.M)
RELEASED = re.compile(r"\d+\.\d+\.\d+")
UNRELEASED = "## Unreleased\n"
PLACEHOLDER = "ADDRESS-OF-THIS-REPOSITORY"  # in README.md, until the repository has an address
TRIED = (  # commands of the wheel, with what they print
    (("--help",), "usage: gmlp SUBCOMMAND"),
    (
        ("train", "--config=quickstart_text", "--workdir=run", "--config.steps=4"),
        "step 4  held out: perplexity",
    ),
    (("predict", "--workdir=run"), "[MASK] 1: "),
)
TEXT = "The [MASK] is a function.\n"  # for predict


def fail(message: str) -> NoReturn:
    """Ends the program with one line."""
    raise SystemExit(f"release: {message}")


def say(message: str) -> None:
    print(f"release: {message}", flush=True)


def run(*words: object, cwd: Path = ROOT, **options) -> str:
    """What a command prints. If it fails, its last line ends the program."""
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, **options)
    if done.returncode:
        output = (done.stdout + done.stderr).strip()
        last_line = output.rpartition("\n")[2]
        fail(f"{' '.join(command)} failed: {last_line}")
    return done.stdout + done.stderr


def version_in(text: str) -> str:
    """The version in gmlp_flax/__init__.py."""
    match = VERSION.search(text)
    if match is None:
        fail(f"{INIT} has no __version__")
    return match[1]


def repository_url() -> str:
    """Where the repository is on the web: GitHub's own variables, else git's remote; "" without."""
    server = os.environ.get("GITHUB_SERVER_URL")
    name = os.environ.get("GITHUB_REPOSITORY")
    if server and name:
        return f"{server}/{name}"
    done = subprocess.run(
        ["git", "config", "--get", "remote.origin.url"], cwd=ROOT, capture_output=True, text=True
    )
    address = done.stdout.strip().removesuffix(".git")
    address = re.sub(r"^git@([^:]+):", r"https://\1/", address)
    if address.startswith("https://"):
        return address
    return ""


def absolute_links(readme: str, url: str, tag: str) -> str:
    """README.md with links and pictures that also work outside the repository, as on PyPI.

    Args:
        readme: its text.
        url: of the repository.
        tag: of the release, whose files are linked.
    """
    text = re.sub(r"\]\((?!https?:|#)", f"]({url}/blob/{tag}/", readme)
    return re.sub(r'\b(src|srcset)="(?!https?:)', rf'\1="{url}/raw/{tag}/', text)


def export(folder: Path, version: str) -> None:
    """Writes the last commit to a folder, as it is packed."""
    archive = folder.with_suffix(".tar")
    run("git", "archive", f"--output={archive}", "HEAD")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    url = repository_url()
    if not url:
        say("no address of the repository is known: the links of the README stay relative")
        return
    readme = folder / "README.md"
    text = absolute_links(readme.read_text(), url, f"v{version}")
    readme.write_text(text.replace(PLACEHOLDER, url))
    setup = folder / "setup.cfg"
    urls = f"project_urls =\n    Source = {url}\n    Changelog = {url}/blob/main/CHANGELOG.md\n"
    setup.write_text(setup.read_text().replace("[metadata]\n", f"[metadata]\n{urls}", 1))


def environment(folder: Path, python: str, *packages: object) -> Path:
    """Makes an environment with packages; returns the folder of its programs."""
    run(python, "-m", "venv", folder)
    programs = folder / "bin"
    run(programs / "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return programs


def build() -> None:
    """Writes the wheel and the sdist of the last commit to dist/, and checks them."""
    version = version_in(run("git", "show", f"HEAD:{INIT}"))
    tag = os.environ.get("GITHUB_REF_NAME", "")
    if os.environ.get("GITHUB_REF_TYPE") == "tag" and tag != f"v{version}":
        fail(f"the tag is {tag} and the version {version}: expected the tag v{version}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say("installing build and twine")
        programs = environment(folder / "tools", sys.executable, "build", "twine")
        source = folder / "source"
        export(source, version)
        shutil.rmtree(DIST, ignore_errors=True)
        say(f"building {version}")
        run(programs / "python", "-m", "build", "--outdir", DIST, source)
        built = sorted(DIST.iterdir())
        run(programs / "twine", "check", "--strict", *built)
    for path in built:
        say(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB, twine finds no fault")


def find_python(version: str) -> str:
    """A Python of a version such as 3.11: on the PATH, or pyenv's; "" if there is none."""
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    versions = sorted(glob.glob(f"{pyenv}/versions/{version}.*/bin/python"))
    for candidate in (f"python{version}", *versions):
        path = shutil.which(candidate)
        # A shim of pyenv is on the PATH whether or not it runs.
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    return ""


def try_wheel(versions: Sequence[str] = PYTHONS) -> None:
    """Installs the wheel in a fresh environment of each Python, and uses it there."""
    wheels = sorted(DIST.glob("*.whl"))
    if len(wheels) != 1:
        fail(f"dist/ has {len(wheels)} wheels; expected one: run build first")
    for version in versions:
        python = find_python(version)
        if not python:
            fail(f"there is no Python {version} on the PATH or under pyenv: install it")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            say(f"Python {version}: installing {wheels[0].name} and what it requires")
            programs = environment(folder / "fresh", python, wheels[0])
            _use(programs, folder, version)


def _use(programs: Path, folder: Path, version: str) -> None:
    """Runs commands of the wheel in an empty folder; their output is checked."""
    work = folder / "work"
    work.mkdir()
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "JAX_PLATFORMS": "cpu"}
    for words, expected in TRIED:
        printed = run(programs / "gmlp", *words, cwd=work, env=variables, input=TEXT)
        line = next((line for line in printed.splitlines() if expected in line), "")
        if not line:
            fail(f"Python {version}: gmlp {words[0]} did not print {expected!r}")
        say(f"Python {version}: gmlp {words[0]}: {line.strip()}")


def publish(version: str) -> None:
    """Writes the version, commits, builds, tries, tags and pushes."""
    if not RELEASED.fullmatch(version):
        fail(f"the version is {version!r}: expected three numbers, such as 0.3.0")
    if run("git", "status", "--porcelain"):
        fail("there are uncommitted changes: commit them, or put them aside")
    if not repository_url():
        fail("git has no remote origin with an address on the web: add it")
    if run("git", "tag", "--list", f"v{version}"):
        fail(f"the tag v{version} exists: releases are never replaced; take the next version")
    write_version(version, datetime.date.today().isoformat())
    run("git", "commit", "--all", f"--message=Version {version}")
    build()
    try_wheel()
    run("git", "tag", f"v{version}")
    run("git", "push", "--atomic", "origin", "HEAD", f"v{version}")
    say(f"pushed v{version}: the workflow Release publishes it")


def write_version(version: str, today: str) -> None:
    """Writes the version and the date in the files that have them."""
    init = ROOT / INIT
    init.write_text(VERSION.sub(f'__version__ = "{version}"', init.read_text()))
    changelog = ROOT / "CHANGELOG.md"
    text = changelog.read_text()
    if text.count(UNRELEASED) != 1:
        fail("CHANGELOG.md has no section Unreleased")
    changelog.write_text(text.replace(UNRELEASED, f"{UNRELEASED}\n## {version} - {today}\n"))
    citation = ROOT / "CITATION.cff"
    text = re.sub(r"(?m)^version: .*$", f"version: {version}", citation.read_text())
    citation.write_text(re.sub(r"(?m)^date-released: .*$", f"date-released: {today}", text))


def main(words: Sequence[str]) -> None:
    match words:
        case ["build"]:
            build()
        case ["try", *versions]:
            try_wheel(versions or PYTHONS)
        case ["publish", version]:
            publish(version)
        case _:
            fail(
                f"the command is {' '.join(words)!r}: expected build, try [PYTHON], or publish VERSION"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
