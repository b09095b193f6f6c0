"""The paper's tables and figures that can be made again, by name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gmlp_flax import recipes
from gmlp_flax.analysis.attention_report import AttentionMaps
from gmlp_flax.analysis.counted import Classifiers, Counts
from gmlp_flax.analysis.language import Language
from gmlp_flax.analysis.one_run import OneRun
from gmlp_flax.analysis.spatial_report import Filters, ImageFilters, ShiftInvariance
from gmlp_flax.models import sizes

Counted = Counts | Classifiers
Trained = Language | OneRun
_Lines = Mapping[str, Sequence[str]]

_TABLE_3 = ("bert", "bert_rel", "bert_rel_only", "mixer", "linear", "additive", "multiplicative", "sgu")
_TABLE_6 = ("bert_base", "gmlp_base", "amlp_base", "bert_large", "gmlp_large", "amlp_large", "gmlp_xlarge")
_SERIES = {
    "Transformer": ("transformer_6", "transformer_12", "transformer_24", "transformer_48"),
    "gMLP": ("gmlp_18", "gmlp_36", "gmlp_72", "gmlp_144"),
}
_WITH_AMLP = _SERIES | {"aMLP": ("amlp_18", "amlp_36", "amlp_72")}
_LONGER = {
    f"{name}, more data": (row, *(recipes.longer(row, times) for times in (2, 4, 8)))
    for name, row in {"Transformer": "transformer_12", "gMLP": "gmlp_36", "aMLP": "amlp_36"}.items()
}
_SENTENCES = ("sst2", "mnli")
_OF_PAPER = ("gmlp_ti_cls", "gmlp_s_cls", "gmlp_b_cls")


def _listed(table: str) -> tuple[str, ...]:
    return tuple(name for name, model in sizes.PUBLISHED.items() if model.source == table)


def _scaling(title: str, sweep: str, series: _Lines, longer: _Lines = MappingProxyType({})) -> Language:
    rows = dict.fromkeys(itertools.chain(*series.values(), *longer.values()))
    return Language(title, sweep, tuple(rows), series, longer, _SENTENCES)


_CLASSIFIERS = Classifiers("Table 2 and Figure 2: classifiers of ImageNet", (*_listed("Table 2"), *_OF_PAPER))

REPORTS: dict[str, Counted | Trained] = {
    "table1": Counts("Table 1: gMLP for ImageNet, its sizes", (*_OF_PAPER, "gmlp_ti", "gmlp_s", "gmlp_b")),
    "table2": _CLASSIFIERS,
    "table3": Language("Table 3: gates and their rivals, masked LM", "table3", (*_TABLE_3, "amlp_36")),
    "table4": _scaling("Table 4: depth, masked LM and finetuned", "table4", _SERIES),
    "table5": Counts("Table 5: the models of the full setting, their sizes", _listed("Table 5")),
    "table6": Language(
        "Table 6: the full setting, masked LM and finetuned", "table6", _TABLE_6,
        tasks=(*_SENTENCES, "squad_v1.1", "squad_v2.0"),
    ),
    "appendix_b": Language(
        "Table 10 (appendix B): deeper and thinner Transformers, masked LM; the paper's column is recalled, not read, "
        "and of a setting of its own", "appendix_b", _listed("Table 10"),
    ),
    "figure2": _CLASSIFIERS,
    "figure3": ImageFilters("Figure 3: spatial filters of a gMLP for images", "figure3", "gmlp_b"),
    "figure4": Filters("Figure 4: spatial filters of a gMLP", "figure4", "sgu"),
    "figure5": _scaling("Figure 5: perplexity and accuracies over parameters", "table4", _SERIES),
    "figure7": _scaling(
        "Figure 7: accuracies over perplexity, of several depths and of more data", "figure7", _WITH_AMLP, _LONGER
    ),
    "figure8": _scaling("Figure 8: perplexity and accuracies over parameters, aMLP beside gMLP", "figure8", _WITH_AMLP),
    "figure9": ShiftInvariance(
        "Figure 9: spatial matrices without the Toeplitz constraint", "figure9", "sgu", {"model.spatial": "dense"}
    ),
    "figure10": AttentionMaps(
        "Figure 10: tiny attention in a pair of sentences", "figure10", "amlp_36", tasks=("mnli",)
    ),
}
