"""How close spatial matrices are to Toeplitz matrices.

The paper's Figure 9 shows that matrices learned without the Toeplitz constraint (`--config.model.spatial=dense`) look
as if they had it. Here this is a number: the share of a matrix's energy (its squared sum) that is left when each
diagonal is replaced by its mean. It is 1 for a Toeplitz matrix and about 2/n for noise. It is computed for every
checkpoint that the run kept, so `--config.checkpoint.every=50 --config.checkpoint.keep=100` gives a curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gmlp_flax.analysis import charts, drawing
from gmlp_flax.analysis.filters import matrices
from gmlp_flax.errors import RunError
from gmlp_flax.run_folder import storage
from gmlp_flax.training import loading

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def toeplitz_share(weights: np.ndarray) -> np.ndarray:
    """Share of each matrix's energy in the means of its diagonals: [layers, n, n] to [layers], 0 to 1."""
    n, weights = weights.shape[-1], weights.astype(np.float64)
    diagonals = [np.diagonal(weights, offset, axis1=-2, axis2=-1) for offset in range(1 - n, n)]
    kept = sum(diagonal.shape[-1] * diagonal.mean(-1) ** 2 for diagonal in diagonals)
    return kept / np.square(weights).sum((-2, -1))


def shares(workdir: str) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Step -> the share of each layer, [layers], for every checkpoint that the run kept; and the newest checkpoint's
    matrices, [layers, n, n].

    Raises:
        RunError: the run trained on images, or has no spatial matrices.
    """
    newest = loading.load(workdir)
    if newest.task.takes_files:
        raise RunError(f"{workdir} is a run on images, whose tokens lie in a grid: give a run on text")
    checkpoints = loading.open_checkpoints(newest.config, storage.absolute(workdir), read_only=True)
    found = {step: matrices(loading.load(workdir, str(step))) for step in checkpoints.steps() if step < newest.step}
    checkpoints.close()
    found[newest.step] = matrices(newest)
    return {step: toeplitz_share(weights) for step, weights in found.items()}, found[newest.step]


def draw(found: Mapping[int, np.ndarray], weights: np.ndarray, workdir: str) -> list[str]:
    """Draws the matrices of the newest checkpoint (Figure 9) and the shares over the steps.

    Args:
        found: the shares that `shares` returns.
        weights: [layers, n, n].
        workdir: the run's folder.

    Returns:
        The paths of the figures, RUN/figures/spatial_matrices.png and toeplitz_share.png; .svg and .pdf lie beside.
    """
    figures = {
        "spatial_matrices": draw_matrices(weights),
        "toeplitz_share": charts.draw(shares_chart(found, weights.shape[-1])),
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


def shares_chart(found: Mapping[int, np.ndarray], n: int) -> charts.Chart:
    """The shares over the steps, or over the layers if there is one step; beside the share of noise on n tokens."""
    by_step = np.stack(list(found.values()))
    steps, layers = list(found), len(by_step[0])
    newest = by_step[-1]
    title = f"After {steps[-1]:,} steps the diagonals hold {newest.min():.2f} to {newest.max():.2f} of W's energy"
    if len(steps) == 1:
        look = drawing.Look(drawing.FAMILIES["gMLP"])
        series = [charts.Series(f"step {steps[0]}", look, list(range(1, layers + 1)), newest.tolist())]
    else:
        series = [
            charts.Series(f"layer {layer}", look._replace(dashes=()), steps, of_layer.tolist())
            for layer, (look, of_layer) in enumerate(zip(drawing.looks(["gMLP"] * layers), by_step.T, strict=True), 1)
        ]
    over, share = charts.Scale("step" if len(steps) > 1 else "layer"), charts.Scale("share of W's energy (1: Toeplitz)")
    return charts.Chart([charts.Panel(title, over, share, series, [("noise", noise_share(n))])])


def noise_share(n: int) -> float:
    """The expected share of a matrix [n, n] of independent entries, (2 n - 1) / n^2."""
    return (2 * n - 1) / n**2
