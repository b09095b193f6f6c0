"""The README and the documentation: their commands, configs and links name what exists, their
examples run."""

import configparser
import functools
import glob
import json
import os
import re
from pathlib import Path

import pytest
import yaml

from gmlp_flax import config
from gmlp_flax.__main__ import COMMANDS
from tests import preloaded


def read(path: str) -> str:
    """The text of a page: of a notebook, what its cells hold, not what they print."""
    text = Path(path).read_text()
    if path.endswith(".ipynb"):
        text = "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return text.replace("\\\n", " ")


DOCS = sorted(
    path for kind in ("md", "ipynb") for path in glob.glob(f"docs/**/*.{kind}", recursive=True)
)
# The last one draws commands into a picture.
FILES = ("README.md", "CONTRIBUTING.md", *DOCS, "docs/figures.py")
PAGES = {path: read(path) for path in FILES}
SETUP = configparser.ConfigParser()
SETUP.read("setup.cfg")
EXTRAS = set(SETUP["options.extras_require"])
# `gmlp NAME ...` and `scripts/NAME.sh ...`, up to the end of the line or of the quotation.
CALLS = re.compile(r"(?<![\w./-])gmlp ([a-z][a-z-]*)((?: [^`\n|]*)?)")
SCRIPT_CALLS = re.compile(r"scripts/(\w+)\.sh((?: [^`\n|#]*)?)")
INSTALLED = re.compile(r"pip install[^`\n]*?(?:gmlp_flax|\.whl|'\.)\[([\w,]+)\]")
EVERYWHERE = pytest.mark.parametrize("page", FILES)


@functools.cache
def flags_of(command: str) -> set[str]:
    """The flags that `gmlp COMMAND --help` lists, which are those that the command has defined."""
    done = preloaded.gmlp(command, "--help")
    assert done.returncode == 0, done.stderr
    return {"help", *re.findall(r"^ +--(\w+)", done.stdout, re.M)}


@functools.cache
def help_of(script: str) -> str:
    """The comment at the head of a script, which its --help prints."""
    return re.match(r"#!.*\n((?:#.*\n)+)", Path(f"scripts/{script}.sh").read_text())[1]


def check_flags(page: str, command: str, given: str) -> None:
    """Fails if a command has not the flags that it is given; keys of a config or a sweep are no
    flags of its own."""
    for flag in re.findall(r"(?<!\S)--(\w+)(?![\w.-])", given):
        known = flags_of(command)
        assert {flag, flag.removeprefix("no")} & known, (
            f"{page}: {command} --{flag}; it has {sorted(known)}"
        )


@EVERYWHERE
def test_commands_have_the_flags_that_they_are_given(page):
    for name, given in CALLS.findall(PAGES[page]):
        assert name in COMMANDS, f"{page}: gmlp {name}"
        check_flags(page, name, re.split(" -- | #| gmlp ", given)[0])


@EVERYWHERE
def test_scripts_take_what_they_are_given(page):
    """Words in capitals stand for something else; what follows `launch_tpu.sh train` is for
    training."""
    for script, given in SCRIPT_CALLS.findall(PAGES[page]):
        own, _, training = given.partition(" train ") if script == "launch_tpu" else (given, "", "")
        check_flags(page, "train", training)
        flags = [word.partition("=")[0] for word in own.split() if word.startswith("--")]
        got = {flag for flag in flags if flag not in help_of(script)}
        assert got == set(), f"{page}: {script}{own}"
        words = {word for word in own.split() if re.fullmatch(r"[a-z]+", word)}
        assert script != "setup" or words <= EXTRAS, f"{page}: {script}{own}"
        assert script not in ("launch_tpu", "docs") or all(
            word in help_of(script) for word in words
        ), f"{page}:{own}"


@EVERYWHERE
def test_extras_exist(page):
    for extras in INSTALLED.findall(PAGES[page]):
        assert extras == "EXTRA" or set(extras.split(",")) <= EXTRAS, f"{page}: {extras}"


@EVERYWHERE
def test_configs_and_their_keys_exist(page):
    """Names in capitals, and the files of an example, stand for something else."""
    for given in re.findall(r"--config=([a-z]\w*(?::[\w,=.]+)?)(?=[\s`])", PAGES[page]):
        if not given.startswith("my_") and not given.partition(":")[2].isupper():
            assert config.open_config(given), f"{page}: {given}"
    for key in re.findall(
        r"--config\.([a-z][\w.]*)=",
        PAGES[page].replace("config.mesh=auto", "config.mesh.auto=True"),
    ):
        # which declares keys of its own, see test_extending.py
        if key != "a.b" and page != "docs/extending.md":
            config.check_name(key, page)


@EVERYWHERE
def test_links_and_scripts_exist(page):
    folder = os.path.dirname(page)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page]):
        if not target.startswith("http"):
            assert os.path.exists(os.path.join(folder, target)), f"{page}: {target}"
    for path in re.findall(r"(?<![\w/])(?:\./)?(scripts/\w+\.\w+)", PAGES[page]):
        assert os.path.exists(path), f"{page}: {path}"


def linked(page: str) -> set[str]:
    """The pages of docs/ that a page links to."""
    targets = re.findall(r"\]\(([\w./-]+\.(?:md|ipynb))[^)]*\)", PAGES[page])
    return {
        os.path.normpath(os.path.join(os.path.dirname(page), target)) for target in targets
    } & set(DOCS)


def test_links_lead_from_the_home_page_to_every_page():
    near = {"docs/README.md"}.union(
        *map(linked, linked("docs/README.md")), linked("docs/README.md")
    )
    assert near == set(DOCS)


@pytest.mark.parametrize("page", [page for page in DOCS if page.endswith(".md")])
def test_pages_open_with_what_the_reader_can_do(page):
    first = PAGES[page].split("\n\n")[1]
    assert re.match(r"\**[A-Za-z]", first), first  # a sentence, not a table, a picture or code
    assert not first.startswith("For anyone"), first


def test_the_readme_is_short():
    assert len(Path("README.md").read_text().splitlines()) <= 120


def test_every_page_is_in_the_navigation_of_the_site():
    def pages(entry):
        for part in entry if isinstance(entry, list) else entry.values():
            yield from [part] if isinstance(part, str) else pages(part)

    found = list(
        pages(yaml.safe_load("nav:" + Path("mkdocs.yml").read_text().partition("\nnav:")[2])["nav"])
    )
    got = sorted(f"docs/{path}" for path in found)
    expected = [page for page in DOCS if "/developers/" not in page]
    assert got == expected


def examples(page: str) -> list[str]:
    """The Python of a page, with a run and a size that tests have."""
    return [
        text.replace("layers=12", "layers=1")
        for text in re.findall(r"```python\n(.*?)```", PAGES[page], re.S)
    ]


def test_the_example_of_the_readme_prints_what_stands_below_it(capsys):
    (example,) = examples("README.md")
    assert example in examples("docs/README.md")
    exec(example, {})
    assert f"```\n\n```\n{capsys.readouterr().out}```" in PAGES["README.md"]


def test_the_example_of_five_minutes_learns(capsys):
    (example,) = examples("docs/gmlp-in-five-minutes.md")
    exec(example, {})
    printed = capsys.readouterr().out.splitlines()
    losses = [float(line.partition("loss ")[2]) for line in printed[:-1]]
    assert losses[0] == pytest.approx(3, abs=0.3)
    assert losses[-1] < 0.1
    assert printed[-1].endswith("position 5")  # three places before position 8
    assert printed[-1] in PAGES["docs/gmlp-in-five-minutes.md"]
