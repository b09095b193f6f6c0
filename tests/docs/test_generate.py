"""Pages that are made from the code are what docs/generate.py makes."""

import re
from pathlib import Path

import pytest

from docs import generate
from gmlp_flax import tasks
from gmlp_flax.__main__ import COMMANDS
from gmlp_flax.config import schema
from gmlp_flax.models import blocks
from tests import preloaded

ADVICE = "run: python docs/generate.py"


def test_the_home_page_is_the_readme_with_other_links():
    readme = Path("README.md").read_text()
    assert Path("docs/README.md").read_text() == generate.home_page(readme), ADVICE


def test_links_of_the_home_page_start_in_its_folder():
    readme = "[a](docs/b.md#c), [d](https://e.f), [CHANGELOG.md](CHANGELOG.md)"
    assert generate.home_page(readme) == "[a](b.md#c), [d](https://e.f), CHANGELOG.md"


def test_pictures_of_the_home_page_have_two_modes():
    picture = '<picture><source media="m" srcset="docs/x-dark.svg"><img src="docs/x-light.svg" width="1" alt="X"></picture>'
    expected = "![X](x-light.svg#gh-light-mode-only)![X](x-dark.svg#gh-dark-mode-only)\n"
    home = generate.home_page(f"<p>{picture} {picture}</p>\n")
    assert home == f'<p class="figures" markdown>\n{expected}{expected}</p>\n'


def test_the_page_of_keys_is_up_to_date():
    assert Path("docs/keys.md").read_text() == generate.keys_page(), ADVICE


@pytest.mark.slow
def test_the_page_of_sizes_is_up_to_date(printed_sizes):
    assert Path("docs/sizes.md").read_text() == generate.sizes_page(printed_sizes), ADVICE


@pytest.mark.parametrize("name", COMMANDS)
def test_the_section_of_a_command_is_up_to_date(name):
    printed = preloaded.gmlp(name, "--help").stdout
    section = generate.command_section(name, printed)
    assert section in Path("docs/commands.md").read_text(), ADVICE


def test_every_key_has_a_row():
    listed = set(re.findall(r"^\| `([\w.]+)` \|", generate.keys_page(), re.M))
    for task in tasks.TASKS:
        for block in blocks.BLOCKS:
            assert listed >= set(schema.keys_of(task, block))


def test_vertical_bars_in_cells_are_escaped():
    option = generate.Option("x|y", "one | two", ("x|y", "z"))
    table = generate.table({"a.b": option})
    row = table.splitlines()[-1]
    assert row == r"| `a.b` | `'x\|y'` | `x\|y`, `z` | one \| two |"
