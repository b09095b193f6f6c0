"""The pictures of the front page are what docs/figures.py draws."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from docs import figures

FOLDER = Path("docs/figures")


def test_the_files():
    drawn = figures.drawn()
    for name, content in drawn.items():
        assert (FOLDER / name).read_text() == content, "run: python docs/figures.py"
        ElementTree.fromstring(content)


def test_light_and_dark_differ_in_colours_alone():
    drawn = figures.drawn()
    for name in ("gate", "filters", "mixers"):
        light = drawn[f"{name}-light.svg"]
        dark = drawn[f"{name}-dark.svg"]
        for one, other in zip(figures.COLOURS["light"], figures.COLOURS["dark"], strict=True):
            light = light.replace(one, other)
        assert light == dark
