"""Learned spatial filters: rows of W, of a text's middle token (the paper's Figure 4) or of patches (Figure 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from flax import nnx

from gmlp_flax.analysis import drawing
from gmlp_flax.errors import RunError
from gmlp_flax.models.image import patch_grid
from gmlp_flax.training import loading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEAR = 10  # tokens to each side of a text's middle token
PATCHES_SHOWN = 4  # columns of the image figure, beside those of the means
WIDTH = 1.5  # tokens: the deviation of the Gaussian that makes noise smooth


def matrices(trained: loading.Trained) -> np.ndarray:
    """The spatial weights of all layers, float32 [layers, n, n]; rows are outputs.

    Raises:
        RunError: the run's blocks have none.
    """
    of_stacks = []
    for stack in trained.task.stacks(trained.weights):
        definition, stacked = nnx.split(stack)
        if nnx.merge(definition, jax.tree.map(lambda x: x[0], stacked)).spatial_matrix() is None:
            block = trained.config.model.block
            raise RunError(f"config.model.block is {block!r}, which has no spatial matrices: give another run")
        of_stacks.append(jax.vmap(lambda params: nnx.merge(definition, params).spatial_matrix())(stacked))  # noqa: B023
    return np.concatenate(of_stacks)


def figure(trained: loading.Trained) -> Figure:
    """The filters of a run. Raises RunError: its blocks have none."""
    weights, shape = between_tokens(trained)
    return draw_images(weights, shape) if trained.task.predicts_files else draw_text(weights)


@drawing.style()
def draw_text(weights: np.ndarray) -> Figure:
    """The middle token's row of each layer's W, [layers, n, n], as in the paper's Figure 4, NEAR tokens to each side,
    and the whole row in a small frame; one scale for all."""
    layers, n, _ = weights.shape
    columns, middle = min(drawing.IN_ROW, layers), n // 2
    most = np.abs(weights[:, middle]).max()
    figure, axes = drawing.subplots(layers, columns, drawing.PAGE, 0.85, margin=0.7, sharex=True, sharey=True)
    for layer, axis in enumerate(axes):
        row, distances = weights[layer, middle], np.arange(n) - middle
        axis.axvline(0, color="black", linewidth=0.6, dashes=(2, 2))
        axis.plot(distances, row, color=drawing.FAMILIES["gMLP"], linewidth=0.9)
        axis.plot([0], [row[middle]], "o", color="black", markersize=2.5)
        axis.set_title(f"layer {layer + 1}")
        axis.set_xlim(-min(NEAR, middle), min(NEAR, n - 1 - middle))
        if n > 2 * NEAR + 1:
            whole = axis.inset_axes((0.68, 0.7, 0.32, 0.3), xticks=[], yticks=[], ylim=(-most, most))
            whole.plot(distances, row, color=drawing.GREY, linewidth=0.5)
        axis.tick_params(labelbottom=layer + columns >= layers)
    figure.suptitle(f"How strongly each layer reads the tokens around token {middle}, on one scale", fontsize=7.5)
    figure.supxlabel("distance in tokens; in the small frames the whole row", fontsize=7)
    figure.supylabel("weight", fontsize=7)
    return figure


def between_tokens(trained: loading.Trained) -> tuple[np.ndarray, tuple[int, ...]]:
    """A run's spatial weights, [layers, n, n], and how the n tokens lie: (n,) in a text, (rows, columns) for patches.

    The cls token of an image model is left out.

    Raises:
        RunError: the run's blocks have none.
    """
    weights, model = matrices(trained), trained.config.model
    shape = patch_grid(model.image_size, model.patch_size) if trained.task.predicts_files else weights.shape[-1:]
    n = math.prod(shape)
    return weights[:, -n:, -n:], shape


def offsets(shape: Sequence[int]) -> np.ndarray:
    """A number for the offset of each token from each, int [n, n]; equal offsets have equal numbers, which count, row
    by row, from the first token as the last one sees it."""
    positions = np.indices(shape).reshape(len(shape), -1)
    last = np.array(shape) - 1
    steps = positions[:, None] - positions[:, :, None] + last[:, None, None]
    return np.asarray(np.ravel_multi_index(tuple(steps), 2 * last + 1))


def mean_filters(weights: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The mean of all weights with one offset: each patch's filter moved to the middle, and their mean over patches.

    Args:
        weights: [layers, n, n].
        shape: how the n tokens lie.

    Returns:
        [layers, *(2 * side - 1 for side in shape)]; what a patch reads of itself is in the middle.
    """
    index = offsets(shape).ravel()
    sums = np.array([np.bincount(index, layer.ravel()) for layer in weights])
    return (sums / np.bincount(index)).reshape(-1, *(2 * side - 1 for side in shape))


def smooth_noise(shape: Sequence[int], random: np.random.Generator) -> np.ndarray:
    """Weights [n, n] that are smooth and nothing else: noise over both tokens, through a Gaussian of WIDTH tokens."""
    from scipy import ndimage

    n = math.prod(shape)
    field = ndimage.gaussian_filter(random.standard_normal((*shape, *shape)), WIDTH, mode="nearest")
    return field.reshape(n, n)


@drawing.style()
def draw_images(weights: np.ndarray, grid: tuple[int, ...]) -> Figure:
    """Rows of each layer's W, [layers, patches, patches], as images on the grid (rows, columns), as in the paper's
    Figure 3: of PATCHES_SHOWN patches, evenly spread, with the patch that a row mixes into in a frame; beside them the
    mean filter, and that of smooth noise with the layer's deviation. One scale for all."""
    from matplotlib.patches import Rectangle

    random, patches = np.random.default_rng(0), math.prod(grid)
    shown = np.linspace(0, patches - 1, min(PATCHES_SHOWN, patches)).round().astype(int)
    noise = np.stack([smooth_noise(grid, random) for _ in weights])
    noise *= (weights.std((1, 2)) / noise.std((1, 2)))[:, None, None]
    rows = weights[:, shown].reshape(len(weights), len(shown), *grid)
    means = zip(mean_filters(weights, grid), mean_filters(noise, grid), strict=True)
    images = [image for row, pair in zip(rows, means, strict=True) for image in (*row, *pair)]
    titles = [f"patch {shown[0]}", *map(str, shown[1:]), "mean", "noise"]
    frames = [(int(patch) // grid[1], int(patch) % grid[1]) for patch in shown] + [(grid[0] - 1, grid[1] - 1)] * 2
    row_height = 0.38 * grid[0] / grid[1]
    figure, axes = drawing.subplots(len(images), len(titles), drawing.COLUMN, row_height, margin=0.6)
    figure.set_layout_engine("constrained", w_pad=0.01, h_pad=0.01, hspace=0.04, wspace=0.08)
    drawing.scaled_images(figure, axes, images, drawing.SIGNED)
    for index, axis in enumerate(axes):
        layer, column = divmod(index, len(titles))
        row, left = frames[column]
        axis.add_patch(Rectangle((left - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=0.8))
        if column == 0:
            axis.set_ylabel(f"layer {layer + 1}", rotation=0, ha="right", va="center", fontsize=6)
        if layer == 0:
            axis.set_title(titles[column], fontsize=6, loc="center", pad=2)
    figure.suptitle("What is mixed into the framed patch", fontsize=7.5)
    return figure
