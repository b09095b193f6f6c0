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
MONOSPACE = "font-family='ui-monospace, SFMono-Regular, Menlo, Consolas, monospace'"
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


def box(x: float, y: float, width: float, words: str, ink: str, line: str) -> str:
    """A box of 30 pixels' height around its middle y, with words in it."""
    frame = f"<rect x='{x:g}' y='{y - 15:g}' width='{width:g}' height='30' fill='none' stroke='{line}' stroke-width='1.4' rx='5'/>"
    return frame + text(x + width / 2, y + 5, words, ink, 13)


def circle(x: float, y: float, radius: float, sign: str, colour: str) -> str:
    """A sign in a circle, for what is computed of two inputs."""
    ring = f"<circle cx='{x:g}' cy='{y:g}' r='{radius:g}' fill='none' stroke='{colour}' stroke-width='2'/>"
    return ring + text(x, y + 0.5 * radius, sign, colour, 1.5 * radius)


def head(colour: str) -> str:
    """Defines the head of arrows."""
    marker = "id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='6' markerHeight='6' orient='auto'"
    return f"<defs><marker {marker}><path d='M0 0 L8 4 L0 8 z' fill='{colour}'/></marker></defs>"


def toeplitz(left: float, top: float, cell: float, colour: str) -> Iterator[str]:
    """W as six rows of cells, with one shade for each distance."""
    shades = (0.14, 0.14, 0.3, 0.14, 0.55, 0.95, 0.14, 0.7, 0.3, 0.14, 0.14)  # from -5 to +5
    for row in range(6):
        for column in range(6):
            x = left + cell * column
            y = top + cell * row
            shade = shades[column - row + 5]
            yield (
                f"<rect x='{x:g}' y='{y:g}' width='{cell - 1:g}' height='{cell - 1:g}' fill='{colour}' "
                f"fill-opacity='{shade}'/>"
            )


def gate(ink: str, second: str, rule: str, blue: str, orange: str) -> Iterator[str]:
    """The block: norm, U, GELU, then the Spatial Gating Unit, V, and the residual connection."""
    middle = 134
    upper = 84
    lower = 188
    yield head(second)
    yield text(9, middle + 5, "X", ink, 16)
    yield arrow(f"18,{middle} 32,{middle}", second)
    yield box(33, middle, 38, "norm", ink, second)
    yield arrow(f"71,{middle} 80,{middle}", second)
    yield box(81, middle, 24, "U", ink, second)
    yield arrow(f"105,{middle} 114,{middle}", second)
    yield box(115, middle, 42, "GELU", ink, second)
    # The Spatial Gating Unit, in a frame.
    yield (
        f"<rect x='162' y='54' width='182' height='182' fill='none' stroke='{rule}' "
        "stroke-dasharray='4 3' rx='6'/>"
    )
    yield text(253, 49, "Spatial Gating Unit", second, 12.5)
    yield arrow(f"157,{middle} 172,{middle} 172,{upper} 184,{upper}", second)
    yield arrow(f"172,{middle} 172,{lower} 184,{lower}", second)
    yield text(178, middle + 5, "split", second, 12.5, "start")
    yield box(185, upper, 26, "Z&#8321;", ink, second)
    yield box(185, lower, 26, "Z&#8322;", ink, second)
    yield arrow(f"211,{lower} 217,{lower}", second)
    yield box(218, lower, 38, "norm", ink, second)
    yield arrow(f"256,{lower} 263,{lower}", second)
    yield from toeplitz(265, lower - 27, 9, blue)
    yield text(272, 232, "W mixes positions", blue, 13)
    yield arrow(f"211,{upper} 332,{upper} 332,{middle - 13}", second)
    yield arrow(f"319,{lower} 332,{lower} 332,{middle + 13}", second)
    yield circle(332, middle, 10, "&#215;", orange)
    yield text(316, middle + 5, "multiply", orange, 13, "end")
    yield arrow(f"342,{middle} 350,{middle}", second)
    yield box(351, middle, 20, "V", ink, second)
    yield arrow(f"371,{middle} 377,{middle}", second)
    yield circle(386, middle, 8, "+", orange)
    yield arrow(f"24,{middle} 24,24 386,24 386,{middle - 10}", second)
    yield text(200, 18, "residual connection", second, 12.5)
    yield arrow(f"386,{middle + 8} 386,176", second)
    yield text(386, 192, "out", ink, 13)
    yield text(200, 262, "U widens the channels, V narrows them again", second, 12.5)


def filters(ink: str, second: str, rule: str, blue: str, orange: str) -> Iterator[str]:
    """A row of each layer's W, near its own position and, in a small frame, as a whole, on one
    scale."""
    weights = read()
    most = max(abs(value) for row in weights.values() for value in row.values())
    last = max(max(map(abs, row)) for row in weights.values())
    step = 7.4
    half = 38
    yield text(200, 18, "How strongly each layer reads nearby tokens", ink, 14.5)
    yield text(200, 36, "weights above 0", blue, 12.5, "end", "dx='-6'")
    yield text(200, 36, "weights below 0", orange, 12.5, "start", "dx='6'")
    for layer, row in weights.items():
        left = 36 + 186 * ((layer - 1) % 2)
        top = 48 + 108 * ((layer - 1) // 2)
        middle = left + 86
        base = top + 46
        yield f"<line x1='{left}' x2='{left + 172}' y1='{base}' y2='{base}' stroke='{rule}'/>"
        yield f"<line x1='{left}' x2='{left}' y1='{base - half}' y2='{base + half}' stroke='{rule}'/>"
        yield f"<line x1='{middle}' x2='{middle}' y1='{top + 4}' y2='{top + 88}' stroke='{rule}' stroke-dasharray='3'/>"
        if left == 36:
            for words, y in (
                (f"+{most:.1f}", base - half),
                ("0", base),
                (f"-{most:.1f}", base + half),
            ):
                yield text(left - 4, y + 4, words, second, 11.5, "end")
        for offset, value in row.items():
            height = half * value / most
            colour = blue if value > 0 else orange
            if abs(offset) <= OFFSETS:
                yield (
                    f"<rect x='{middle + step * offset - 3:.1f}' y='{min(base, base - height):.1f}' width='6' "
                    f"height='{max(abs(height), 0.6):.1f}' fill='{colour}'/>"
                )
        points = (
            f"{left + 144 + 28 * offset / last:.1f},{top + 12 - 10 * row[offset] / most:.1f}"
            for offset in row
        )
        yield f"<rect x='{left + 116}' y='{top}' width='56' height='24' fill='none' stroke='{rule}'/>"
        yield f"<polyline points='{' '.join(points)}' fill='none' stroke='{second}'/>"
        yield text(left + 6, top + 12, f"layer {layer}", second, 13, "start")
    for index in range(2):
        left = 36 + 186 * index
        for offset in (-OFFSETS, 0, OFFSETS):
            words = f"{offset:+d}" if offset else "0"
            yield text(left + 86 + step * offset, 258, words, second, 12)
    yield text(200, 274, "distance in tokens; in the small frames the whole row", second, 12)


STEPS = (  # name, what it is for, the lines of its command
    ("data", "look at what is read", ("gmlp train --config=own_text:texts/ --dry_run",)),
    ("prepare", "tokenize once", ("gmlp prepare texts/ --out=tokens --vocab_size=8000",)),
    (
        "plan",
        "memory, time and cost",
        ("gmlp plan --config=own_text:small --topology=v5e:2x2",),
    ),
    (
        "train",
        "repeat it to resume",
        (
            "gmlp train --config=own_text:small --workdir=run \\",
            "  --config.data.train=tokens \\",
            "  --config.data.heldout=heldout.txt",
        ),
    ),
    (
        "export",
        "ONNX, PyTorch, StableHLO",
        ("gmlp export --model=run --out=model --format=onnx",),
    ),
)


def pipeline(ink: str, second: str, rule: str, blue: str, orange: str) -> Iterator[str]:
    """From data to a model for others: each step with its command under it."""
    yield head(second)
    top = 2
    for name, what, lines in STEPS:
        height = 30 + 16 * len(lines)
        if top > 2:
            yield arrow(f"200,{top - 14} 200,{top - 1}", second)
        yield (
            f"<rect x='4' y='{top}' width='392' height='{height}' fill='none' stroke='{rule}' "
            "stroke-width='1.4' rx='5'/>"
        )
        yield text(14, top + 18, name, blue, 15, "start", "font-weight='600'")
        yield text(92, top + 18, what, second, 13, "start")
        for number, line in enumerate(lines):
            style = f"{MONOSPACE} xml:space='preserve'"
            yield text(14, top + 37 + 16 * number, line, ink, 11.5, "start", style)
        top += height + 14


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
        (gate, 276, "A gMLP block: norm, U, GELU, Spatial Gating Unit, V, residual connection"),
        (pipeline, 322, "Data, prepare, plan, train, export, with the command of each"),
        (filters, 284, "Learned weights of four layers over distances"),
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
