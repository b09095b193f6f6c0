"""Reports that need no runs: sizes of the paper's models are counted, its own figures stand beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.report import Report
from gmlp_flax.analysis.tables import Cell, Table, difference
from gmlp_flax.models import sizes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    "M parameters", "paper's M parameters", "difference of M parameters",
    "GFLOPs", "paper's GFLOPs", "difference of GFLOPs",
)
NOTE = "Differences are ours - the paper's. Nothing was trained."
ACCURACIES = (
    "Top-1 accuracies are the paper's (ImageNet-1K, no extra data, a spread of about 0.1 between runs): none was "
    "measured here. Its multiply-adds stand as two operations each."
)


@dataclasses.dataclass(frozen=True)
class Counts:
    """A table of sizes: parameters and operations are counted, nothing is trained."""

    title: str
    rows: Sequence[str]

    def make(self) -> Report:
        """Counts them."""
        lines = [(name, *_counted(model := sizes.PUBLISHED[name]), model.note or None) for name in self.rows]
        return Report(self.title, (NOTE,), Table(("model", *COLUMNS, "note"), lines), {})


@dataclasses.dataclass(frozen=True)
class Classifiers(Counts):
    """Table 2 and Figure 2: the paper's accuracies of classifiers over sizes that are counted."""

    def make(self) -> Report:
        """Counts and draws them."""
        lines = [
            (name, model.top1, *_counted(model), model.note or None)
            for name, model in ((name, sizes.PUBLISHED[name]) for name in self.rows)
        ]
        table = Table(("model", "paper's top-1", *COLUMNS, "note"), lines)
        return Report(self.title, (ACCURACIES, NOTE), table, {"accuracies": _draw(lines)})


def _counted(model: sizes.Published) -> tuple[Cell, ...]:
    """A model's cells in COLUMNS."""
    params, flops = sizes.param_count(model) / 1e6, sizes.forward_flops(model) / 1e9
    papers = 2 * model.madds_g if model.madds_g is not None else model.flops_g
    return (params, model.params_m, difference(params, model.params_m), flops, papers, difference(flops, papers))


def _draw(lines: Sequence[tuple]) -> Figure:
    """The paper's Figure 2: accuracy over parameters, a line a family; all that it shows have fewer than 100 M."""
    figure, (axis,) = drawing.subplots(1, 1, 6.0, 4.5)
    families: dict[str, list[tuple]] = {}
    for name, top1, params, *_ in lines:
        if params < 100:
            families.setdefault(name.partition("_")[0], []).append((params, top1, name))
    for number, (family, points) in enumerate(families.items()):
        x, y, names = zip(*sorted(points), strict=True)
        axis.plot(x, y, color=f"C{number}", linewidth=1, label=family)
        tips = [f"{name}: {top1:g} % with {params:.1f} M parameters" for params, top1, name in sorted(points)]
        drawing.points_with_tips(axis, x, y, tips, color=f"C{number}")
    axis.set(xlabel="M parameters", ylabel="the paper's top-1 (%)", xlim=(0, 100))
    axis.legend(fontsize=8)
    return figure
