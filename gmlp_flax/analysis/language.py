"""Reports of masked language models: Tables 3, 4, 6 and 10, and Figures 5, 7 and 8."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import recipes
from gmlp_flax.analysis import claims, drawing, finetuned, scaling
from gmlp_flax.analysis.gathering import Run
from gmlp_flax.analysis.report import Report
from gmlp_flax.analysis.tables import Table, difference, shown
from gmlp_flax.models import sizes
from gmlp_flax.training import dry_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = scaling.METRIC
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COLUMNS = ("model", "M parameters", METRIC, "lowest", "highest", "seeds", "paper", "difference", "rate")
# What a smaller scale shrinks: the report says by how much.
SCALED = (
    "steps", "batch_size", "model.layers", "model.d_model", "model.d_ffn", "model.vocab_size", "model.image_size",
    "data.train",
)


@dataclasses.dataclass(frozen=True)
class Language:
    """A table of held-out perplexities and of what the models score finetuned, or a figure of them.

    Attributes:
        title: of the report.
        sweep: the file in configs/sweeps/ that trains its runs.
        rows: models by their names in `sizes.PUBLISHED`, as the paper lists them; or of `recipes.longer`.
        series: name -> the rows of one line of Figures 5, 7 and 8, by depth; none: no such figures.
        longer: name -> the rows of one line of Figure 7, a model trained on ever more.
        tasks: of `recipes.FINETUNED` that the paper finetunes them on.
    """

    title: str
    sweep: str
    rows: Sequence[str]
    series: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    longer: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    tasks: Sequence[str] = ()

    def configs(self, scale: str) -> dict[str, ConfigDict]:
        """Each row's config at a scale: "paper", "gpu" or "cpu"; rows that the scale does not have are left out."""
        found = {}
        for row in self.rows:
            try:
                found[row] = from_root(recipes.published(row, scale))
            except config_lib.ConfigError:
                if scale == "paper":
                    raise
        return found

    def make(self, runs: Sequence[Run], scale: str, tuned: Mapping[str, Sequence[Run]]) -> Report:
        """Reports on runs, finished or not.

        Args:
            runs: of `gathering.find`.
            scale: that they were trained at.
            tuned: of `gathering.find_finetuned`: a row's runs.
        """
        of_row = {row: [run for run in runs if run.row == row] for row in self.rows}
        curves = {row: [run.curve(METRIC) for run in of_row[row]] for row in self.rows}
        last = {row: [curve[-1][1] for curve in curves[row] if curve] for row in self.rows}
        params = {row: _parameters(each[0]) for row, each in of_row.items() if each}
        scores = finetuned.Scores(self.tasks, tuned)
        table = Table(
            (*COLUMNS, *scores.titles),
            [(*_line(row, of_row[row], last[row], params.get(row)), *scores.cells(row)) for row in self.rows],
        )
        known = [row for row in self.rows if last[row]]
        paper = from_root(recipes.published(runs[0].row, "paper"))
        notes = [*setting(runs, scale, paper), *_orderings({row: last[row] for row in known}, curves)]
        notes += scores.notes()
        figures = {"curves": _draw_curves({row: curves[row] for row in known})}
        if self.series:
            points = {
                row: scaling.Point(row, params[row], statistics.mean(last[row]), scores.of(row)) for row in known
            }
            by_depth, by_data = (
                {name: [points[row] for row in rows if row in points] for name, rows in lines.items()}
                for lines in (self.series, self.longer)
            )
            figures["scaling"], laws = scaling.draw_scaling({name: each for name, each in by_depth.items() if each})
            notes += [*laws, *scaling.papers_laws(self.series)]
            if transfer := scaling.draw_transfer(by_depth | by_data):
                figures["transfer"] = transfer
        return Report(self.title, notes, table, figures)


def from_root(config: str) -> ConfigDict:
    """The config of FILE:ARGUMENT, FILE relative to the project.

    Raises:
        ConfigError: the file does not take the argument.
    """
    path, _, argument = config.partition(":")
    return config_lib.from_file(os.path.join(ROOT, path), argument)


def _parameters(run: Run) -> float:
    shapes = jax.tree.leaves(dry_run.dataless_task(run.config).shapes())
    return sum(math.prod(leaf.shape) for leaf in shapes) / 1e6


def _line(row: str, runs: Sequence[Run], last: Sequence[float], params: float | None) -> tuple:
    paper = _papers(row)
    if not last:
        return (row, params, None, None, None, 0, paper, None, None)
    mean = statistics.mean(last)
    return (
        row, params, mean, min(last), max(last), len(last), paper, difference(mean, paper),
        runs[0].config.optimizer.learning_rate,
    )


def _papers(row: str) -> float | None:
    """The paper's perplexity, where it prints one."""
    return sizes.PUBLISHED[row].perplexity if row in sizes.PUBLISHED else None


def setting(runs: Sequence[Run], scale: str, paper: ConfigDict) -> list[str]:
    """What was trained, what was scaled down of the paper's config of the first run, and what is not finished."""
    run = runs[0]
    scaled = [f"{key} {run.config[key]} (paper: {paper[key]})" for key in SCALED if run.config[key] != paper[key]]
    notes = [f"Scale {scale}. Of {run.row}: {'; '.join(scaled)}." if scaled else f"Scale {scale}: the paper's setting."]
    unfinished = [each for each in runs if not each.finished]
    if unfinished:
        steps = ", ".join(f"{each.row} seed {each.config.seed} (step {_step(each)})" for each in unfinished)
        notes.append(f"Not finished: {steps} of {run.config.steps}.")
    return notes


def _step(run: Run) -> int:
    return max((line["step"] for line in run.lines), default=0)


def _orderings(last: Mapping[str, Sequence[float]], curves: Mapping[str, list]) -> list[str]:
    """Each ordering of the paper that can be judged, and the rank correlation of the columns."""
    paper = {row: _papers(row) for row in last if _papers(row) is not None}
    notes = []
    for better, worse in itertools.combinations(sorted(paper, key=paper.get), 2):
        if paper[better] == paper[worse]:
            continue
        said = claims.verdict(last[better], last[worse])
        since = claims.emerges(curves[better], curves[worse])
        when = "" if since is None else f"; of means, since {since:,} tokens"
        notes.append(f"{better} < {worse} {said}{when}.")
    if len(paper) > 1:
        rank = claims.spearman([statistics.mean(last[row]) for row in paper], list(paper.values()))
        notes.append(f"Spearman's rank correlation with the paper's column: {rank:.2f} over {len(paper)} models.")
    return notes


def _draw_curves(curves: Mapping[str, Sequence[claims.Curve]]) -> Figure:
    """Held-out perplexity over tokens, a line a run, a colour a row."""
    figure, (axis,) = drawing.subplots(1, 1, 8.0, 5.0)
    for number, (row, runs) in enumerate(curves.items()):
        for place, curve in enumerate(filter(None, runs)):
            x, y = zip(*curve, strict=True)
            colour = f"C{number % 10}"
            axis.plot(x, y, color=colour, linewidth=1, label=None if place else row)
            tips = [f"{row}: {shown(value)} after {tokens:,} tokens" for tokens, value in curve]
            drawing.points_with_tips(axis, x, y, tips, color=colour, markersize=4)
    axis.set(xlabel="tokens", ylabel=f"held-out {METRIC}", yscale="log")
    axis.legend(fontsize=8)
    return figure
