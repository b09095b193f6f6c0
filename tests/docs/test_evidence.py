"""Every measured number has a command that reproduces it, and no page cites removed code."""

import re
from pathlib import Path

import pytest

from gmlp_flax.commands.benchmark import PARTS

PAGE = Path("docs/results/evidence.md")
FILES = {path.stem for path in Path("docs/results/data").glob("*.csv")}
ROWS = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|$", PAGE.read_text(), re.M)


def test_every_file_has_a_command():
    named = []
    for names, command in ROWS:
        named += re.findall(r"`([\w-]+)`", names)
        assert re.search(r"`(gmlp|python|scripts/|docs/results/)", command), names
    assert sorted(named) == sorted(FILES)


def test_every_named_part_of_the_benchmark_exists():
    """Other commands are parsed by tests/test_pages.py."""
    calls = re.findall(r"gmlp benchmark ([a-z ]+)", PAGE.read_text())
    assert calls
    for call in calls:
        assert set(call.split()) <= set(PARTS)


@pytest.mark.parametrize("path", sorted(Path("docs").rglob("*.md")), ids=str)
def test_no_page_cites_removed_code(path):
    if path.name == "measurements.md":
        return  # it describes code that was tried and not kept
    text = " ".join(path.read_text().split())
    for words in ("no longer in the package", "no longer part of", "column that is no longer"):
        assert words not in text, path
