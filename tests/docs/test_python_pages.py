"""The pages on the Python API: their examples run, and they document every public function and block
by the name that a user writes."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gmlp_flax
from gmlp_flax.models import blocks
from tests import preloaded

FOLDER = preloaded.ROOT / "docs" / "python"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))


def examples(page: str) -> list[str]:
    """The Python code of a page."""
    text = (FOLDER / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


PAGES_WITH_EXAMPLES = [page for page in PAGES if examples(page)]


def documented() -> list[str]:
    """The names that the pages document."""
    names = []
    for page in PAGES:
        text = (FOLDER / page).read_text()
        names += re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    return names


@pytest.fixture
def folder_of_examples(text_run, image_run, tmp_path, monkeypatch) -> Path:
    """The current folder of the examples: two runs, class folders, and a photo."""
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "photos").mkdir()
    for number, name in enumerate(("ant", "ant", "ant", "bee", "bee", "bee")):
        folder = tmp_path / "insects" / name
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.full((20, 20, 3), 40 * number, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (tmp_path / "runs" / "text").symlink_to(text_run)
    (tmp_path / "runs" / "digits").symlink_to(image_run)
    black = np.zeros((20, 20, 3), np.uint8)
    Image.fromarray(black).save(tmp_path / "photos" / "a.png")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_WITH_EXAMPLES)
def test_the_examples_of_a_page_run(page, folder_of_examples):
    names: dict[str, Any] = {"__name__": "page"}
    for example in examples(page):
        exec(compile(example, page, "exec"), names)
    if page == "training.md":
        assert names["result"]["step"] == 2
    if page == "layers.md":
        assert names["y"].shape == (2, 196, 32)
        assert names["variables"]


def test_every_function_of_the_package_is_documented_by_its_short_name():
    names = documented()
    for name in gmlp_flax.__all__:
        assert f"gmlp_flax.{name}" in names
        value = getattr(gmlp_flax, name)
        assert f"{value.__module__}.{value.__name__}" not in names


def test_every_block_is_documented():
    names = documented()
    for block in blocks.BLOCKS.values():
        assert f"gmlp_flax.models.blocks.{block.__name__}" in names


def test_no_name_is_documented_twice():
    names = documented()
    assert len(set(names)) == len(names)
