"""The comparison of `gmlp reproduce alternatives`: the token mixers, and for each column what is
trained or measured.

All rows share one frame. At `cpu` and `gpu` all rows have the same number of parameters in the
encoder, up to 2 %, and about the same depth; at `paper`, the siblings have the depth and the widths
of BERT, and as many parameters as that gives. A new column is one entry of COLUMNS.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.errors import ConfigError, did_you_mean
from gmlp_flax.models import blocks
from gmlp_flax.paper import custom_rows, recipes
from gmlp_flax.paper.published import PUBLISHED, SIBLING
from gmlp_flax.sweeps.points import Points

# The siblings are compared with Table 3's Transformers, its Mixer, gMLP, and aMLP.
ROWS = ("bert", "bert_rel", "bert_rel_only", "mixer", "sgu", "amlp_36") + tuple(
    name for name, model in PUBLISHED.items() if model.source == SIBLING
)
# Row -> its name among images. Rows that know distances are left out: patches lie on a grid.
_OF_DISTANCES = ("bert_rel", "bert_rel_only", "bert_t5", "modern")
IMAGES = {row: row for row in ROWS if row not in _OF_DISTANCES}
IMAGES |= {"bert": "vit", "sgu": "gmlp", "amlp_36": "amlp"}
# Row -> its name in the long-range configs, which have one row of each block; the convolution's
# kernel is 31 wide.
_OF_BLOCKS = (
    "bert",
    "mixer",
    "sgu",
    "amlp_36",
    "fnet",
    "hybrid",
    "factorized",
    "external",
    "lightweight",
    "hydra",
    "resmlp",
    "bigs",
    "delta",
    "long_conv",
)
LONG_RANGE = {
    row: blocks.name_of(PUBLISHED[row].spec.block) for row in (*_OF_BLOCKS, "feed_forward")
}
LONG_RANGE["amlp_36"] = "amlp"
LONG_RANGE["depthwise"] = "depthwise"

COSTS = "costs"  # besides COLUMNS, the measurements: time and memory over n
NOTHING: Mapping[str, Any] = MappingProxyType({})
RATE = "optimizer.learning_rate"
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)  # the grid of all searches of masked LM
SEARCH_SEED = 100  # of runs that choose a rate; no table has it


class Column(NamedTuple):
    """The runs that are trained for each row, or finetuned from the row's runs.

    Attributes:
        title: the title of the column in the report.
        config: the config file, which takes the row as its argument; for finetuning, the whole
            config.
        metric: the metric of an evaluation.
        seeds: the seeds of each row at scale cpu; the other scales have only the first.
        cpu, gpu: further config keys that the scale sets, and their values, to shorten the column.
        searched: row -> what scale cpu sets for that row only, found by a search.
        rows: row -> its name in the config; empty for all rows, by their names.
        scales: scale -> what it adds to the config's argument.
        starts: for finetuning, whether runs start from the pretrained parameters, from random ones;
            empty for training.
        rates: the peak learning rates that are tried for each row, with SEARCH_SEED and scores on a
            part of the training data; its seeds have the best one. Empty: the rows' own rates, and
            RATES for a class of the user's own.
        search: further keys of the runs that try the rates, and their values.
    """

    title: str
    config: str
    metric: str = "accuracy"
    seeds: Sequence[int] = (0,)
    cpu: Mapping[str, Any] = NOTHING
    gpu: Mapping[str, Any] = NOTHING
    searched: Mapping[str, Mapping[str, Any]] = NOTHING
    rows: Mapping[str, str] = NOTHING
    scales: Mapping[str, str] = MappingProxyType(recipes.SCALES)
    starts: Sequence[bool] = ()
    rates: Sequence[float] = ()
    search: Mapping[str, Any] = NOTHING

    @property
    def lower(self) -> bool:
        """Whether a lower metric is better."""
        return self.metric == "perplexity"

    @property
    def percent(self) -> float:
        """The factor from the metric to the number in the report."""
        return 1.0 if self.metric in ("perplexity", "f1") else 100.0

    @property
    def task(self) -> str:
        """The task of finetuning, as --finetune names it: TASK of finetune_glue:TASK, squad_VERSION
        of SQuAD."""
        name = self.config.removeprefix("finetune_").removeprefix("glue:")
        return name.replace(":", "_")

    def of(self, row: str, scale: str) -> str:
        """A row's config, FILE:ARGUMENT; raises ConfigError if there is no such scale."""
        if scale not in self.scales:
            expected = " or ".join(self.scales)
            raise ConfigError(f"{self.title} has no scale {scale}: expected {expected}")
        argument = "" if self.starts else f":{self.rows.get(row, row)}"
        return f"{self.config}{argument}{self.scales[scale]}"

    def rates_of(self, row: str, scale: str) -> Sequence[float]:
        """The rates that are tried for a row; none if it has one."""
        if custom_rows.is_custom(row) and scale == "cpu":
            return self.rates or RATES
        return self.rates

    def settings(self, scale: str, row: str = "") -> dict[str, Any]:
        """The keys that a scale sets besides the config: for every row, and for this one."""
        if scale == "cpu":
            return {**self.cpu, **self.searched.get(row, NOTHING)}
        if scale == "gpu":
            return dict(self.gpu)
        return {}

    def seeds_at(self, scale: str) -> tuple[int, ...]:
        """The seeds of each row."""
        seeds = self.seeds if scale == "cpu" else self.seeds[:1]
        return tuple(seeds)

    def configs(
        self, scale: str, rows: Sequence[str] = ROWS, changes: Mapping[str, Any] = NOTHING
    ) -> dict[str, ConfigDict]:
        """The config of each row that the column has, with the changes whose keys it has.

        Raises:
            ConfigError: there is no such scale, the column has none of the rows, or a change makes
                no sense.
        """
        configs = {}
        for row in rows:
            is_known = row in self.rows or custom_rows.is_custom(row)
            if self.rows and not is_known:
                continue
            config = config_lib.open_config(self.of(row, scale))
            config.update_from_flattened_dict(self.settings(scale, row))
            known_changes = config_lib.applying(config, changes)
            configs[row] = config_lib.overridden(config, known_changes)
        if not configs:
            raise ConfigError(f"{self.title} has none of the rows {', '.join(rows)}")
        return configs

    def points(
        self, scale: str, rows: Sequence[str] = ROWS, rates: Mapping[str, float] = NOTHING
    ) -> Points:
        """The sweep that trains the column; raises ConfigError as `configs`.

        Args:
            scale, rows: as in `configs`.
            rates: row -> the rate that its search chose.
        """
        points = []
        for row in self.configs(scale, rows):
            config = self.of(row, scale)
            settings = self.settings(scale, row)
            if row in rates:
                settings[RATE] = rates[row]
            for seed in self.seeds_at(scale):
                points.append({"config": config, "seed": seed, **settings})
        return tuple(points)

    def search_points(self, scale: str, row: str) -> Points:
        """The runs that try the rates of a row, in the order of `rates_of`."""
        settings = self.settings(scale, row) | dict(self.search)
        points = []
        for rate in self.rates_of(row, scale):
            point = {
                "config": self.of(row, scale),
                "seed": SEARCH_SEED,
                "data.search": True,
                **settings,
                RATE: rate,
            }
            points.append(point)
        return tuple(points)


def _warmed_up(steps: int) -> dict[str, Any]:
    return {"steps": steps, "optimizer.warmup": steps // 10}


def _setting(rate: float, *factors: str) -> dict[str, Any]:
    """A row's rate, and factors for some of its parameters (`optimizer.lr_multipliers`)."""
    keys: dict[str, Any] = {"optimizer.learning_rate": rate}
    if factors:
        keys["optimizer.lr_multipliers"] = factors
    return keys


_LENGTH = {"model.length": 128}  # as pretrained: some mixers only work at one length
_SENTENCES: dict[str, Any] = {
    "starts": (True, False),
    "cpu": _LENGTH | _warmed_up(150) | {"eval.every": 150},
    "gpu": _LENGTH | _warmed_up(2000),
}
# For all rows: how an image is read out matters as much as what mixes its patches.
_MEAN = {"model.pool": "mean"}
# The settings of its authors, with fewer steps; at cpu, the configs' scale small.
_LRA: dict[str, Any] = {"rows": LONG_RANGE, "scales": {"cpu": ",scale=small", "gpu": ""}}

# The settings of each row for the 300 steps of CIFAR-10 (docs/results/table3.md), searched with
# configs/sweeps/alternatives_rates.py. Logits that do not depend on the inputs have a factor, which
# was not searched.
_IMAGE_SETTINGS = {
    **dict.fromkeys(
        ("bert", "fnet", "hybrid", "fixed_random", "dense", "external", "dynamic"), _setting(2e-3)
    ),
    **dict.fromkeys(("random", "random_vanilla"), _setting(2e-3, "random/logits=16")),
    "factorized": _setting(2e-3, "rows|columns=16"),
    "growing": _setting(2e-3, "kernel/logits=16"),
    "lightweight": _setting(4e-3, "kernel/logits=16"),
    **dict.fromkeys(("sgu", "amlp_36", "factorized_dense", "feed_forward"), _setting(4e-3)),
    **dict.fromkeys(("depthwise", "long_conv"), _setting(4e-3)),  # not searched
    "mixer": _setting(8e-3),
    "hydra": _setting(2e-3),  # not searched
    "resmlp": _setting(1.6e-2),
}
# The same for ListOps.
_TREE_SETTINGS = {
    **dict.fromkeys(LONG_RANGE, _setting(4e-3)),
    **dict.fromkeys(("bert", "hybrid"), _setting(2e-3)),
    "feed_forward": _setting(8e-3),
    "factorized": _setting(2e-3, "rows|columns=16"),
    "lightweight": _setting(8e-3, "kernel/logits=16"),
}
# For bytes and pixels: not searched, at the configs' own rate.
_LOGITS: Mapping[str, Mapping[str, Any]] = {
    "factorized": {"optimizer.lr_multipliers": ("rows|columns=16",)},
    "lightweight": {"optimizer.lr_multipliers": ("kernel/logits=16",)},
}

COLUMNS: dict[str, Column] = {
    "mlm": Column(
        "masked LM, perplexity", config="c4_ablation", metric="perplexity", seeds=(0, 1, 2)
    ),
    "longer": Column(
        "masked LM of ten times the tokens, perplexity",
        config="c4_ablation",
        metric="perplexity",
        seeds=(0, 1, 2),
        cpu={"steps": 9000, "eval.every": 900, "checkpoint.every": 3000},
        scales={"cpu": recipes.SCALES["cpu"]},
        rates=RATES,
        search={"steps": 3000, "eval.every": 3000, "checkpoint.every": 3000},
    ),
    "sst2": Column("SST-2 (%)", config="finetune_glue:sst2", seeds=(0, 1), **_SENTENCES),
    "imdb": Column("IMDB (%)", config="finetune_glue:own", **_SENTENCES),
    "mnli": Column("MNLI-m (%)", config="finetune_glue:mnli", **_SENTENCES),
    "cifar10": Column(
        "CIFAR-10, top-1 (%)",
        config="cifar10",
        metric="top1",
        rows=IMAGES,
        scales={"cpu": ",scale=small", "gpu": ",scale=gpu"},
        # Less than an epoch: regularization would only slow all rows down.
        cpu=_warmed_up(300)
        | {"augment.auto": "none", "augment.mixup": 0.0, "augment.cutmix": 0.0}
        | _MEAN,
        gpu=_warmed_up(3500) | _MEAN,
        searched=_IMAGE_SETTINGS,
    ),
    "listops": Column(
        "ListOps (%)",
        config="lra_listops",
        gpu={"steps": 1000, "optimizer.warmup": 200},
        searched=_TREE_SETTINGS,
        seeds=(0, 1, 2),
        **_LRA,
    ),
    "bytes": Column(
        "IMDB by bytes (%)",
        config="lra_text",
        gpu={"steps": 4000, "optimizer.warmup": 1600},
        searched=_LOGITS,
        rows=LONG_RANGE,
        scales={"cpu": ",length=256,scale=small", "gpu": ""},
    ),
    "pixels": Column(
        "CIFAR-10 by pixels (%)",
        config="lra_image",
        metric="top1",
        gpu={"steps": 5000},
        searched=_LOGITS,
        **_LRA,
    ),
}
LANGUAGE = ("mlm", "longer")  # columns that are trained on plain text, which --data names
# The lengths of COSTS.
COST_LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
LEAST_COST_LENGTH = 32
MOST_COST_LENGTH = 2**20


def checked(names: Sequence[str], known: Sequence[str], what: str) -> tuple[str, ...]:
    """The names in the order of `known`.

    Raises:
        ConfigError: a name is not known, or there are no names.
    """
    for name in names or ("",):
        if name not in known:
            advice = did_you_mean(name, known)
            if what == "--rows":
                advice += " (your own block is named my_package.my_module:MyBlock)"
            raise ConfigError(f"{what}: there is no {name!r}; {advice}")
    return tuple(name for name in known if name in names)


def check_cost_lengths(lengths: Sequence[int]) -> None:
    """Raises ConfigError if costs cannot be measured at one of these numbers of tokens."""
    for length in lengths:
        if not LEAST_COST_LENGTH <= length <= MOST_COST_LENGTH:
            raise ConfigError(
                f"--lengths has {length}: expected numbers of tokens from {LEAST_COST_LENGTH} to "
                f"{MOST_COST_LENGTH:,}"
            )


def checked_rows(
    names: Sequence[str], known: Sequence[str], match: str = custom_rows.MATCHES[0]
) -> tuple[str, ...]:
    """The rows that a command line names: first the published ones, then the user's own classes.

    Args:
        names: rows and classes; empty for all of `known`.
        known: the published rows.
        match: one of `custom_rows.MATCHES`, for the classes that have none.

    Raises:
        ConfigError: a row is not known, or a class cannot be imported.
    """
    published = [name for name in names if not custom_rows.is_custom(name)]
    classes = [name for name in dict.fromkeys(names) if custom_rows.is_custom(name)]
    rows: tuple[str, ...] = ()
    if published or not classes:
        _refuse_dots(published, known)
        rows = checked(published or known, known, "--rows")
    if match != custom_rows.MATCHES[0] and not classes:
        raise ConfigError(
            f"--match={match} is for your own block: name its class in --rows, such as "
            "my_package.my_module:MyBlock"
        )
    for name in classes:
        block, own_match = custom_rows.parts(name)
        blocks.find(block)
        rows += (custom_rows.with_match(block, own_match or match),)
    return rows


def _refuse_dots(names: Sequence[str], known: Sequence[str]) -> None:
    """Raises ConfigError if a row is the name of a class with a dot in place of the colon."""
    for name in names:
        module, dot, block = name.rpartition(".")
        if dot and name not in known:
            raise ConfigError(
                f"--rows: there is no {name!r}; a class has a colon between its module and its "
                f"name: {module}:{block}"
            )


class Statement(NamedTuple):
    """A claim of a paper on two rows: in each of the columns, `better` is better than `share` times
    `worse`.

    Attributes:
        source: what is claimed, and where.
        better, worse: the rows.
        columns: in COLUMNS, or tasks on which the rows were finetuned.
        share: below 1 if more is better, and above 1 if less is better, to allow a difference.
    """

    source: str
    better: str
    worse: str
    columns: Sequence[str]
    share: float = 1.0


# Claims on the rows of `alternatives`.
# Shares that allow a difference of 2 %, for accuracies and for perplexities.
KEEPS_UP = 0.98
LEVEL = 1.02
_ACCURACIES = ("sst2", "imdb", "mnli")
STATEMENTS = (
    # The gMLP paper's Table 3: 4.35 and 4.37; 4.26; 5.34; 5.64.
    Statement("gMLP matches BERT, Table 3", "sgu", "bert", ("mlm",), LEVEL),
    Statement("gMLP is behind relative positions, Table 3", "bert_rel", "sgu", ("mlm",)),
    Statement("gMLP beats the Mixer, Table 3", "sgu", "mixer", ("mlm",)),
    Statement("gMLP beats positions alone, Table 3", "sgu", "bert_rel_only", ("mlm",)),
    Statement("gMLP is behind on pairs, Table 4", "bert_rel", "sgu", ("mnli",)),
    Statement("tiny attention helps on pairs, Figure 8", "amlp_36", "sgu", ("mnli",)),
    # The gMLP paper's Table 2: gMLP-S 79.6, DeiT-S 79.8, ResMLP-12 and -24 76.6 and 79.4; gMLP-B
    # 81.6, Mixer-B 76.4.
    Statement(
        "gMLP matches the Transformer on images, Table 2", "sgu", "bert", ("cifar10",), KEEPS_UP
    ),
    Statement("gMLP beats the Mixer on images, Table 2", "sgu", "mixer", ("cifar10",)),
    Statement("gMLP beats ResMLP on images, Table 2", "sgu", "resmlp", ("cifar10",)),
    Statement("FNet has 92 % of BERT's accuracy, 2105.03824", "fnet", "bert", _ACCURACIES, 0.92),
    Statement(
        "FNet is behind BERT, 2105.03824", "bert", "fnet", (*_ACCURACIES, "listops", "pixels")
    ),
    Statement(
        "FNet beats the Transformer on bytes, 2105.03824 (recalled)", "fnet", "bert", ("bytes",)
    ),
    Statement(
        "the random Synthesizer beats dynamic convolution, 2005.00743",
        "random",
        "dynamic",
        ("mlm",),
    ),
    Statement("learned logits beat fixed ones, 2005.00743", "random", "fixed_random", ("mlm",)),
    Statement("random logits help attention, 2005.00743", "random_vanilla", "bert", ("mlm",)),
    Statement("random logits alone are behind attention, 2005.00743", "bert", "random", ("mlm",)),
    Statement(
        "convolutions keep up on sentences, 2105.03322",
        "lightweight",
        "bert_t5",
        ("sst2", "imdb"),
        KEEPS_UP,
    ),
    Statement("convolutions fall behind on pairs, 2105.03322", "bert_t5", "lightweight", ("mnli",)),
)
# (source, faster, slower): time per token.
FASTER = (
    ("FNet is faster than BERT, 2105.03824", "fnet", "bert"),
    ("the random Synthesizer is faster than dynamic convolution, 2005.00743", "random", "dynamic"),
)
# (source, row): time grows roughly linearly with the number of tokens.
GROWS = (
    ("external attention costs O(n), 2105.02358", "external"),
    ("convolutions cost O(n), 2105.03322", "lightweight"),
    ("FNet costs O(n log n), 2105.03824", "fnet"),
)
