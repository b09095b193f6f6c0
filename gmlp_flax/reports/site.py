"""All reports that can be made of some runs, as one site with an index."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from gmlp_flax.checkpoints.names import CONFIG_FILE
from gmlp_flax.errors import RunError
from gmlp_flax.io import files
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import catalogue, page
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.report import Report

TITLE = "The paper's tables and figures, made again"


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


def write(pattern: str, scale: str, out: str) -> Site:
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
        report = _report(name, pattern, scale, site)
        if report:
            page.write(report, os.path.join(out, name), library=f"../{page.LIBRARY}")
            site.made.append(name)
            entries.append(page.Entry(name, report.title, report.every_claim, next(iter(report.figures), "")))
    page.write_library(out)
    files.write(site.path, page.of_site(TITLE, entries, site.refused | site.absent).encode())
    return site


def _report(name: str, pattern: str, scale: str, site: Site) -> Report | None:
    """The report of a table; None if it cannot be made, and then the site says why."""
    if not TABLES[name].trained:
        return catalogue.of_sizes(name)
    try:
        if name in catalogue.FOLDERS:  # its columns are looked for nowhere else
            folders = _own_folders(name, pattern, scale)
            if not folders:
                raise run_finder.NoRuns(f"{pattern} has no folder {name}-{scale} or {name}")
            return catalogue.of_folder(name, folders[0], scale)
        folder, runs = _find(name, pattern, scale)
    except run_finder.NoRuns:
        site.absent[name] = "there is no run of it"
        return None
    except RunError as error:
        site.refused[name] = str(error)
        return None
    try:
        tuned = run_finder.find_finetuned(folder, TABLES[name].configs(scale))
        return catalogue.of_runs(name, runs, scale, tuned)
    except RunError as error:
        site.absent[name] = str(error)
        return None


def _own_folders(name: str, pattern: str, scale: str) -> list[str]:
    """The folders of a report's name that are there."""
    folders = os.path.join(pattern, f"{name}-{scale}"), os.path.join(pattern, name)
    return [folder for folder in folders if files.exists(folder)]


def _find(name: str, pattern: str, scale: str) -> tuple[str, list[run_finder.Run]]:
    """The folder of a report's runs, and the runs: a folder of its name, or else the one that has most of them.

    Raises:
        RunError: as `runs.find`.
    """
    rows = TABLES[name].configs(scale)
    for folder in _own_folders(name, pattern, scale):
        with contextlib.suppress(run_finder.NoRuns):
            return folder, run_finder.find(folder, rows)
    folders = files.glob(os.path.join(pattern, "*", ""))
    no_runs = [folder for folder in folders if not files.exists(os.path.join(folder, CONFIG_FILE))]
    candidates: list[tuple[str, list[run_finder.Run]]] = []
    error: RunError = run_finder.NoRuns(f"{pattern} holds no run of {name}")
    for folder in (pattern, *no_runs):
        try:
            candidates.append((folder, run_finder.find(folder, rows)))
        except run_finder.NoRuns:
            pass
        except RunError as refusal:
            error = refusal
    if not candidates:
        raise error
    return max(candidates, key=lambda candidate: len(candidate[1]))
