"""How close spatial matrices W are to Toeplitz matrices, whose weights depend only on the offset
between two tokens.

The paper's Figure 9 shows that matrices learned without the Toeplitz constraint look as if they had
it. Here this is a number: the share of the variance of a matrix's weights that offsets explain, 1
for a Toeplitz matrix and small for noise. Smooth weights, whatever they depend on, have a larger
share than independent ones: `Chance` has both. In a text, the offsets are the matrix's diagonals;
between patches they have two parts, rows and columns.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.filters import between_tokens, offsets, smooth_noise
from gmlp_flax.analysis.looks import looks, shades
from gmlp_flax.checkpoints import CHECKPOINTS
from gmlp_flax.io import files
from gmlp_flax.training import pretrained
from gmlp_flax.training.checkpoints import open_checkpoints
from gmlp_flax.training.model import Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REACH = 8  # tokens to either side that a band shows


def toeplitz_share(weights: Iterable[np.ndarray], shape: Sequence[int]) -> np.ndarray:
    """Share of the variance of each matrix's weights that offsets explain.

    Args:
        weights: [layers, n, n].
        shape: the grid of the n tokens: (n,) in a text, (rows, columns) for the patches of an
            image, row by row.

    Returns:
        [layers], 0 to 1; 1 for weights that are all equal.
    """
    index = offsets(shape).ravel()
    counts = np.bincount(index)
    shares = []
    for layer in weights:
        flat = layer.ravel().astype(np.float64)
        flat -= flat.mean()
        sums = np.bincount(index, flat)
        explained = np.sum(sums**2 / counts)
        whole = np.sum(flat**2)
        share = explained / whole if whole > 0 else 1.0
        shares.append(share)
    return np.array(shares)


class Chance(NamedTuple):
    """The shares of matrices that are not Toeplitz.

    Attributes:
        noise: the expected share of independent weights.
        smooth: the mean share of smooth weights.
        low, high: the middle 95 % of the shares of smooth weights.
    """

    noise: float
    smooth: float
    low: float
    high: float

    def words(self) -> str:
        """All shares in words."""
        interval = f"{self.low:.3f} to {self.high:.3f}"
        return f"{self.noise:.3f} for noise, {self.smooth:.3f} ({interval}) for smooth noise"


@functools.cache
def chance(shape: tuple[int, ...]) -> Chance:
    """The shares of matrices over the tokens of a grid: of independent weights by the number of
    offsets, less one for the mean; of `smooth_noise` by at most 500 draws."""
    random = np.random.default_rng(0)
    n = math.prod(shape)
    draws = min(500, max(10, 2**25 // n**2))
    shares = []
    for _ in range(draws):
        noise = smooth_noise(shape, random)
        [share] = toeplitz_share([noise], shape)
        shares.append(share)
    offset_count = offsets(shape).max() + 1
    low, high = np.percentile(shares, (2.5, 97.5))
    return Chance(
        noise=(offset_count - 1) / (n**2 - 1),
        smooth=float(np.mean(shares)),
        low=float(low),
        high=float(high),
    )


class ShiftInvariance(NamedTuple):
    """How close the spatial matrices of a run's checkpoints are to Toeplitz matrices.

    Attributes:
        shares: step -> the share of each layer, [layers].
        weights: of the newest checkpoint, [layers, n, n].
        shape: the grid of the n tokens.
    """

    shares: dict[int, np.ndarray]
    weights: np.ndarray
    shape: tuple[int, ...]

    @property
    def newest(self) -> np.ndarray:
        """The share of each layer in the newest checkpoint, [layers]."""
        *_, newest = self.shares.values()
        return newest


def shift_invariance(workdir: str) -> ShiftInvariance:
    """The shares of every checkpoint that the run kept.

    Raises:
        RunError: the run has no spatial matrices.
    """
    newest = pretrained.load(workdir, "latest")
    newest_weights, shape = between_tokens(newest)
    shares = {}
    for step in _steps_before(newest):
        earlier = pretrained.load(workdir, str(step))
        weights, _ = between_tokens(earlier)
        shares[step] = toeplitz_share(weights, shape)
    shares[newest.step] = toeplitz_share(newest_weights, shape)
    return ShiftInvariance(shares, newest_weights, shape)


def _steps_before(newest: Model) -> list[int]:
    """The steps of a run's checkpoints before the newest one; none if the model is not of a run."""
    if not newest.folder:
        return []
    folder = files.join(newest.folder, CHECKPOINTS)
    if not files.exists(folder):
        return []
    checkpoints = open_checkpoints(newest.config, newest.folder, read_only=True)
    with contextlib.closing(checkpoints):
        return [step for step in checkpoints.steps() if step < newest.step]


# Figures.


def figures(measured: ShiftInvariance) -> dict[str, Chart | Figure]:
    """The matrices of the newest checkpoint (Figure 9), for texts also the bands around their
    diagonals, and the shares over the steps."""
    weights = measured.weights
    titles = [f"layer {layer}" for layer in range(1, len(weights) + 1)]
    heading = "From each token (columns) to each token (rows)"
    drawn: dict[str, Chart | Figure] = {
        "spatial_matrices": drawing.draw_matrices(weights, titles, drawing.SIGNED, heading)
    }
    if len(measured.shape) == 1:
        drawn["spatial_bands"] = draw_bands(weights)
    drawn["toeplitz_share"] = shares_chart(measured)
    return drawn


def band(weights: np.ndarray, reach: int = REACH) -> np.ndarray:
    """The weights of each token's neighbours: [layers, n, n] to [layers, 2 * reach + 1, n].

    Row `reach + offset`, column i has the weight from token i + offset to token i; NaN where there
    is no such token. Each row of a Toeplitz matrix is constant.
    """
    n = weights.shape[-1]
    targets = np.arange(n)
    rows = []
    for offset in range(-reach, reach + 1):
        sources = targets + offset
        exists = (sources >= 0) & (sources < n)
        existing_targets = targets[exists]
        existing_sources = sources[exists]
        row = np.full((len(weights), n), np.nan)
        row[:, exists] = weights[:, existing_targets, existing_sources]
        rows.append(row)
    return np.stack(rows, axis=1)


@drawing.style()
def draw_bands(weights: np.ndarray) -> Figure:
    """Draws the bands of all layers' matrices, [layers, n, n], one below the other, on one scale."""
    n = weights.shape[-1]
    reach = min(REACH, n - 1)
    figure, axes = drawing.subplots(
        len(weights),
        1,
        drawing.PAGE,
        0.75,
        margin=0.3,
        sharex=True,
    )
    drawing.scaled_images(figure, axes, band(weights, reach), drawing.SIGNED)
    ticks = [0, reach, 2 * reach]
    labels = [f"{-reach}", "0", f"+{reach}"]
    for layer, axis in enumerate(axes, start=1):
        axis.set(aspect="auto", ylabel=f"layer {layer}")
        axis.set_yticks(ticks, labels)
    axes[-1].set_xticks([0, n - 1], ["first token", "last token"])
    figure.suptitle(
        f"The weights of each token's neighbours, up to {reach} before and after it",
        fontsize=drawing.HEADING_SIZE,
    )
    return figure


def shares_chart(measured: ShiftInvariance) -> Chart:
    """The shares over the steps, or over the layers if there is one step, next to those of
    chance."""
    steps = list(measured.shares)
    newest = measured.newest
    if len(steps) > 1:
        x = Scale("step", whole=True)
        series = _series_of_layers(measured.shares)
    else:
        x = Scale("layer", whole=True)
        series = [_series_of_step(steps[0], newest)]
    by_chance = chance(tuple(measured.shape))
    references = [
        ("noise", by_chance.noise),
        ("smooth noise", by_chance.smooth),
        ("smooth noise, 97.5 %", by_chance.high),
    ]
    explained = f"{newest.min():.2f} to {newest.max():.2f} of W's variance"
    title = f"After {steps[-1]:,} steps offsets explain {explained}"
    y = Scale("share of W's variance (1: Toeplitz)")
    return Chart([Panel(title, x, y, series, references)])


def _series_of_step(step: int, shares: np.ndarray) -> Series:
    """The shares [layers] of one step over the layers."""
    [look] = looks(["gMLP"])
    count = len(shares)
    layers = list(range(1, count + 1))
    return Series(f"step {step}", look, layers, shares.tolist())


def _series_of_layers(shares: dict[int, np.ndarray]) -> list[Series]:
    """Each layer's share over the steps."""
    steps = list(shares)
    by_layer = np.transpose(list(shares.values()))
    series = []
    for layer, look in enumerate(shades("gMLP", len(by_layer))):
        values = by_layer[layer].tolist()
        line = Series(f"layer {layer + 1}", look.solid(), steps, values)
        series.append(line)
    return series
