"""How well the alternatives predict the tokens that associative recall could predict, after 18.4 M
tokens: the table of which-mixer.md, from alternatives-slices.csv."""

from docs import generate
from docs.results import longer
from gmlp_flax.tasks.recall_slices import SliceLosses, share_of_gap

REFERENCE = "bert_rel"


def section() -> str:
    """The table of the page, the row with the lowest perplexity first."""
    metrics_of = read()
    reference = SliceLosses.of_metrics(metrics_of[REFERENCE])
    titles = ["row", "what mixes tokens", "AR hits", "other tokens", "share of the gap (%)"]
    rows = []
    for name in sorted(metrics_of, key=lambda name: metrics_of[name]["perplexity"]):
        metrics = metrics_of[name]
        hits = metrics["recall_perplexity"]
        others = metrics["other_perplexity"]
        losses = SliceLosses.of_metrics(metrics)
        share = share_of_gap(losses, reference)
        percent = "" if share is None else f"{100 * share:.0f}"
        rows.append([f"`{name}`", longer.WHAT[name], f"{hits:.1f}", f"{others:.1f}", percent])
    return generate.markdown_table(titles, rows)


def read() -> dict[str, dict[str, float]]:
    """Row -> metric -> value."""
    metrics_of: dict[str, dict[str, float]] = {}
    for line in generate.read("alternatives-slices"):
        name = line.pop("row")
        metrics_of[name] = {metric: float(value) for metric, value in line.items()}
    return metrics_of
