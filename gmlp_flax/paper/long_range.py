"""Long Range Arena (2011.04006): a classifier of long inputs for every block, at the sizes of its
published configs.

Settings are those of google-research/long-range-arena; `SETTINGS` names the files. A block that is
not there gets a d_ffn with which it has as many parameters per layer as the Transformer of the same
task. It has more if the parameters that depend on the number of tokens leave less than half of the
Transformer's d_ffn, and long_conv has on images, whose Transformer has narrow attention.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax import config as gmlp_config
from gmlp_flax.models import blocks
from gmlp_flax.paper import custom_rows


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
    "listops": Setting(
        layers=4,
        d_model=512,
        heads=8,
        d_ffn=1024,
        batch_size=32,
        steps=5000,
        rate=_LISTOPS,
        warmup=1000,
    ),
    # text_classification/configs/base_tc_config.py
    "text": Setting(
        layers=4,
        d_model=256,
        heads=4,
        d_ffn=1024,
        batch_size=32,
        steps=20_000,
        rate=_BYTES,
        warmup=8000,
    ),
    # matching/configs/base_match_config.py
    "retrieval": Setting(
        layers=4,
        d_model=128,
        heads=4,
        d_ffn=512,
        batch_size=32,
        steps=5000,
        rate=_BYTES,
        warmup=8000,
    ),
    # image/configs/cifar10/transformer_base.py, and base_cifar10_config.py for the training
    "image": Setting(
        layers=1,
        d_model=128,
        heads=8,
        d_ffn=128,
        batch_size=256,
        steps=200 * _CIFAR10,
        rate=5e-4,
        warmup=_CIFAR10,
        decay=0.0,
        dropout=0.3,
        attention_dropout=0.2,
        d_qkv=64,
    ),
    # image/configs/pathfinder32/transformer_base.py
    "pathfinder": Setting(
        layers=1,
        d_model=128,
        heads=4,
        d_ffn=128,
        batch_size=512,
        steps=200 * _PATHFINDER,
        rate=1e-3,
        warmup=_PATHFINDER,
        decay=0.0,
        dropout=0.2,
        d_qkv=64,
    ),
}

TINY_ATTENTION = 64
RANK = 8
MEMORY = 64
KERNEL = 31
STATE = 16  # of a state space model, which is as wide as the residual stream
FILTER = 7
FILTER_WIDTH = 64  # at most, of the network that computes the filters of a long convolution
# Blocks of models that are named otherwise.
BLOCKS = {"amlp": "gmlp", "depthwise": "gmlp"}
# [CLS] would see only the beginning of the input
POOLS = {"convolution": "mean", "depthwise": "mean"}
_ABSOLUTE = {"positions": "absolute"}


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


# The layer of each model for n tokens, next to the Transformer of a setting.


def _gmlp(setting: Setting, n: int) -> _Layer:
    d = setting.d_model
    return _Layer({}, fixed=0, per_unit=1.5 * d, least=d)


def _amlp(setting: Setting, n: int) -> _Layer:
    d = setting.d_model
    size = min(TINY_ATTENTION, d)
    return _Layer(
        {"d_attn": size},
        fixed=3 * d * size,
        per_unit=1.5 * d + size / 2,
        least=d,
    )


def _depthwise(setting: Setting, n: int) -> _Layer:
    d = setting.d_model
    width = min(KERNEL, n)
    options = {"spatial": "depthwise", "gate_kernel": width}
    return _Layer(options, fixed=0, per_unit=1.5 * d + width / 2, least=d)


def _transformer(setting: Setting, n: int) -> _Layer:
    attention = _attention_parameters(setting)
    options = _attention_options(setting)
    options["attention_bias"] = False
    return _Layer(options, attention, per_unit=2 * setting.d_model, least=8)


def _attention_options(setting: Setting) -> dict[str, Any]:
    return {"heads": setting.heads, "d_qkv": setting.d_qkv, **_ABSOLUTE}


def _spatial_mlp(setting: Setting, n: int) -> _Layer:
    """Half of the parameters across tokens, in at least 16 units."""
    units = _rounded(_budget(setting) / 4 / n, 16)
    return _Layer(
        {"d_spatial": units},
        fixed=2 * n * units,
        per_unit=2 * setting.d_model,
        least=setting.d_ffn // 2,
    )


def _resmlp(setting: Setting, n: int) -> _Layer:
    half = setting.d_ffn // 2
    return _Layer({}, fixed=n**2, per_unit=2 * setting.d_model, least=half)


def _fnet(setting: Setting, n: int) -> _Layer:
    return _Layer(dict(_ABSOLUTE), fixed=0, per_unit=2 * setting.d_model, least=8)


def _fnet_hybrid(setting: Setting, n: int) -> _Layer:
    last = min(2, setting.layers)  # the layers that have attention
    options = _attention_options(setting)
    options["attention_layers"] = last
    attention = _attention_parameters(setting)
    return _Layer(
        options,
        fixed=attention * last / setting.layers,
        per_unit=2 * setting.d_model,
        least=8,
    )


def _synthesizer(setting: Setting, n: int) -> _Layer:
    d = setting.d_model
    logits = 2 * setting.heads * n * RANK
    return _Layer(
        {"heads": setting.heads, "synthesizer": "factorized_random", "rank": RANK},
        fixed=2 * d**2 + logits,
        per_unit=2 * d,
        least=setting.d_ffn // 2,
    )


def _external_attention(setting: Setting, n: int) -> _Layer:
    d = setting.d_model
    memories = 2 * d // setting.heads * MEMORY
    return _Layer(
        {"heads": setting.heads, "memory": MEMORY, **_ABSOLUTE},
        fixed=2 * d**2 + memories,
        per_unit=2 * d,
        least=8,
    )


def _convolution(setting: Setting, n: int) -> _Layer:
    d = setting.d_model
    width = min(KERNEL, n)
    options = {"heads": setting.heads, "kernel_widths": (width,), **_ABSOLUTE}
    return _Layer(options, fixed=3 * d**2, per_unit=2 * d, least=8)


def _bigs(setting: Setting, n: int) -> _Layer:
    d = setting.d_model
    return _Layer({}, fixed=4 * d**2, per_unit=3 * d, least=setting.d_ffn // 2)


def _delta(setting: Setting, n: int) -> _Layer:
    d = setting.d_model
    share = (setting.d_qkv or d) / d
    projections = 6 * share * d**2
    convolutions = 4 * 3 * share * d
    gates = 2 * setting.heads * d
    of_directions = 2 * (convolutions + gates)
    return _Layer(
        {"heads": setting.heads, "expand_k": 0.75 * share, "expand_v": 1.5 * share},
        fixed=projections + of_directions,
        per_unit=2 * d,
        least=8,
    )


def _hydra(setting: Setting, n: int) -> _Layer:
    """It knows the order of tokens."""
    d = setting.d_model
    filters = (d + 4 * STATE) * (FILTER + 1)
    states = 4 * d * STATE + 3 * d * setting.heads
    return _Layer(
        {"heads": setting.heads, "expand": 1, "d_state": STATE},
        fixed=3 * d**2 + filters + states,
        per_unit=2 * d,
        least=8,
    )


def _long_conv(setting: Setting, n: int) -> _Layer:
    d = setting.d_model
    width = min(FILTER_WIDTH, d // 4)
    filters = 2 * (2 * width**2 + width * (d + 9))  # their biases and first layers are small
    short = 3 * d * 4
    return _Layer(
        {"filter_width": width},
        fixed=4 * d**2 + short + filters,
        per_unit=2 * d,
        least=8,
    )


# The argument of the configs: a block's name, amlp, or depthwise, a gMLP with a convolution.
_LAYERS: dict[str, Callable[[Setting, int], _Layer]] = {
    "gmlp": _gmlp,
    "amlp": _amlp,
    "transformer": _transformer,
    "mixer": _spatial_mlp,
    "resmlp": _resmlp,
    "feed_forward": _spatial_mlp,
    "fnet": _fnet,
    "fnet_hybrid": _fnet_hybrid,
    "synthesizer": _synthesizer,
    "external_attention": _external_attention,
    "convolution": _convolution,
    "bigs": _bigs,
    "delta": _delta,
    "hydra": _hydra,
    "depthwise": _depthwise,
    "long_conv": _long_conv,
}
MODELS = tuple(_LAYERS)


def _options(name: str, setting: Setting, n: int) -> dict[str, Any]:
    """The options of a model for n tokens whose layers have as many parameters as the
    Transformer's."""
    make_layer = _LAYERS[name]
    layer = make_layer(setting, n)
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
    """A config of a block of MODELS, or of a class of `custom_rows`, for a task of `glue.task` on
    texts of `length` tokens, [CLS] and [SEP] included."""
    if custom_rows.is_custom(name):
        transformer = text_classifier(
            "transformer",
            task,
            setting,
            length=length,
            tokenizer=tokenizer,
            vocab_size=vocab_size,
        )
        return custom_rows.in_place_of(transformer, name)
    config = _classifier(name, "text_classification", setting, length)
    config.glue.task = task
    config.data.tokenizer = tokenizer
    block = blocks.find(config.model.block)
    config.model.update(length=length, vocab_size=vocab_size, mask_padding=True)
    config.model.scale_embeddings = block.mixes_at_start
    config.model.pool = POOLS.get(name, "cls")
    return config


def pixel_classifier(name: str, setting: Setting, *, side: int, pool: str) -> ConfigDict:
    """A config of a block of MODELS, or of a class of `custom_rows`, for grey images of `side` x
    `side` pixels, each a token, row by row."""
    if custom_rows.is_custom(name):
        transformer = pixel_classifier("transformer", setting, side=side, pool="mean")
        return custom_rows.in_place_of(transformer, name)
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
