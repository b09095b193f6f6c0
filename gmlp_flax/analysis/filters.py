"""Learned spatial filters: rows of the spatial matrices W, for a text's middle token (the paper's
Figure 4) or for patches of images (Figure 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from flax import nnx

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.looks import BLACK, FAMILIES, GREY
from gmlp_flax.errors import RunError
from gmlp_flax.models.blocks import Block
from gmlp_flax.models.image import patch_grid
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.training.model import Model

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEAR = 10  # tokens to each side of a text's middle token
PATCHES_SHOWN = 4  # columns of the image figure, besides those of the means
NOISE_WIDTH = 1.5  # tokens: the standard deviation of the Gaussian that makes noise smooth


def matrices(model: Model) -> np.ndarray:
    """The spatial weights of all layers, float32 [layers, n, n]; rows are outputs.

    Raises:
        RunError: the run's blocks have none.
    """
    of_stacks = []
    for stack in model.task.stacks(model.params):
        weights = _stack_matrices(stack)
        if weights is None:
            block = model.config.model.block
            raise RunError(
                f"config.model.block is {block!r}, which has no spatial matrices: give another run"
            )
        of_stacks.append(weights)
    return np.concatenate(of_stacks)


def _stack_matrices(stack: Block) -> jax.Array | None:
    """The spatial weights of stacked blocks, [layers, n, n]; None if the blocks have none."""
    definition, stacked = nnx.split(stack)

    def matrix(params: nnx.State) -> jax.Array | None:
        block = nnx.merge(definition, params)
        return block.spatial_matrix()

    return jax.vmap(matrix)(stacked)


def between_tokens(model: Model) -> tuple[np.ndarray, tuple[int, ...]]:
    """A run's spatial weights, [layers, n, n], and the grid of the n tokens: (n,) in a text, (rows,
    columns) for patches.

    The cls token of an image model is left out.

    Raises:
        RunError: the run's blocks have none.
    """
    weights = matrices(model)
    options = model.config.model
    if isinstance(model.task, ImageClassification):
        shape = patch_grid(options.image_size, options.patch_size)
    else:
        shape = weights.shape[-1:]
    n = math.prod(shape)
    return weights[:, -n:, -n:], shape


def figure(model: Model) -> Figure:
    """The filters of a run; raises RunError if its blocks have none."""
    weights, shape = between_tokens(model)
    if isinstance(model.task, ImageClassification):
        return draw_patch_filters(weights, shape)
    return draw_text_filters(weights)


# Filters of a text.


@drawing.style()
def draw_text_filters(weights: np.ndarray) -> Figure:
    """Draws the middle token's row of each layer's W, [layers, n, n], as in the paper's Figure 4:
    NEAR tokens to each side, and the whole row in a small frame; on one scale for all layers."""
    layers, n, _ = weights.shape
    columns = min(drawing.IN_ROW, layers)
    middle = n // 2
    rows = weights[:, middle]
    largest = np.abs(rows).max()
    figure, axes = drawing.subplots(
        layers,
        columns,
        width=drawing.PAGE,
        row_height=0.85,
        margin=0.7,
        sharex=True,
        sharey=True,
    )
    for layer, axis in enumerate(axes):
        row = rows[layer]
        axis.set_title(f"layer {layer + 1}")
        _draw_row(axis, row)
        if n > 2 * NEAR + 1:
            _draw_whole_row(axis, row, limit=largest)
        is_lowest = layer + columns >= layers
        axis.tick_params(labelbottom=is_lowest)
    figure.suptitle(
        f"How strongly each layer reads the tokens around token {middle}, on one scale",
        fontsize=drawing.HEADING_SIZE,
    )
    figure.supxlabel("distance in tokens; in the small frames the whole row", fontsize=7)
    figure.supylabel("weight", fontsize=7)
    return figure


def _draw_row(axis: Axes, row: np.ndarray) -> None:
    """Draws the weights [n] of the middle token over the distance to it, NEAR tokens to each
    side."""
    middle = len(row) // 2
    distances = _distances(row)
    first = max(-NEAR, distances[0])
    last = min(NEAR, distances[-1])
    axis.axvline(
        0,
        color=BLACK,
        linewidth=0.6,
        dashes=(2, 2),
    )
    axis.plot(
        distances,
        row,
        color=FAMILIES["gMLP"],
        linewidth=0.9,
    )
    axis.plot(
        [0],
        [row[middle]],
        "o",
        color=BLACK,
        markersize=2.5,
    )
    axis.set_xlim(first, last)


def _draw_whole_row(
    axis: Axes,
    row: np.ndarray,
    limit: float,
) -> None:
    """Draws all weights [n] of the middle token in a small frame, from -limit to limit."""
    corner = (0.68, 0.7, 0.32, 0.3)  # left, bottom, width and height, in shares of the axes
    frame = axis.inset_axes(corner)
    frame.set(
        xticks=[],
        yticks=[],
        ylim=(-limit, limit),
    )
    frame.plot(
        _distances(row),
        row,
        color=GREY,
        linewidth=0.5,
    )


def _distances(row: np.ndarray) -> np.ndarray:
    """The distance of each token to the middle one, [n]."""
    n = len(row)
    return np.arange(n) - n // 2


# Filters of images.


def offsets(shape: Sequence[int]) -> np.ndarray:
    """A number for the offset of each token from each other, int [n, n].

    Equal offsets have equal numbers. They count row by row, from the offset of the first token from
    the last.
    """
    sides = []
    steps = []
    for positions, side in zip(np.indices(shape), shape, strict=True):
        flat = positions.ravel()
        step = np.subtract.outer(flat, flat).T  # [n, n], of a column from a row
        steps.append(step + side - 1)
        sides.append(2 * side - 1)
    numbers = np.ravel_multi_index(tuple(steps), sides)
    return np.asarray(numbers)


def mean_filters(weights: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The mean of all weights with one offset: each patch's filter moved to the middle, and their
    mean over patches.

    Args:
        weights: [layers, n, n].
        shape: the grid of the n tokens.

    Returns:
        [layers, *(2 * side - 1 for side in shape)]; a patch's weight for itself is in the middle.
    """
    index = offsets(shape).ravel()
    counts = np.bincount(index)
    means = []
    for layer in weights:
        sums = np.bincount(index, layer.ravel())
        means.append(sums / counts)
    sides = [2 * side - 1 for side in shape]
    return np.reshape(means, (len(weights), *sides))


def smooth_noise(shape: Sequence[int], random: np.random.Generator) -> np.ndarray:
    """Weights [n, n] that are only smooth: noise over both tokens, through a Gaussian of NOISE_WIDTH
    tokens."""
    from scipy import ndimage

    n = math.prod(shape)
    noise = random.standard_normal((*shape, *shape))
    smooth = ndimage.gaussian_filter(noise, NOISE_WIDTH, mode="nearest")
    return smooth.reshape(n, n)


@drawing.style()
def draw_patch_filters(weights: np.ndarray, grid: tuple[int, ...]) -> Figure:
    """Draws rows of each layer's W as images, as in the paper's Figure 3.

    The rows are those of PATCHES_SHOWN patches, evenly spread; a frame marks the patch that a row
    mixes into. Next to them are the mean filter, and that of smooth noise with the layer's standard
    deviation. All have one scale.

    Args:
        weights: [layers, patches, patches].
        grid: (rows, columns) of patches.
    """
    columns = _columns_of_figure(weights, grid)
    layers = len(weights)
    images = []
    for layer in range(layers):
        for column in columns:
            images.append(column.images[layer])
    figure, axes = drawing.subplots(
        len(images),
        len(columns),
        width=drawing.COLUMN,
        row_height=0.38 * grid[0] / grid[1],
        margin=0.6,
    )
    figure.set_layout_engine(
        "constrained",
        w_pad=0.01,
        h_pad=0.01,
        hspace=0.04,
        wspace=0.08,
    )
    drawing.scaled_images(figure, axes, images, drawing.SIGNED)
    for index, axis in enumerate(axes):
        layer, number = divmod(index, len(columns))
        column = columns[number]
        _draw_frame(axis, column.framed)
        if number == 0:
            axis.set_ylabel(
                f"layer {layer + 1}",
                rotation=0,
                ha="right",
                va="center",
                fontsize=6,
            )
        if layer == 0:
            axis.set_title(
                column.title,
                fontsize=6,
                loc="center",
                pad=2,
            )
    figure.suptitle("What is mixed into the framed patch", fontsize=drawing.HEADING_SIZE)
    return figure


class _Column(NamedTuple):
    """A column of the figure of patches.

    Attributes:
        title: above it.
        images: of each layer, [layers, rows, columns].
        framed: row and column of the patch that is mixed into.
    """

    title: str
    images: np.ndarray
    framed: tuple[int, int]


def _columns_of_figure(weights: np.ndarray, grid: tuple[int, ...]) -> list[_Column]:
    """The filters of some patches, their mean, and that of noise. Arguments are those of
    `draw_patch_filters`."""
    patches = math.prod(grid)
    last = patches - 1
    count = min(PATCHES_SHOWN, patches)
    grid_rows, grid_columns = grid
    columns = []
    for position in np.linspace(0, last, count):
        patch = round(float(position))
        title = f"{patch}" if columns else f"patch {patch}"
        images = weights[:, patch].reshape(-1, *grid)
        framed = divmod(patch, grid_columns)
        column = _Column(title, images, framed)
        columns.append(column)
    middle = (grid_rows - 1, grid_columns - 1)
    noise = _noise_like(weights, grid)
    mean_of_weights = mean_filters(weights, grid)
    mean_of_noise = mean_filters(noise, grid)
    columns.append(_Column("mean", mean_of_weights, middle))
    columns.append(_Column("noise", mean_of_noise, middle))
    return columns


def _noise_like(weights: np.ndarray, grid: Sequence[int]) -> np.ndarray:
    """Smooth noise [layers, patches, patches] with each layer's standard deviation."""
    random = np.random.default_rng(0)
    scaled = []
    for layer in weights:
        noise = smooth_noise(grid, random)
        scaled.append(noise * layer.std() / noise.std())
    return np.stack(scaled)


def _draw_frame(axis: Axes, patch: tuple[int, int]) -> None:
    """Draws a frame around the patch in a row and a column."""
    from matplotlib.patches import Rectangle

    row, column = patch
    corner = (column - 0.5, row - 0.5)
    frame = Rectangle(
        corner,
        1,
        1,
        fill=False,
        edgecolor=BLACK,
        linewidth=0.8,
    )
    frame.set_gid(drawing.ON_IMAGE)
    axis.add_patch(frame)
