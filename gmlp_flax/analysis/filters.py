"""Learned spatial filters: rows of W, of a text's middle token (the paper's Figure 4) or of patches
(Figure 3); and how close W is to a Toeplitz matrix, whose weights depend on the offset between two
tokens alone.

The paper's Figure 9 shows that matrices learned without the Toeplitz constraint look as if they had
it. Here this is a
number: the share of the variance of a matrix's weights that offsets explain, 1 for a Toeplitz
matrix and small for noise. Weights that are smooth, whatever they depend on, have more of it than
independent ones: `Chance` is of both. In a text, the offsets are the matrix's diagonals; between
patches they have two parts, rows and columns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from flax import nnx

from gmlp_flax.analysis import drawing
from gmlp_flax.errors import RunError
from gmlp_flax.io import files
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
        weights = jax.vmap(lambda params: nnx.merge(definition, params).spatial_matrix())(stacked)  # noqa: B023
        if weights is None:
            block = trained.config.model.block
            raise RunError(
                f"config.model.block is {block!r}, which has no spatial matrices: give another run"
            )
        of_stacks.append(weights)
    return np.concatenate(of_stacks)


def figure(trained: loading.Trained) -> Figure:
    """The filters of a run. Raises RunError: its blocks have none."""
    weights, shape = between_tokens(trained)
    return draw_images(weights, shape) if trained.task.predicts_files else draw_text(weights)


@drawing.style()
def draw_text(weights: np.ndarray) -> Figure:
    """The middle token's row of each layer's W, [layers, n, n], as in the paper's Figure 4, NEAR
    tokens to each side, and the whole row in a small frame; one scale for all."""
    layers, n, _ = weights.shape
    columns, middle = min(drawing.IN_ROW, layers), n // 2
    most = np.abs(weights[:, middle]).max()
    figure, axes = drawing.subplots(
        layers, columns, drawing.PAGE, 0.85, margin=0.7, sharex=True, sharey=True
    )
    for layer, axis in enumerate(axes):
        row, distances = weights[layer, middle], np.arange(n) - middle
        axis.axvline(0, color="black", linewidth=0.6, dashes=(2, 2))
        axis.plot(distances, row, color=drawing.FAMILIES["gMLP"], linewidth=0.9)
        axis.plot([0], [row[middle]], "o", color="black", markersize=2.5)
        axis.set_title(f"layer {layer + 1}")
        axis.set_xlim(-min(NEAR, middle), min(NEAR, n - 1 - middle))
        if n > 2 * NEAR + 1:
            whole = axis.inset_axes(
                (0.68, 0.7, 0.32, 0.3), xticks=[], yticks=[], ylim=(-most, most)
            )
            whole.plot(distances, row, color=drawing.GREY, linewidth=0.5)
        axis.tick_params(labelbottom=layer + columns >= layers)
    figure.suptitle(
        f"How strongly each layer reads the tokens around token {middle}, on one scale",
        fontsize=7.5,
    )
    figure.supxlabel("distance in tokens; in the small frames the whole row", fontsize=7)
    figure.supylabel("weight", fontsize=7)
    return figure


def between_tokens(trained: loading.Trained) -> tuple[np.ndarray, tuple[int, ...]]:
    """A run's spatial weights, [layers, n, n], and how the n tokens lie: (n,) in a text, (rows,
    columns) for patches.

    The cls token of an image model is left out.

    Raises:
        RunError: the run's blocks have none.
    """
    weights, model = matrices(trained), trained.config.model
    shape = (
        patch_grid(model.image_size, model.patch_size)
        if trained.task.predicts_files
        else weights.shape[-1:]
    )
    n = math.prod(shape)
    return weights[:, -n:, -n:], shape


def offsets(shape: Sequence[int]) -> np.ndarray:
    """A number for the offset of each token from each, int [n, n]; equal offsets have equal
    numbers, which count, row by row, from the first token as the last one sees it."""
    positions = np.indices(shape).reshape(len(shape), -1)
    last = np.array(shape) - 1
    steps = positions[:, None] - positions[:, :, None] + last[:, None, None]
    return np.asarray(np.ravel_multi_index(tuple(steps), 2 * last + 1))


def mean_filters(weights: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The mean of all weights with one offset: each patch's filter moved to the middle, and their
    mean over patches.

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
    """Weights [n, n] that are smooth and nothing else: noise over both tokens, through a Gaussian
    of WIDTH tokens."""
    from scipy import ndimage

    n = math.prod(shape)
    field = ndimage.gaussian_filter(random.standard_normal((*shape, *shape)), WIDTH, mode="nearest")
    return field.reshape(n, n)


@drawing.style()
def draw_images(weights: np.ndarray, grid: tuple[int, ...]) -> Figure:
    """Rows of each layer's W, [layers, patches, patches], as images on the grid (rows, columns), as
    in the paper's Figure 3: of PATCHES_SHOWN patches, evenly spread, with the patch that a row
    mixes into in a frame; beside them the mean filter, and that of smooth noise with the layer's
    deviation. One scale for all."""
    from matplotlib.patches import Rectangle

    random, patches = np.random.default_rng(0), math.prod(grid)
    shown = np.linspace(0, patches - 1, min(PATCHES_SHOWN, patches)).round().astype(int)
    noise = np.stack([smooth_noise(grid, random) for _ in weights])
    noise *= (weights.std((1, 2)) / noise.std((1, 2)))[:, None, None]
    rows = weights[:, shown].reshape(len(weights), len(shown), *grid)
    means = zip(mean_filters(weights, grid), mean_filters(noise, grid), strict=True)
    images = [image for row, pair in zip(rows, means, strict=True) for image in (*row, *pair)]
    titles = [f"patch {shown[0]}", *map(str, shown[1:]), "mean", "noise"]
    frames = [(int(patch) // grid[1], int(patch) % grid[1]) for patch in shown] + [
        (grid[0] - 1, grid[1] - 1)
    ] * 2
    row_height = 0.38 * grid[0] / grid[1]
    figure, axes = drawing.subplots(
        len(images), len(titles), drawing.COLUMN, row_height, margin=0.6
    )
    figure.set_layout_engine("constrained", w_pad=0.01, h_pad=0.01, hspace=0.04, wspace=0.08)
    drawing.scaled_images(figure, axes, images, drawing.SIGNED)
    for index, axis in enumerate(axes):
        layer, column = divmod(index, len(titles))
        row, left = frames[column]
        axis.add_patch(
            Rectangle((left - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=0.8)
        )
        if column == 0:
            axis.set_ylabel(f"layer {layer + 1}", rotation=0, ha="right", va="center", fontsize=6)
        if layer == 0:
            axis.set_title(titles[column], fontsize=6, loc="center", pad=2)
    figure.suptitle("What is mixed into the framed patch", fontsize=7.5)
    return figure


REACH = 8  # tokens to either side that a band shows


def toeplitz_share(weights: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Share of the variance of each matrix's weights that offsets explain.

    Args:
        weights: [layers, n, n].
        shape: how the n tokens lie: (n,) in a text, (rows, columns) for the patches of an image,
            row by row.

    Returns:
        [layers], 0 to 1; 1 for weights that are all equal.
    """
    index = offsets(shape).ravel()
    counts = np.bincount(index)
    flat = weights.reshape(len(weights), -1).astype(np.float64)
    flat -= flat.mean(-1, keepdims=True)
    explained = np.array([(np.bincount(index, layer) ** 2 / counts).sum() for layer in flat])
    whole = np.square(flat).sum(-1)
    return np.divide(explained, whole, out=np.ones_like(whole), where=whole > 0)


class Chance(NamedTuple):
    """The shares of matrices that are not Toeplitz."""

    noise: float  # of independent entries, expected
    smooth: float  # of smooth fields: the mean, and the middle 95 %
    low: float
    high: float

    def words(self) -> str:
        """All of it, for people."""
        return f"{self.noise:.3f} for noise, {self.smooth:.3f} ({self.low:.3f} to {self.high:.3f}) for smooth noise"


@functools.cache
def chance(shape: tuple[int, ...]) -> Chance:
    """The shares of matrices over n tokens that lie as `shape`: of independent entries by their
    numbers, each less one for the mean; of `smooth_noise` by 500 draws or fewer."""
    random, n = np.random.default_rng(0), math.prod(shape)
    draws = min(500, max(10, 2**25 // n**2))
    shares = [toeplitz_share(smooth_noise(shape, random)[None], shape)[0] for _ in range(draws)]
    noise = (math.prod(2 * side - 1 for side in shape) - 1) / (n**2 - 1)
    return Chance(noise, float(np.mean(shares)), *map(float, np.percentile(shares, (2.5, 97.5))))


class ShiftInvariance(NamedTuple):
    """How near the spatial matrices of a run's checkpoints are to Toeplitz."""

    shares: dict[int, np.ndarray]  # step -> the share of each layer, [layers]
    weights: np.ndarray  # of the newest checkpoint, [layers, n, n]
    shape: tuple[int, ...]  # how the n tokens lie


def shift_invariance(workdir: str) -> ShiftInvariance:
    """The shares of every checkpoint that the run kept.

    Raises:
        RunError: the run has no spatial matrices.
    """
    newest = loading.load(workdir)
    weights, shape = between_tokens(newest)
    checkpoints = loading.open_checkpoints(newest.config, files.absolute(workdir), read_only=True)
    steps = [step for step in checkpoints.steps() if step < newest.step]
    checkpoints.close()
    by_step = {step: between_tokens(loading.load(workdir, str(step)))[0] for step in steps}
    by_step[newest.step] = weights
    return ShiftInvariance(
        {step: toeplitz_share(w, shape) for step, w in by_step.items()}, weights, shape
    )


def shift_figures(measured: ShiftInvariance) -> dict[str, drawing.Chart | Figure]:
    """The matrices of the newest checkpoint (Figure 9), of a text's also the bands around their
    diagonals, and the shares over the steps."""
    titles = [f"layer {layer}" for layer in range(1, len(measured.weights) + 1)]
    heading = "From each token (columns) to each token (rows)"
    shown = {
        "spatial_matrices": drawing.draw_matrices(measured.weights, titles, drawing.SIGNED, heading)
    }
    if len(measured.shape) == 1:
        shown["spatial_bands"] = draw_bands(measured.weights)
    return {**shown, "toeplitz_share": shares_chart(measured)}


def band(weights: np.ndarray, reach: int = REACH) -> np.ndarray:
    """What each token reads of its neighbours: [layers, n, n] to [layers, 2 * reach + 1, n].

    Row `reach + offset`, column i has the weight from token i + offset to token i; NaN where there
    is no such token. Of a Toeplitz matrix each row is one number.
    """
    n = weights.shape[-1]
    sources = np.arange(-reach, reach + 1)[:, None] + np.arange(n)
    near = weights[:, np.arange(n), sources.clip(0, n - 1)]
    return np.where((sources >= 0) & (sources < n), near, np.nan)


@drawing.style()
def draw_bands(weights: np.ndarray) -> Figure:
    """The bands of all layers' matrices, [layers, n, n], below each other; one scale for all."""
    reach = min(REACH, weights.shape[-1] - 1)
    figure, axes = drawing.subplots(len(weights), 1, drawing.PAGE, 0.75, margin=0.3, sharex=True)
    drawing.scaled_images(figure, axes, band(weights, reach), drawing.SIGNED)
    for layer, axis in enumerate(axes, 1):
        axis.set(aspect="auto", ylabel=f"layer {layer}")
        axis.set_yticks([0, reach, 2 * reach], [f"{-reach}", "0", f"+{reach}"])
    axes[-1].set_xticks([0, weights.shape[-1] - 1], ["first token", "last token"])
    figure.suptitle(
        f"The weights of each token's neighbours, up to {reach} before and after it", fontsize=7.5
    )
    return figure


def shares_chart(measured: ShiftInvariance) -> drawing.Chart:
    """The shares over the steps, or over the layers if there is one step; beside those of
    chance."""
    steps, newest = list(measured.shares), list(measured.shares.values())[-1]
    title = f"After {steps[-1]:,} steps offsets explain {newest.min():.2f} to {newest.max():.2f} of W's variance"
    layers, over = list(range(1, len(newest) + 1)), "step" if len(steps) > 1 else "layer"
    curves = {f"step {steps[0]}": (layers, newest)}
    if len(steps) > 1:
        by_layer = np.transpose(list(measured.shares.values()))
        curves = {
            f"layer {layer}": (steps, shares)
            for layer, shares in zip(layers, by_layer, strict=True)
        }
    series = [
        drawing.Series(name, look._replace(dashes=()), x, shares.tolist())
        for look, (name, (x, shares)) in zip(
            drawing.looks(["gMLP"] * len(curves)), curves.items(), strict=True
        )
    ]
    scales = drawing.Scale(over), drawing.Scale("share of W's variance (1: Toeplitz)")
    noise, smooth, _, high = chance(tuple(measured.shape))
    lines = [("noise", noise), ("smooth noise", smooth), ("97.5 % of it", high)]
    return drawing.Chart([drawing.Panel(title, *scales, series, lines)])
