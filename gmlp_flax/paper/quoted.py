"""What the paper prints of scores and of models that are not built here."""

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


class Statement(NamedTuple):
    """A claim of a paper on two rows: in each of some columns `better` is better than `share` times `worse`.

    Attributes:
        source: what is claimed, and where.
        better, worse: the rows.
        columns: of `alternatives`, or tasks on which the rows were finetuned.
        share: less than 1 if more is better, and more than 1 if less is, to allow a difference.
    """

    source: str
    better: str
    worse: str
    columns: Sequence[str]
    share: float = 1.0


# Claims on the rows of `alternatives`.
KEEPS_UP, LEVEL = 0.98, 1.02  # shares that allow a difference of 2 %, of accuracies and of perplexities
_ACCURACIES = ("sst2", "imdb", "mnli")
STATEMENTS = (
    # The gMLP paper's Table 3: 4.35 and 4.37; 4.26; 5.34; 5.64.
    Statement("gMLP matches BERT, Table 3", "sgu", "bert", ("mlm",), LEVEL),
    Statement("gMLP is behind relative positions, Table 3", "bert_rel", "sgu", ("mlm",)),
    Statement("gMLP beats the Mixer, Table 3", "sgu", "mixer", ("mlm",)),
    Statement("gMLP beats positions alone, Table 3", "sgu", "bert_rel_only", ("mlm",)),
    Statement("gMLP is behind on pairs, Table 4", "bert_rel", "sgu", ("mnli",)),
    Statement("tiny attention helps on pairs, Figure 8", "amlp_36", "sgu", ("mnli",)),
    # The gMLP paper's Table 2: gMLP-S 79.6, DeiT-S 79.8, ResMLP-12 and -24 76.6 and 79.4; gMLP-B 81.6, Mixer-B 76.4.
    Statement("gMLP matches the Transformer on images, Table 2", "sgu", "bert", ("cifar10",), KEEPS_UP),
    Statement("gMLP beats the Mixer on images, Table 2", "sgu", "mixer", ("cifar10",)),
    Statement("gMLP beats ResMLP on images, Table 2", "sgu", "resmlp", ("cifar10",)),
    Statement("FNet has 92 % of BERT's accuracy, 2105.03824", "fnet", "bert", _ACCURACIES, 0.92),
    Statement("FNet is behind BERT, 2105.03824", "bert", "fnet", (*_ACCURACIES, "listops", "pixels")),
    Statement("FNet beats the Transformer on bytes, 2105.03824 (recalled)", "fnet", "bert", ("bytes",)),
    Statement("the random Synthesizer beats dynamic convolution, 2005.00743", "random", "dynamic", ("mlm",)),
    Statement("learned logits beat fixed ones, 2005.00743", "random", "fixed_random", ("mlm",)),
    Statement("random logits help attention, 2005.00743", "random_vanilla", "bert", ("mlm",)),
    Statement("random logits alone are behind attention, 2005.00743", "bert", "random", ("mlm",)),
    Statement("convolutions keep up on sentences, 2105.03322", "lightweight", "bert_t5", ("sst2", "imdb"), KEEPS_UP),
    Statement("convolutions fall behind on pairs, 2105.03322", "bert_t5", "lightweight", ("mnli",)),
)
# (source, faster, slower): time per token.
FASTER = (
    ("FNet is faster than BERT, 2105.03824", "fnet", "bert"),
    ("the random Synthesizer is faster than dynamic convolution, 2005.00743", "random", "dynamic"),
)
# (source, row): time grows about as the number of tokens.
GROWS = (
    ("external attention costs O(n), 2105.02358", "external"),
    ("convolutions cost O(n), 2105.03322", "lightweight"),
    ("FNet costs O(n log n), 2105.03824", "fnet"),
)
