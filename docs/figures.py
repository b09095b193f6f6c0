"""Draws the figures of the front page, for a light and a dark page, without a background: what the Spatial Gating Unit
does, and what its layers learned in the quickstart (docs/figures/filters.csv).

python docs/figures.py                                     # draws docs/figures/*.svg
python docs/figures.py runs/quickstart-text                # takes the weights of a run first
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent / "figures"
OFFSETS = 10  # to each side, of 63
WIDTH, HEIGHT = 400, 270
FONT = "font-family='system-ui, Segoe UI, Helvetica, Arial, sans-serif'"
# Ink, secondary ink, lines of the axes, the weights, what is multiplied.
COLOURS = {
    "light": ("#1f2328", "#59636e", "#c8ced5", "#0072b2", "#d55e00"),
    "dark": ("#e6edf3", "#a9b3bd", "#4a535d", "#56b4e9", "#e69f00"),
}


def text(x: float, y: float, words: str, colour: str, size: float = 15, anchor: str = "middle", more: str = "") -> str:
    """Words at a point."""
    return (
        f"<text x='{x:g}' y='{y:g}' fill='{colour}' font-size='{size:g}' text-anchor='{anchor}' {more}>{words}</text>"
    )


def arrow(points: str, colour: str) -> str:
    """A line with a head."""
    return f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='1.6' marker-end='url(#head)'/>"


def gate(ink: str, second: str, rule: str, blue: str, orange: str) -> Iterator[str]:
    """The Spatial Gating Unit: split the channels, mix one half across positions, multiply."""
    yield "<defs><marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
    yield f"<path d='M0 0 L8 4 L0 8 z' fill='{second}'/></marker></defs>"
    box = f"fill='none' stroke='{second}' stroke-width='1.4' rx='5'"
    for x, words, y in ((8, "Z", 88), (338, "out", 88)):
        yield f"<rect x='{x}' y='{y}' width='54' height='64' {box}/>" + text(x + 27, y + 37, words, ink, 17)
    yield text(35, 172, "tokens &#215;", second, 12.5) + text(35, 187, "channels", second, 12.5)
    yield arrow("62,104 92,104 92,44 108,44", second) + arrow("62,136 92,136 92,196 108,196", second)
    yield f"<rect x='110' y='22' width='56' height='44' {box}/>" + text(138, 50, "Z&#8321;", ink, 17)
    yield f"<rect x='110' y='174' width='56' height='44' {box}/>" + text(138, 202, "Z&#8322;", ink, 17)
    yield arrow("166,196 196,196", second)
    for row in range(6):  # W, Toeplitz: one shade for each distance
        for column in range(6):
            shade = (0.14, 0.55, 0.95, 0.14, 0.7, 0.3, 0.14)[min(abs(column - row), 3) + 3 * (column > row)]
            yield (
                f"<rect x='{198 + 12 * column}' y='{160 + 12 * row}' width='11' height='11' fill='{blue}' "
                f"fill-opacity='{shade}'/>"
            )
    yield text(234, 250, "W mixes positions", blue, 14)
    yield arrow("272,196 298,196 298,138", second) + arrow("166,44 298,44 298,102", second)
    yield f"<circle cx='298' cy='120' r='16' fill='none' stroke='{orange}' stroke-width='2'/>"
    yield text(298, 127, "&#215;", orange, 22) + arrow("314,120 336,120", second)
    yield text(238, 125, "multiply", orange, 14) + text(232, 36, "half of the channels", second, 13)


def filters(ink: str, second: str, rule: str, blue: str, orange: str) -> Iterator[str]:
    """A row of each layer's W, around its own position, on one scale."""
    weights = read()
    most = max(abs(value) for row in weights.values() for value in row.values())
    yield text(200, 20, "How strongly each layer reads nearby tokens", ink, 14.5)
    for layer, row in weights.items():
        left, top = 14 + 196 * ((layer - 1) % 2), 40 + 110 * ((layer - 1) // 2)
        middle, step, half = left + 88, 8, 38
        base = top + 46
        yield f"<line x1='{left}' x2='{left + 176}' y1='{base}' y2='{base}' stroke='{rule}'/>"
        yield f"<line x1='{middle}' x2='{middle}' y1='{top + 4}' y2='{top + 88}' stroke='{rule}' stroke-dasharray='3'/>"
        for offset, value in row.items():
            height = half * value / most
            colour = blue if value > 0 else orange
            yield (
                f"<rect x='{middle + step * offset - 3}' y='{min(base, base - height):.1f}' width='6' "
                f"height='{max(abs(height), 0.6):.1f}' fill='{colour}'/>"
            )
        yield text(left, top + 12, f"layer {layer}", second, 13, "start")
    for index in range(2):
        left = 14 + 196 * index
        for offset in (-OFFSETS, 0, OFFSETS):
            yield text(left + 88 + 8 * offset, 254, f"{offset:+d}" if offset else "0", second, 12)
    yield text(200, 268, "distance in tokens", second, 12)


def read() -> dict[int, dict[int, float]]:
    """Layer -> distance -> weight."""
    weights: dict[int, dict[int, float]] = {}
    with (FOLDER / "filters.csv").open() as file:
        for line in csv.DictReader(file):
            weights.setdefault(int(line["layer"]), {})[int(line["distance"])] = float(line["weight"])
    return weights


def take(run: str) -> None:
    """Writes filters.csv from a run on text."""
    from gmlp_flax.analysis import filters as learned
    from gmlp_flax.training import loading

    matrices = learned.matrices(loading.load(run))
    middle = matrices.shape[-1] // 2
    with (FOLDER / "filters.csv").open("w") as file:
        file.write("layer,distance,weight\n")
        for layer, matrix in enumerate(matrices, 1):
            for distance in range(-OFFSETS, OFFSETS + 1):
                file.write(f"{layer},{distance},{matrix[middle, middle + distance]:.4f}\n")


def drawn() -> dict[str, str]:
    """File name -> SVG."""
    label = {gate: "The Spatial Gating Unit", filters: "Learned weights of four layers over distances"}
    size = (
        f"xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT + 6}' width='{WIDTH}' height='{HEIGHT + 6}'"
    )
    return {
        f"{draw.__name__}-{mode}.svg": f"<svg {size} role='img' aria-label='{words}' {FONT}>\n"
        + "\n".join(draw(*colours))
        + "\n</svg>\n"
        for draw, words in label.items()
        for mode, colours in COLOURS.items()
    }


if __name__ == "__main__":
    if sys.argv[1:]:
        take(sys.argv[1])
    for name, content in drawn().items():
        (FOLDER / name).write_text(content)
