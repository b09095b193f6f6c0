"""The README and the documentation: their commands, configs and links name what exists, their examples run."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

import pytest

from gmlp_flax import config
from gmlp_flax.commands.main import COMMANDS

FILES = ("README.md", "CONTRIBUTING.md", *sorted(glob.glob("docs/**/*.md", recursive=True)))
PAGES = {path: Path(path).read_text().replace("\\\n", " ") for path in FILES}
# `gmlp NAME ...`, up to the end of the line or of the quotation.
CALLS = re.compile(r"(?<![\w./-])gmlp ([a-z][a-z-]*)((?: [^`\n|]*)?)")
EVERYWHERE = pytest.mark.parametrize("page", FILES)


@pytest.mark.smoke
@EVERYWHERE
def test_commands_have_the_flags_that_they_are_given(page):
    """Looks for each flag in its command's file and in cli.py, which defines shared flags."""
    common = Path("gmlp_flax/commands/cli.py").read_text()
    for name, flags in CALLS.findall(PAGES[page]):
        assert name in COMMANDS, f"{page}: gmlp {name}"
        program = Path(f"gmlp_flax/commands/{COMMANDS[name][0]}.py").read_text() + common
        for flag in re.findall(r" --(?:no)?(\w+)(?![\w.])", flags.partition(" -- ")[0]):
            assert re.search(rf'DEFINE_\w+\(\s*"{flag}"|"--{flag}(?:=[A-Z]+)?"', program), f"{page}: {name} --{flag}"


def test_the_readme_names_the_commands_that_users_begin_with():
    assert {"train", "sweep", "reproduce", "plan", "sizes"} <= {name for name, _ in CALLS.findall(PAGES["README.md"])}
    assert len(PAGES["README.md"].splitlines()) <= 150


@EVERYWHERE
def test_configs_and_their_keys_exist(page):
    """Names in capitals, and the files of an example, stand for something else."""
    for given in re.findall(r"--config=([a-z]\w*(?::[\w,=.]+)?)(?=[\s`])", PAGES[page]):
        if not given.startswith("my_") and not given.partition(":")[2].isupper():
            assert config.open_config(given), f"{page}: {given}"
    for key in re.findall(r"--config\.([a-z][\w.]*)=", PAGES[page]):
        if key != "a.b" and page != "docs/extending.md":  # which declares keys of its own, see test_extending.py
            config.check_name(key, page)


@EVERYWHERE
def test_links_and_scripts_exist(page):
    folder = os.path.dirname(page)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page]):
        if not target.startswith("http"):
            assert os.path.exists(os.path.join(folder, target)), f"{page}: {target}"
    for path in re.findall(r"(?<![\w/])(?:\./)?(scripts/\w+\.\w+)", PAGES[page]):
        assert os.path.exists(path), f"{page}: {path}"


def test_every_page_is_listed():
    listed = {f"docs/{target}" for target in re.findall(r"\]\(([\w/-]+\.md)\)", PAGES["docs/README.md"])}
    assert listed | {"docs/README.md", "README.md", "CONTRIBUTING.md"} == set(FILES)


def test_sizes_are_what_the_command_prints(printed_sizes):
    for line in printed_sizes.splitlines():
        assert line[:55].rstrip() in PAGES["docs/sizes.md"]


def test_the_modules_example_runs():
    import jax.numpy as jnp

    example = re.search(r"```python\n(.*?)```", PAGES["README.md"], re.S)[1].replace("layers=12", "layers=1")
    names = {"x": jnp.ones((2, 100, 512))}
    exec(example, names)  # noqa: S102 - our own README
    assert names["y"].shape == (2, 100, 512)
