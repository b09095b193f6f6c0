"""The paper's tables and figures, made from what was trained here, each beside the paper's own numbers."""

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
from gmlp_flax.analysis import claims, drawing
from gmlp_flax.analysis.gathering import Run
from gmlp_flax.analysis.page import page
from gmlp_flax.analysis.tables import Table, shown
from gmlp_flax.models import sizes
from gmlp_flax.training import dry_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "perplexity"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CONFIG = os.path.join(ROOT, "configs", "c4_ablation.py")
# What a smaller scale shrinks: the report says by how much.
SCALED = ("steps", "batch_size", "model.layers", "model.d_model", "model.d_ffn", "model.vocab_size", "data.train")


@dataclasses.dataclass(frozen=True)
class Report:
    """A table, what is to be said of it, and its figures by name."""

    title: str
    notes: Sequence[str]
    table: Table
    figures: Mapping[str, Figure]

    def write(self, folder: str) -> str:
        """Writes table.md, table.csv, a PNG and an SVG of each figure, and index.html; returns the latter's path."""
        os.makedirs(folder, exist_ok=True)
        drawn = {name: drawing.svg(figure) for name, figure in self.figures.items()}
        text = "".join(f"{note}\n\n" for note in self.notes)
        files = {
            "table.md": f"# {self.title}\n\n{self.table.markdown()}\n{text}".rstrip() + "\n",
            "table.csv": self.table.csv(),
            **{f"{name}.svg": each for name, each in drawn.items()},
            "index.html": page(self.title, self.notes, self.table, list(drawn.values())),
        }
        for name, figure in self.figures.items():
            figure.savefig(os.path.join(folder, f"{name}.png"), dpi=120)
        for name, content in files.items():
            with open(os.path.join(folder, name), "w") as file:
                file.write(content)
        return os.path.join(folder, "index.html")


@dataclasses.dataclass(frozen=True)
class Counts:
    """A table of sizes: parameters and operations are counted, nothing is trained."""

    title: str
    rows: Sequence[str]

    def make(self) -> Report:
        """Counts them."""
        lines = []
        for name in self.rows:
            model = sizes.PUBLISHED[name]
            params, flops = sizes.param_count(model) / 1e6, sizes.forward_flops(model) / 1e9
            lines.append((
                name, params, model.params_m, _difference(params, model.params_m),
                flops, model.flops_g, _difference(flops, model.flops_g), model.note or None,
            ))
        columns = ("model", "M parameters", "paper", "difference", "GFLOPs", "paper", "difference", "note")
        note = "Differences are ours - the paper's. Nothing was trained."
        return Report(self.title, (note,), Table(columns, lines), {})


@dataclasses.dataclass(frozen=True)
class Language:
    """A table of held-out perplexities, or a figure of them.

    Attributes:
        title: of the report.
        sweep: the file in configs/sweeps/ that trains its runs.
        rows: models by their names in `sizes.PUBLISHED`, as the paper lists them.
        series: name -> the rows of one line of Figure 5; none: no such figure.
    """

    title: str
    sweep: str
    rows: Sequence[str]
    series: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    def configs(self, scale: str) -> dict[str, ConfigDict]:
        """Each row's config at a scale: "paper", "gpu" or "cpu"; rows that the scale does not have are left out."""
        argument = {"paper": "", "gpu": ",scale=gpu", "cpu": ",scale=small"}[scale]
        found = {}
        for row in self.rows:
            try:
                found[row] = config_lib.from_file(CONFIG, row + argument)
            except config_lib.ConfigError:
                if scale == "paper":
                    raise
        return found

    def make(self, runs: Sequence[Run], scale: str) -> Report:
        """Reports on runs, finished or not.

        Args:
            runs: of `gathering.find`.
            scale: that they were trained at.
        """
        of_row = {row: [run for run in runs if run.row == row] for row in self.rows}
        curves = {row: [run.curve(METRIC) for run in of_row[row]] for row in self.rows}
        last = {row: [curve[-1][1] for curve in curves[row] if curve] for row in self.rows}
        params = {row: _parameters(each[0]) for row, each in of_row.items() if each}
        table = Table(
            ("model", "M parameters", METRIC, "lowest", "highest", "seeds", "paper", "difference", "rate"),
            [_line(row, of_row[row], last[row], params.get(row)) for row in self.rows],
        )
        known = [row for row in self.rows if last[row]]
        notes = [*_setting(runs, scale), *_orderings({row: last[row] for row in known}, curves)]
        figures = {"curves": _draw_curves({row: curves[row] for row in known})}
        if self.series:
            scaling = {
                name: [(params[row], statistics.mean(last[row]), row) for row in rows if last[row]]
                for name, rows in self.series.items()
            }
            figures["scaling"], fits = _draw_scaling(scaling)
            notes += [*fits, *_paper_fits(self.series)]
        return Report(self.title, notes, table, figures)


def _difference(ours: float, paper: float | None) -> float | None:
    return None if paper is None else ours - paper


def _parameters(run: Run) -> float:
    shapes = jax.tree.leaves(dry_run.dataless_task(run.config).shapes())
    return sum(math.prod(leaf.shape) for leaf in shapes) / 1e6


def _line(row: str, runs: Sequence[Run], last: Sequence[float], params: float | None) -> tuple:
    paper = sizes.PUBLISHED[row].perplexity
    if not last:
        return (row, params, None, None, None, 0, paper, None, None)
    mean = statistics.mean(last)
    return (
        row, params, mean, min(last), max(last), len(last), paper, _difference(mean, paper),
        runs[0].config.optimizer.learning_rate,
    )


def _setting(runs: Sequence[Run], scale: str) -> list[str]:
    """What was trained, what was scaled down, and what is not finished."""
    run = runs[0]
    paper = config_lib.from_file(CONFIG, run.row)
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
    paper = {row: sizes.PUBLISHED[row].perplexity for row in last if sizes.PUBLISHED[row].perplexity is not None}
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


def _draw_scaling(series: Mapping[str, Sequence[tuple[float, float, str]]]) -> tuple[Figure, list[str]]:
    """The paper's Figure 5 (a): perplexity over parameters, both logarithmic, with a power law through each series."""
    figure, (axis,) = drawing.subplots(1, 1, 6.0, 4.5)
    notes = []
    for number, (name, points) in enumerate((name, points) for name, points in series.items() if points):
        x, y = [point[0] for point in points], [point[1] for point in points]
        tips = [f"{row}: {shown(value)} with {shown(params)} M parameters" for params, value, row in points]
        drawing.points_with_tips(axis, x, y, tips, color=f"C{number}")
        if len(points) > 1:
            law = claims.power_law(x, y)
            axis.plot(x, [law(each) for each in x], color=f"C{number}", linewidth=1, label=name)
            notes.append(f"{name}: {_law(law)}.")
    axis.set(xlabel="M parameters", ylabel=f"held-out {METRIC}", xscale="log", yscale="log")
    axis.legend(fontsize=8)
    return figure, notes


def _paper_fits(series: Mapping[str, Sequence[str]]) -> list[str]:
    """Power laws through the paper's own points."""
    notes = []
    for name, rows in series.items():
        models = [sizes.PUBLISHED[row] for row in rows if sizes.PUBLISHED[row].perplexity is not None]
        if len(models) > 1:
            law = claims.power_law([model.params_m for model in models], [model.perplexity for model in models])
            notes.append(f"{name} in the paper: {_law(law)}.")
    return notes


def _law(law: claims.PowerLaw) -> str:
    interval = "two points, no interval" if math.isinf(law.low) else f"95 % interval {law.low:.3f} to {law.high:.3f}"
    return f"{METRIC} falls as parameters to the {law.exponent:.3f} ({interval}; R squared {law.r_squared:.3f})"


_TABLE_3 = ("bert", "bert_rel", "bert_rel_only", "mixer", "linear", "additive", "multiplicative", "sgu")
_SERIES = {
    "Transformer": ("transformer_6", "transformer_12", "transformer_24", "transformer_48"),
    "gMLP": ("gmlp_18", "gmlp_36", "gmlp_72", "gmlp_144"),
}
_SCALING = tuple(itertools.chain(*_SERIES.values()))

REPORTS: dict[str, Counts | Language] = {
    "table1": Counts(
        "Table 1: gMLP for ImageNet, its sizes",
        ("gmlp_ti_cls", "gmlp_s_cls", "gmlp_b_cls", "gmlp_ti", "gmlp_s", "gmlp_b"),
    ),
    "table3": Language("Table 3: gates and their rivals, masked LM", "table3", (*_TABLE_3, "amlp_36")),
    "table4": Language("Table 4: depth, masked LM", "table4", _SCALING, _SERIES),
    "table5": Counts(
        "Table 5: the models of the full setting, their sizes",
        tuple(name for name, model in sizes.PUBLISHED.items() if model.source == "Table 5"),
    ),
}
