"""scripts/setup.sh on copies of itself, with stand-ins for Python: nothing is installed and no
network is used.

And the help of the other scripts; tests/docs builds the site with docs.sh.
"""

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONSTRAINTS = "constraints-3.11.txt", "constraints-3.13.txt"
COPIED = (
    "scripts/setup.sh",
    "scripts/patiently.sh",
    "requirements.txt",
    "setup.cfg",
    "pyproject.toml",
    *CONSTRAINTS,
)
TOOLS = "bash cat chmod cksum cp dirname grep ls mkdir paste sed sort".split()

# A Python that reports version $VERSION, makes environments of copies of itself that keep that
# version, and writes down the packages that it must install. Its pip has the settings $PIP_SETTINGS,
# and finds the file $PIP_UV as uv.
STANDIN = """#!/bin/bash
case "$*" in
  *version_info*) echo "$VERSION $0" ;;
  *ensurepip*) exit "$NO_ENSUREPIP" ;;
  "-m venv"*)
    venv=${@: -1}
    mkdir -p "$venv/bin"
    { echo "#!/bin/bash"; echo "VERSION=$VERSION"; cat "$0"; } >"$venv/bin/python"
    chmod +x "$venv/bin/python"
    echo made >"$venv/pyvenv.cfg" ;;
  *"config list") echo "$PIP_SETTINGS" ;;
  *"install --quiet uv") cp "$PIP_UV" "${0%/*}/uv" ;;
  "-m pip install"*)
    echo "${@: -1}" >>installed.txt
    echo "$*" >>commands.txt
    exit "$PIP_STATUS" ;;
esac
"""


# A uv that writes down the packages that it must install.
UV = """#!/bin/bash
if [[ $1 == --version ]]; then exit 0; fi
echo "uv ${@: -1}" >>installed.txt
exit "$UV_STATUS"
"""


class Checkout:
    """A copy of what setup.sh reads, in a folder with a space in its name, and a PATH that holds no
    uv."""

    def __init__(self, folder: pathlib.Path):
        self.root = folder / "a checkout"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.root / "scripts").mkdir(parents=True)
        for name in COPIED:
            shutil.copy(ROOT / name, self.root / name)
        for tool in TOOLS:
            program = shutil.which(tool)
            (self.bin / tool).symlink_to(program)
        self.add_python("python3")

    def add_python(self, name: str) -> pathlib.Path:
        path = self.bin / name
        path.write_text(STANDIN)
        path.chmod(0o755)
        return path

    def add_uv(self, folder: pathlib.Path) -> pathlib.Path:
        path = folder / "uv"
        path.write_text(UV)
        path.chmod(0o755)
        return path

    def setup(
        self, *arguments: str, cwd: str = "/", **variables: str
    ) -> subprocess.CompletedProcess:
        """Runs setup.sh from another folder; `variables` are added to a bare environment."""
        environment = {
            "PATH": str(self.bin),
            "VERSION": "3.11.7",
            "NO_ENSUREPIP": "0",
            "PIP_STATUS": "0",
            "PIP_SETTINGS": "global.timeout='60'",
            "PIP_UV": "/no/uv",
            **variables,
        }
        return subprocess.run(
            [shutil.which("bash"), self.root / "scripts/setup.sh", *arguments],
            env=environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def installed(self) -> list[str]:
        """The targets given to pip, in order, and to uv, which are marked."""
        notes = self.root / "installed.txt"
        return notes.read_text().splitlines() if notes.exists() else []


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def assert_one_line_error(result: subprocess.CompletedProcess, *words: str) -> None:
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (
            (),
            {"VERSION": "3.10.13"},
            ["'python3'", "3.10.13", "3.11 or newer", "PYTHON=python3.12"],
        ),
        ((), {"PYTHON": "python3.99"}, ["'python3.99'", "3.11 or newer"]),
        ((), {"NO_ENSUREPIP": "1"}, ["ensurepip", "python3.11-venv"]),
        (("test", "tests"), {}, ["'tests'", "parity", "cuda", "plan", "tensorboard", "test"]),
    ],
)
def test_user_errors_are_one_line(checkout, arguments, variables, words):
    result = checkout.setup(*arguments, **variables)
    assert_one_line_error(result, *words)
    assert not (checkout.root / ".venv").exists()


def test_a_folder_that_is_no_environment_is_not_changed(checkout):
    precious = checkout.root / ".venv" / "thesis.tex"
    precious.parent.mkdir()
    precious.touch()
    assert_one_line_error(checkout.setup(), ".venv", "VENV")
    assert precious.exists()


def test_a_second_run_does_nothing_and_extras_accumulate(checkout):
    assert checkout.setup("test").returncode == 0
    again = checkout.setup("test")
    assert again.returncode == 0, again.stderr
    assert again.stderr == ""
    assert len(again.stdout.splitlines()) == 1
    assert "up to date" in again.stdout
    checkout.setup("tensorboard")
    result = checkout.setup("tensorboard", "test")
    assert result.stdout.count("up to date") == 1
    assert checkout.setup().stdout.count("up to date") == 1
    assert checkout.installed() == [".[test]", ".[tensorboard,test]"]


@pytest.mark.parametrize("name", ["requirements.txt", "constraints-3.11.txt"])
def test_changed_requirements_install_again(checkout, name):
    checkout.setup("test")
    with (checkout.root / name).open("a") as file:
        file.write("\n# changed\n")
    assert checkout.setup().returncode == 0
    assert checkout.installed() == [".[test]", ".[test]"]


@pytest.mark.parametrize(
    ("version", "file"), [("3.11.7", "constraints-3.11.txt"), ("3.14.0", "constraints-3.13.txt")]
)
def test_tested_versions_are_installed(checkout, version, file):
    checkout.setup(VERSION=version)
    checkout.setup(VERSION=version, CONSTRAINTS="none")
    commands = (checkout.root / "commands.txt").read_text()
    tested, newest = commands.splitlines()
    assert f"--constraint {file} --editable" in tested
    assert "--constraint" not in newest


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints_name_every_requirement(name):
    pinned = distributions_of(ROOT / name, "==")
    required = distributions_of(ROOT / "requirements.txt", ">=")
    assert required
    assert required <= pinned


def distributions_of(path: pathlib.Path, sign: str) -> set[str]:
    """The names before a sign, as package indexes write them."""
    names = re.findall(rf"^([\w-]+){sign}", path.read_text(), re.M)
    return {name.lower().replace("_", "-") for name in names}


def test_failed_installations_are_repeated(checkout):
    checkout.setup("test")
    failed = checkout.setup("plan", PIP_STATUS="1")
    assert failed.returncode != 0
    assert len(failed.stderr.splitlines()) == 1
    assert checkout.setup().returncode == 0
    # The extra that failed is not insisted on; those that were there are kept.
    assert checkout.installed() == [".[test]", ".[plan,test]", ".[test]"]


def test_another_python_rebuilds_the_environment(checkout):
    checkout.setup("test")
    other = str(checkout.add_python("python3.12"))
    rebuilt = checkout.setup(PYTHON=other, VERSION="3.12.1")
    assert "making .venv with Python 3.12.1" in rebuilt.stdout
    assert "up to date" in checkout.setup(PYTHON=other, VERSION="3.12.1").stdout
    # A fresh environment has the extras of this call, and keeps its Python when none is named.
    assert checkout.installed() == [".[test]", "."]
    kept = checkout.setup(VERSION="3.10.13")
    assert "up to date" in kept.stdout
    assert "3.12.1" in kept.stdout


def test_the_environment_and_the_checkout_may_be_elsewhere(checkout, tmp_path):
    for venv in (str(tmp_path / "my venv"), "my venv"):
        made = checkout.setup("test", VENV=venv)
        assert made.returncode == 0
        again = checkout.setup("test", VENV=venv)
        assert "up to date" in again.stdout
        assert (checkout.root / venv / "pyvenv.cfg").exists()
        assert not (checkout.root / ".venv").exists()
    moved = checkout.root.with_name("moved")
    checkout.root = checkout.root.rename(moved)
    reinstalled = checkout.setup("test", VENV="my venv")
    assert "is installed" in reinstalled.stdout


@pytest.mark.parametrize("script", ["setup", "quickstart", "docs"])
def test_help_prints_usage(script):
    result = subprocess.run(
        [ROOT / f"scripts/{script}.sh", "-h"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0
    assert f"Usage: scripts/{script}.sh" in result.stdout
    assert "set -e" not in result.stdout


def test_unknown_commands_of_docs_are_refused():
    done = subprocess.run([ROOT / "scripts/docs.sh", "publish"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "'publish'; expected build or serve" in done.stderr


@pytest.mark.slow
def test_long_commands_print_heartbeats_even_in_a_pipe():
    script = f". {ROOT}/scripts/patiently.sh; say() {{ echo docs: $*; }}; patiently bash -c 'sleep 5; exit 3'"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert re.fullmatch(r"docs: [45] s so far\n", done.stdout)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param("0", ["uv .[test]"], id="uv"),
        pytest.param("1", ["uv .[test]", ".[test]"], id="pip, if uv fails"),
    ],
)
def test_uv_installs_if_it_is_present(checkout, status, expected):
    checkout.add_uv(checkout.bin)
    result = checkout.setup("test", UV_STATUS=status)
    assert result.returncode == 0, result.stderr
    assert checkout.installed() == expected


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("global.extra-index-url='https://a.example/simple'", "uv .[test]"),
        ("global.index-url='https://a.example/simple'", ".[test]"),
        (":env:.index-url='https://a.example/simple'", ".[test]"),
        ("global.index-url='https://a.example/simple'\nglobal.timeout='60'", ".[test]"),
    ],
)
def test_pip_provides_uv_unless_its_index_is_another_one(checkout, tmp_path, setting, expected):
    uv = checkout.add_uv(tmp_path)
    result = checkout.setup("test", PIP_UV=str(uv), UV_STATUS="0", PIP_SETTINGS=setting)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert checkout.installed() == [expected]
