"""Training recipes that several config files share: one function a recipe, applied to a config."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from gmlp_flax import config as gmlp_config
from gmlp_flax import sweep
from gmlp_flax.models.sizes import PUBLISHED

IMAGE_MODELS = tuple(name for name, model in PUBLISHED.items() if model.pool)

# Pixels of ImageNet, for the models whose published weights were trained so; gMLP and Mixer take 0.5 for all.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# For CPUs: 64 patches, 0.51 to 0.54 M parameters beside stem and head, whatever mixes the tokens.
SMALL_IMAGE_MODELS = {
    "gmlp": dict(layers=6, d_ffn=576),
    "mixer": dict(block="mixer", layers=6, d_ffn=384, d_spatial=96),
    "vit": dict(block="transformer", positions="absolute", layers=5, d_ffn=352, heads=3, pool="cls"),
    "resmlp": dict(block="resmlp", layers=6, d_ffn=416),
    "feed_forward": dict(block="feed_forward", positions="absolute", layers=6, d_ffn=352, d_spatial=128, pool="cls"),
}


# What the paper finetunes its language models on.
FINETUNED = {
    "sst2": "configs/finetune_glue.py:sst2",
    "mnli": "configs/finetune_glue.py:mnli",
    "squad_v1.1": "configs/finetune_squad.py:v1.1",
    "squad_v2.0": "configs/finetune_squad.py:v2.0",
}


def image_model(config: ConfigDict, name: str) -> None:
    """Sets a published image model, by its name in `scripts/sizes.py`: encoder, pooling, picture and patch size."""
    published = PUBLISHED[name]
    config.model.update(dataclasses.asdict(published.spec))
    config.model.update(
        pool=published.pool, pre_logits=published.pre_logits, image_size=published.image_size,
        patch_size=published.patch_size,
    )
    if name.startswith(("deit", "resmlp", "ff")):
        config.data.update(mean=IMAGENET_MEAN, std=IMAGENET_STD)


def small_image_model(config: ConfigDict, name: str, image_size: int) -> None:
    """Sets a model of SMALL_IMAGE_MODELS for square pictures, of 8 x 8 patches."""
    side = (image_size, image_size)
    config.model.update(d_model=96, spatial="dense", image_size=side, patch_size=(image_size // 8, image_size // 8))
    config.model.update(SMALL_IMAGE_MODELS[name])


def gmlp_imagenet(config: ConfigDict) -> None:
    """The paper's augmentation and optimizer on ImageNet (appendix A.1, recalled): all but batch, steps and warmup."""
    config.task = "image_classification"
    config.augment.update(auto="autoaugment", mixup=0.8, cutmix=1.0, switch=0.5)
    config.optimizer.update(
        learning_rate=1e-3, schedule="cosine", b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.05, clip=1.0,
        label_smoothing=0.1,
    )


def deit_imagenet(config: ConfigDict) -> None:
    """DeiT's, from its repository's defaults, for the models that were published with it. Its schedule ends at 1e-5
    and starts at 1e-6, where ours does at 0."""
    gmlp_imagenet(config)
    config.augment.update(
        auto="randaugment", randaugment_layers=2, randaugment_magnitude=9.0, randaugment_std=0.5, erasing=0.25,
        repeats=3,
    )
    config.optimizer.update(eps=1e-8, clip=0.0, ema=0.99996)
    config.model.update(survival=0.9, survival_schedule="linear")


def small_images(arg: str, *, image_size: int, examples: int, heldout_share: float, steps: int) -> ConfigDict:
    """The ImageNet recipe on a set of small square pictures, as configs/cifar10.py documents its argument.

    Args:
        arg: MODEL or MODEL,scale=SCALE.
        image_size: side of the pictures, a multiple of 8.
        examples: of an epoch, for the length of `scale=gpu`.
        heldout_share: of the data, where no held-out data is given.
        steps: of `scale=small`, a tenth of them warmup.

    Raises:
        ConfigError: there is no such model or scale.
    """
    name, scale = gmlp_config.arguments(arg or "gmlp", tuple(SMALL_IMAGE_MODELS), scale=("small", "gpu"))
    config = gmlp_config.default()
    config.data.update(train="", heldout_share=heldout_share)  # train is to be given
    small_image_model(config, name, image_size)
    gmlp_imagenet(config)
    config.batch_size, config.steps, config.optimizer.warmup = 128, steps, steps // 10
    if scale == "gpu":
        wide = {key: 3 * config.model[key] for key in ("d_model", "d_ffn", "d_spatial")}
        config.model.update(layers=2 * config.model.layers, dtype="bfloat16", survival=0.95, **wide)
        config.batch_size, config.steps, config.optimizer.warmup = 512, 200 * examples // 512, 2000
    config.eval.every = config.checkpoint.every = 1000
    return config


def published(row: str, scale: str) -> str:
    """The config, FILE:ARGUMENT, of a published model in its paper's setting at a scale, "paper", "gpu" or "cpu".

    Of language models that is the full setting for Table 5's and the ablation's for all others; of image models
    ImageNet, or, smaller, CIFAR-10, whose gMLP has one size.

    Args:
        row: a model by its name in `sizes.PUBLISHED`; of the ablation's also with `longer`.
        scale: of the setting.

    Raises:
        ConfigError: there is no such scale.
    """
    model = PUBLISHED[row.partition(",")[0]]
    if model.pool:
        file, row = ("imagenet", row) if scale == "paper" else ("cifar10", row.partition("_")[0])
    else:
        file = "c4_bert" if model.source == "Table 5" else "c4_ablation"
    return f"configs/{file}.py:{row}{_scale(scale)}"


def longer(row: str, times: int) -> str:
    """A row of the ablation, trained on 2, 4 or 8 times as much."""
    return f"{row},data={times}"


def _scale(scale: str) -> str:
    scales = {"cpu": ",scale=small", "gpu": ",scale=gpu", "paper": ""}
    if scale not in scales:
        raise gmlp_config.ConfigError(f"the sweep's argument is {scale!r}: expected one of {', '.join(scales)}")
    return scales[scale]


def finetuning(task: str, scale: str) -> str:
    """The config, FILE:ARGUMENT, that finetunes a language model pretrained at a scale on a task of FINETUNED.

    Raises:
        ConfigError: there is no such scale.
    """
    return FINETUNED[task] + _scale(scale)


def by_depth(rows: Sequence[str], deepest: Sequence[str], scale: str) -> sweep.Points:
    """A sweep of language models with three seeds each; at "cpu" with two. The deepest are for scale "paper" alone."""
    configs = [published(row, scale) for row in (*rows, *(deepest if scale == "paper" else ()))]
    return sweep.product({"config": configs, "seed": [0, 1] if scale == "cpu" else [0, 1, 2]})


def small_language(config: ConfigDict, scale: str, rate: float, tokens: int, shape: Mapping[str, float]) -> None:
    """Shrinks a language model to what 2 CPU cores train in minutes (scale "small") or a GPU in about 10 (scale "gpu").

    Args:
        config: the paper's.
        scale: "small" or "gpu", which is twice as deep and wide, in bfloat16.
        rate: peak learning rate at "small".
        tokens: a sequence has.
        shape: of config.model at "small".
    """
    config.data.train = ""  # to be given
    config.model.update({"d_model": 128, "vocab_size": 2000, "length": tokens, **shape})
    config.masking.max_predictions = math.ceil(config.masking.rate * tokens)
    config.batch_size, config.steps = 16 * 128 // tokens, 900
    config.optimizer.update(learning_rate=rate, warmup=100, clip=1.0)
    config.data.heldout_share = 0.02
    config.eval.batch_size, config.eval.examples = 64 * 128 // tokens, 2048 * 128 // tokens
    config.eval.every = config.checkpoint.every = 150
    if scale == "gpu":
        wide = {key: 2 * config.model[key] for key in ("layers", "d_model", "d_ffn", "d_spatial")}
        config.model.update(dtype="bfloat16", **wide)
        config.batch_size, config.steps = 256 * 128 // tokens, 10_000
        config.optimizer.update(learning_rate=1e-3, warmup=500)
        config.eval.every = config.checkpoint.every = 2500
