"""Reports of model sizes: counted parameters and operations beside the papers' numbers. They need
no runs."""

from collections.abc import Iterator
from typing import NamedTuple

from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.looks import looks
from gmlp_flax.paper.published import PUBLISHED, Published, Quoted, forward_flops, param_count
from gmlp_flax.paper.tables import PaperTable
from gmlp_flax.reports.report import Report, family
from gmlp_flax.reports.table import Cells, Table, difference, printed

NOTE = "Differences are ours - the paper's. Nothing was trained."
ACCURACIES = (
    "Top-1 accuracies are the paper's (ImageNet-1K, no extra data, a spread of about 0.1 between "
    "runs): none was measured here. Its multiply-adds are shown as two operations each."
)
# the names of lines in Figure 2
NAMES = {
    "vit": "ViT",
    "deit": "DeiT",
    "mixer": "Mixer",
    "resmlp": "ResMLP",
    "gmlp": "gMLP",
}


def counts(table: PaperTable) -> Report:
    """A table of sizes. For classifiers (Table 2 and Figure 2) it has the paper's accuracies and a
    chart of them."""
    models: dict[str, Cells] = {}
    for name in table.rows:
        models[name] = _counted(PUBLISHED[name])
    for row in table.quoted:
        models[row.name] = _quoted(row)
    if not table.quoted:
        for cells in models.values():
            del cells["top-1 (%)"]
        return Report(table.title, Table.of_models(models), notes=[NOTE])
    return Report(
        table.title,
        Table.of_models(models),
        notes=[ACCURACIES, NOTE],
        figures={"accuracies": _chart(table)},
    )


def _counted(model: Published) -> Cells:
    """The cells of a model that we have."""
    params = param_count(model) / 1e6
    flops = forward_flops(model) / 1e9
    papers_flops = model.flops_g
    if model.madds_g is not None:
        papers_flops = 2 * model.madds_g
    return {
        "top-1 (%)": printed(model.top1),
        "M parameters": params,
        "the paper's": printed(model.params_m),
        "difference": difference(params, model.params_m),
        "GFLOPs": flops,
        "the paper's GFLOPs": printed(papers_flops),
        "difference of GFLOPs": difference(flops, papers_flops),
        "note": model.note or None,
    }


def _quoted(row: Quoted) -> Cells:
    """The cells of a row that only the paper has."""
    papers_flops = None if row.madds_g is None else 2 * row.madds_g
    return {
        "top-1 (%)": printed(row.top1),
        "the paper's": printed(row.params_m),
        "the paper's GFLOPs": printed(papers_flops),
        "note": row.note or None,
    }


# Figure 2.


class _Point(NamedTuple):
    """A classifier of Figure 2.

    Attributes:
        params: in millions.
        top1: in percent.
        label: the text at the point.
    """

    params: float
    top1: float
    label: str


class _Line(NamedTuple):
    """A line of Figure 2: its name, and the family whose colour it has."""

    name: str
    family: str


def _chart(table: PaperTable) -> Chart:
    """The paper's Figure 2: accuracy over parameters, one line per architecture."""
    lines: dict[_Line, list[_Point]] = {}
    for line, point in (*_our_points(table), *_quoted_points(table)):
        points = lines.setdefault(line, [])
        points.append(point)
    families = [line.family for line in lines]
    look_of = looks(families)
    series = []
    for line, look in zip(lines, look_of, strict=True):
        smallest_first = sorted(lines[line])
        params, accuracies, labels = zip(*smallest_first, strict=True)
        drawn = Series(line.name, look.solid(), params, accuracies, labels=labels)
        series.append(drawn)
    panel = Panel(
        "At the same size gMLP is as accurate as DeiT; ViT and Mixer are not",
        Scale("M parameters", log=True),
        Scale("the paper's top-1 (%)"),
        series,
    )
    return Chart(
        [panel],
        "Every model of the table is drawn; the figure in the paper ends at 100 M parameters. "
        "Grey: convolutions.",
    )


def _our_points(table: PaperTable) -> Iterator[tuple[_Line, _Point]]:
    """The models that we have."""
    for name in table.rows:
        model = PUBLISHED[name]
        if model.top1 is None:
            continue
        kind, _, variant = name.partition("_")
        line_name = NAMES.get(kind, kind)
        line = _Line(line_name, family(name))
        params = param_count(model) / 1e6
        label = variant.removesuffix("_cls")
        point = _Point(params, model.top1, label)
        yield line, point


def _quoted_points(table: PaperTable) -> Iterator[tuple[_Line, _Point]]:
    """The models that only the paper has. A kind that is also one of ours gets a separate line."""
    for row in table.quoted:
        if row.top1 is None:
            continue
        kind, _, variant = row.name.partition("-")
        is_twice = kind in NAMES.values()
        name = f"{kind} (gMLP's training)" if is_twice else kind
        line = _Line(name, kind)
        size, _, _ = variant.partition(" ")
        point = _Point(row.params_m, row.top1, size)
        yield line, point
