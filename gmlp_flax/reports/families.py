"""The family of each published model, which chooses its colour in every figure."""

from __future__ import annotations

from collections.abc import Sequence

from gmlp_flax.analysis import drawing
from gmlp_flax.models import blocks
from gmlp_flax.paper.published import PUBLISHED

# The names that drawing.FAMILIES has for blocks; a block that is not listed is drawn in grey.
NAMES = {
    "transformer": "Transformer",
    "gmlp": "gMLP",
    "mixer": "Mixer",
    "resmlp": "ResMLP",
    "feed_forward": "feed-forward",
    "fnet": "FNet",
    "fnet_hybrid": "FNet",
    "synthesizer": "Synthesizer",
    "external_attention": "external attention",
    "convolution": "convolution",
}


def family(row: str) -> str:
    """The family of a row of `PUBLISHED`, or of one that `recipes.longer` gives."""
    model = blocks.settings(PUBLISHED[row.partition(",")[0]].spec)
    block: str = model["block"]
    name = NAMES.get(block, block)
    return "aMLP" if name == "gMLP" and model.get("d_attn") else name


def looks(rows: Sequence[str]) -> dict[str, drawing.Look]:
    """Row -> how it is drawn."""
    return dict(zip(rows, drawing.looks([family(row) for row in rows]), strict=True))
