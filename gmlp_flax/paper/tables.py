"""The tables and figures of the paper that can be reproduced: their rows, series, seeds and
settings.

A new table is one entry of TABLES, and one of `published.PUBLISHED` for each model that is new.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.paper import alternatives, custom_rows, recipes
from gmlp_flax.paper.alternatives import NOTHING, Column, Statement
from gmlp_flax.paper.published import FINETUNED_SCORES, MAIN, PUBLISHED, QUOTED, Quoted
from gmlp_flax.paper.recipes import SCALES
from gmlp_flax.sweeps import points

Series = Mapping[str, Sequence[str]]

THREE_SEEDS = dict.fromkeys(SCALES, (0, 1, 2))
FINETUNING_SEEDS = (0, 1, 2, 3, 4)  # the paper takes the median of five


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """A table or a figure of the paper.

    Attributes:
        title: the title of its report.
        rows: names that `recipes.published` takes, in the paper's order.
        trained: scale -> the rows that its sweep trains, in this order; empty if nothing is
            trained.
        seeds: scale -> the seeds of each row; empty for the seed of the config.
        settings: config keys that differ from the published model's config, and their values.
        series: name -> rows of one line in a figure, from the smallest model to the largest.
        longer: name -> rows of one line in a figure, one model on more and more data.
        tasks: names in TUNED that the models are finetuned on.
        quoted: rows that are shown as the paper prints them, without a model of ours.
        transfers: the paper's claims about the order of finetuned models; their columns are tasks.
        recall_reference: the row with attention to which the other rows' gaps in perplexity are
            measured, where the report divides them by associative recall; "" for none.
        takes_classes: whether rows can be chosen, and added by their class (`custom_rows`).
    """

    title: str
    rows: Sequence[str]
    trained: Series = dataclasses.field(default_factory=dict)
    seeds: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    series: Series = dataclasses.field(default_factory=dict)
    longer: Series = dataclasses.field(default_factory=dict)
    tasks: Sequence[str] = ()
    quoted: Sequence[Quoted] = ()
    transfers: Sequence[Statement] = ()
    recall_reference: str = ""
    takes_classes: bool = False

    def of_rows(self, rows: Sequence[str]) -> "PaperTable":
        """The table with these rows alone; classes are trained at every scale."""
        trained = {}
        for scale, names in self.trained.items():
            chosen = [row for row in rows if row in names or custom_rows.is_custom(row)]
            trained[scale] = chosen
        return dataclasses.replace(self, rows=rows, trained=trained)

    def config(self, row: str, scale: str) -> ConfigDict:
        """A row's config at scale "cpu", "gpu" or "paper"; raises ConfigError if the scale does not
        have the row."""
        config = config_lib.open_config(recipes.published(row, scale))
        config.update_from_flattened_dict(dict(self.settings))
        return config

    def configs(self, scale: str, changes: Mapping[str, Any] = NOTHING) -> dict[str, ConfigDict]:
        """Each row's config with some changes; raises ConfigError as `config`, or if a change is
        invalid."""
        return {row: config_lib.overridden(self.config(row, scale), changes) for row in self.rows}

    def points(self, scale: str, rates: Mapping[str, float] = NOTHING) -> points.Points:
        """The sweep that trains the table at a scale.

        Args:
            scale: "cpu", "gpu" or "paper".
            rates: row -> the peak learning rate that its search chose, if it had one.
        """
        grid: dict[str, Sequence[Any]] = {}
        if self.seeds:
            grid["seed"] = self.seeds[scale]
        for key, value in self.settings.items():
            grid[key] = [value]
        sweeps = []
        for row in self.trained[scale]:
            of_row: dict[str, Sequence[Any]] = {"config": [recipes.published(row, scale)], **grid}
            if row in rates:
                of_row[alternatives.RATE] = [rates[row]]
            sweeps.append(points.product(of_row))
        return points.chained(*sweeps)


def printed_score(name: str, column: Column) -> float | None:
    """The paper's percentage for a model, or for a row of `QUOTED`, in one of SCORE_COLUMNS; None if
    it prints none."""
    scores = FINETUNED_SCORES.get(name, ())
    for column_of_score, score in zip(SCORE_COLUMNS, scores, strict=False):
        if column_of_score.title == column.title:
            return score
    return None


def _listed(source: str) -> tuple[str, ...]:
    return tuple(name for name, model in PUBLISHED.items() if model.source == source)


def _at_every_scale(*rows: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(SCALES, rows)


# The gMLPs for images as Table 1 counts them.
_GMLP_CLS = ("gmlp_ti_cls", "gmlp_s_cls", "gmlp_b_cls")
_TABLE_6 = (
    "bert_base",
    "gmlp_base",
    "amlp_base",
    "bert_large",
    "gmlp_large",
    "amlp_large",
    "gmlp_xlarge",
)
_PAIRS = ("mnli", "rte")
_SENTENCES = ("sst2", *_PAIRS)
_DEPTHS = {
    "Transformer": ("transformer_6", "transformer_12", "transformer_24", "transformer_48"),
    "gMLP": ("gmlp_18", "gmlp_36", "gmlp_72", "gmlp_144"),
}
_DEEPEST = ("gmlp_144", "transformer_48")  # trained at scale "paper" only
_DEPTHS_WITH_AMLP = _DEPTHS | {"aMLP": ("amlp_18", "amlp_36", "amlp_72")}


def _more_data() -> dict[str, tuple[str, ...]]:
    """Name of a line -> the middle depth of a series, on more and more data."""
    lines = {}
    for name, (_, middle, *_) in _DEPTHS_WITH_AMLP.items():
        on_more = [f"{middle},data={times}" for times in (2, 4, 8)]
        lines[f"{name}, more data"] = (middle, *on_more)
    return lines


_MORE_DATA = _more_data()


def _transfers(series: Series) -> tuple[Statement, ...]:
    """At equal depth gMLP is ahead on SST-2 and behind on pairs (Table 4), where tiny attention
    helps (Figure 8)."""
    return (
        *_at_equal_depth("Table 4", series, "gMLP", "Transformer", ("sst2",)),
        *_at_equal_depth("Table 4", series, "Transformer", "gMLP", _PAIRS),
        *_at_equal_depth("Figure 8", series, "aMLP", "gMLP", _PAIRS),
    )


def _at_equal_depth(
    source: str, series: Series, better: str, worse: str, tasks: Sequence[str]
) -> list[Statement]:
    """The claims that the rows of one series are better than those of another, if both are there."""
    better_rows = series.get(better, ())
    worse_rows = series.get(worse, ())
    statements = []
    for better_row, worse_row in zip(better_rows, worse_rows, strict=False):
        statements.append(Statement(source, better_row, worse_row, tasks))
    return statements


def _finetuned(
    title: str, trained: Series, series: Series, longer: Series | None = None, **fields
) -> PaperTable:
    """A table or figure of several depths, whose models are finetuned."""
    longer = longer or {}
    rows: dict[str, None] = {}  # in order, each once
    for line in (*series.values(), *longer.values()):
        rows |= dict.fromkeys(line)
    return PaperTable(
        title,
        tuple(rows),
        trained,
        series=series,
        longer=longer,
        tasks=_SENTENCES,
        transfers=_transfers(series),
        **fields,
    )


def _depths(title: str, series: Series) -> PaperTable:
    """Every depth of some series: Table 4, Figures 5 and 8."""
    shallower = []
    for name in reversed(list(series)):
        shallower += [row for row in series[name] if row not in _DEEPEST]
    trained = _at_every_scale(*shallower)
    trained["paper"] = (*shallower, *_DEEPEST)
    return _finetuned(title, trained, series, seeds=THREE_SEEDS)


def _depths_and_data(title: str) -> PaperTable:
    """Figure 7: half, twice and once the middle depth, then the middle depth on more data; on a CPU
    up to four times."""
    depths = []
    for depth in (0, 2, 1):
        depths += [rows[depth] for rows in _DEPTHS_WITH_AMLP.values()]
    trained = {}
    for scale, end in {"cpu": 3, "gpu": 4, "paper": 4}.items():
        rows = [*depths]
        for line in _MORE_DATA.values():
            rows += line[1:end]
        trained[scale] = tuple(rows)
    one_seed = dict.fromkeys(SCALES, (0,))
    return _finetuned(title, trained, _DEPTHS_WITH_AMLP, _MORE_DATA, seeds=one_seed)


def _one_model(title: str, row: str, **fields) -> PaperTable:
    return PaperTable(title, (row,), _at_every_scale(row), **fields)


_CLASSIFIERS = PaperTable(
    "Table 2 and Figure 2: classifiers of ImageNet",
    (*_listed("Table 2"), *_GMLP_CLS),
    quoted=QUOTED["Table 2"],
)

# The scores of finetuned models in Tables 4 and 6, and RTE, which is not in the paper: pairs for
# those who have no training set of MNLI.
SCORE_COLUMNS = (
    Column("SST-2", "finetune_glue:sst2", starts=(True,)),
    Column("MNLI-m", "finetune_glue:mnli", starts=(True,)),
    Column("MNLI-mm", "finetune_glue:mnli", "accuracy_mm", starts=(True,)),
    Column("SQuAD v1.1 F1", "finetune_squad:v1.1", "f1", starts=(True,)),
    Column("SQuAD v2.0 F1", "finetune_squad:v2.0", "f1", starts=(True,)),
    Column("RTE", "finetune_glue:rte", starts=(True,)),
)
TUNED = {column.task: column for column in SCORE_COLUMNS}
ALTERNATIVES = "alternatives"  # the table that is not the paper's

TABLES: dict[str, PaperTable] = {
    "table1": PaperTable(
        "Table 1: gMLP for ImageNet, its sizes", (*_GMLP_CLS, "gmlp_ti", "gmlp_s", "gmlp_b")
    ),
    "table2": _CLASSIFIERS,
    # amlp_36 is not in the paper's table: its line is empty unless it was trained.
    "table3": PaperTable(
        "Table 3: gates and their rivals, masked LM",
        (*_listed("Table 3"), "amlp_36"),
        _at_every_scale(*_listed("Table 3")),
        THREE_SEEDS,
        recall_reference="bert_rel",
        takes_classes=True,
    ),
    "table4": _depths("Table 4: depth, masked LM and finetuned", _DEPTHS),
    "table5": PaperTable(
        "Table 5: the models of the full setting, their sizes", _listed("Table 5")
    ),
    # One seed: the paper's medians are over finetuning runs. The Transformers with relative
    # positions are not in the paper's table: their lines are empty unless they were trained.
    "table6": PaperTable(
        "Table 6: the full setting, masked LM and finetuned",
        (*_TABLE_6, *_listed(MAIN)),
        _at_every_scale(*_TABLE_6),
        tasks=(*_SENTENCES, "squad_v1.1", "squad_v2.0"),
        quoted=QUOTED["Table 6"],
        transfers=_transfers(
            {"Transformer": ("bert_base",), "gMLP": ("gmlp_base",), "aMLP": ("amlp_base",)}
        ),
    ),
    "appendix_b": PaperTable(
        "Table 10 (appendix B): deeper and thinner Transformers, masked LM; the paper's column is "
        "recalled, not read, and has a setting of its own",
        _listed("Table 10"),
        _at_every_scale(*_listed("Table 10")),
        THREE_SEEDS,
    ),
    "figure2": _CLASSIFIERS,
    "figure3": _one_model("Figure 3: spatial filters of a gMLP for images", "gmlp_b"),
    "figure4": _one_model("Figure 4: spatial filters of a gMLP", "sgu"),
    "figure5": _depths("Figure 5: perplexity and accuracies over parameters", _DEPTHS),
    "figure7": _depths_and_data(
        "Figure 7: accuracies over perplexity, of several depths and of more data"
    ),
    "figure8": _depths(
        "Figure 8: perplexity and accuracies over parameters, aMLP beside gMLP", _DEPTHS_WITH_AMLP
    ),
    "figure9": _one_model(  # every checkpoint is kept, to see how the matrices change
        "Figure 9: spatial matrices without the Toeplitz constraint",
        "sgu",
        # The factors are on taps.
        settings={"model.spatial": "dense", "optimizer.lr_multipliers": (), "checkpoint.keep": 100},
    ),
    # Not in the paper: its mixers next to those of other papers. paper/alternatives.py has the
    # other columns.
    ALTERNATIVES: PaperTable(
        "The alternatives: token mixers in one frame",
        alternatives.ROWS,
        _at_every_scale(*alternatives.ROWS),
        {scale: alternatives.COLUMNS["mlm"].seeds_at(scale) for scale in SCALES},
        tasks=("sst2", "mnli"),
        recall_reference="bert_rel",
        takes_classes=True,
    ),
    # The paper does not say which aMLP it draws; this one has attention of size 64.
    "figure10": _one_model(
        "Figure 10: tiny attention in a pair of sentences", "amlp_36", tasks=("mnli",)
    ),
}
