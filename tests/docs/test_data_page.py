"""docs/data.md describes each form in the words of its reader's docstring."""

import ast
from pathlib import Path

import pytest

READERS = sorted(Path("gmlp_flax/data/readers").glob("[!_]*.py"))
CHOOSER = Path("gmlp_flax/data/readers/images.py")  # chooses a reader of images; describes no form


def words(text: str) -> str:
    """A text without line breaks and backticks."""
    joined = " ".join(text.split())
    return joined.replace("`", "")


@pytest.mark.parametrize("path", sorted(set(READERS) - {CHOOSER}), ids=str)
def test_the_page_has_the_forms_of_the_readers(path):
    module = ast.parse(path.read_text())
    docstring = ast.get_docstring(module)
    form, _, _ = docstring.partition("\n\n")
    page = Path("docs/data.md").read_text()
    assert words(form) in words(page)
