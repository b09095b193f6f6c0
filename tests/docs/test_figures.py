"""The pictures of the front page are what docs/figures.py draws."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from docs import figures

FOLDER = Path("docs/figures")


def test_the_files_are_up_to_date():
    drawn = figures.drawn()
    for name, content in drawn.items():
        assert (FOLDER / name).read_text() == content, "run: python docs/figures.py"
        ElementTree.fromstring(content)


def test_light_and_dark_figures_differ_only_in_colours():
    drawn = figures.drawn()
    for name in ("gate", "filters", "mixers"):
        light = drawn[f"{name}-light.svg"]
        dark = drawn[f"{name}-dark.svg"]
        colours = zip(figures.COLOURS["light"], figures.COLOURS["dark"], strict=True)
        for light_colour, dark_colour in colours:
            light = light.replace(light_colour, dark_colour)
        assert light == dark
