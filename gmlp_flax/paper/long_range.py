"""Long Range Arena (2011.04006): a classifier of long inputs for every block, at the sizes of its
published configs.

Settings are those of google-research/long-range-arena, `SETTINGS` says of which file. A block that
is not there has as many parameters per layer as the Transformer of the same task, its d_ffn being
fitted, or more if those that depend on the number of tokens leave less than half of the
Transformer's d_ffn.
"""

from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax import config as gmlp_config
from gmlp_flax.models import blocks


class Setting(NamedTuple):
    """A Transformer and its training.

    Attributes:
        layers, d_model, heads, d_ffn: of the Transformer, whose attention has no biases.
        batch_size, steps, warmup: of its training; `rate` is the peak.
        decay: weight decay.
        dropout, attention_dropout: rates.
        d_qkv: width of its queries, keys and values; 0 for d_model.
    """

    layers: int
    d_model: int
    heads: int
    d_ffn: int
    batch_size: int
    steps: int
    rate: float
    warmup: int
    decay: float = 0.1
    dropout: float = 0.1
    attention_dropout: float = 0.1
    d_qkv: int = 0


# Their rate is 0.05 / sqrt(step) once the warmup is over, so its peak is 0.05 / sqrt(warmup).
_LISTOPS = 0.05 / 1000**0.5
_BYTES = 0.05 / 8000**0.5
# Steps per epoch of 45,000 images of CIFAR-10, and of 160,000 of Pathfinder; each is trained for
# 200 epochs.
_CIFAR10 = 45_000 // 256
_PATHFINDER = 160_000 // 512
SETTINGS = {
    # listops/configs/base_listops_config.py
    "listops": Setting(4, 512, 8, 1024, 32, 5000, _LISTOPS, 1000),
    # text_classification/configs/base_tc_config.py
    "text": Setting(4, 256, 4, 1024, 32, 20_000, _BYTES, 8000),
    # matching/configs/base_match_config.py
    "retrieval": Setting(4, 128, 4, 512, 32, 5000, _BYTES, 8000),
    # image/configs/cifar10/transformer_base.py, and base_cifar10_config.py for the training
    "image": Setting(
        1,
        128,
        8,
        128,
        256,
        200 * _CIFAR10,
        5e-4,
        _CIFAR10,
        0.0,
        0.3,
        attention_dropout=0.2,
        d_qkv=64,
    ),
    # image/configs/pathfinder32/transformer_base.py
    "pathfinder": Setting(
        1, 128, 4, 128, 512, 200 * _PATHFINDER, 1e-3, _PATHFINDER, 0.0, dropout=0.2, d_qkv=64
    ),
}

TINY_ATTENTION = 64
RANK = 8
MEMORY = 64
KERNEL = 31
# The argument of the configs: a block's name, or amlp.
MODELS = ("gmlp", "amlp", "transformer", "mixer", "resmlp", "feed_forward", "fnet", "fnet_hybrid")
MODELS += ("synthesizer", "external_attention", "convolution")
POOLS = {"convolution": "mean"}  # [CLS] would see the beginning of the input alone


def _rounded(width: float, least: int) -> int:
    return max(8 * round(width / 8), least)


def _options(name: str, of: Setting, n: int) -> dict[str, Any]:
    """The options of a model for n tokens whose layers have as many parameters as the
    Transformer's."""
    d = of.d_model
    half = of.d_ffn // 2
    attention = 4 * d * (of.d_qkv or d)
    budget = attention + 2 * d * of.d_ffn
    # of attention: its size, or the layers that have it
    tiny = min(TINY_ATTENTION, d)
    last = min(2, of.layers)
    # half of the parameters across tokens, in 16 units or more
    across = _rounded(budget / 4 / n, 16)
    heads = {"heads": of.heads}
    absolute = {"positions": "absolute"}
    memory = {"memory": MEMORY}
    queries = heads | absolute | {"d_qkv": of.d_qkv}
    low_rank = {"synthesizer": "factorized_random", "rank": RANK}
    # Name -> options; parameters of a layer beside those of d_ffn, and those for each unit of it;
    # the least d_ffn.
    rows: dict[str, tuple[dict[str, Any], float, float, int]] = {
        "gmlp": ({}, 0, 1.5 * d, d),
        "amlp": ({"d_attn": tiny}, 3 * d * tiny, 1.5 * d + tiny / 2, d),
        "transformer": (queries | {"attention_bias": False}, attention, 2 * d, 8),
        "mixer": ({"d_spatial": across}, 2 * n * across, 2 * d, half),
        "resmlp": ({}, n**2, 2 * d, half),
        "feed_forward": ({"d_spatial": across}, 2 * n * across, 2 * d, half),
        "fnet": (absolute, 0, 2 * d, 8),
        "fnet_hybrid": (
            queries | {"attention_layers": last},
            attention * last / of.layers,
            2 * d,
            8,
        ),
        "synthesizer": (heads | low_rank, 2 * d**2 + 2 * of.heads * n * RANK, 2 * d, half),
        "external_attention": (
            heads | absolute | memory,
            2 * d**2 + 2 * d // of.heads * MEMORY,
            2 * d,
            8,
        ),
        "convolution": (
            heads | absolute | {"kernel_widths": (min(KERNEL, n),)},
            3 * d**2,
            2 * d,
            8,
        ),
    }
    options, fixed, per_unit, least = rows[name]
    return options | {"d_ffn": _rounded((budget - fixed) / per_unit, least)}


def _classifier(name: str, task: str, of: Setting, n: int) -> ConfigDict:
    """A config of a block for n tokens, with its training; the data are to be given."""
    config = gmlp_config.default(task=task, block="gmlp" if name == "amlp" else name)
    options = {"layers": of.layers, "d_model": of.d_model, "dropout": of.dropout} | _options(
        name, of, n
    )
    if "attention_dropout" in config.model:
        options["attention_dropout"] = of.attention_dropout
    config.model.update(options)
    config.data.train = ""
    config.batch_size = of.batch_size
    config.steps = of.steps
    # listops/train.py: Adam with decoupled decay of all parameters; no clipping.
    config.optimizer.update(
        learning_rate=of.rate, warmup=of.warmup, weight_decay=of.decay, decay_all=True
    )
    config.optimizer.update(b2=0.98, eps=1e-9, clip=0.0, schedule="rsqrt")
    config.eval.every = config.checkpoint.every = max(1, of.steps // 10)
    return config


def text_classifier(
    name: str, task: str, of: Setting, *, length: int, tokenizer: str, vocab_size: int
) -> ConfigDict:
    """A config of a block of MODELS for a task of `glue.task` on texts of `length` tokens, [CLS]
    and [SEP] included."""
    config = _classifier(name, "text_classification", of, length)
    mixes = blocks.find(config.model.block).mixes_at_start
    config.glue.task, config.data.tokenizer = task, tokenizer
    config.model.update(
        length=length, vocab_size=vocab_size, mask_padding=True, scale_embeddings=mixes
    )
    config.model.pool = POOLS.get(name, "cls")
    return config


def pixel_classifier(name: str, of: Setting, *, side: int, pool: str) -> ConfigDict:
    """A config of a block of MODELS for grey images of `side` x `side` pixels, each a token, row by
    row."""
    pool = POOLS.get(name, pool)
    config = _classifier(name, "image_classification", of, side * side + (pool == "cls"))
    config.model.update(
        image_size=(side, side), patch_size=(1, 1), channels=1, stem="table", pool=pool
    )
    config.data.update(min_scale=1.0, flip=False, eval_crop=1.0)
    config.optimizer.schedule = "cosine"
    return config


def small(config: ConfigDict, *, batch_size: int, steps: int = 200) -> ConfigDict:
    """Training of a few minutes on 2 CPU cores in place of the published one; the head reads the
    mean of the tokens."""
    changed = {"pool": "mean", "dropout": 0.0, "attention_dropout": 0.0, "attention_bias": True}
    config.model.update({key: value for key, value in changed.items() if key in config.model})
    config.batch_size = batch_size
    config.steps = steps
    config.optimizer.update(
        learning_rate=2e-3,
        schedule="cosine",
        warmup=steps // 10,
        weight_decay=0.01,
        b2=0.999,
        eps=1e-6,
        clip=1.0,
    )
    config.optimizer.decay_all = False
    config.eval.batch_size, config.eval.every = 4 * batch_size, max(1, steps // 2)
    config.checkpoint.every = config.eval.every
    return config
