"""Reports of model sizes: counted parameters and operations beside the papers' numbers. They need no runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.drawing import DASHES, looks
from gmlp_flax.paper import published
from gmlp_flax.paper.quoted import Quoted
from gmlp_flax.paper.tables import PaperTable
from gmlp_flax.reports.families import family
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.table import Cell, Table, difference, printed

COLUMNS = ("M parameters", "the paper's", "difference", "GFLOPs", "the paper's GFLOPs", "difference of GFLOPs")
NOTE = "Differences are ours - the paper's. Nothing was trained."
ACCURACIES = (
    "Top-1 accuracies are the paper's (ImageNet-1K, no extra data, a spread of about 0.1 between runs): none was "
    "measured here. Its multiply-adds are shown as two operations each."
)
NAMES = {"vit": "ViT", "deit": "DeiT", "mixer": "Mixer", "resmlp": "ResMLP", "gmlp": "gMLP"}  # of lines in Figure 2


def counts(table: PaperTable) -> Report:
    """A table of sizes."""
    models = {name: published.PUBLISHED[name] for name in table.rows}
    lines = [(name, *_counted(model)) for name, model in models.items()]
    return Report(table.title, Table(("model", *COLUMNS), lines, _footnotes(table)).full(), notes=(NOTE,))


def classifiers(table: PaperTable) -> Report:
    """Table 2 and Figure 2: the paper's accuracies of classifiers over counted sizes."""
    models = {name: published.PUBLISHED[name] for name in table.rows}
    lines = [(name, printed(model.top1), *_counted(model)) for name, model in models.items()]
    lines += [
        (row.name, printed(row.top1), None, printed(row.params_m), None, None, printed(_flops(row.madds_g)), None)
        for row in table.quoted
    ]
    sizes = Table(("model", "top-1 (%)", *COLUMNS), lines, _footnotes(table)).full()
    return Report(table.title, sizes, notes=(ACCURACIES, NOTE), figures={"accuracies": _chart(models, table.quoted)})


def _footnotes(table: PaperTable) -> dict[str, list[str]]:
    notes = {name: published.PUBLISHED[name].note for name in table.rows} | {row.name: row.note for row in table.quoted}
    return {name: [note] for name, note in notes.items() if note}


def _flops(madds_g: float | None) -> float | None:
    """Each multiply-add is two operations."""
    return None if madds_g is None else 2 * madds_g


def _counted(model: published.Published) -> tuple[Cell, ...]:
    """A model's cells in COLUMNS."""
    params, flops = published.param_count(model) / 1e6, published.forward_flops(model) / 1e9
    papers = model.flops_g if model.madds_g is None else _flops(model.madds_g)
    return (
        params,
        printed(model.params_m),
        difference(params, model.params_m),
        flops,
        printed(papers),
        difference(flops, papers),
    )


def _chart(models: Mapping[str, published.Published], quoted: Sequence[Quoted]) -> Chart:
    """The paper's Figure 2: accuracy over parameters, one line per architecture."""
    lines: dict[tuple[str, str], list[tuple[float, float, str]]] = {}  # name, family -> parameters, accuracy, label
    for name, model in models.items():
        if model.top1 is not None:
            kind, _, label = name.partition("_")
            point = published.param_count(model) / 1e6, model.top1, label.removesuffix("_cls")
            lines.setdefault((NAMES.get(kind, kind), family(name)), []).append(point)
    for row in quoted:
        if row.top1 is not None:
            kind, _, label = row.name.partition("-")
            # A model that the table has twice is a line of its own.
            kind = f"{kind} (our setup)" if kind in NAMES.values() else kind
            point = row.params_m, row.top1, label.partition(" ")[0]
            lines.setdefault((kind, row.name.partition("-")[0]), []).append(point)
    series = []
    for ((name, _), points), look in zip(lines.items(), looks([name for _, name in lines]), strict=True):
        x, y, labels = zip(*sorted(points), strict=True)
        series.append(Series(name, look._replace(dashes=DASHES[0]), x, y, labels=labels))
    title = "At the same size gMLP is as accurate as DeiT; ViT and Mixer are not"
    return Chart(
        [Panel(title, Scale("M parameters", log=True), Scale("the paper's top-1 (%)"), series)],
        "Every model of the table is drawn; the figure in the paper ends at 100 M parameters. Grey: convolutions.",
    )
