"""Reports of what a language model's spatial matrices have learned: Figures 4 and 9."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.analysis import filters, shift_invariance
from gmlp_flax.analysis.gathering import Run
from gmlp_flax.analysis.language import config_of, setting
from gmlp_flax.analysis.report import Report
from gmlp_flax.analysis.tables import Table
from gmlp_flax.training import folder

ROW = "sgu"


@dataclasses.dataclass(frozen=True)
class OneRun:
    """A report on the gMLP of Table 3.

    Attributes:
        title: of the report.
        sweep: the file in configs/sweeps/ that trains it.
        changes: what its config has other than the table's.
    """

    title: str
    sweep: str
    changes: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def configs(self, scale: str) -> dict[str, ConfigDict]:
        """Its config at a scale, "paper", "gpu" or "cpu"."""
        config: ConfigDict = config_of(ROW, scale)
        config.update_from_flattened_dict(dict(self.changes))
        config_lib.validate(config)
        return {ROW: config}


class Filters(OneRun):
    """Figure 4: the row of W that mixes into the middle token, layer by layer."""

    def make(self, runs: Sequence[Run], scale: str) -> Report:
        """Reports on the newest checkpoint of the first run.

        Raises:
            RunError: it has none.
        """
        weights = filters.matrices(folder.load(runs[0].path))
        lines = [(layer, *map(float, row)) for layer, row in enumerate(spread(weights), start=1)]
        notes = (
            *setting(runs[:1], scale),
            "Shares of the energy (squared sum) of the middle token's row of W: on tokens before it, on itself, on "
            "tokens after it. The paper sees layers that look forward, backward and both ways. Distance: the root of the "
            "mean squared distance to the token, weighted by energy.",
        )
        table = Table(("layer", "before", "itself", "after", "distance (tokens)"), lines)
        return Report(self.title, notes, table, {"filters": filters.draw_text(weights)})


class ShiftInvariance(OneRun):
    """Figure 9: matrices learned without the Toeplitz constraint, and how near to it they come."""

    def make(self, runs: Sequence[Run], scale: str) -> Report:
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
            *setting(runs[:1], scale),
            f"Share of each W's energy (squared sum) in the means of its diagonals: 1 for a Toeplitz matrix, {noise:.3f} "
            "for noise.",
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
