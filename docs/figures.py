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
from collections.abc import Callable, Iterator
from pathlib import Path

FOLDER = Path(__file__).parent / "figures"
OFFSETS = 10  # to each side, of 32
WIDTH = 400
FONT = "font-family='system-ui, Segoe UI, Helvetica, Arial, sans-serif'"
# Ink, secondary ink, lines of the axes, the weights, what is multiplied.
COLOURS = {
    "light": ("#1f2328", "#59636e", "#c8ced5", "#0072b2", "#d55e00"),
    "dark": ("#e6edf3", "#a9b3bd", "#4a535d", "#56b4e9", "#e69f00"),
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
    return f"<text x='{x:g}' y='{y:g}' fill='{colour}' font-size='{size:g}' text-anchor='{anchor}' {more}>{words}</text>"


def arrow(points: str, colour: str) -> str:
    """A line with a head."""
    return f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='1.6' marker-end='url(#head)'/>"


def gate(ink: str, second: str, rule: str, blue: str, orange: str) -> Iterator[str]:
    """The Spatial Gating Unit: split the channels, mix one half across positions, multiply."""
    yield "<defs><marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
    yield f"<path d='M0 0 L8 4 L0 8 z' fill='{second}'/></marker></defs>"
    box = f"fill='none' stroke='{second}' stroke-width='1.4' rx='5'"
    for x, words, y in ((8, "Z", 88), (338, "out", 88)):
        yield f"<rect x='{x}' y='{y}' width='54' height='64' {box}/>" + text(
            x + 27, y + 37, words, ink, 17
        )
    yield text(35, 172, "tokens &#215;", second, 12.5) + text(35, 187, "channels", second, 12.5)
    yield arrow("62,104 92,104 92,44 108,44", second) + arrow(
        "62,136 92,136 92,196 108,196", second
    )
    yield f"<rect x='110' y='22' width='56' height='44' {box}/>" + text(
        138, 50, "Z&#8321;", ink, 17
    )
    yield f"<rect x='110' y='174' width='56' height='44' {box}/>" + text(
        138, 202, "Z&#8322;", ink, 17
    )
    yield arrow("166,196 196,196", second)
    for row in range(6):  # W, Toeplitz: one shade for each distance
        for column in range(6):
            shade = (0.14, 0.55, 0.95, 0.14, 0.7, 0.3, 0.14)[
                min(abs(column - row), 3) + 3 * (column > row)
            ]
            yield (
                f"<rect x='{198 + 12 * column}' y='{160 + 12 * row}' width='11' height='11' fill='{blue}' "
                f"fill-opacity='{shade}'/>"
            )
    yield text(234, 250, "W mixes positions", blue, 14)
    yield arrow("272,196 298,196 298,138", second) + arrow("166,44 298,44 298,102", second)
    yield f"<circle cx='298' cy='120' r='16' fill='none' stroke='{orange}' stroke-width='2'/>"
    yield text(298, 127, "&#215;", orange, 22) + arrow("314,120 336,120", second)
    yield text(238, 125, "multiply", orange, 14) + text(236, 36, "half of the channels", second, 13)


def filters(ink: str, second: str, rule: str, blue: str, orange: str) -> Iterator[str]:
    """A row of each layer's W, near its own position and, in a small frame, as a whole, on one
    scale."""
    weights = read()
    most = max(abs(value) for row in weights.values() for value in row.values())
    last = max(max(map(abs, row)) for row in weights.values())
    yield text(200, 20, "How strongly each layer reads nearby tokens", ink, 14.5)
    for layer, row in weights.items():
        left = 14 + 196 * ((layer - 1) % 2)
        top = 40 + 110 * ((layer - 1) // 2)
        middle = left + 88
        step = 8
        half = 38
        base = top + 46
        yield f"<line x1='{left}' x2='{left + 176}' y1='{base}' y2='{base}' stroke='{rule}'/>"
        yield f"<line x1='{middle}' x2='{middle}' y1='{top + 4}' y2='{top + 88}' stroke='{rule}' stroke-dasharray='3'/>"
        for offset, value in row.items():
            height = half * value / most
            colour = blue if value > 0 else orange
            if abs(offset) <= OFFSETS:
                yield (
                    f"<rect x='{middle + step * offset - 3}' y='{min(base, base - height):.1f}' width='6' "
                    f"height='{max(abs(height), 0.6):.1f}' fill='{colour}'/>"
                )
        points = (
            f"{left + 146 + 30 * offset / last:.1f},{top + 12 - 10 * row[offset] / most:.1f}"
            for offset in row
        )
        yield f"<rect x='{left + 116}' y='{top}' width='60' height='24' fill='none' stroke='{rule}'/>"
        yield f"<polyline points='{' '.join(points)}' fill='none' stroke='{second}'/>"
        yield text(left, top + 12, f"layer {layer}", second, 13, "start")
    for index in range(2):
        left = 14 + 196 * index
        for offset in (-OFFSETS, 0, OFFSETS):
            words = f"{offset:+d}" if offset else "0"
            anchor = ("start", "middle", "end")[(offset > 0) + (offset >= 0)]
            yield text(left + 88 + 8.75 * offset, 254, words, second, 12, anchor)
    yield text(200, 268, "distance in tokens; in the small frames the whole row", second, 12)


def mixers(ink: str, second: str, rule: str, blue: str, orange: str) -> Iterator[str]:
    """Which tokens each block reads for each token: as learned (blue), made from the input
    (orange), fixed (grey)."""
    draw = random.Random(0).random
    noise = [[draw() for _ in range(8)] for _ in range(8)]
    taps = (0.15, 0.3, 0.9, 0.1, 0.6, 0.25, 0.15)  # over the distances -3 to 3

    def by_distance(row: int, column: int) -> float:
        return taps[column - row + 3] if abs(column - row) < 4 else 0.1

    # Title, what each is, colour, its weight for a row (who reads) and a column (who is read).
    panels: tuple[tuple[str, str, str, Callable[[int, int], float]], ...] = (
        ("gMLP, in text", "one per distance", blue, by_distance),
        ("gMLP in images", "one per pair", blue, lambda i, j: noise[i][j]),
        (
            "MLP-Mixer",
            "two thin matrices",
            blue,
            lambda i, j: noise[i][0] * noise[0][j] + noise[1][j] * noise[i][1],
        ),
        (
            "convolution",
            "a window",
            blue,
            lambda i, j: (0.4, 0.9, 0.6)[j - i + 1] if abs(j - i) < 2 else 0.03,
        ),
        (
            "distances alone",
            "a softmax of them",
            blue,
            lambda i, j: math.exp(-abs(j - i + 0.5) / 1.5),
        ),
        ("attention", "comparing tokens", orange, lambda i, j: noise[i][j] ** 3),
        (
            "relative positions",
            "that, and distance",
            orange,
            lambda i, j: (noise[i][j] + by_distance(i, j)) / 2,
        ),
        (
            "Synthesizer, dense",
            "the reader alone",
            orange,
            lambda i, j: (noise[i][2] * (1 + j)) % 1.0,
        ),
        ("FNet", "waves", second, lambda i, j: 0.5 + 0.45 * math.cos(math.tau * i * j / 8)),
    )
    for number, (title, what, colour, weight) in enumerate(panels):
        left = 8 + 134 * (number % 3)
        top = 6 + 142 * (number // 3)
        yield text(left + 58, top + 12, title, ink, 12)
        yield text(left + 58, top + 124, what, colour, 12)
        for row in range(8):
            for column in range(8):
                x = left + 14 + 11 * column
                y = top + 21 + 11 * row
                shade = min(max(weight(row, column), 0.03), 1)
                yield f"<rect x='{x}' y='{y}' width='10' height='10' fill='{colour}' fill-opacity='{shade:.2f}'/>"


def read() -> dict[int, dict[int, float]]:
    """Layer -> distance -> weight."""
    weights: dict[int, dict[int, float]] = {}
    with (FOLDER / "filters.csv").open() as file:
        for line in csv.DictReader(file):
            weights.setdefault(int(line["layer"]), {})[int(line["distance"])] = float(
                line["weight"]
            )
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
            for distance in range(-middle, len(matrix) - middle):
                file.write(f"{layer},{distance},{matrix[middle, middle + distance]:.4f}\n")


def drawn() -> dict[str, str]:
    """File name -> SVG."""
    figures = (
        (gate, 276, "The Spatial Gating Unit"),
        (filters, 276, "Learned weights of four layers over distances"),
        (mixers, 428, "The weights with which nine blocks mix tokens"),
    )
    size = "xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {1}' width='{0}' height='{1}'"
    return {
        f"{draw.__name__}-{mode}.svg": "\n".join(
            (
                f"<svg {size.format(WIDTH, height)} role='img' aria-label='{words}' {FONT}>",
                *draw(*colours),
                "</svg>\n",
            )
        )
        for draw, height, words in figures
        for mode, colours in COLOURS.items()
    }


if __name__ == "__main__":
    if sys.argv[1:]:
        take(sys.argv[1])
    for name, content in drawn().items():
        (FOLDER / name).write_text(content)
