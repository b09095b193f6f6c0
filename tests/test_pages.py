"""The README and the documentation: their commands, configs and links exist, and their examples run."""

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
    """The text of a page, with continued lines joined. Outputs of a notebook are left out."""
    text = Path(path).read_text()
    if path.endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return text.replace("\\\n", " ")


MARKDOWN = glob.glob("docs/**/*.md", recursive=True)
NOTEBOOKS = glob.glob("docs/**/*.ipynb", recursive=True)
DOCS = sorted(MARKDOWN + NOTEBOOKS)
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
    """The flags that `gmlp COMMAND --help` lists."""
    done = preloaded.gmlp(command, "--help")
    assert done.returncode == 0, done.stderr
    flags = re.findall(r"^ +--(\w+)", done.stdout, re.M)
    return {"help", *flags}


@functools.cache
def help_of(script: str) -> str:
    """The comment at the head of a script, which its --help prints."""
    text = Path(f"scripts/{script}.sh").read_text()
    head = re.match(r"#!.*\n((?:#.*\n)+)", text)
    assert head, script
    return head[1]


def check_flags(page: str, command: str, arguments: str) -> None:
    """Fails if a command does not have one of these flags. Keys of a config or a sweep are not
    checked."""
    known = flags_of(command)
    for flag in re.findall(r"(?<!\S)--(\w+)(?![\w.-])", arguments):
        positive = flag.removeprefix("no")
        is_known = flag in known or positive in known
        assert is_known, f"{page}: {command} --{flag}; it has {sorted(known)}"


@EVERYWHERE
def test_flags_of_commands_exist(page):
    for name, arguments in CALLS.findall(PAGES[page]):
        assert name in COMMANDS, f"{page}: gmlp {name}"
        own_arguments = re.split(" -- | #| gmlp ", arguments)[0]
        check_flags(page, name, own_arguments)


@EVERYWHERE
def test_arguments_of_scripts_exist(page):
    """Words in capitals are placeholders. The words after `launch_tpu.sh train` are flags of
    training."""
    calls = SCRIPT_CALLS.findall(PAGES[page])
    for script, arguments in calls:
        call = f"{page}: {script}{arguments}"
        if script == "launch_tpu":
            arguments, _, training = arguments.partition(" train ")
            check_flags(page, "train", training)
        for word in arguments.split():
            if word.startswith("--"):
                flag, _, _ = word.partition("=")
                assert flag in help_of(script), call
            elif re.fullmatch(r"[a-z]+", word):
                if script == "setup":
                    assert word in EXTRAS, call
                if script in ("launch_tpu", "docs"):
                    assert word in help_of(script), call


@EVERYWHERE
def test_extras_exist(page):
    """EXTRA is a placeholder."""
    for extras in INSTALLED.findall(PAGES[page]):
        for extra in extras.split(","):
            assert extra in EXTRAS | {"EXTRA"}, f"{page}: {extras}"


@EVERYWHERE
def test_configs_exist(page):
    """Arguments in capitals and my_... are placeholders."""
    for source in re.findall(r"--config=([a-z]\w*(?::[\w,=.]+)?)(?=[\s`])", PAGES[page]):
        _, _, argument = source.partition(":")
        if not source.startswith("my_") and not argument.isupper():
            assert config.open_config(source), f"{page}: {source}"


@EVERYWHERE
def test_keys_of_configs_exist(page):
    """a.b is a placeholder."""
    if page == "docs/extending.md":
        return  # declares keys, see test_extending.py
    text = PAGES[page].replace("config.mesh=auto", "config.mesh.auto=True")
    for key in re.findall(r"--config\.([a-z][\w.]*)=", text):
        if key != "a.b":
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
    folder = os.path.dirname(page)
    pages = set()
    for target in re.findall(r"\]\(([\w./-]+\.(?:md|ipynb))[^)]*\)", PAGES[page]):
        path = os.path.normpath(os.path.join(folder, target))
        if path in DOCS:
            pages.add(path)
    return pages


def test_every_page_is_within_two_links_of_the_home_page():
    linked_pages = linked("docs/README.md")
    near = {"docs/README.md"} | linked_pages
    for page in linked_pages:
        near |= linked(page)
    assert near == set(DOCS)


@pytest.mark.parametrize("page", [page for page in DOCS if page.endswith(".md")])
def test_pages_start_with_a_sentence(page):
    paragraphs = PAGES[page].split("\n\n")
    _, first, *_ = paragraphs
    assert re.match(r"\**[A-Za-z]", first), first  # not a table, a picture or code
    assert not first.startswith("For anyone"), first


def test_the_readme_is_short():
    lines = Path("README.md").read_text().splitlines()
    assert len(lines) <= 120


def pages_in(navigation) -> list[str]:
    """The pages of a part of the site's navigation, which is a page, a list, or titles with
    parts."""
    if isinstance(navigation, str):
        return [navigation]
    if isinstance(navigation, dict):
        navigation = navigation.values()
    pages = []
    for part in navigation:
        pages += pages_in(part)
    return pages


def test_every_page_is_in_the_navigation_of_the_site():
    config_text = Path("mkdocs.yml").read_text()
    _, _, text = config_text.partition("\nnav:")
    navigation = yaml.safe_load(f"nav:{text}")["nav"]
    pages = sorted(f"docs/{path}" for path in pages_in(navigation))
    expected = [page for page in DOCS if "/developers/" not in page]
    assert pages == expected


def examples(page: str) -> list[str]:
    """The Python code of a page, with smaller models."""
    code = re.findall(r"```python\n(.*?)```", PAGES[page], re.S)
    return [example.replace("layers=12", "layers=1") for example in code]


def test_the_example_of_the_readme_prints_the_output_below_it(capsys):
    [example] = examples("README.md")
    assert example in examples("docs/README.md")
    exec(example, {})
    printed = capsys.readouterr().out
    assert f"```\n\n```\n{printed}```" in PAGES["README.md"]


@pytest.mark.slow
def test_the_example_of_five_minutes_learns(capsys):
    [example] = examples("docs/gmlp-in-five-minutes.md")
    exec(example, {})
    printed = capsys.readouterr().out
    *lines, last = printed.splitlines()
    losses = []
    for line in lines:
        _, _, loss = line.partition("loss ")
        losses.append(float(loss))
    assert losses[0] == pytest.approx(3, abs=0.3)
    assert losses[-1] < 0.1
    assert last.endswith("position 5")  # three places before position 8
    assert last in PAGES["docs/gmlp-in-five-minutes.md"]
