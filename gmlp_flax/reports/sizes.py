"""Reports of model sizes: counted parameters and operations beside the papers' numbers. They need
no runs."""

from gmlp_flax.analysis.drawing import DASHES, Chart, Panel, Scale, Series, looks
from gmlp_flax.paper.published import PUBLISHED, Published, Quoted, forward_flops, param_count
from gmlp_flax.paper.tables import PaperTable
from gmlp_flax.reports.report import Report, family
from gmlp_flax.reports.table import Columns, Table, difference, printed

NOTE = "Differences are ours - the paper's. Nothing was trained."
ACCURACIES = (
    "Top-1 accuracies are the paper's (ImageNet-1K, no extra data, a spread of about 0.1 between runs): none was "
    "measured here. Its multiply-adds are shown as two operations each."
)
# of lines in Figure 2
NAMES = {"vit": "ViT", "deit": "DeiT", "mixer": "Mixer", "resmlp": "ResMLP", "gmlp": "gMLP"}


def counts(table: PaperTable) -> Report:
    """A table of sizes; of classifiers (Table 2 and Figure 2), with the paper's accuracies over
    them."""
    models, classifiers = {name: PUBLISHED[name] for name in table.rows}, bool(table.quoted)
    rows: dict[str, Published | Quoted] = {**models, **{row.name: row for row in table.quoted}}
    # Each multiply-add is two operations.
    papers_flops = {
        name: None if row.madds_g is None else 2 * row.madds_g for name, row in rows.items()
    }
    papers_flops |= {name: model.flops_g for name, model in models.items() if model.madds_g is None}
    params = {name: param_count(model) / 1e6 for name, model in models.items()}
    flops = {name: forward_flops(model) / 1e9 for name, model in models.items()}
    columns: Columns = {
        "top-1 (%)": {name: printed(row.top1) for name, row in rows.items()} if classifiers else {},
        "M parameters": params,
        "the paper's": {name: printed(row.params_m) for name, row in rows.items()},
        "difference": {
            name: difference(params[name], model.params_m) for name, model in models.items()
        },
        "GFLOPs": flops,
        "the paper's GFLOPs": {name: printed(papers_flops[name]) for name in rows},
        "difference of GFLOPs": {
            name: difference(flops[name], papers_flops[name]) for name in models
        },
        "note": {name: row.note or None for name, row in rows.items()},
    }
    return Report(
        table.title,
        Table.of_columns(rows, columns),
        notes=(ACCURACIES, NOTE) if classifiers else (NOTE,),
        figures={"accuracies": _chart(table)} if classifiers else {},
    )


def _chart(table: PaperTable) -> Chart:
    """The paper's Figure 2: accuracy over parameters, one line per architecture."""
    # name, family -> parameters, accuracy, label
    lines: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for name in table.rows:
        model = PUBLISHED[name]
        if model.top1 is not None:
            kind, _, label = name.partition("_")
            point = param_count(model) / 1e6, model.top1, label.removesuffix("_cls")
            lines.setdefault((NAMES.get(kind, kind), family(name)), []).append(point)
    for row in table.quoted:
        if row.top1 is not None:
            kind, _, label = row.name.partition("-")
            # A model that the table has twice is a line of its own.
            line = f"{kind} (our setup)" if kind in NAMES.values() else kind
            lines.setdefault((line, kind), []).append(
                (row.params_m, row.top1, label.partition(" ")[0])
            )
    series = []
    for ((name, _), points), look in zip(
        lines.items(), looks([kind for _, kind in lines]), strict=True
    ):
        x, y, labels = zip(*sorted(points), strict=True)
        series.append(Series(name, look._replace(dashes=DASHES[0]), x, y, labels=labels))
    title = "At the same size gMLP is as accurate as DeiT; ViT and Mixer are not"
    return Chart(
        [Panel(title, Scale("M parameters", log=True), Scale("the paper's top-1 (%)"), series)],
        "Every model of the table is drawn; the figure in the paper ends at 100 M parameters. Grey: convolutions.",
    )
