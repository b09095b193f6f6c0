"""Reports of what spatial matrices have learned: Figures 3, 4 and 9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gmlp_flax.analysis import filters, shift_invariance
from gmlp_flax.analysis.gathering import Run
from gmlp_flax.analysis.one_run import OneRun
from gmlp_flax.analysis.report import Report
from gmlp_flax.analysis.tables import Table
from gmlp_flax.training import folder


class ImageFilters(OneRun):
    """Figure 3: rows of W of a classifier of images, layer by layer."""

    def make(self, runs: Sequence[Run], scale: str, _tuned: Mapping[str, Sequence[Run]]) -> Report:
        """Reports on the newest checkpoint of the first run.

        Raises:
            RunError: it has none.
        """
        trained = folder.load(runs[0].path)
        weights, grid = filters.between_patches(trained)
        lines = [(layer, *map(float, row)) for layer, row in enumerate(locality(weights, grid), start=1)]
        even = locality(np.ones((1, *weights.shape[1:])), grid)[0]
        notes = (
            *self.setting(runs[0], scale),
            "Shares of the energy (squared sum) of W's rows, means over patches: on the patch itself, on its up to "
            "eight neighbours, on the rest. Distance: the root of the mean squared distance in patches, weighted by "
            f"energy. A row of equal weights would have {even[0]:.3f}, {even[1]:.3f}, {even[2]:.3f} and {even[3]:.2f}.",
        )
        table = Table(("layer", "itself", "neighbours", "beyond", "distance (patches)"), lines)
        return Report(self.title, notes, table, {"filters": filters.draw_images(trained)})


class Filters(OneRun):
    """Figure 4: the row of W that mixes into the middle token, layer by layer."""

    def make(self, runs: Sequence[Run], scale: str, _tuned: Mapping[str, Sequence[Run]]) -> Report:
        """Reports on the newest checkpoint of the first run.

        Raises:
            RunError: it has none.
        """
        weights = filters.matrices(folder.load(runs[0].path))
        lines = [(layer, *map(float, row)) for layer, row in enumerate(spread(weights), start=1)]
        notes = (
            *self.setting(runs[0], scale),
            "Shares of the energy (squared sum) of the middle token's row of W: on tokens before it, on itself, on "
            "tokens after it. The paper sees layers that look forward, backward and both ways. Distance: the root of "
            "the mean squared distance to the token, weighted by energy.",
        )
        table = Table(("layer", "before", "itself", "after", "distance (tokens)"), lines)
        return Report(self.title, notes, table, {"filters": filters.draw_text(weights)})


class ShiftInvariance(OneRun):
    """Figure 9: matrices learned without the Toeplitz constraint, and how near to it they come."""

    def make(self, runs: Sequence[Run], scale: str, _tuned: Mapping[str, Sequence[Run]]) -> Report:
        """Reports on all checkpoints that the first run kept.

        Raises:
            RunError: it has none.
        """
        path = runs[0].path
        found, weights = shift_invariance.shares(path), filters.matrices(folder.load(path))
        layers, n, _ = weights.shape
        noise = shift_invariance.noise_share(n)
        table = Table(
            ("step", *(f"layer {layer + 1}" for layer in range(layers))),
            [(step, *map(float, share)) for step, share in found.items()],
        )
        notes = (
            *self.setting(runs[0], scale),
            "Share of each W's energy (squared sum) in the means of its diagonals: 1 for a Toeplitz matrix, "
            f"{noise:.3f} for noise.",
        )
        figures = {
            "matrices": shift_invariance.draw_matrices(weights),
            "toeplitz_share": shift_invariance.draw_shares(found, n),
        }
        return Report(self.title, notes, table, figures)


def spread(weights: np.ndarray) -> np.ndarray:
    """Where the middle token's rows look.

    Args:
        weights: [layers, n, n], rows are outputs.

    Returns:
        [layers, 4]: the shares of energy before the token, on it and after it, and the distance in tokens.
    """
    middle = weights.shape[-1] // 2
    energy = np.square(weights[:, middle].astype(np.float64))
    energy /= energy.sum(-1, keepdims=True)
    offsets = np.arange(weights.shape[-1]) - middle
    sides = [energy[:, side].sum(-1) for side in (offsets < 0, offsets == 0, offsets > 0)]
    return np.stack([*sides, np.sqrt(energy @ np.square(offsets))], axis=-1)


def locality(weights: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """How near to its own patch each row looks, on average.

    Args:
        weights: [layers, patches, patches], rows are outputs; patches row by row of the grid.
        grid: (rows, columns) of patches.

    Returns:
        [layers, 4]: shares of energy on the patch itself, on its neighbours and beyond; the distance in patches.
    """
    energy = np.square(weights.astype(np.float64))
    energy /= energy.sum(-1, keepdims=True)
    places = np.stack(np.divmod(np.arange(grid[0] * grid[1]), grid[1]), axis=-1)
    steps = np.abs(places[:, None] - places)
    away = steps.max(-1)  # a king's moves
    shares = [np.where(ring, energy, 0).sum(-1).mean(-1) for ring in (away == 0, away == 1, away > 1)]
    return np.stack([*shares, np.sqrt((energy * np.square(steps).sum(-1)).sum(-1).mean(-1))], axis=-1)
