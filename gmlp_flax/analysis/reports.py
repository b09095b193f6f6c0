"""The paper's tables and figures that can be made again, by name."""

from __future__ import annotations

import itertools

from gmlp_flax.analysis.counted import Classifiers, Counts
from gmlp_flax.analysis.language import Language
from gmlp_flax.analysis.spatial_report import Filters, ShiftInvariance
from gmlp_flax.models import sizes

Counted = Counts | Classifiers
Trained = Language | Filters | ShiftInvariance

_TABLE_3 = ("bert", "bert_rel", "bert_rel_only", "mixer", "linear", "additive", "multiplicative", "sgu")
_SERIES = {
    "Transformer": ("transformer_6", "transformer_12", "transformer_24", "transformer_48"),
    "gMLP": ("gmlp_18", "gmlp_36", "gmlp_72", "gmlp_144"),
}
_SCALING = tuple(itertools.chain(*_SERIES.values()))
_OF_PAPER = ("gmlp_ti_cls", "gmlp_s_cls", "gmlp_b_cls")


def _listed(table: str) -> tuple[str, ...]:
    return tuple(name for name, model in sizes.PUBLISHED.items() if model.source == table)


_CLASSIFIERS = Classifiers("Table 2 and Figure 2: classifiers of ImageNet", (*_listed("Table 2"), *_OF_PAPER))

REPORTS: dict[str, Counted | Trained] = {
    "table1": Counts("Table 1: gMLP for ImageNet, its sizes", (*_OF_PAPER, "gmlp_ti", "gmlp_s", "gmlp_b")),
    "table2": _CLASSIFIERS,
    "table3": Language("Table 3: gates and their rivals, masked LM", "table3", (*_TABLE_3, "amlp_36")),
    "table4": Language("Table 4: depth, masked LM", "table4", _SCALING, _SERIES),
    "table5": Counts("Table 5: the models of the full setting, their sizes", _listed("Table 5")),
    "figure2": _CLASSIFIERS,
    "figure4": Filters("Figure 4: spatial filters of a gMLP", "figure4"),
    "figure5": Language("Figure 5 (a): perplexity over parameters", "table4", _SCALING, _SERIES),
    "figure9": ShiftInvariance(
        "Figure 9: spatial matrices without the Toeplitz constraint", "figure9", {"model.spatial": "dense"}
    ),
}
