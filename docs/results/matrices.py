"""The figures of docs/results that show matrices: blue for what is added, orange for what is
subtracted, the stronger the larger, on a page of any colour. `docs.results.weights` writes the
weights of a run to the CSV files that they are drawn from."""

import csv
import itertools

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from docs import generate

POSITIVE, NEGATIVE = (
    {"light": "#0072b2", "dark": "#56b4e9"},
    {"light": "#d55e00", "dark": "#e69f00"},
)


def shade(axis: Axes, weights: np.ndarray, largest: float, mode: str) -> None:
    """Weights [rows, columns] as an image that is transparent where they are 0 or NaN."""
    image = np.zeros((*weights.shape, 4))
    image[..., :3] = np.where(
        (weights > 0)[..., None], to_rgb(POSITIVE[mode]), to_rgb(NEGATIVE[mode])
    )
    image[..., 3] = np.nan_to_num(np.abs(weights) / largest).clip(0, 1)
    axis.imshow(image, interpolation="none", aspect="auto")
    axis.grid(False)
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(visible=True, linewidth=0.6)


def read(name: str, first: int) -> list[tuple[list[str], np.ndarray]]:
    """The lines of a CSV file: the `first` cells, and the weights after them, NaN where there are
    none."""
    with (generate.DATA / f"{name}.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    return [(row[:first], np.array([float(cell or "nan") for cell in row[first:]])) for row in rows]


def scale(figure: Figure, words: str, size: float = 10.5) -> None:
    """Says below a figure what its colours are."""
    figure.text(0.5, 0.015, words, ha="center", fontsize=size)


def bands(figure: Figure, mode: str) -> None:
    """Figure 9: what each token reads of its neighbours, up to 8 before and after it, in each
    layer."""
    layers = [
        list(lines)
        for _, lines in itertools.groupby(
            read("shift-invariance-bands", 2), lambda line: line[0][0]
        )
    ]
    weights = np.array([[row for _, row in lines] for lines in layers])
    largest = float(np.nanmax(np.abs(weights)))
    for index, layer in enumerate(weights):
        axis = figure.add_axes((0.1, 0.75 - 0.2 * index, 0.88, 0.16))
        shade(axis, layer, largest, mode)
        axis.set_yticks([0, 8, 16], ["-8", "0", "+8"])
        axis.set_ylabel(f"layer {index + 1}", fontsize=11)
    axis.set_xticks([0, layer.shape[-1] - 1], ["first token", "last token"])
    for label, side in zip(axis.get_xticklabels(), ("left", "right"), strict=True):
        label.set_horizontalalignment(side)
    figure.suptitle("The weights of each token's neighbours, up to 8 on each side", fontsize=13)
    scale(figure, f"blue: up to +{largest:.1f}; orange: down to -{largest:.1f}")


def image_filters(figure: Figure, mode: str) -> None:
    """Figure 3: rows of W of six layers as images; the mean filter, and that of smooth noise."""
    groups = itertools.groupby(read("image-filters-rows", 3), lambda line: tuple(line[0][:2]))
    filters = {key: np.array([row for _, row in lines]) for key, lines in groups}
    largest = max(float(np.nanmax(np.abs(weights))) for weights in filters.values())
    titles = list(dict.fromkeys(name for _, name in filters))
    for (layer, name), padded in filters.items():
        weights = padded[:, : len(padded)]
        column = titles.index(name)
        row = int(layer) - 1
        axis = figure.add_axes((0.12 + 0.148 * column, 0.775 - 0.142 * row, 0.13, 0.12))
        shade(axis, weights, largest, mode)
        side = len(weights)
        top, left = (
            divmod(int(name.split()[1]), side)
            if name.startswith("patch")
            else (side // 2, side // 2)
        )
        frame = Rectangle((left - 0.5, top - 0.5), 1, 1, fill=False, linewidth=1.6)
        frame.set(edgecolor=axis.title.get_color())
        axis.add_patch(frame)
        if row == 0:
            axis.set_title(name, fontsize=11, loc="center", pad=4)
        if column == 0:
            axis.set_ylabel(f"layer {layer}", rotation=0, ha="right", va="center", fontsize=11)
    figure.suptitle("What is mixed into the framed patch", fontsize=13)
    scale(figure, f"blue: up to +{largest:.2f}; orange: down to -{largest:.2f}")


def attention(figure: Figure, mode: str) -> None:
    """Figure 10: the attention of one layer between the tokens of two sentences."""
    lines = read("attention-layer-1", 1)
    tokens = [first[0] for first, _ in lines]
    weights = np.array([row for _, row in lines])
    axis = figure.add_axes((0.19, 0.11, 0.78, 0.68))
    shade(axis, weights, 1.0, mode)
    axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=10.5)
    axis.set_yticks(range(len(tokens)), tokens, fontsize=10.5)
    axis.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False)
    end = tokens.index("[SEP]") + 0.5  # of the first sentence
    for draw in (axis.axvline, axis.axhline):
        draw(end, color=axis.title.get_color(), linewidth=1)
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
