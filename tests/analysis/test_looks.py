"""Colours that differ for every reader, on a white and on a dark page."""

import itertools

import numpy as np
import pytest

from gmlp_flax.analysis.looks import (
    DARK_PAGE,
    FAMILIES,
    GREY,
    WHITE,
    contrast,
    looks,
    on_dark,
    shades,
)

# Machado, Oliveira and Fernandes (2009), severity 1: the linear RGB that readers without one kind of
# cone see.
VISION = {
    "usual": np.eye(3),
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(colour):
    numbers = bytes.fromhex(colour[1:])
    levels = np.frombuffer(numbers, np.uint8)
    channels = levels / 255
    dark = channels / 12.92
    bright = ((channels + 0.055) / 1.055) ** 2.4
    return np.where(channels <= 0.04045, dark, bright)


def lab(rgb):
    """CIE L*a*b* of linear RGB. Distances are approximately perceptual, and 2.3 is just
    noticeable."""
    to_xyz = np.array(
        [
            [0.4124, 0.3576, 0.1805],
            [0.2126, 0.7152, 0.0722],
            [0.0193, 0.1192, 0.9505],
        ]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    dark = 7.787 * xyz + 16 / 116
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), dark)
    lightness = 116 * y - 16
    red_or_green = 500 * (x - y)
    yellow_or_blue = 200 * (y - z)
    return np.array([lightness, red_or_green, yellow_or_blue])


def colours_of_families(seen) -> dict[str, np.ndarray]:
    """The colour of each family, and that of models without one, as `seen` transforms it."""
    colours = {**FAMILIES, "none": GREY}
    return {name: seen(colour) for name, colour in colours.items()}


def check_distances(colours: dict[str, np.ndarray], minimum: float) -> None:
    for pair in itertools.combinations(colours, 2):
        first, second = (colours[name] for name in pair)
        distance = np.linalg.norm(first - second)
        assert distance > minimum, pair


@pytest.mark.parametrize("vision", VISION)
def test_every_reader_can_distinguish_the_families(vision):
    matrix = np.array(VISION[vision])
    colours = colours_of_families(lambda colour: lab(matrix @ linear(colour)))
    check_distances(colours, 15)


def lightness(colour: str) -> float:
    return lab(linear(colour))[0]


def test_series_of_a_family_share_its_colour_but_have_different_markers_and_dashes():
    first, mixer, second, third, custom = looks(["gMLP", "Mixer", "gMLP", "gMLP", "custom"])
    family = (first, second, third)
    colours = {look.colour for look in family}
    assert colours == {FAMILIES["gMLP"]}
    markers = {look.marker for look in family}
    assert len(markers) == 3
    dashes = {look.dashes for look in family}
    assert len(dashes) == 3
    assert mixer.colour == FAMILIES["Mixer"]
    assert custom.colour == GREY
    text_lightness = lightness(first.text)
    assert text_lightness < lightness(first.colour)


def test_many_series_of_a_family_differ():
    assert len(set(looks(["gMLP"] * 40))) == 40


def test_the_parts_of_a_model_have_shades():
    parts = shades("gMLP", 3)
    first, second, third = (lightness(part.colour) for part in parts)
    assert first > second > third
    assert parts[1].colour == FAMILIES["gMLP"]
    markers = {part.marker for part in parts}
    assert len(markers) == 3


def test_contrast_equals_the_examples_of_wcag():
    """Black and white, and #777777, which is slightly too light on white."""
    assert contrast("#000000", WHITE) == pytest.approx(21)
    assert contrast(WHITE, "#000000") == pytest.approx(21)
    on_white = contrast("#777777", WHITE)
    assert on_white == pytest.approx(4.48, abs=0.005)
    darker_on_white = contrast("#767676", WHITE)
    assert darker_on_white == pytest.approx(4.54, abs=0.005)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_colour_is_readable_on_a_dark_page(family):
    for look in shades(family, 6):
        colour_contrast = contrast(on_dark(look.colour), DARK_PAGE)
        assert colour_contrast >= 4.5, look
        text_contrast = contrast(on_dark(look.text), DARK_PAGE)
        assert text_contrast >= 4.5, look


def test_families_differ_on_a_dark_page():
    colours = colours_of_families(lambda colour: lab(linear(on_dark(colour))))
    check_distances(colours, 10)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_on_a_dark_page_has_the_hue_of_its_line(family):
    """Dark orange text does not become brown."""
    for look in shades(family, 6):
        line = lab(linear(on_dark(look.colour)))
        text = lab(linear(on_dark(look.text)))
        text_hue = text[1:]
        difference = line[1:] - text_hue
        assert np.linalg.norm(difference) < 35, look


def test_greys_are_inverted():
    assert contrast(on_dark(GREY), DARK_PAGE) > 7
    assert contrast(on_dark(WHITE), DARK_PAGE) < 1.2
