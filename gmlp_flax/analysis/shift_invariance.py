"""Draws spatial matrices and how near they are to Toeplitz: python -m gmlp_flax.analysis.shift_invariance --workdir=DIR

The paper's Figure 9 shows that matrices learned without the Toeplitz constraint (`--config.model.spatial=dense`) look
as if they had it. Here that is a number: the share of a matrix's energy (its squared sum) that is left where each
diagonal is replaced by its mean. It is 1 for a Toeplitz matrix and about 2/n for noise. It is read from every
checkpoint that the run kept, so `--config.checkpoint.every=50 --config.checkpoint.keep=100` makes a curve of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gmlp_flax import cli
from gmlp_flax.analysis.drawing import points_with_tips, save, subplots
from gmlp_flax.analysis.filters import matrices
from gmlp_flax.training import folder
from gmlp_flax.training.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def toeplitz_share(weights: np.ndarray) -> np.ndarray:
    """Share of each matrix's energy in the means of its diagonals: [layers, n, n] to [layers], 0 to 1."""
    n, weights = weights.shape[-1], weights.astype(np.float64)
    diagonals = [np.diagonal(weights, offset, axis1=-2, axis2=-1) for offset in range(1 - n, n)]
    kept = sum(diagonal.shape[-1] * diagonal.mean(-1) ** 2 for diagonal in diagonals)
    return kept / np.square(weights).sum((-2, -1))


def shares(workdir: str) -> dict[int, np.ndarray]:
    """Step -> the share of each layer, [layers], of every checkpoint that the run kept.

    Raises:
        RunError: the run is of pictures, or has no spatial matrices.
    """
    config = folder.load(workdir).config
    if config.task == "image_classification":
        raise RunError(f"{workdir} is a run of pictures, whose tokens lie in a grid: give a run of text")
    steps = folder.open_checkpoints(config, os.path.abspath(workdir), read_only=True).steps()
    return {step: toeplitz_share(matrices(folder.load(workdir, str(step)))) for step in sorted(steps)}


def draw(found: Mapping[int, np.ndarray], weights: np.ndarray, workdir: str) -> list[str]:
    """Draws the matrices of the newest checkpoint (Figure 9) and the shares over the steps.

    Args:
        found: of `shares`.
        weights: [layers, n, n].
        workdir: the run's folder.

    Returns:
        The paths of the pictures, RUN/figures/spatial_matrices.png and toeplitz_share.png.
    """
    figures = {
        "spatial_matrices.png": draw_matrices(weights), "toeplitz_share.png": draw_shares(found, weights.shape[-1]),
    }
    return [save(figure, workdir, name) for name, figure in figures.items()]


def draw_matrices(weights: np.ndarray) -> Figure:
    """The matrices of all layers, [layers, n, n], as the paper's Figure 9."""
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
    """The shares of `shares` over the steps, beside what noise of n tokens has."""
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
    """What is expected of independent entries, (2 n - 1) / n^2."""
    return (2 * n - 1) / n**2


def main(_argv: list[str]) -> None:
    """Prints the shares, draws them and the matrices, and prints where."""
    workdir = cli.required("workdir", "analysis.shift_invariance --workdir=DIR")
    found, weights = shares(workdir), matrices(folder.load(workdir))
    print(f"share of energy in the diagonals' means, by layer (noise: {noise_share(weights.shape[-1]):.3f})")
    for step, share in found.items():
        print(f"step {step:>7}  " + "  ".join(f"{each:.3f}" for each in share))
    print("\n".join(draw(found, weights, workdir)))


if __name__ == "__main__":
    cli.define_run_flags(checkpoint="latest")
    cli.run(main)
