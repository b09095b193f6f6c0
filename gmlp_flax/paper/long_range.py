"""Long Range Arena (2011.04006): a classifier of long inputs for every block, at the sizes of its
published configs.

Settings are those of google-research/long-range-arena; `SETTINGS` names the files. A block that is
not there gets a d_ffn with which it has as many parameters per layer as the Transformer of the same
task. It has more if the parameters that depend on the number of tokens leave less than half of the
Transformer's d_ffn, and long_conv has on images, whose Transformer has narrow attention.
"""

from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax import config as gmlp_config
from gmlp_flax.models import blocks


class Setting(NamedTuple):
    """A Transformer and its training.

    Attributes:
        layers, d_model, heads, d_ffn: of the Transformer, whose attention has no biases.
        batch_size, steps, warmup: of its training; `rate` is the peak learning rate.
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


# Their rate is 0.05 / sqrt(step) after the warmup, so its peak is 0.05 / sqrt(warmup).
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
STATE = 16  # of a state space model, which is as wide as the residual stream
FILTER = 7
FILTER_WIDTH = 64  # at most, of the network that computes the filters of a long convolution
# The argument of the configs: a block's name, amlp, or depthwise, a gMLP with a convolution.
MODELS = ("gmlp", "amlp", "transformer", "mixer", "resmlp", "feed_forward", "fnet", "fnet_hybrid")
MODELS += ("synthesizer", "external_attention", "convolution", "bigs", "delta", "hydra")
MODELS += ("depthwise", "long_conv")
# Blocks of models that are named otherwise.
BLOCKS = {"amlp": "gmlp", "depthwise": "gmlp"}
# [CLS] would see only the beginning of the input
POOLS = {"convolution": "mean", "depthwise": "mean"}


def _rounded(width: float, least: int) -> int:
    return max(8 * round(width / 8), least)


class _Layer(NamedTuple):
    """The layer of a model.

    Attributes:
        options: of the model.
        fixed: parameters of a layer that do not depend on d_ffn.
        per_unit: parameters of a layer for each unit of d_ffn.
        least: the smallest d_ffn.
    """

    options: dict[str, Any]
    fixed: float
    per_unit: float
    least: int


def _attention_parameters(setting: Setting) -> int:
    """The parameters of attention in a layer of the Transformer."""
    return 4 * setting.d_model * (setting.d_qkv or setting.d_model)


def _budget(setting: Setting) -> int:
    """The parameters of a layer of the Transformer."""
    return _attention_parameters(setting) + 2 * setting.d_model * setting.d_ffn


def _layer(name: str, setting: Setting, n: int) -> _Layer:
    """The layer of a model for n tokens, next to the Transformer of a setting."""
    d = setting.d_model
    half = setting.d_ffn // 2
    if name == "gmlp":
        return _Layer({}, 0, 1.5 * d, d)
    if name == "amlp":
        size = min(TINY_ATTENTION, d)
        return _Layer({"d_attn": size}, 3 * d * size, 1.5 * d + size / 2, d)
    if name == "depthwise":
        width = min(KERNEL, n)
        options = {"spatial": "depthwise", "gate_kernel": width}
        return _Layer(options, 0, 1.5 * d + width / 2, d)
    if name == "long_conv":
        width = min(FILTER_WIDTH, d // 4)
        filters = 2 * (2 * width**2 + width * (d + 9))  # their biases and first layers are small
        short = 3 * d * 4
        return _Layer({"filter_width": width}, 4 * d**2 + short + filters, 2 * d, 8)
    if name in ("mixer", "feed_forward"):
        # half of the parameters across tokens, in at least 16 units
        units = _rounded(_budget(setting) / 4 / n, 16)
        return _Layer({"d_spatial": units}, 2 * n * units, 2 * d, half)
    if name == "resmlp":
        return _Layer({}, n**2, 2 * d, half)
    positions = {"positions": "absolute"}
    if name == "fnet":
        return _Layer(positions, 0, 2 * d, 8)
    heads = {"heads": setting.heads}
    if name == "synthesizer":
        options = heads | {"synthesizer": "factorized_random", "rank": RANK}
        logits = 2 * setting.heads * n * RANK
        return _Layer(options, 2 * d**2 + logits, 2 * d, half)
    if name == "external_attention":
        memories = 2 * d // setting.heads * MEMORY
        options = heads | positions | {"memory": MEMORY}
        return _Layer(options, 2 * d**2 + memories, 2 * d, 8)
    if name == "convolution":
        options = heads | positions | {"kernel_widths": (min(KERNEL, n),)}
        return _Layer(options, 3 * d**2, 2 * d, 8)
    if name == "bigs":
        return _Layer({}, 4 * d**2, 3 * d, half)
    if name == "delta":
        share = (setting.d_qkv or d) / d
        options = heads | {"expand_k": 0.75 * share, "expand_v": 1.5 * share}
        projections = 6 * share * d**2
        of_directions = 2 * (4 * 3 * share * d + 2 * setting.heads * d)
        return _Layer(options, projections + of_directions, 2 * d, 8)
    if name == "hydra":  # which knows the order of tokens
        options = heads | {"expand": 1, "d_state": STATE}
        filters = (d + 4 * STATE) * (FILTER + 1)
        states = 4 * d * STATE + 3 * d * setting.heads
        return _Layer(options, 3 * d**2 + filters + states, 2 * d, 8)
    attention = _attention_parameters(setting)
    options = heads | positions | {"d_qkv": setting.d_qkv}
    if name == "transformer":
        return _Layer(options | {"attention_bias": False}, attention, 2 * d, 8)
    if name == "fnet_hybrid":
        last = min(2, setting.layers)  # the layers that have attention
        options |= {"attention_layers": last}
        return _Layer(options, attention * last / setting.layers, 2 * d, 8)
    raise KeyError(name)


def _options(name: str, setting: Setting, n: int) -> dict[str, Any]:
    """The options of a model for n tokens whose layers have as many parameters as the
    Transformer's."""
    layer = _layer(name, setting, n)
    d_ffn = (_budget(setting) - layer.fixed) / layer.per_unit
    return layer.options | {"d_ffn": _rounded(d_ffn, layer.least)}


def _classifier(name: str, task: str, setting: Setting, n: int) -> ConfigDict:
    """A config of a block for n tokens, with its training; the data are to be given."""
    config = gmlp_config.default(task=task, block=BLOCKS.get(name, name))
    config.model.update(layers=setting.layers, d_model=setting.d_model, dropout=setting.dropout)
    config.model.update(_options(name, setting, n))
    if "attention_dropout" in config.model:
        config.model.attention_dropout = setting.attention_dropout
    config.data.train = ""
    config.batch_size = setting.batch_size
    config.steps = setting.steps
    # listops/train.py: Adam with decoupled decay of all parameters; no clipping.
    config.optimizer.update(
        learning_rate=setting.rate,
        warmup=setting.warmup,
        weight_decay=setting.decay,
        decay_all=True,
    )
    config.optimizer.update(b2=0.98, eps=1e-9, clip=0.0, schedule="rsqrt")
    config.eval.every = max(1, setting.steps // 10)
    config.checkpoint.every = config.eval.every
    return config


def text_classifier(
    name: str, task: str, setting: Setting, *, length: int, tokenizer: str, vocab_size: int
) -> ConfigDict:
    """A config of a block of MODELS for a task of `glue.task` on texts of `length` tokens, [CLS]
    and [SEP] included."""
    config = _classifier(name, "text_classification", setting, length)
    config.glue.task = task
    config.data.tokenizer = tokenizer
    block = blocks.find(config.model.block)
    config.model.update(length=length, vocab_size=vocab_size, mask_padding=True)
    config.model.scale_embeddings = block.mixes_at_start
    config.model.pool = POOLS.get(name, "cls")
    return config


def pixel_classifier(name: str, setting: Setting, *, side: int, pool: str) -> ConfigDict:
    """A config of a block of MODELS for grey images of `side` x `side` pixels, each a token, row by
    row."""
    pool = POOLS.get(name, pool)
    tokens = side * side
    if pool == "cls":
        tokens += 1
    config = _classifier(name, "image_classification", setting, tokens)
    config.model.update(
        image_size=(side, side), patch_size=(1, 1), channels=1, stem="table", pool=pool
    )
    config.data.update(min_scale=1.0, flip=False, eval_crop=1.0)
    config.optimizer.schedule = "cosine"
    return config


def small(config: ConfigDict, *, batch_size: int, steps: int = 200) -> ConfigDict:
    """Replaces the published training by one of a few minutes on 2 CPU cores; the head reads the
    mean of the tokens."""
    changes = {"pool": "mean", "dropout": 0.0, "attention_dropout": 0.0, "attention_bias": True}
    for key, value in changes.items():
        if key in config.model:
            config.model[key] = value
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
    config.eval.batch_size = 4 * batch_size
    config.eval.every = max(1, steps // 2)
    config.checkpoint.every = config.eval.every
    return config
