"""Reports of model sizes: counted parameters and operations beside the papers' numbers. They need no runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gmlp_flax.analysis import drawing
from gmlp_flax.paper import published
from gmlp_flax.paper.tables import PaperTable
from gmlp_flax.reports.report import Cell, Report, Table, difference

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    "M parameters", "paper's M parameters", "difference of M parameters",
    "GFLOPs", "paper's GFLOPs", "difference of GFLOPs",
)
NOTE = "Differences are ours - the paper's. Nothing was trained."
ACCURACIES = (
    "Top-1 accuracies are the paper's (ImageNet-1K, no extra data, a spread of about 0.1 between runs): none was "
    "measured here. Its multiply-adds are shown as two operations each."
)


def counts(table: PaperTable) -> Report:
    """A table of sizes."""
    models = {name: published.PUBLISHED[name] for name in table.rows}
    lines = [(name, *_counted(model), model.note or None) for name, model in models.items()]
    return Report(table.title, (NOTE,), Table(("model", *COLUMNS, "note"), lines), {})


def classifiers(table: PaperTable) -> Report:
    """Table 2 and Figure 2: the paper's accuracies of classifiers over counted sizes."""
    models = {name: published.PUBLISHED[name] for name in table.rows}
    lines = [(name, model.top1, *_counted(model), model.note or None) for name, model in models.items()]
    columns = ("model", "paper's top-1", *COLUMNS, "note")
    return Report(table.title, (ACCURACIES, NOTE), Table(columns, lines), {"accuracies": _draw(lines)})


def _counted(model: published.Published) -> tuple[Cell, ...]:
    """A model's cells in COLUMNS."""
    params, flops = published.param_count(model) / 1e6, published.forward_flops(model) / 1e9
    papers = 2 * model.madds_g if model.madds_g is not None else model.flops_g
    return (params, model.params_m, difference(params, model.params_m), flops, papers, difference(flops, papers))


def _draw(lines: Sequence[tuple]) -> Figure:
    """The paper's Figure 2: accuracy over parameters, one line per family. It shows models below 100 M parameters."""
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
