"""Draws the figures of the pages, for a light and a dark page, without a background: what the
Spatial Gating Unit does, what its layers learned in the quickstart (docs/figures/filters.csv), and
how the blocks mix tokens.

python docs/figures.py                                     # draws docs/figures/*.svg
python docs/figures.py runs/quickstart-text                # takes the weights of a run first
"""

import csv
import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "figures"
OFFSETS = 10  # to each side, of 32
WIDTH = 400
FONT = "font-family='system-ui, Segoe UI, Helvetica, Arial, sans-serif'"
MONOSPACE = "font-family='ui-monospace, SFMono-Regular, Menlo, Consolas, monospace'"


class Colours(NamedTuple):
    """The colours of a page.

    Attributes:
        ink: of words.
        second: of secondary words, and of arrows.
        rule: of the lines of axes and frames.
        blue: of the weights.
        orange: of what is multiplied.
    """

    ink: str
    second: str
    rule: str
    blue: str
    orange: str


COLOURS = {
    "light": Colours("#1f2328", "#59636e", "#c8ced5", "#0072b2", "#d55e00"),
    "dark": Colours("#e6edf3", "#a9b3bd", "#4a535d", "#56b4e9", "#e69f00"),
}


def text(
    x: float,
    y: float,
    words: str,
    colour: str,
    size: float = 15,
    anchor: str = "middle",
    more: str = "",
) -> str:
    """Words at a point."""
    position = f"x='{x:g}' y='{y:g}'"
    style = f"fill='{colour}' font-size='{size:g}' text-anchor='{anchor}' {more}"
    return f"<text {position} {style}>{words}</text>"


def arrow(points: str, colour: str) -> str:
    """A line with a head."""
    style = f"fill='none' stroke='{colour}' stroke-width='1.6' marker-end='url(#head)'"
    return f"<polyline points='{points}' {style}/>"


def area(x: float, y: float, width: float, height: float) -> str:
    """The attributes of a rectangle's place and size."""
    return f"x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}'"


def line(x1: float, x2: float, y1: float, y2: float, colour: str, more: str = "") -> str:
    """A straight line; `more` holds attributes, with a space before them."""
    ends = f"x1='{x1}' x2='{x2}' y1='{y1}' y2='{y2}'"
    return f"<line {ends} stroke='{colour}'{more}/>"


def box(x: float, y: float, width: float, words: str, ink: str, stroke: str) -> str:
    """A box of 30 pixels' height around its middle y, with words in it."""
    attributes = area(x, y - 15, width, 30)
    middle = x + width / 2
    frame = f"<rect {attributes} fill='none' stroke='{stroke}' stroke-width='1.4' rx='5'/>"
    return frame + text(middle, y + 5, words, ink, 13)


def circle(x: float, y: float, radius: float, sign: str, colour: str) -> str:
    """A sign in a circle, for what is computed of two inputs."""
    shape = f"cx='{x:g}' cy='{y:g}' r='{radius:g}'"
    ring = f"<circle {shape} fill='none' stroke='{colour}' stroke-width='2'/>"
    baseline = y + 0.5 * radius
    size = 1.5 * radius
    letter = text(x, baseline, sign, colour, size)
    return ring + letter


def head(colour: str) -> str:
    """Defines the head of arrows."""
    marker = "id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='6' markerHeight='6' orient='auto'"
    return f"<defs><marker {marker}><path d='M0 0 L8 4 L0 8 z' fill='{colour}'/></marker></defs>"


def toeplitz(left: float, top: float, cell: float, colour: str) -> Iterator[str]:
    """W as six rows of cells, with one shade for each distance."""
    shades = (0.14, 0.14, 0.3, 0.14, 0.55, 0.95, 0.14, 0.7, 0.3, 0.14, 0.14)  # from -5 to +5
    side = cell - 1
    for row in range(6):
        for column in range(6):
            x = left + cell * column
            y = top + cell * row
            attributes = area(x, y, side, side)
            shade = shades[column - row + 5]
            yield f"<rect {attributes} fill='{colour}' fill-opacity='{shade}'/>"


def gate(colours: Colours) -> Iterator[str]:
    """The block: norm, U, GELU, then the Spatial Gating Unit, V, and the residual connection."""
    ink = colours.ink
    second = colours.second
    orange = colours.orange
    middle = 134
    words_of_middle = middle + 5  # the baseline of words on the middle line
    yield head(second)
    yield text(9, words_of_middle, "X", ink, 16)
    yield arrow(f"18,{middle} 32,{middle}", second)
    yield box(33, middle, 38, "norm", ink, second)
    yield arrow(f"71,{middle} 80,{middle}", second)
    yield box(81, middle, 24, "U", ink, second)
    yield arrow(f"105,{middle} 114,{middle}", second)
    yield box(115, middle, 42, "GELU", ink, second)
    yield from gating_unit(colours, middle)
    yield arrow(f"342,{middle} 350,{middle}", second)
    yield box(351, middle, 20, "V", ink, second)
    yield arrow(f"371,{middle} 377,{middle}", second)
    yield circle(386, middle, 8, "+", orange)
    above_sum = middle - 10
    below_sum = middle + 8
    yield arrow(f"24,{middle} 24,24 386,24 386,{above_sum}", second)
    yield text(200, 18, "residual connection", second, 12.5)
    yield arrow(f"386,{below_sum} 386,176", second)
    yield text(386, 192, "out", ink, 13)
    yield text(200, 262, "U widens the channels, V narrows them again", second, 12.5)


def gating_unit(colours: Colours, middle: int) -> Iterator[str]:
    """The Spatial Gating Unit, in a frame, around a middle line."""
    ink = colours.ink
    second = colours.second
    blue = colours.blue
    orange = colours.orange
    upper = 84
    lower = 188
    words_of_middle = middle + 5
    yield (
        f"<rect x='162' y='54' width='182' height='182' fill='none' stroke='{colours.rule}' "
        "stroke-dasharray='4 3' rx='6'/>"
    )
    yield text(253, 49, "Spatial Gating Unit", second, 12.5)
    yield arrow(f"157,{middle} 172,{middle} 172,{upper} 184,{upper}", second)
    yield arrow(f"172,{middle} 172,{lower} 184,{lower}", second)
    yield text(178, words_of_middle, "split", second, 12.5, "start")
    yield box(185, upper, 26, "Z&#8321;", ink, second)
    yield box(185, lower, 26, "Z&#8322;", ink, second)
    yield arrow(f"211,{lower} 217,{lower}", second)
    yield box(218, lower, 38, "norm", ink, second)
    yield arrow(f"256,{lower} 263,{lower}", second)
    yield from toeplitz(265, lower - 27, 9, blue)
    yield text(272, 232, "W mixes positions", blue, 13)
    above_product = middle - 13
    below_product = middle + 13
    yield arrow(f"211,{upper} 332,{upper} 332,{above_product}", second)
    yield arrow(f"319,{lower} 332,{lower} 332,{below_product}", second)
    yield circle(332, middle, 10, "&#215;", orange)
    yield text(316, words_of_middle, "multiply", orange, 13, "end")


LEFT_OF_PANELS = 36
BETWEEN_PANELS = 186
TO_MIDDLE = 86  # from the left of a panel to distance 0
DISTANCE = 7.4  # pixels from one distance to the next


def filters(colours: Colours) -> Iterator[str]:
    """A row of each layer's W, near its own position and, in a small frame, as a whole, on one
    scale."""
    weights = read()
    most = 0.0
    last = 0
    for row in weights.values():
        most = max(most, *map(abs, row.values()))
        last = max(last, *map(abs, row))
    yield text(200, 18, "How strongly each layer reads nearby tokens", colours.ink, 14.5)
    yield text(200, 36, "weights above 0", colours.blue, 12.5, "end", "dx='-6'")
    yield text(200, 36, "weights below 0", colours.orange, 12.5, "start", "dx='6'")
    for layer, row in weights.items():
        panel_row, panel_column = divmod(layer - 1, 2)
        left = LEFT_OF_PANELS + BETWEEN_PANELS * panel_column
        top = 48 + 108 * panel_row
        yield from filter_axes(left, top, most, colours)
        yield from filter_bars(left, top, row, most, colours)
        yield from whole_row(left, top, row, most, last, colours)
        yield text(left + 6, top + 12, f"layer {layer}", colours.second, 13, "start")
    for panel_column in range(2):
        left = LEFT_OF_PANELS + BETWEEN_PANELS * panel_column
        for offset in (-OFFSETS, 0, OFFSETS):
            words = f"{offset:+d}" if offset else "0"
            x = left + TO_MIDDLE + DISTANCE * offset
            yield text(x, 258, words, colours.second, 12)
    footnote = "distance in tokens; in the small frames the whole row"
    yield text(200, 274, footnote, colours.second, 12)


BASE = 46  # from the top of a panel to weight 0
HALF = 38  # pixels of the largest weight


def filter_axes(left: int, top: int, most: float, colours: Colours) -> Iterator[str]:
    """The axes of a panel; at the left one also the numbers."""
    middle = left + TO_MIDDLE
    base = top + BASE
    highest = base - HALF
    lowest = base + HALF
    yield line(left, left + 172, base, base, colours.rule)
    yield line(left, left, highest, lowest, colours.rule)
    yield line(middle, middle, top + 4, top + 88, colours.rule, " stroke-dasharray='3'")
    if left != LEFT_OF_PANELS:
        return
    ticks = {f"+{most:.1f}": highest, "0": base, f"-{most:.1f}": lowest}
    for words, y in ticks.items():
        yield text(left - 4, y + 4, words, colours.second, 11.5, "end")


def filter_bars(
    left: int, top: int, row: Mapping[int, float], most: float, colours: Colours
) -> Iterator[str]:
    """A bar for each weight of a row within OFFSETS."""
    middle = left + TO_MIDDLE
    base = top + BASE
    for offset, value in row.items():
        if abs(offset) > OFFSETS:
            continue
        height = HALF * value / most
        x = middle + DISTANCE * offset - 3
        y = min(base, base - height)
        visible_height = max(abs(height), 0.6)
        colour = colours.blue if value > 0 else colours.orange
        attributes = f"x='{x:.1f}' y='{y:.1f}' width='6' height='{visible_height:.1f}'"
        yield f"<rect {attributes} fill='{colour}'/>"


def whole_row(
    left: int, top: int, row: Mapping[int, float], most: float, last: int, colours: Colours
) -> Iterator[str]:
    """A small frame with all weights of a row, as a line."""
    points = []
    for offset, value in row.items():
        x = left + 144 + 28 * offset / last
        y = top + 12 - 10 * value / most
        points.append(f"{x:.1f},{y:.1f}")
    joined = " ".join(points)
    attributes = area(left + 116, top, 56, 24)
    yield f"<rect {attributes} fill='none' stroke='{colours.rule}'/>"
    yield f"<polyline points='{joined}' fill='none' stroke='{colours.second}'/>"


class Step(NamedTuple):
    """A step of the pipeline: its name, what it is for, and the lines of its command."""

    name: str
    purpose: str
    lines: tuple[str, ...]


STEPS = (
    Step("data", "look at what is read", ("gmlp train --config=own_text:texts/ --dry_run",)),
    Step("prepare", "tokenize once", ("gmlp prepare texts/ --out=tokens --vocab_size=8000",)),
    Step(
        "plan",
        "memory, time and cost",
        ("gmlp plan --config=own_text:small --topology=v5e:2x2",),
    ),
    Step(
        "train",
        "repeat it to resume",
        (
            "gmlp train --config=own_text:small --workdir=run \\",
            "  --config.data.train=tokens \\",
            "  --config.data.heldout=heldout.txt",
        ),
    ),
    Step(
        "export",
        "ONNX, PyTorch, StableHLO",
        ("gmlp export --model=run --out=model --format=onnx",),
    ),
)


def pipeline(colours: Colours) -> Iterator[str]:
    """From data to a model for others: each step with its command under it."""
    yield head(colours.second)
    style = f"{MONOSPACE} xml:space='preserve'"
    top = 2
    for number, step in enumerate(STEPS):
        if number > 0:
            tail = top - 14
            tip = top - 1
            yield arrow(f"200,{tail} 200,{tip}", colours.second)
        height = 30 + 16 * len(step.lines)
        attributes = area(4, top, 392, height)
        yield f"<rect {attributes} fill='none' stroke='{colours.rule}' stroke-width='1.4' rx='5'/>"
        title = top + 18
        yield text(14, title, step.name, colours.blue, 15, "start", "font-weight='600'")
        yield text(92, title, step.purpose, colours.second, 13, "start")
        baseline = top + 37
        for words in step.lines:
            yield text(14, baseline, words, colours.ink, 11.5, "start", style)
            baseline += 16
        top += height + 14


SIDE = 8  # tokens of a panel of `mixers`
Weight = Callable[[int, int], float]  # of a row (who reads) and a column (who is read)


class Mixer(NamedTuple):
    """A panel of `mixers`."""

    title: str
    words: str  # what its weights are
    colour: str
    weight: Weight


def mixers(colours: Colours) -> Iterator[str]:
    """Which tokens each block reads for each token: as learned (blue), made from the input
    (orange), fixed (grey)."""
    for number, mixer in enumerate(panels(colours)):
        panel_row, panel_column = divmod(number, 3)
        left = 8 + 134 * panel_column
        top = 6 + 142 * panel_row
        centre = left + 58
        yield text(centre, top + 12, mixer.title, colours.ink, 12)
        yield text(centre, top + 124, mixer.words, mixer.colour, 12)
        for row in range(SIDE):
            for column in range(SIDE):
                x = left + 14 + 11 * column
                y = top + 21 + 11 * row
                attributes = area(x, y, 10, 10)
                weight = mixer.weight(row, column)
                shade = min(max(weight, 0.03), 1)
                yield f"<rect {attributes} fill='{mixer.colour}' fill-opacity='{shade:.2f}'/>"


def panels(colours: Colours) -> list[Mixer]:
    """The panels of `mixers`, with made-up weights."""
    draw = random.Random(0).random
    noise: list[list[float]] = []
    for _ in range(SIDE):
        noise.append([draw() for _ in range(SIDE)])
    taps = (0.15, 0.3, 0.9, 0.1, 0.6, 0.25, 0.15)  # over the distances -3 to 3
    window = (0.4, 0.9, 0.6)  # over the distances -1 to 1

    def per_distance(row: int, column: int) -> float:
        distance = column - row
        return taps[distance + 3] if abs(distance) < 4 else 0.1

    def per_pair(row: int, column: int) -> float:
        return noise[row][column]

    def two_matrices(row: int, column: int) -> float:
        first = noise[row][0] * noise[0][column]
        second = noise[1][column] * noise[row][1]
        return first + second

    def convolution(row: int, column: int) -> float:
        distance = column - row
        return window[distance + 1] if abs(distance) < 2 else 0.03

    def distances_alone(row: int, column: int) -> float:
        distance = abs(column - row + 0.5)
        return math.exp(-distance / 1.5)

    def attention(row: int, column: int) -> float:
        return noise[row][column] ** 3

    def relative_positions(row: int, column: int) -> float:
        pair = per_pair(row, column)
        distance = per_distance(row, column)
        return (pair + distance) / 2

    def synthesizer(row: int, column: int) -> float:
        product = noise[row][2] * (1 + column)
        return product % 1.0

    def fourier(row: int, column: int) -> float:
        wave = math.cos(math.tau * row * column / SIDE)
        return 0.5 + 0.45 * wave

    blue = colours.blue
    orange = colours.orange
    return [
        Mixer("gMLP, in text", "one per distance", blue, per_distance),
        Mixer("gMLP in images", "one per pair", blue, per_pair),
        Mixer("MLP-Mixer", "two thin matrices", blue, two_matrices),
        Mixer("convolution", "a window", blue, convolution),
        Mixer("distances alone", "a softmax of them", blue, distances_alone),
        Mixer("attention", "comparing tokens", orange, attention),
        Mixer("relative positions", "that, and distance", orange, relative_positions),
        Mixer("Synthesizer, dense", "the reader alone", orange, synthesizer),
        Mixer("FNet", "waves", colours.second, fourier),
    ]


def read() -> dict[int, dict[int, float]]:
    """Layer -> distance -> weight."""
    weights: dict[int, dict[int, float]] = defaultdict(dict)
    with (FOLDER / "filters.csv").open() as file:
        for cells in csv.DictReader(file):
            layer = int(cells["layer"])
            distance = int(cells["distance"])
            weights[layer][distance] = float(cells["weight"])
    return weights


def take(run: str) -> None:
    """Writes filters.csv from a run on text."""
    from gmlp_flax.analysis import filters as learned
    from gmlp_flax.training import pretrained

    matrices = learned.matrices(pretrained.load(run, "latest"))
    middle = matrices.shape[-1] // 2
    with (FOLDER / "filters.csv").open("w") as file:
        file.write("layer,distance,weight\n")
        for layer, matrix in enumerate(matrices, 1):
            for token, weight in enumerate(matrix[middle]):
                distance = token - middle
                file.write(f"{layer},{distance},{weight:.4f}\n")


class Figure(NamedTuple):
    """A figure: what draws it, its height in pixels, and the words for who does not see it."""

    draw: Callable[[Colours], Iterator[str]]
    height: int
    words: str


FIGURES = {
    "gate": Figure(
        gate, 276, "A gMLP block: norm, U, GELU, Spatial Gating Unit, V, residual connection"
    ),
    "pipeline": Figure(
        pipeline, 322, "Data, prepare, plan, train, export, with the command of each"
    ),
    "filters": Figure(filters, 284, "Learned weights of four layers over distances"),
    "mixers": Figure(mixers, 428, "The weights with which nine blocks mix tokens"),
}


def drawn() -> dict[str, str]:
    """File name -> SVG."""
    contents = {}
    for name, figure in FIGURES.items():
        for mode, colours in COLOURS.items():
            contents[f"{name}-{mode}.svg"] = svg(figure, colours)
    return contents


def svg(figure: Figure, colours: Colours) -> str:
    """A figure as an SVG file."""
    view = f"viewBox='0 0 {WIDTH} {figure.height}'"
    size = f"width='{WIDTH}' height='{figure.height}'"
    label = f"role='img' aria-label='{figure.words}'"
    lines = [f"<svg xmlns='http://www.w3.org/2000/svg' {view} {size} {label} {FONT}>"]
    lines += figure.draw(colours)
    lines.append("</svg>\n")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:]:
        take(sys.argv[1])
    for name, content in drawn().items():
        (FOLDER / name).write_text(content)
