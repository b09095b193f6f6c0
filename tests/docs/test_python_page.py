"""Every example of the page on the Python API runs, one after the other."""

import re

import numpy as np

from tests import preloaded


def test_the_examples_run(text_run, image_run, tmp_path, monkeypatch):
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
    page = (preloaded.ROOT / "docs" / "python.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    names = {"__name__": "page"}
    assert len(examples) > 6
    for example in examples:
        exec(compile(example, "docs/python.md", "exec"), names)
    assert names["result"]["step"] == 2
    assert names["y"].shape == (2, 196, 32)
    assert names["variables"]
