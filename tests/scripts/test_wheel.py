"""The wheel in a fresh environment and an empty folder, used as somebody does who has never seen
the checkout.

The environment holds the wheel, and links to the packages that it requires, which these tests
already have. Every night pip installs them instead, which takes a minute.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gmlp_flax.weights import exports

ROOT = Path(__file__).parents[2]
TESTED_PYTHON = "3.11" if sys.version_info[:2] == (3, 11) else "3.13"
CONSTRAINTS = ROOT / f"constraints-{TESTED_PYTHON}.txt"
SHORT = ("--config.steps=4", "--config.eval.every=4", "--config.log.every=2")
# What only a checkout has: its scripts, its config files by their path, extras of a folder.
CHECKOUT = re.compile(
    r"scripts/|(?<!gmlp_flax/)configs/\w+\.py|\.\[|requirements\.txt|" + re.escape(str(ROOT))
)
pytestmark = pytest.mark.slow


class Fresh:
    """An environment that holds the wheel and what it requires, and an empty folder to work in."""

    def __init__(self, environment: Path, folder: Path):
        self.bin = environment / "bin"
        self.folder = folder
        self.variables = {}
        for name, value in os.environ.items():
            if not name.startswith(("PYTHON", "XLA_", "JAX_")):
                self.variables[name] = value
        self.variables |= {
            "JAX_PLATFORMS": "cpu",
            "HOME": str(folder.parent),
            "VIRTUAL_ENV": str(environment),
        }

    def run(self, program: str, *words: str, input: str = "") -> subprocess.CompletedProcess:
        """Runs a program of the environment; no message may name what only a checkout has."""
        done = subprocess.run(
            [self.bin / program, *words],
            cwd=self.folder,
            env=self.variables,
            input=input,
            capture_output=True,
            text=True,
            timeout=300,
        )
        messages = done.stdout + done.stderr
        assert not CHECKOUT.search(messages), messages
        return done

    def gmlp(self, *words: str, **options: str) -> str:
        """What a command prints that succeeds."""
        done = self.run("gmlp", *words, **options)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def refused(self, *words: str) -> str:
        """The one line of a command that is refused."""
        done = self.run("gmlp", *words)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stderr.splitlines()[-1]


def pip(*words: object) -> None:
    """Runs pip; without a package index the tests are skipped."""
    command = [sys.executable, "-m", "pip", *map(str, words)]
    command += ["--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "No matching distribution" in done.stderr:
        pytest.skip("pip finds no package index")
    assert done.returncode == 0, done.stdout + done.stderr


def required(name: str, extras: set[str], names: set[str]) -> None:
    """Adds the names of the distributions that a distribution needs, directly or not.

    Args:
        name: of the distribution.
        extras: its extras that are needed as well.
        names: those already known.
    """
    for line in importlib.metadata.requires(name) or ():
        requirement = Requirement(line)
        if not applies(requirement, extras):
            continue
        needed = canonicalize_name(requirement.name)
        if needed not in names or requirement.extras:
            names.add(needed)
            required(needed, requirement.extras, names)


def applies(requirement: Requirement, extras: set[str]) -> bool:
    """Whether a requirement holds here, without extras or with one of these."""
    marker = requirement.marker
    if marker is None:
        return True
    return any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def link_packages(distribution: importlib.metadata.Distribution, site_packages: Path) -> None:
    """Links the packages, modules and metadata of a distribution into `site_packages`. A namespace
    package becomes a folder, because several distributions may share it."""
    for file in distribution.files or ():
        if ".." in file.parts or file.parts[0] == "__pycache__":
            continue  # a script, or bytecode
        source = Path(str(distribution.locate_file("")))
        target = site_packages
        for part in file.parts:
            source = source / part
            target = target / part
            if target.is_symlink():
                break
            is_metadata = source.suffix == ".dist-info"
            is_package = (source / "__init__.py").exists()
            if source.is_file() or is_metadata or is_package:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source)
                break


def link_required(python: Path, site_packages: Path) -> None:
    """Gives an environment what the wheel in it requires."""
    names: set[str] = set()
    required("gmlp_flax", set(), names)
    assert {"jax", "flax", "numpy"} <= names
    for name in names:
        link_packages(importlib.metadata.distribution(name), site_packages)
    pip("--python", python, "check")


@pytest.fixture(
    scope="module", params=["linked", pytest.param("installed", marks=pytest.mark.nightly)]
)
def fresh(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("fresh")
    environment = root / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    # a copy: workers that build in one folder at the same time disturb each other
    unneeded = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    source = shutil.copytree(ROOT, root / "source", symlinks=True, ignore=unneeded)
    pip("wheel", "--no-deps", f"--wheel-dir={root}", source)
    (wheel,) = root.glob("*.whl")
    install = ["--python", python, "install", "--no-compile"]
    if request.param == "linked":
        pip(*install, "--no-deps", wheel)
        (site_packages,) = environment.glob("lib/python*/site-packages")
        link_required(python, site_packages)
    else:
        pip(*install, "--constraint", CONSTRAINTS, wheel)
    (root / "empty").mkdir()
    return Fresh(environment, root / "empty")


@pytest.fixture(scope="module")
def text(fresh):
    """What training prints; the run is in the folder `w`."""
    done = fresh.run("gmlp", "train", "--config=quickstart_text", "--workdir=w", *SHORT)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_training_prints_its_progress_and_the_next_commands(text):
    assert "compiling the training step" in text
    assert "gmlp, masked_lm: 4 steps of 32 examples on 1 cpu device; writing to" in text
    assert re.search(
        r"training a tokenizer of 2,000 pieces on embedded.*\n(.*\n)*tokenizing embedded", text
    )
    assert re.search(
        r"657,868 parameters; [\d,]+ sequences of 64 tokens to train on, \d+ held out", text
    )
    assert "to compare: token frequencies alone: perplexity" in text
    assert "gmlp predict --workdir=w < TEXT" in text
    assert "gmlp draw filters w" in text
    assert "gmlp evaluate --workdir=w" in text


def test_the_run_predicts(fresh, text):
    assert "[MASK] 1: " in fresh.gmlp("predict", "--workdir=w", input="The [MASK] is a function.\n")
    program = (
        "import gmlp_flax; print(gmlp_flax.load('w').predict(['The [MASK] is a function.'], top=3))"
    )
    done = fresh.run("python", "-c", program)
    assert done.returncode == 0, done.stderr
    assert len(eval(done.stdout)[0][0]) == 3, done.stderr


def test_bundled_models_are_loaded(fresh):
    done = fresh.run(
        "python", "-c", "from gmlp_flax.weights import exports; print([*exports.shipped()])"
    )
    assert eval(done.stdout) == [*exports.shipped()], done.stderr


@pytest.mark.nightly
def test_tables_plans_and_sizes(fresh):
    assert "the report: reports/table5/index.html" in fresh.gmlp("reproduce", "table5")
    assert (fresh.folder / "reports" / "table5" / "index.html").is_file()
    assert "gpu:h100x8: 8 chips, estimated" in fresh.gmlp(
        "plan", "--config=imagenet:gmlp_s", "--topology=gpu:h100x8"
    )
    assert "gmlp_s            19,422,656" in fresh.gmlp("sizes")
    assert "config.model.toeplitz" in fresh.gmlp(
        "train", "--config=c4_ablation:sgu", "--help_config"
    )


def test_user_errors_give_advice_for_an_installed_package(fresh):
    assert "did you mean 'train'?" in fresh.refused("trian")
    assert "pip install 'gmlp_flax[plan]'" in fresh.refused(
        "plan", "--config=imagenet:gmlp_s", "--topology=v5e:2x2"
    )
    assert "did you mean 'quickstart_text'?" in fresh.refused(
        "train", "--config=quickstart_txt", "--workdir=x"
    )
    (fresh.folder / "own_text.py").write_text("def get_config(arg=''): return None\n")
    line = fresh.refused("train", "--config=own_text", "--workdir=x")
    assert line.startswith("error: two places hold a config own_text, own_text.py and ")
    assert line.endswith(
        "give --config=own_text.py, or --config=gmlp_flax.configs.own_text for the one that comes with gmlp_flax"
    )
