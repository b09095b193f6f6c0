"""Colours, markers and dashes of the lines in figures.

A colour stands for a family of models and is the same in every figure; colour-blind readers can
tell the colours apart. Within a family, markers and dashes tell the models apart. Only the parts of
one model, such as its layers, have shades.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import NamedTuple

# Okabe and Ito's colours, and more that colour-blind readers can tell from them.
FAMILIES = {
    "Transformer": "#d55e00",
    "gMLP": "#0072b2",
    "aMLP": "#009e73",
    "Mixer": "#cc79a7",
    "ResMLP": "#e69f00",
    "feed-forward": "#56b4e9",
    "FNet": "#663300",
    "Synthesizer": "#9900e6",
    "external attention": "#becc7a",
    "convolution": "#19004c",
    "long convolution": "#99cc99",
    "BiGS": "#ee1144",
    "delta rule": "#777744",
    "Hydra": "#0000ff",
}
GREY = "#4d4d4d"  # references, and models of no family
BLACK = "#000000"
WHITE = "#ffffff"

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SOLID: tuple[float, ...] = ()
DASHES = (
    SOLID,
    (4, 1.5),
    (1.5, 1.5),
    (5, 1.5, 1.5, 1.5),
    (9, 2),
    (1.5, 3),
    (9, 1.5, 1.5, 1.5, 1.5, 1.5),
    (4, 4),
)
DARK_PAGE = "#0d1117"
LEAST_CONTRAST = 4.5  # of words with a page: WCAG 2.2, AA
LARGEST_SHADE = 0.35  # share of white or black in the palest and the darkest shade of a family


class Look(NamedTuple):
    """How a series is drawn: its colour as #rrggbb, and matplotlib's marker and dashes."""

    colour: str
    marker: str = MARKERS[0]
    dashes: tuple[float, ...] = SOLID

    @property
    def text(self) -> str:
        """A darker colour, for words on white."""
        return mixed(self.colour, BLACK, 0.25)

    def solid(self) -> Look:
        """The same without dashes."""
        return self._replace(dashes=SOLID)


def looks(families: Sequence[str]) -> list[Look]:
    """Chooses a look for each series: the colour of its family, with a marker and dashes that no
    other of these series with this colour has.

    Args:
        families: the family of each series; one that is not in FAMILIES is grey.
    """
    drawn: dict[str, int] = {}
    chosen = []
    for family in families:
        colour = FAMILIES.get(family, GREY)
        index = drawn.get(colour, 0)
        drawn[colour] = index + 1
        look = _look(colour, index)
        chosen.append(look)
    return chosen


def shades(family: str, count: int) -> list[Look]:
    """The looks of the parts of one model, such as its layers: shades of the family's colour, from
    the palest to the darkest, each with a marker."""
    colour = FAMILIES.get(family, GREY)
    chosen = []
    for index in range(count):
        shade = _shade(colour, index, count)
        look = _look(shade, index)
        chosen.append(look)
    return chosen


def _look(colour: str, index: int) -> Look:
    """A colour with marker and dashes number `index`."""
    marker = MARKERS[index % len(MARKERS)]
    around = index // len(MARKERS)  # after all markers, each comes again with other dashes
    dashes = DASHES[(index + around) % len(DASHES)]
    return Look(colour, marker, dashes)


def _shade(
    colour: str,
    index: int,
    count: int,
) -> str:
    """Shade `index` of `count` shades of a colour, from the palest to the darkest."""
    if count == 1:
        return colour
    step = 2 * LARGEST_SHADE * index / (count - 1) - LARGEST_SHADE
    if step < 0:
        return mixed(colour, WHITE, -step)
    return mixed(colour, BLACK, step)


def mixed(
    colour: str,
    other: str,
    share: float,
) -> str:
    """Mixes a share of another colour into a colour; all are #rrggbb."""
    channels = []
    for first, second in zip(_channels(colour), _channels(other), strict=True):
        mixture = (1 - share) * first + share * second
        channels.append(mixture)
    return _hex(channels)


def on_dark(colour: str) -> str:
    """A colour that was chosen for a white page, #rrggbb, as a dark page shows it.

    Greys are inverted. Hues are lightened until they contrast with DARK_PAGE as words must. Brown
    becomes beige: a lighter brown would be the orange of another family.
    """
    shares = [channel / 255 for channel in _channels(colour)]
    hue, lightness, saturation = colorsys.rgb_to_hls(*shares)
    if saturation < 0.1:
        lightness = 0.95 - 0.88 * lightness
        return _from_hls(hue, lightness, saturation)
    is_brown = 28 < 360 * hue < 38 and lightness < 0.25  # and no shade of orange
    saturation = 0.3 if is_brown else min(saturation, 0.85)
    lightness = 0.52 + 0.42 * lightness
    lightened = _from_hls(hue, lightness, saturation)
    while contrast(lightened, DARK_PAGE) < LEAST_CONTRAST:
        lightness += 0.01
        lightened = _from_hls(hue, lightness, saturation)
    return lightened


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colours, 1 to 21, as WCAG 2.2 defines it."""
    luminances = [_luminance(first), _luminance(second)]
    darker = min(luminances) + 0.05
    lighter = max(luminances) + 0.05
    return lighter / darker


def _luminance(colour: str) -> float:
    """The relative luminance of a colour, 0 to 1, as WCAG 2.2 defines it."""
    luminance = 0.0
    for channel, weight in zip(_channels(colour), (0.2126, 0.7152, 0.0722), strict=True):
        luminance += weight * _linear(channel / 255)
    return luminance


def _linear(share: float) -> float:
    """The light of a channel of sRGB, 0 to 1."""
    if share <= 0.04045:
        return share / 12.92
    return ((share + 0.055) / 1.055) ** 2.4


def _from_hls(
    hue: float,
    lightness: float,
    saturation: float,
) -> str:
    """#rrggbb of a hue, a lightness and a saturation, 0 to 1."""
    shares = colorsys.hls_to_rgb(hue, lightness, saturation)
    return _hex([255 * share for share in shares])


def _hex(channels: Sequence[float]) -> str:
    """#rrggbb of red, green and blue, 0 to 255."""
    rounded = [round(channel) for channel in channels]
    return "#" + bytes(rounded).hex()


def _channels(colour: str) -> bytes:
    """The red, green and blue of #rrggbb, 0 to 255."""
    return bytes.fromhex(colour.removeprefix("#"))
