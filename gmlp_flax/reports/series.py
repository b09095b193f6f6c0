"""The series of a report's charts: a model has the colour of its family, a number over seeds has a range."""

from collections.abc import Sequence

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.charts import Series
from gmlp_flax.models import blocks
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.reports.table import Spread

# Block -> the name of its family in drawing.FAMILIES; a block without one is drawn in grey.
NAMES = {name.lower().replace("-", "_").replace(" ", "_"): name for name in drawing.FAMILIES}
NAMES["fnet_hybrid"] = "FNet"


def family(row: str) -> str:
    """The family of a row of `PUBLISHED`, or of one that `recipes.longer` gives."""
    model = blocks.settings(PUBLISHED[row.partition(",")[0]].spec)
    block: str = model["block"]
    name = NAMES.get(block, block)
    return "aMLP" if name == "gMLP" and model.get("d_attn") else name


def looks(rows: Sequence[str]) -> dict[str, drawing.Look]:
    """Row -> how it is drawn."""
    return dict(zip(rows, drawing.looks([family(row) for row in rows]), strict=True))


def over_seeds(name: str, look: drawing.Look, x: Sequence[float], y: Sequence[Spread], **options) -> Series:
    """A series of numbers over seeds: their centres, and the ranges from the lowest to the highest seed if there are
    several of any.

    Args:
        name, look, x: of the series.
        y: a number at each x.
        options: further fields of the series.
    """
    several = [spread.values for spread in y] if any(len(spread.values) > 1 for spread in y) else []
    low, high = list(map(min, several)), list(map(max, several))
    return Series(name, look, x, [spread.centre for spread in y], low, high, **options)
