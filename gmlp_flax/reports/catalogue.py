"""Which report each table or figure of the paper becomes, by its name in `paper.tables.TABLES`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import alternatives, language_models, learned_weights, sizes
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.runs import Run

# Other tables without training are counted by `sizes.counts`, other tables of runs are `language_models.perplexities`.
SIZES = {"table2": sizes.classifiers, "figure2": sizes.classifiers}
RUNS = {
    "figure3": learned_weights.image_filters,
    "figure4": learned_weights.text_filters,
    "figure9": learned_weights.shift_invariance_report,
    "figure10": learned_weights.attention_in_a_pair,
}

# Reports of a folder with several kinds of runs and measurements.
FOLDERS = {alternatives.NAME: alternatives.of_folder}


def of_folder(name: str, folder: str, scale: str, flags: Sequence[str] = ()) -> Report:
    """The report of a name in FOLDERS; arguments and errors as those of `alternatives.of_folder`."""
    return FOLDERS[name](folder, scale, flags)


def of_sizes(name: str) -> Report:
    """The report of a table whose models are only counted."""
    return SIZES.get(name, sizes.counts)(TABLES[name])


def of_runs(name: str, runs: Sequence[Run], scale: str, tuned: Mapping[str, Sequence[Run]]) -> Report:
    """The report of a table whose models are trained.

    Args:
        name: of the table.
        runs: from `runs.find`, at least one, finished or not.
        scale: the scale at which they were trained.
        tuned: row -> its finetuned runs, from `runs.find_finetuned`.

    Raises:
        RunError: a figure needs a checkpoint or a finetuned run that is not there.
    """
    return RUNS.get(name, language_models.perplexities)(TABLES[name], runs, scale, tuned)
