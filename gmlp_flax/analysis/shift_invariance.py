"""How close spatial matrices are to Toeplitz matrices, whose weights depend on the offset between two tokens alone.

The paper's Figure 9 shows that matrices learned without the Toeplitz constraint look as if they had it. Here this is a
number: the share of the variance of a matrix's weights that offsets explain, 1 for a Toeplitz matrix and small for
noise. Weights that are smooth, whatever they depend on, have more of it than independent ones: `Chance` is of both. In
a text, the offsets are the matrix's diagonals; between patches they have two parts, rows and columns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gmlp_flax.analysis import drawing, filters
from gmlp_flax.io import files
from gmlp_flax.training import loading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REACH = 8  # tokens to either side that a band shows


def toeplitz_share(weights: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Share of the variance of each matrix's weights that offsets explain.

    Args:
        weights: [layers, n, n].
        shape: how the n tokens lie: (n,) in a text, (rows, columns) for the patches of an image, row by row.

    Returns:
        [layers], 0 to 1; 1 for weights that are all equal.
    """
    offsets = filters.offsets(shape).ravel()
    counts = np.bincount(offsets)
    flat = weights.reshape(len(weights), -1).astype(np.float64)
    flat -= flat.mean(-1, keepdims=True)
    explained = np.array([(np.bincount(offsets, layer) ** 2 / counts).sum() for layer in flat])
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
    """The shares of matrices over n tokens that lie as `shape`: of independent entries by their numbers, each less one
    for the mean; of `filters.smooth_noise` by 500 draws or fewer."""
    random, n = np.random.default_rng(0), math.prod(shape)
    draws = min(500, max(10, 2**25 // n**2))
    shares = [toeplitz_share(filters.smooth_noise(shape, random)[None], shape)[0] for _ in range(draws)]
    noise = (math.prod(2 * side - 1 for side in shape) - 1) / (n**2 - 1)
    return Chance(noise, float(np.mean(shares)), *map(float, np.percentile(shares, (2.5, 97.5))))


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


def figures(measured: ShiftInvariance) -> dict[str, drawing.Chart | Figure]:
    """The matrices of the newest checkpoint (Figure 9), of a text's also the bands around their diagonals, and the
    shares over the steps."""
    shown = {"spatial_matrices": draw_matrices(measured.weights)}
    if len(measured.shape) == 1:
        shown["spatial_bands"] = draw_bands(measured.weights)
    return {**shown, "toeplitz_share": shares_chart(measured)}


def draw_matrices(weights: np.ndarray) -> Figure:
    """The matrices of all layers, [layers, n, n], as in the paper's Figure 9; one scale for all."""
    titles = [f"layer {layer}" for layer in range(1, len(weights) + 1)]
    return drawing.draw_matrices(weights, titles, drawing.SIGNED, "From each token (columns) to each token (rows)")


def band(weights: np.ndarray, reach: int = REACH) -> np.ndarray:
    """What each token reads of its neighbours: [layers, n, n] to [layers, 2 * reach + 1, n].

    Row `reach + offset`, column i has the weight from token i + offset to token i; NaN where there is no such token. Of
    a Toeplitz matrix each row is one number.
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
    figure.suptitle(f"The weights of each token's neighbours, up to {reach} before and after it", fontsize=7.5)
    return figure


def shares_chart(measured: ShiftInvariance) -> drawing.Chart:
    """The shares over the steps, or over the layers if there is one step; beside those of chance."""
    steps, newest = list(measured.shares), list(measured.shares.values())[-1]
    title = f"After {steps[-1]:,} steps offsets explain {newest.min():.2f} to {newest.max():.2f} of W's variance"
    looks = drawing.looks(["gMLP"] * len(newest))
    if len(steps) == 1:
        layers = list(range(1, len(newest) + 1))
        series = [drawing.Series(f"step {steps[0]}", drawing.Look(drawing.FAMILIES["gMLP"]), layers, newest.tolist())]
    else:
        series = [
            drawing.Series(f"layer {layer}", look._replace(dashes=()), steps, shares.tolist())
            for layer, (look, shares) in enumerate(
                zip(looks, np.transpose(list(measured.shares.values())), strict=True), 1
            )
        ]
    over, share = (
        drawing.Scale("step" if len(steps) > 1 else "layer"),
        drawing.Scale("share of W's variance (1: Toeplitz)"),
    )
    noise, smooth, _, high = chance(tuple(measured.shape))
    lines = [("noise", noise), ("smooth noise", smooth), ("97.5 % of it", high)]
    return drawing.Chart([drawing.Panel(title, over, share, series, lines)])
