"""What the paper prints of scores and of models that are not built here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ScoreColumn(NamedTuple):
    """A column of scores after finetuning, in the right half of Tables 4 and 6.

    Attributes:
        title: of the column.
        task: a name in `recipes.FINETUNED`.
        metric: the evaluation's name of the score.
        percent: the factor that turns the metric into percent.
    """

    title: str
    task: str
    metric: str
    percent: int = 100


SCORE_COLUMNS = (
    ScoreColumn("SST-2", "sst2", "accuracy"),
    ScoreColumn("MNLI-m", "mnli", "accuracy"),
    ScoreColumn("MNLI-mm", "mnli", "accuracy_mm"),
    ScoreColumn("SQuAD v1.1 F1", "squad_v1.1", "f1", 1),
    ScoreColumn("SQuAD v2.0 F1", "squad_v2.0", "f1", 1),
    ScoreColumn("RTE", "rte", "accuracy"),  # not the paper's: pairs where there is no training set of MNLI
)

# In the order of SCORE_COLUMNS: Table 4 prints the first two columns, Table 6 the first five.
FINETUNED_SCORES: dict[str, tuple[float, ...]] = {
    "transformer_6": (90.4, 81.5),
    "gmlp_18": (91.2, 77.7),
    "transformer_12": (91.3, 83.3),
    "gmlp_36": (92.3, 80.9),
    "transformer_24": (92.1, 85.2),
    "gmlp_72": (93.5, 82.8),
    "transformer_48": (92.8, 86.3),
    "gmlp_144": (95.1, 84.6),
    "bert_base": (93.8, 85.6, 85.7, 90.2, 78.6),
    "gmlp_base": (94.2, 83.7, 84.1, 86.7, 70.1),
    "amlp_base": (93.4, 85.9, 85.8, 90.7, 80.9),
    "bert_large": (94.3, 87.0, 87.4, 92.0, 81.0),
    "gmlp_large": (94.8, 86.2, 86.5, 89.5, 78.3),
    "amlp_large": (94.8, 88.4, 88.4, 92.2, 85.4),
    "gmlp_xlarge": (95.6, 87.7, 87.7, 90.9, 82.1),
}


def printed_score(name: str, column: ScoreColumn) -> float | None:
    """The paper's percentage for a model, if it prints one."""
    return _in_column(FINETUNED_SCORES.get(name, ()), column)


def _in_column(scores: Sequence[float | None], column: ScoreColumn) -> float | None:
    return dict(zip(SCORE_COLUMNS, scores, strict=False)).get(column)


class Quoted(NamedTuple):
    """A row of the paper's tables that is shown as printed: a model that is not built here, or not trained as there.

    Attributes:
        name: for people.
        params_m: parameters in millions.
        madds_g: multiply-adds per image in billions; None for a language model.
        top1: ImageNet-1K accuracy without extra data in percent; None for a language model.
        scores: percentages after finetuning in the order of SCORE_COLUMNS, None if nothing is printed; empty for an
            image model.
        note: what to know of the row.
    """

    name: str
    params_m: float
    madds_g: float | None = None
    top1: float | None = None
    scores: tuple[float | None, ...] = ()
    note: str = ""

    def score(self, column: ScoreColumn) -> float | None:
        """The percentage in a column, if the paper prints one."""
        return _in_column(self.scores, column)


_OWN_RECIPE = "mixer_b16 in the recipe of the gMLPs, which imagenet:mixer_b16 has; 76.4 is its own paper's"
_DEVLIN = "its own paper prints 81.9 for SQuAD v2.0 (recalled, not read)"
_DEVLIN_BASE = "where SQuAD v2.0's 76.3 comes from is not known: its own paper prints none (recalled, not read)"

# Table of the paper -> the rows that are no models of PUBLISHED.
QUOTED: dict[str, tuple[Quoted, ...]] = {
    "Table 2": (
        Quoted("ResNet-152", 60, 11.3, 78.3),
        Quoted("RegNetY-8GF", 39, 8.0, 81.7),
        Quoted("EfficientNet-B0", 5, 0.39, 77.1),
        Quoted("EfficientNet-B3", 12, 1.8, 81.6),
        Quoted("EfficientNet-B7", 66, 37.0, 84.3),
        Quoted("NFNet-F0", 72, 12.4, 83.6),
        Quoted("Mixer-B/16 (our setup)", 59, 12.7, 77.3, note=_OWN_RECIPE),
    ),
    "Table 6": (
        Quoted("BERT-base (Devlin et al.)", 110, scores=(92.7, 84.4, None, 88.5, 76.3), note=_DEVLIN_BASE),
        Quoted("BERT-large (Devlin et al.)", 336, scores=(93.7, 86.6, None, 90.9, 81.8), note=_DEVLIN),
    ),
}
