"""Which report each table or figure becomes, by its name in `paper.tables.TABLES`; and all of them as a site."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gmlp_flax.checkpoints.names import CONFIG_FILE
from gmlp_flax.errors import RunError
from gmlp_flax.io import files
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import alternatives, language_models, learned_weights, page, sizes
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.runs import NoRuns, Run

TITLE = "The paper's tables and figures, made again"


def of_sizes(name: str) -> Report:
    """The report of a table whose models are only counted."""
    return sizes.counts(TABLES[name])


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
    if name in learned_weights.FIGURES:
        return learned_weights.report(name, TABLES[name], runs, scale, tuned)
    return language_models.perplexities(TABLES[name], runs, scale, tuned)


class Site(NamedTuple):
    """What was written.

    Attributes:
        path: of the index.
        made: names of the reports.
        absent: name -> what is missing for it.
        refused: name -> why its runs cannot stand in one report.
    """

    path: str
    made: list[str]
    absent: dict[str, str]
    refused: dict[str, str]


def write_site(pattern: str, scale: str, out: str) -> Site:
    """Writes each report to OUT/NAME, the charts' JavaScript and the index to OUT.

    Args:
        pattern: a folder of runs or of folders of runs, or a glob pattern. If it has a folder NAME-SCALE or NAME, as
            `gmlp reproduce` and `gmlp sweep` make them, the runs of NAME are those in it.
        scale: the scale at which the runs were trained.
        out: the folder of the site.

    Raises:
        RunError: there is no such folder.
    """
    if not files.glob(pattern):
        raise RunError(f"{pattern}: there is no such folder")
    site, entries = Site(os.path.join(out, "index.html"), [], {}, {}), []
    for name in TABLES:
        try:
            report = _report(name, pattern, scale)
        except NoRuns:
            site.absent[name] = "there is no run of it"
        except _Lacking as error:
            site.absent[name] = str(error)
        except RunError as error:
            site.refused[name] = str(error)
        else:
            page.write(report, os.path.join(out, name), library=f"../{page.LIBRARY}")
            site.made.append(name)
            entries.append(page.Entry(name, report.title, report.every_claim, next(iter(report.figures), "")))
    page.write_library(out)
    files.write(site.path, page.of_site(TITLE, entries, site.refused | site.absent).encode())
    return site


class _Lacking(RunError):
    """The runs are there, but not all that their report is drawn from."""


def _report(name: str, pattern: str, scale: str) -> Report:
    """The report of a table. Raises _Lacking, and NoRuns and RunError as `runs.find`."""
    own = [path for folder in (f"{name}-{scale}", name) if files.exists(path := os.path.join(pattern, folder))]
    if not TABLES[name].trained:
        return of_sizes(name)
    if name == alternatives.NAME:  # all of its columns lie in one folder
        if not own:
            raise NoRuns(f"{pattern} has no folder {name}-{scale} or {name}")
        return alternatives.of_folder(own[0], scale)
    folder, runs = _find(name, pattern, scale, own)
    try:
        return of_runs(name, runs, scale, run_finder.find_finetuned(folder, TABLES[name].configs(scale)))
    except RunError as error:
        raise _Lacking(str(error)) from None


def _find(name: str, pattern: str, scale: str, own: Sequence[str]) -> tuple[str, list[Run]]:
    """The folder of a report's runs, and the runs: one of its `own` folders, or else the folder that has most of them.

    Raises:
        RunError: as `runs.find`.
    """
    rows = TABLES[name].configs(scale)
    for folder in own:
        with contextlib.suppress(NoRuns):
            return folder, run_finder.find(folder, rows)
    folders = files.glob(os.path.join(pattern, "*", ""))
    found: list[tuple[str, list[Run]]] = []
    refusal: RunError = NoRuns(f"{pattern} holds no run of {name}")
    for folder in (pattern, *(folder for folder in folders if not files.exists(os.path.join(folder, CONFIG_FILE)))):
        try:
            found.append((folder, run_finder.find(folder, rows)))
        except RunError as error:
            refusal = refusal if isinstance(error, NoRuns) else error
    if not found:
        raise refusal
    return max(found, key=lambda of_folder: len(of_folder[1]))
