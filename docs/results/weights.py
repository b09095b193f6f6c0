"""Writes the weights of a run that the figures of docs/results/learned.md show, as the CSV files
that these are drawn from.

python -m docs.results.weights shift-invariance-bands runs/dense
python -m docs.results.weights image-filters-rows runs/photos
python -m docs.results.weights attention-layer-1 runs/mnli
"""

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gmlp_flax
from docs import generate
from gmlp_flax.analysis import attention, filters
from gmlp_flax.training.model import Model

REACH = 8  # tokens before and after, of bands
PATCHES = 4  # of which the filters are shown
PAIR = ("A man is playing a guitar in the street.", "Nobody is making music outside.")

Row = Sequence[Any]


def bands(model: Model) -> Iterator[Row]:
    """What each token reads of its neighbours: a line for each layer and offset, a column for each
    token; empty where there is no neighbour."""
    weights = filters.matrices(model)
    tokens = weights.shape[-1]
    yield ["layer", "offset", *range(tokens)]
    for layer, matrix in enumerate(weights, start=1):
        for offset in range(-REACH, REACH + 1):
            cells = []
            for token in range(tokens):
                neighbour = token + offset
                is_there = 0 <= neighbour < tokens
                cells.append(f"{matrix[token, neighbour]:.3f}" if is_there else "")
            yield [layer, offset, *cells]


def image_filters(model: Model) -> Iterator[Row]:
    """The filters of some patches, laid out as the image, their mean with each patch in the middle,
    and that of smooth noise: a line for each row of patches."""
    weights, grid = filters.between_tokens(model)
    random = np.random.default_rng(0)
    yield ["layer", "filter", "row", *range(2 * grid[1] - 1)]
    for layer, matrix in enumerate(weights, start=1):
        images = {}
        last = len(matrix) - 1
        for position in np.linspace(0, last, PATCHES):
            patch = round(float(position))
            images[f"patch {patch}"] = matrix[patch].reshape(grid)
        noise = filters.smooth_noise(grid, random)
        noise *= matrix.std() / noise.std()
        [images["mean"]] = filters.mean_filters(matrix[None], grid)
        [images["noise"]] = filters.mean_filters(noise[None], grid)
        for name, image in images.items():
            for row, values in enumerate(image):
                cells = [f"{value:.4f}" for value in values]
                yield [layer, name, row, *cells]


def attention_weights(model: Model) -> Iterator[Row]:
    """The attention of the first layer that has some, in a pair of sentences: a line for each
    query."""
    maps = attention.of_text(model, *PAIR)
    labels = maps.text.labels
    yield ["query", *labels]
    first_layer = maps.weights[0]
    for label, row in zip(labels, first_layer, strict=True):
        cells = [f"{value:.3f}" for value in row]
        yield [label, *cells]


FILES: dict[str, Callable[[Model], Iterator[Row]]] = {
    "shift-invariance-bands": bands,
    "image-filters-rows": image_filters,
    "attention-layer-1": attention_weights,
}


def write(name: str, run: str, folder: Path = generate.DATA) -> None:
    """Writes a file of FILES with the weights of a run."""
    model = gmlp_flax.load(run, "latest")
    rows = FILES[name](model)
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows(rows)


if __name__ == "__main__":
    [file_name, run_folder] = sys.argv[1:]
    write(file_name, run_folder)
