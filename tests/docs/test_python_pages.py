"""The pages on the Python API: their examples run, and they document what they must by the names
that a user writes."""

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
DOCUMENTED = [
    name
    for page in PAGES
    for name in re.findall(r"^::: ([\w.]+)$", (FOLDER / page).read_text(), re.MULTILINE)
]


def examples(page: str) -> list[str]:
    """The Python of a page, in its order."""
    return re.findall(r"^```python\n(.*?)^```", (FOLDER / page).read_text(), re.DOTALL | re.M)


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
    for name, run in (("text", text_run), ("digits", image_run)):
        (tmp_path / "runs" / name).symlink_to(run)
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(tmp_path / "photos" / "a.png")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)])
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
    assert set(DOCUMENTED) >= {f"gmlp_flax.{name}" for name in gmlp_flax.__all__}
    homes = {
        f"{value.__module__}.{value.__name__}"
        for value in (getattr(gmlp_flax, name) for name in gmlp_flax.__all__)
    }
    assert homes.isdisjoint(DOCUMENTED)


def test_every_block_is_documented():
    expected = {f"gmlp_flax.models.blocks.{block.__name__}" for block in blocks.BLOCKS.values()}
    assert set(DOCUMENTED) >= expected


def test_nothing_is_documented_twice():
    assert len(set(DOCUMENTED)) == len(DOCUMENTED)
