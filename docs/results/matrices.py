"""The figures of docs/results that show matrices: blue for what is added, orange for what is
subtracted, the stronger the larger, on a page of any colour. `docs.results.weights` writes the
weights of a run to the CSV files that they are drawn from."""

import csv
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from docs import generate

POSITIVE = {"light": "#0072b2", "dark": "#56b4e9"}
NEGATIVE = {"light": "#d55e00", "dark": "#e69f00"}


class Line(NamedTuple):
    """A line of a CSV file: its first cells, and the weights after them."""

    names: list[str]
    weights: np.ndarray


def shade(axis: Axes, weights: np.ndarray, largest: float, mode: str) -> None:
    """Weights [rows, columns] as an image that is transparent where they are 0 or NaN."""
    is_positive = weights > 0
    positive = to_rgb(POSITIVE[mode])
    negative = to_rgb(NEGATIVE[mode])
    relative = np.abs(weights) / largest
    image = np.zeros((*weights.shape, 4))
    image[..., :3] = np.where(is_positive[..., None], positive, negative)
    image[..., 3] = np.nan_to_num(relative).clip(0, 1)
    axis.imshow(image, interpolation="none", aspect="auto")
    axis.grid(False)
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(visible=True, linewidth=0.6)


def read(name: str, first: int) -> list[Line]:
    """The lines of a CSV file: the `first` cells, and the weights after them, NaN where there are
    none."""
    with (generate.DATA / f"{name}.csv").open() as file:
        _, *rows = csv.reader(file)
    lines = []
    for cells in rows:
        weights = [float(cell or "nan") for cell in cells[first:]]
        lines.append(Line(cells[:first], np.array(weights)))
    return lines


def scale(figure: Figure, words: str, size: float = 10.5) -> None:
    """Says below a figure what its colours are."""
    figure.text(0.5, 0.015, words, ha="center", fontsize=size)


def stacked(name: str, first: int, keys: int) -> dict[tuple[str, ...], np.ndarray]:
    """The weights [lines, columns] of a CSV file for each value of its first `keys` cells; `first`
    cells stand before the weights."""
    rows: dict[tuple[str, ...], list[np.ndarray]] = defaultdict(list)
    for line in read(name, first):
        key = tuple(line.names[:keys])
        rows[key].append(line.weights)
    arrays = {}
    for key, weights in rows.items():
        arrays[key] = np.array(weights)
    return arrays


def largest_of(arrays: Iterable[np.ndarray]) -> float:
    """The largest absolute value that is not NaN."""
    largest = 0.0
    for array in arrays:
        of_array = float(np.nanmax(np.abs(array)))
        largest = max(largest, of_array)
    return largest


def bands(figure: Figure, mode: str) -> None:
    """Figure 9: what each token reads of its neighbours, up to 8 before and after it, in each
    layer."""
    layers = stacked("shift-invariance-bands", first=2, keys=1).values()
    largest = largest_of(layers)
    for index, weights in enumerate(layers):
        bottom = 0.75 - 0.2 * index
        axis = figure.add_axes((0.1, bottom, 0.88, 0.16))
        shade(axis, weights, largest, mode)
        axis.set_yticks([0, 8, 16], ["-8", "0", "+8"])
        axis.set_ylabel(f"layer {index + 1}", fontsize=11)
    _, tokens = weights.shape
    axis.set_xticks([0, tokens - 1], ["first token", "last token"])
    first_label, last_label = axis.get_xticklabels()
    first_label.set_horizontalalignment("left")
    last_label.set_horizontalalignment("right")
    figure.suptitle("The weights of each token's neighbours, up to 8 on each side", fontsize=13)
    scale(figure, f"blue: up to +{largest:.1f}; orange: down to -{largest:.1f}")


def image_filters(figure: Figure, mode: str) -> None:
    """Figure 3: rows of W of six layers as images; the mean filter, and that of smooth noise."""
    filters = stacked("image-filters-rows", first=3, keys=2)
    largest = largest_of(filters.values())
    titles = list(dict.fromkeys(name for _, name in filters))
    for (layer, name), padded in filters.items():
        side = len(padded)
        weights = padded[:, :side]
        column = titles.index(name)
        row = int(layer) - 1
        left = 0.12 + 0.148 * column
        bottom = 0.775 - 0.142 * row
        axis = figure.add_axes((left, bottom, 0.13, 0.12))
        shade(axis, weights, largest, mode)
        frame_patch(axis, name, side)
        if row == 0:
            axis.set_title(name, fontsize=11, loc="center", pad=4)
        if column == 0:
            axis.set_ylabel(f"layer {layer}", rotation=0, ha="right", va="center", fontsize=11)
    figure.suptitle("What is mixed into the framed patch", fontsize=13)
    scale(figure, f"blue: up to +{largest:.2f}; orange: down to -{largest:.2f}")


def frame_patch(axis: Axes, name: str, side: int) -> None:
    """A frame around the patch of a filter, "patch NUMBER"; in other filters around the middle."""
    row = side // 2
    column = side // 2
    if name.startswith("patch"):
        _, number = name.split()
        row, column = divmod(int(number), side)
    frame = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, linewidth=1.6)
    frame.set(edgecolor=axis.title.get_color())
    axis.add_patch(frame)


def attention(figure: Figure, mode: str) -> None:
    """Figure 10: the attention of one layer between the tokens of two sentences."""
    lines = read("attention-layer-1", 1)
    tokens = [line.names[0] for line in lines]
    weights = np.array([line.weights for line in lines])
    axis = figure.add_axes((0.19, 0.11, 0.78, 0.68))
    shade(axis, weights, 1.0, mode)
    positions = range(len(tokens))
    axis.set_xticks(positions, tokens, rotation=90, fontsize=10.5)
    axis.set_yticks(positions, tokens, fontsize=10.5)
    axis.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False)
    end = tokens.index("[SEP]") + 0.5  # of the first sentence
    colour = axis.title.get_color()
    axis.axvline(end, color=colour, linewidth=1)
    axis.axhline(end, color=colour, linewidth=1)
    axis.set_xlabel("key: the token that is looked at")
    axis.set_ylabel("query: the token that looks")
    figure.suptitle("Attention of layer 1 in a pair of sentences", fontsize=13)
    scale(figure, "full blue: all of a token's attention")


# File name -> width, height in inches, and what draws it.
FIGURES = {
    "shift-invariance": (6.4, 4.8, bands),
    "image-filters": (6.4, 6.4, image_filters),
    "attention": (6.4, 7.0, attention),
}
