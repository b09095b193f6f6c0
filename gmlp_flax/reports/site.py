"""All reports that can be made of some runs, as one site with an index."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from gmlp_flax.checkpoints.names import CONFIG_FILE
from gmlp_flax.errors import RunError
from gmlp_flax.io import run_files
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import catalogue, files, page
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
    if not run_files.matching(pattern):
        raise RunError(f"{pattern}: there is no such folder")
    entries, absent, refused = [], {}, {}
    for name, table in TABLES.items():
        try:
            if name in catalogue.FOLDERS:
                _write(_of_folder(name, pattern, scale), name, out, entries)
                continue
            place, runs = _find(name, pattern, scale) if table.trained else ("", [])
        except run_finder.NoRuns:
            absent[name] = "there is no run of it"
            continue
        except RunError as error:
            refused[name] = str(error)
            continue
        try:
            made = _of_runs(name, place, runs, scale) if runs else catalogue.of_sizes(name)
        except RunError as error:
            absent[name] = str(error)
            continue
        _write(made, name, out, entries)
    page.write_library(out)
    path = os.path.join(out, "index.html")
    run_files.write(path, page.of_site(TITLE, entries, refused | absent).encode())
    return Site(path, [entry.folder for entry in entries], absent, refused)


def _write(made: Report, name: str, out: str, entries: list[page.Entry]) -> None:
    files.write(made, os.path.join(out, name), library=f"../{page.LIBRARY}")
    entries.append(page.Entry(name, made.title, made.every_claim, next(iter(made.figures), "")))


def _of_folder(name: str, pattern: str, scale: str) -> Report:
    """A report of catalogue.FOLDERS, from a folder of its name: its columns are not looked for elsewhere.

    Raises:
        NoRuns: there is no such folder, or nothing in it.
        RunError: as the report.
    """
    for place in (os.path.join(pattern, f"{name}-{scale}"), os.path.join(pattern, name)):
        if run_files.exists(place):
            return catalogue.of_folder(name, place, scale)
    raise run_finder.NoRuns(f"{pattern} has no folder {name}-{scale} or {name}")


def _find(name: str, pattern: str, scale: str) -> tuple[str, list[run_finder.Run]]:
    """Where a report's runs are, and the runs: in a folder of its name, or else wherever there are most.

    Raises:
        RunError: as `runs.find`.
    """
    rows = TABLES[name].configs(scale)
    for place in (os.path.join(pattern, f"{name}-{scale}"), os.path.join(pattern, name)):
        with contextlib.suppress(run_finder.NoRuns):
            return place, run_finder.find(place, rows)
    found, refused = [], []
    folders = run_files.matching(os.path.join(pattern, "*", ""))
    of_many = [folder for folder in folders if not run_files.exists(os.path.join(folder, CONFIG_FILE))]  # no run itself
    for place in (pattern, *of_many):
        try:
            found.append((place, run_finder.find(place, rows)))
        except run_finder.NoRuns:
            pass
        except RunError as error:
            refused.append(error)
    if refused and not found:
        raise refused[0]
    if not found:
        raise run_finder.NoRuns(f"{pattern} holds no run of {name}")
    return max(found, key=lambda each: len(each[1]))


def _of_runs(name: str, place: str, runs: list[run_finder.Run], scale: str) -> Report:
    tuned = run_finder.find_finetuned(place, TABLES[name].configs(scale))
    return catalogue.of_runs(name, runs, scale, tuned)
