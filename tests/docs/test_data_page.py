"""docs/data.md says of each form what its reader's docstring says."""

import ast
from pathlib import Path

import pytest

READERS = sorted(Path("gmlp_flax/data/readers").glob("[!_]*.py"))
# Choose among the readers of images; their own text is no form.
CHOOSERS = ("images.py",)
PAGE = " ".join(Path("docs/data.md").read_text().split())


@pytest.mark.parametrize("path", [path for path in READERS if path.name not in CHOOSERS], ids=str)
def test_the_page_has_the_forms_of_the_readers(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    form, _, _ = docstring.partition("\n\n")
    words = " ".join(form.split()).replace("`", "")
    assert words in PAGE.replace("`", "")
