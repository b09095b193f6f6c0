"""How well the alternatives predict the tokens that associative recall could predict, after 18.4 M
tokens: the table of which-mixer.md, from alternatives-slices.csv."""

from docs import generate
from docs.results import longer
from gmlp_flax.tasks.recall_slices import SliceLosses, share_of_gap

REFERENCE = "bert_rel"


def section() -> str:
    """The table of the page, the row with the lowest perplexity first."""
    scores = {}
    for line in generate.read("alternatives-slices"):
        scores[line["row"]] = {key: float(value) for key, value in line.items() if key != "row"}
    reference = SliceLosses.of_metrics(scores[REFERENCE])
    titles = ["row", "what mixes tokens", "AR hits", "other tokens", "share of the gap (%)"]
    lines = [titles, ["---"] * len(titles)]
    for name in sorted(scores, key=lambda name: scores[name]["perplexity"]):
        metrics = scores[name]
        share = share_of_gap(SliceLosses.of_metrics(metrics), reference)
        told = "" if share is None else f"{100 * share:.0f}"
        recall = f"{metrics['recall_perplexity']:.1f}"
        other = f"{metrics['other_perplexity']:.1f}"
        lines.append([f"`{name}`", longer.WHAT[name], recall, other, told])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
