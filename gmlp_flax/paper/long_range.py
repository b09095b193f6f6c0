"""Long Range Arena (2011.04006): a classifier of long inputs for every block, at the sizes of its published configs.

Settings are those of google-research/long-range-arena, `SETTINGS` says of which file. A block that is not there has as
many parameters per layer as the Transformer of the same task, its d_ffn being fitted, or more if those that depend
on the number of tokens leave less than half of the Transformer's d_ffn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax import config as gmlp_config
from gmlp_flax.models import blocks


class Setting(NamedTuple):
    """A Transformer and its training.

    Attributes:
        layers, d_model, heads, d_ffn: of the Transformer.
        batch_size, steps, warmup: of its training; `rate` is the peak.
        decay: weight decay.
        dropout, attention_dropout: rates.
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


# Their rate is 0.05 / sqrt(step) once the warmup is over, so its peak is 0.05 / sqrt(warmup).
SETTINGS = {
    # listops/configs/base_listops_config.py
    "listops": Setting(6, 512, 8, 2048, batch_size=32, steps=5000, rate=0.05 / 1000**0.5, warmup=1000),
    # text_classification/configs/base_tc_config.py
    "text": Setting(4, 256, 4, 1024, batch_size=32, steps=20_000, rate=0.05 / 8000**0.5, warmup=8000),
    # matching/configs/base_match_config.py
    "retrieval": Setting(4, 128, 4, 512, batch_size=32, steps=5000, rate=0.05 / 8000**0.5, warmup=8000),
    # image/configs/cifar10/base_cifar10_config.py: 200 epochs of 45,000 images
    "image": Setting(
        1,
        32,
        1,
        64,
        batch_size=256,
        steps=200 * (45_000 // 256),
        rate=5e-4,
        warmup=45_000 // 256,
        decay=0.0,
        dropout=0.3,
        attention_dropout=0.2,
    ),
    # image/configs/pathfinder32/transformer_base.py: 200 epochs of 160,000 images
    "pathfinder": Setting(
        1,
        128,
        4,
        128,
        batch_size=512,
        steps=200 * (160_000 // 512),
        rate=1e-3,
        warmup=160_000 // 512,
        decay=0.0,
        dropout=0.2,
    ),
}

TINY_ATTENTION, RANK, MEMORY, KERNEL = 64, 8, 64, 31


def _rounded(width: float, least: int) -> int:
    return max(8 * round(width / 8), least)


def _gmlp(of: Setting, n: int, budget: int) -> dict[str, Any]:
    return dict(toeplitz="fft", d_ffn=_rounded(budget / (1.5 * of.d_model), of.d_model))


def _amlp(of: Setting, n: int, budget: int) -> dict[str, Any]:
    size = min(TINY_ATTENTION, of.d_model)
    width = (budget - 3 * of.d_model * size) / (1.5 * of.d_model + size / 2)
    return dict(toeplitz="fft", d_attn=size, d_ffn=_rounded(width, of.d_model))


def _transformer(of: Setting, n: int, budget: int) -> dict[str, Any]:
    return dict(heads=of.heads, positions="absolute", d_ffn=of.d_ffn)


def _over_tokens(of: Setting, n: int, budget: int) -> dict[str, Any]:
    """Half of the parameters across tokens, in 16 units or more."""
    width = _rounded(budget / 4 / n, 16)
    return dict(d_spatial=width, d_ffn=_rounded((budget - 2 * n * width) / 2 / of.d_model, of.d_ffn // 2))


def _resmlp(of: Setting, n: int, budget: int) -> dict[str, Any]:
    return dict(d_ffn=_rounded((budget - n * n) / 2 / of.d_model, of.d_ffn // 2))


def _hybrid(of: Setting, n: int, budget: int) -> dict[str, Any]:
    layers = min(2, of.layers)
    left = budget - 4 * of.d_model**2 * layers / of.layers
    return dict(attention_layers=layers, heads=of.heads, positions="absolute", d_ffn=_rounded(left / 2 / of.d_model, 8))


def _synthesizer(of: Setting, n: int, budget: int) -> dict[str, Any]:
    left = budget - 2 * of.d_model**2 - 2 * of.heads * n * RANK
    width = _rounded(left / 2 / of.d_model, of.d_ffn // 2)
    return dict(synthesizer="factorized_random", rank=RANK, heads=of.heads, d_ffn=width)


def _fourier(of: Setting, n: int, budget: int) -> dict[str, Any]:
    return dict(positions="absolute", d_ffn=_rounded(budget / 2 / of.d_model, 8))


def _external(of: Setting, n: int, budget: int) -> dict[str, Any]:
    left = budget - 2 * of.d_model**2 - 2 * of.d_model // of.heads * MEMORY
    return dict(heads=of.heads, memory=MEMORY, positions="absolute", d_ffn=_rounded(left / 2 / of.d_model, 8))


def _convolution(of: Setting, n: int, budget: int) -> dict[str, Any]:
    width = _rounded((budget - 3 * of.d_model**2) / 2 / of.d_model, 8)
    return dict(heads=of.heads, kernel_widths=(min(KERNEL, n),), positions="absolute", d_ffn=width)


# The argument of the configs -> the block, and its options from a setting, n, and the parameters of a layer.
MODELS: dict[str, tuple[str, Callable[[Setting, int, int], dict[str, Any]]]] = {
    "gmlp": ("gmlp", _gmlp),
    "amlp": ("gmlp", _amlp),
    "transformer": ("transformer", _transformer),
    "mixer": ("mixer", _over_tokens),
    "resmlp": ("resmlp", _resmlp),
    "feed_forward": ("feed_forward", _over_tokens),
    "fnet": ("fnet", _fourier),
    "fnet_hybrid": ("fnet_hybrid", _hybrid),
    "synthesizer": ("synthesizer", _synthesizer),
    "external_attention": ("external_attention", _external),
    "convolution": ("convolution", _convolution),
}
POOLS = {"convolution": "mean"}  # [CLS] would see the beginning of the input alone


def _classifier(name: str, task: str, of: Setting, n: int) -> ConfigDict:
    """A config of a block for n tokens, with its training; the data are to be given."""
    block, options = MODELS[name]
    config = gmlp_config.default(task=task, block=block)
    budget = 4 * of.d_model**2 + 2 * of.d_model * of.d_ffn
    config.model.update(layers=of.layers, d_model=of.d_model, dropout=of.dropout, **options(of, n, budget))
    if "attention_dropout" in config.model:
        config.model.attention_dropout = of.attention_dropout
    config.data.train = ""
    config.batch_size, config.steps = of.batch_size, of.steps
    # listops/train.py: Adam with decoupled decay; no clipping.
    config.optimizer.update(
        learning_rate=of.rate, warmup=of.warmup, weight_decay=of.decay, b2=0.98, eps=1e-9, clip=0.0, schedule="rsqrt"
    )
    config.eval.every = config.checkpoint.every = max(1, of.steps // 10)
    return config


def text_classifier(name: str, task: str, of: Setting, *, length: int, tokenizer: str, vocab_size: int) -> ConfigDict:
    """A config of a block of MODELS for a task of `glue.task` on texts of `length` tokens, [CLS] and [SEP] included."""
    config = _classifier(name, "text_classification", of, length)
    mixes = blocks.find(config.model.block).mixes_at_start
    config.glue.task, config.data.tokenizer = task, tokenizer
    config.model.update(length=length, vocab_size=vocab_size, mask_padding=True, scale_embeddings=mixes)
    config.model.pool = POOLS.get(name, "cls")
    return config


def pixel_classifier(name: str, of: Setting, *, side: int, pool: str) -> ConfigDict:
    """A config of a block of MODELS for grey images of `side` x `side` pixels, each a token, row by row."""
    pool = POOLS.get(name, pool)
    config = _classifier(name, "image_classification", of, side * side + (pool == "cls"))
    config.model.update(image_size=(side, side), patch_size=(1, 1), channels=1, stem="table", pool=pool)
    config.data.update(min_scale=1.0, flip=False, eval_crop=1.0)
    config.optimizer.schedule = "cosine"
    return config


def small(config: ConfigDict, *, batch_size: int, steps: int = 200) -> ConfigDict:
    """Training of a few minutes on 2 CPU cores in place of the published one; the head reads the mean of the tokens."""
    config.model.update(pool="mean", dropout=0.0)
    if "attention_dropout" in config.model:
        config.model.attention_dropout = 0.0
    config.batch_size, config.steps = batch_size, steps
    config.optimizer.update(
        learning_rate=2e-3, schedule="cosine", warmup=steps // 10, weight_decay=0.01, b2=0.999, eps=1e-6, clip=1.0
    )
    config.eval.batch_size, config.eval.every = 4 * batch_size, max(1, steps // 2)
    config.checkpoint.every = config.eval.every
    return config
