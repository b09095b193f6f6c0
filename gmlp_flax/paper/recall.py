"""What `gmlp reproduce recall` compares: every token mixer on multi-query associative recall
("Zoology", arXiv 2312.04927, figure 2), and the sizes of MAD's tasks (arXiv 2403.17844).

All rows of one width d have as many parameters in the encoder as the Transformer's two layers of
12 d^2, by the width of their MLPs, or more where those that depend on the number of tokens leave
the MLP less than d / 2 channels. A gMLP has twice as many layers as the Transformer, and an aMLP
one and a half times as many, as in the paper's Table 3.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax import config as gmlp_config
from gmlp_flax.config import validation
from gmlp_flax.models import blocks
from gmlp_flax.paper import alternatives, custom_rows, matching
from gmlp_flax.paper.published import LLAMA, PUBLISHED
from gmlp_flax.sweeps.points import Points

NAME = "recall"  # as `gmlp reproduce` takes it
TITLE = "Recall: multi-query associative recall (arXiv 2312.04927), accuracy (%) over the width"
NOTHING: Mapping[str, Any] = MappingProxyType({})
SOLVED = 0.99  # accuracy at which a run ends (zoology/config.py)
TRANSFORMER_LAYERS = 2
HEAD = 64  # channels of an attention head


class Row(NamedTuple):
    """A model of the comparison.

    Attributes:
        model: its name in `published.PUBLISHED`.
        options: keys of config.model that differ from the published model's, and their values.
        layers: for two layers of a Transformer.
    """

    model: str
    options: Mapping[str, Any] = NOTHING
    layers: int = TRANSFORMER_LAYERS


# As wide as the residual stream, so that a width of 16 has an MLP.
HYDRA = {"expand": 1, "d_state": 16}


def _rows() -> dict[str, Row]:
    causal = {"causal": True}
    rows = {name: Row(name) for name in alternatives.ROWS}
    for name in ("linear", "additive", "multiplicative", "sgu"):
        rows[name] = Row(name, layers=4)
    rows["sgu_dense"] = Row("sgu", {"spatial": "dense"}, layers=4)
    rows["depthwise"] = Row("depthwise", layers=4)
    rows["amlp_36"] = Row("amlp_36", layers=3)
    rows["amlp_16"] = Row("amlp_36", {"d_attn": 16}, layers=3)
    rows["amlp_128"] = Row("amlp_36", {"d_attn": 128}, layers=3)
    rows["modern_causal"] = Row("modern", LLAMA)
    rows["hydra"] = Row("hydra", HYDRA)
    rows["hydra_causal"] = Row("hydra", HYDRA | causal)
    rows["bert_causal"] = Row("bert", causal)
    rows["bert_rel_causal"] = Row("bert_rel", causal)
    for name in ("linear", "additive", "multiplicative", "sgu"):
        rows[f"{name}_causal"] = Row(name, causal, layers=4)
    rows["sgu_dense_causal"] = Row("sgu", causal | {"spatial": "dense"}, layers=4)
    rows["depthwise_causal"] = Row("depthwise", causal, layers=4)
    rows["long_conv_causal"] = Row("long_conv", causal)
    rows["amlp_causal"] = Row("amlp_36", causal, layers=3)
    rows["amlp_16_causal"] = Row("amlp_36", causal | {"d_attn": 16}, layers=3)
    rows["amlp_128_causal"] = Row("amlp_36", causal | {"d_attn": 128}, layers=3)
    rows["bigs_causal"] = Row("bigs", causal)
    rows["delta_causal"] = Row("delta", causal)
    return rows


ROWS = _rows()


@dataclasses.dataclass(frozen=True)
class Task:
    """A synthetic task at the size that its paper gives.

    Attributes:
        length, vocab_size: of an example.
        examples: to train on.
        heldout: examples held out.
        options: keys of config.synthetic.
    """

    length: int
    vocab_size: int
    examples: int = 12_800
    heldout: int = 1_280
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


PAIRS = {64: 4, 128: 8, 256: 16}  # of MQAR, by the length
LENGTHS = {"cpu": (64, 128), "paper": (64, 128, 256)}
WIDTHS = {"cpu": (16, 32, 64), "paper": (64, 128, 256, 512)}
RATES = {"cpu": (1e-3, 3e-3, 1e-2), "paper": (1e-4, 4.64e-4, 2.15e-3, 1e-2)}
MAD_WIDTH = 128
MAD_RATES = (1e-4, 5e-4, 1e-3)
MAD_DECAYS = (0.0, 0.1)
# configs/tasks of athms/mad-lab, their baselines
TASKS = {
    "mqar": Task(64, 8192, 100_000, 3_000),
    "recall": Task(128, 16),
    "fuzzy_recall": Task(128, 16, options={"motif": 3}),
    "noisy_recall": Task(128, 32, options={"noise": 0.2, "noise_tokens": 16}),
    "selective_copying": Task(256, 16, options={"copied": 16}),
    "compression": Task(32, 16),
    "memorization": Task(32, 256, examples=256),
}
# Scale cpu. At d = 32 aMLP stays near a guess for 1,000 to 3,500 steps of MQAR, and then learns it
# within 500.
CPU_VOCABULARY = 256
CPU_BATCH = 32
CPU_STEPS = 6000
CPU_WARMUP = 200
CPU_STEPS_OF_MAD = 2000


class Sizes(NamedTuple):
    """What a row's options depend on: the width d, the tokens n, and the parameters of a layer of
    the Transformer."""

    d_model: int
    length: int

    @property
    def layer(self) -> int:
        """Parameters of attention and MLP in a layer of the Transformer, without biases."""
        return 12 * self.d_model**2


def model_config(name: str, sizes: Sizes) -> ConfigDict:
    """A config of a row for sequences of synthetic tokens, with as many parameters as the
    Transformer.

    Args:
        name: in ROWS, or a class of `custom_rows`, which is causal if its blocks can be.
        sizes: d and n.
    """
    if custom_rows.is_custom(name):
        return _custom_config(name, sizes)
    row = ROWS[name]
    published = PUBLISHED[row.model].spec
    options = blocks.settings(published) | dict(row.options)
    config = gmlp_config.default(task="synthetic", block=options["block"])
    options["layers"] = row.layers
    options["d_model"] = sizes.d_model
    if "heads" in config.model:
        options["heads"] = max(1, sizes.d_model // HEAD)
    if "d_spatial" in config.model:
        options["d_spatial"] = max(16, sizes.layer // (4 * sizes.length))
    if "filter_width" in config.model:
        options["filter_width"] = min(64, sizes.d_model // 2)
    if "attention_layers" in config.model:
        options["attention_layers"] = 1
    if "kernel_widths" in config.model and len(options["kernel_widths"]) > 1:
        options["kernel_widths"] = (7, 31)
    config.model.update(options)
    config.model.length = sizes.length
    config.model.scale_embeddings = published.block.mixes_at_start
    config.model.d_ffn = matching.fitted_width(config, TRANSFORMER_LAYERS * sizes.layer)
    return config


def _custom_config(name: str, sizes: Sizes) -> ConfigDict:
    """The config of a row that is a class."""
    transformer = model_config("bert", sizes)
    config = custom_rows.in_place_of(transformer, name)
    config.model.causal = blocks.find(config.model.block).can_be_causal
    if config.model.causal:
        _require_causal(name, sizes)
    return config


@functools.cache
def _require_causal(name: str, sizes: Sizes) -> None:
    """Refuses a class that looks ahead, before any run of the comparison starts."""
    config = custom_rows.in_place_of(model_config("bert", sizes), name)
    config.model.causal = True
    validation.require_causal(config.model.block, matching.encoder_spec(config))


def mqar(name: str, length: int, d_model: int, scale: str) -> ConfigDict:
    """The config of a row on multi-query associative recall.

    Args:
        name: in ROWS, or a class.
        length: in PAIRS.
        d_model: the width.
        scale: "paper" is figure 2's setting, 64 epochs of 100,000 examples (zoology/config.py:
            AdamW with a decay of 0.1, a cosine, no warmup; its dropout of 0.1 is left out); "cpu"
            has a vocabulary of 256 and 6,000 steps of 32, with b2 = 0.95, without which attention
            often learns nothing in so few steps.
    """
    config = model_config(name, Sizes(d_model, length))
    task = TASKS["mqar"]
    config.synthetic.update(
        task="mqar",
        pairs=PAIRS[length],
        examples=task.examples,
        heldout_examples=task.heldout,
    )
    config.optimizer.update(weight_decay=0.1, learning_rate=2.15e-3)
    if scale == "cpu":
        config.model.vocab_size = CPU_VOCABULARY
        config.synthetic.heldout_examples = 1000
        _train(config, CPU_BATCH, CPU_STEPS, CPU_WARMUP)
        config.optimizer.update(learning_rate=1e-2, b2=0.95)
        return config
    config.model.vocab_size = task.vocab_size
    batch_size = 256 if length == 256 else 512
    _train(config, batch_size, steps=64 * task.examples // batch_size, warmup=0)
    config.optimizer.clip = 0.0
    return config


def mad(name: str, task_name: str, scale: str) -> ConfigDict:
    """The config of a row on a task of MAD.

    Args:
        name: in ROWS, or a class.
        task_name: in TASKS.
        scale: "paper" is the published baseline of the task (mad/configs.py): width 128, 200 epochs
            in batches of 128, AdamW with a cosine; "cpu" has 2,000 steps.
    """
    task = TASKS[task_name]
    config = model_config(name, Sizes(MAD_WIDTH, task.length))
    config.model.vocab_size = task.vocab_size
    config.synthetic.update(
        task=task_name,
        examples=task.examples,
        heldout_examples=task.heldout,
        **task.options,
    )
    steps = 200 * task.examples // 128
    warmup = 0
    if scale == "cpu":
        steps = min(steps, CPU_STEPS_OF_MAD)
        warmup = CPU_WARMUP
    _train(config, batch_size=128, steps=steps, warmup=warmup)
    config.optimizer.update(learning_rate=1e-3, weight_decay=0.0)
    return config


def _train(config: ConfigDict, batch_size: int, steps: int, warmup: int) -> None:
    """Sets the length of a training; it ends early when nothing is left to learn."""
    config.batch_size = batch_size
    config.steps = steps
    config.optimizer.warmup = warmup
    config.eval.batch_size = 512
    config.eval.every = max(1, steps // 20)
    config.eval.stop_at = SOLVED
    config.checkpoint.every = config.eval.every


# The comparison.


class Cell(NamedTuple):
    """A row at one length and one width.

    Attributes:
        row: in ROWS, or a class.
        length: n.
        width: d.
    """

    row: str
    length: int
    width: int

    def config(self, scale: str) -> str:
        """Its config, FILE:ARGUMENT."""
        return f"synthetic:{self.row},n={self.length},d={self.width},scale={scale}"


SEEDS = (0, 1, 2)
SEARCH_SEED = 100  # of the runs that choose a rate, and of their data
RATE = "optimizer.learning_rate"


def cells(
    scale: str,
    rows: Sequence[str],
    lengths: Sequence[int] = (),
    widths: Sequence[int] = (),
) -> list[Cell]:
    """Every row at every length and width: at those of the scale, if none are given."""
    listed = []
    for row in rows:
        for length in lengths or LENGTHS[scale]:
            for width in widths or WIDTHS[scale]:
                listed.append(Cell(row, length, width))
    return listed


def search_points(cell: Cell, scale: str) -> Points:
    """The runs that choose a cell's rate, on examples that no other run reads.

    At scale cpu they have the shortest length, so that a row takes half the time: each width has
    its rate, which all lengths share.
    """
    searched = cell
    if scale == "cpu":
        searched = cell._replace(length=min(LENGTHS[scale]))
    return tuple(
        {
            "config": searched.config(scale),
            "seed": SEARCH_SEED,
            "synthetic.data_seed": SEARCH_SEED,
            RATE: rate,
        }
        for rate in RATES[scale]
    )


def points(cell: Cell, scale: str, rate: float) -> Points:
    """The runs of a cell with the rate that was chosen."""
    return tuple({"config": cell.config(scale), "seed": seed, RATE: rate} for seed in SEEDS)
