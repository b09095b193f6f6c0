"""What the reports on a single run share: Figures 3, 4, 9 and 10."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import recipes
from gmlp_flax.analysis.gathering import Run
from gmlp_flax.analysis.language import from_root, setting
from gmlp_flax.analysis.report import Report


@dataclasses.dataclass(frozen=True)
class OneRun(abc.ABC):
    """A report on one model of the paper.

    Attributes:
        title: of the report.
        sweep: the file in configs/sweeps/ that trains it.
        row: the model, by its name in `sizes.PUBLISHED`.
        changes: what its config has other than the paper's.
        tasks: of `recipes.FINETUNED` that the report needs it finetuned on.
    """

    title: str
    sweep: str
    row: str
    changes: Mapping[str, object] = dataclasses.field(default_factory=dict)
    tasks: Sequence[str] = ()

    def configs(self, scale: str) -> dict[str, ConfigDict]:
        """Its config at a scale, "paper", "gpu" or "cpu"."""
        config: ConfigDict = from_root(recipes.published(self.row, scale))
        config.update_from_flattened_dict(dict(self.changes))
        config_lib.validate(config)
        return {self.row: config}

    @abc.abstractmethod
    def make(self, runs: Sequence[Run], scale: str, tuned: Mapping[str, Sequence[Run]]) -> Report:
        """Reports on the first of `gathering.find`'s runs, or on what of `find_finetuned`'s was made of it."""

    def setting(self, run: Run, scale: str) -> list[str]:
        """What was trained, what was scaled down, and whether it is finished."""
        return setting([run], scale, self.configs("paper")[self.row])
