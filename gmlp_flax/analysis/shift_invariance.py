"""How close spatial matrices are to Toeplitz matrices, whose weights depend on the offset between two tokens alone.

The paper's Figure 9 shows that matrices learned without the Toeplitz constraint look as if they had it. Here this is a
number: the share of the variance of a matrix's weights that offsets explain, 1 for a Toeplitz matrix and small for
noise. In a text, the offsets are the matrix's diagonals; between patches they have two parts, rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gmlp_flax.analysis import charts, drawing, filters
from gmlp_flax.io import files
from gmlp_flax.training import loading

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def toeplitz_share(weights: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Share of the variance of each matrix's weights that offsets explain.

    Args:
        weights: [layers, n, n].
        shape: how the n tokens lie: (n,) in a text, (rows, columns) for the patches of an image, row by row.

    Returns:
        [layers], 0 to 1; 1 for weights that are all equal.
    """
    offsets = _offsets(shape).ravel()
    counts = np.bincount(offsets)
    flat = weights.reshape(len(weights), -1).astype(np.float64)
    flat -= flat.mean(-1, keepdims=True)
    explained = np.array([(np.bincount(offsets, layer) ** 2 / counts).sum() for layer in flat])
    whole = np.square(flat).sum(-1)
    return np.divide(explained, whole, out=np.ones_like(whole), where=whole > 0)


def _offsets(shape: Sequence[int]) -> np.ndarray:
    """A number for the offset of each token from each, int [n, n]; equal offsets have equal numbers."""
    positions = np.indices(shape).reshape(len(shape), -1)
    last = np.array(shape) - 1
    steps = positions[:, None] - positions[:, :, None] + last[:, None, None]
    return np.asarray(np.ravel_multi_index(tuple(steps), 2 * last + 1))


def noise_share(shape: Sequence[int]) -> float:
    """The expected share of a matrix of independent entries: by their numbers, each less one for the mean."""
    return (math.prod(2 * side - 1 for side in shape) - 1) / (math.prod(shape) ** 2 - 1)


class ShiftInvariance(NamedTuple):
    """How near the spatial matrices of a run's checkpoints are to Toeplitz."""

    shares: dict[int, np.ndarray]  # step -> the share of each layer, [layers]
    weights: np.ndarray  # of the newest checkpoint, [layers, n, n]
    shape: tuple[int, ...]  # how the n tokens lie


def of_run(workdir: str) -> ShiftInvariance:
    """The shares of every checkpoint that the run kept.

    Raises:
        RunError: the run has no spatial matrices.
    """
    newest = loading.load(workdir)
    weights, shape = filters.between_tokens(newest)
    checkpoints = loading.open_checkpoints(newest.config, files.absolute(workdir), read_only=True)
    steps = [step for step in checkpoints.steps() if step < newest.step]
    checkpoints.close()
    by_step = {step: filters.between_tokens(loading.load(workdir, str(step)))[0] for step in steps}
    by_step[newest.step] = weights
    return ShiftInvariance({step: toeplitz_share(w, shape) for step, w in by_step.items()}, weights, shape)


def draw(measured: ShiftInvariance, workdir: str) -> list[str]:
    """Draws the matrices of the newest checkpoint (Figure 9) and the shares over the steps.

    Args:
        measured: what `of_run` returns.
        workdir: the run's folder.

    Returns:
        The paths of the figures, RUN/figures/spatial_matrices.png and toeplitz_share.png; .svg and .pdf lie beside.
    """
    figures = {
        "spatial_matrices": draw_matrices(measured.weights),
        "toeplitz_share": charts.draw(shares_chart(measured)),
    }
    return [drawing.save(figure, workdir, name) for name, figure in figures.items()]


@drawing.style()
def draw_matrices(weights: np.ndarray) -> Figure:
    """The matrices of all layers, [layers, n, n], as in the paper's Figure 9; one scale for all."""
    layers, columns = len(weights), min(6, len(weights))
    rows = math.ceil(layers / columns)
    width = drawing.COLUMN if columns <= 2 else drawing.PAGE
    figure, axes = drawing.subplots(rows, columns, width, 0.5 + rows * (0.2 + 0.85 * width / columns))
    for layer, axis in enumerate(axes[:layers]):
        axis.set_title(f"layer {layer + 1}")
    for axis in axes[layers:]:
        axis.set_axis_off()
    drawing.scaled_images(figure, list(zip(axes, weights, strict=False)), drawing.SIGNED, "weight", axes)
    figure.suptitle("From each token (columns) to each token (rows)", fontsize=7.5)
    return figure


def shares_chart(measured: ShiftInvariance) -> charts.Chart:
    """The shares over the steps, or over the layers if there is one step; beside the share of noise."""
    by_step = np.stack(list(measured.shares.values()))
    steps, layers = list(measured.shares), len(by_step[0])
    newest = by_step[-1]
    title = f"After {steps[-1]:,} steps offsets explain {newest.min():.2f} to {newest.max():.2f} of W's variance"
    if len(steps) == 1:
        look = drawing.Look(drawing.FAMILIES["gMLP"])
        series = [charts.Series(f"step {steps[0]}", look, list(range(1, layers + 1)), newest.tolist())]
    else:
        series = [
            charts.Series(f"layer {layer}", look._replace(dashes=()), steps, of_layer.tolist())
            for layer, (look, of_layer) in enumerate(zip(drawing.looks(["gMLP"] * layers), by_step.T, strict=True), 1)
        ]
    over, share = (
        charts.Scale("step" if len(steps) > 1 else "layer"),
        charts.Scale("share of W's variance (1: Toeplitz)"),
    )
    return charts.Chart([charts.Panel(title, over, share, series, [("noise", noise_share(measured.shape))])])
