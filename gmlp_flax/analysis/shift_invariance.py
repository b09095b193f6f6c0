"""How close spatial matrices are to Toeplitz matrices.

The paper's Figure 9 shows that matrices learned without the Toeplitz constraint (`--config.model.spatial=dense`) look
as if they had it. Here this is a number: the share of a matrix's energy (its squared sum) that is left when each
diagonal is replaced by its mean. It is 1 for a Toeplitz matrix and about 2/n for noise. It is computed for every
checkpoint that the run kept, so `--config.checkpoint.every=50 --config.checkpoint.keep=100` gives a curve.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gmlp_flax.analysis.drawing import points_with_tips, save, subplots
from gmlp_flax.analysis.filters import matrices
from gmlp_flax.errors import RunError
from gmlp_flax.training import run_folder

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
    newest = run_folder.load(workdir)
    if newest.task.takes_files:
        raise RunError(f"{workdir} is a run on images, whose tokens lie in a grid: give a run on text")
    checkpoints = run_folder.open_checkpoints(newest.config, os.path.abspath(workdir), read_only=True)
    found = {step: matrices(run_folder.load(workdir, str(step))) for step in checkpoints.steps() if step < newest.step}
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
        The paths of the figures, RUN/figures/spatial_matrices.png and toeplitz_share.png.
    """
    figures = {
        "spatial_matrices.png": draw_matrices(weights), "toeplitz_share.png": draw_shares(found, weights.shape[-1]),
    }
    return [save(figure, workdir, name) for name, figure in figures.items()]


def draw_matrices(weights: np.ndarray) -> Figure:
    """The matrices of all layers, [layers, n, n], as in the paper's Figure 9."""
    layers, columns = len(weights), min(6, len(weights))
    figure, axes = subplots(math.ceil(layers / columns), columns, 2.0, 2.2)
    for layer, axis in enumerate(axes):
        axis.set_axis_off()
        if layer < layers:
            limit = np.abs(weights[layer]).max()
            axis.imshow(weights[layer], cmap="RdBu", vmin=-limit, vmax=limit)
            axis.set_title(f"layer {layer + 1}", fontsize=8)
    return figure


def draw_shares(found: Mapping[int, np.ndarray], n: int) -> Figure:
    """The shares over the steps, beside the share of noise on n tokens."""
    figure, (axis,) = subplots(1, 1, 6.0, 3.5)
    for layer, of_layer in enumerate(np.stack(list(found.values())).T, start=1):
        tips = [f"layer {layer}, step {step}: {share:.3f}" for step, share in zip(found, of_layer, strict=True)]
        points_with_tips(axis, list(found), of_layer, tips, color=f"C{layer - 1}", markersize=4)
        axis.plot(list(found), of_layer, color=f"C{layer - 1}", label=f"layer {layer}")
    axis.axhline(noise_share(n), color="grey", linestyle=":", label="noise")
    axis.set(xlabel="step", ylabel="share of W's energy in its diagonals' means", ylim=(0, 1.05))
    axis.legend(fontsize=7)
    return figure


def noise_share(n: int) -> float:
    """The expected share of a matrix [n, n] of independent entries, (2 n - 1) / n^2."""
    return (2 * n - 1) / n**2
