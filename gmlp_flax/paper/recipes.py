"""Training recipes that several config files share: one function per recipe, applied to a
config."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax import config as gmlp_config
from gmlp_flax.models import blocks
from gmlp_flax.models.image import IMAGENET_MEAN, IMAGENET_STD
from gmlp_flax.paper.published import MAIN_SETTING, PUBLISHED

IMAGE_MODELS = tuple(name for name, model in PUBLISHED.items() if model.pool)

# For CPUs: 64 patches, and 0.525 M parameters in the encoder, up to 2 %, in 5 or 6 layers. For a
# GPU twice the depth, three times the width, and 9.0 M parameters, up to 1 %. d_ffn: of the small
# model and of the wide one.
_FNET = dict(positions="absolute", layers=5)
_SYNTHESIZER = dict(block="synthesizer", layers=5, heads=3)
_CONVOLUTION = dict(block="convolution", layers=5, heads=3)
SMALL_IMAGE_MODELS: dict[str, dict[str, Any]] = {
    "gmlp": dict(layers=6, d_ffn=(576, 1712), spatial="dense"),
    "mixer": dict(block="mixer", layers=6, d_ffn=(384, 1232), d_spatial=96),
    "vit": dict(
        block="transformer", layers=5, d_ffn=(352, 976), heads=3, positions="absolute", pool="cls"
    ),
    "resmlp": dict(block="resmlp", layers=6, d_ffn=(432, 1296)),
    "feed_forward": dict(
        block="feed_forward",
        layers=6,
        d_ffn=(360, 1216),
        d_spatial=128,
        positions="absolute",
        pool="cls",
    ),
    "amlp": dict(layers=5, d_ffn=(560, 1920), spatial="dense", d_attn=32),
    "fnet": dict(block="fnet", d_ffn=(544, 1552), **_FNET),
    "hybrid": dict(
        block="fnet_hybrid",
        norm="pre",
        norm_eps=1e-6,
        d_ffn=(504, 1440),
        heads=3,
        attention_layers=1,
        **_FNET,
    ),
    "random": dict(d_ffn=(384, 1248), synthesizer="random", **_SYNTHESIZER),
    "fixed_random": dict(d_ffn=(384, 1248), synthesizer="fixed_random", **_SYNTHESIZER),
    "factorized": dict(d_ffn=(432, 1264), synthesizer="factorized_random", **_SYNTHESIZER),
    "dense": dict(d_ffn=(360, 1088), synthesizer="dense", **_SYNTHESIZER),
    "factorized_dense": dict(d_ffn=(392, 1120), synthesizer="factorized_dense", **_SYNTHESIZER),
    "random_vanilla": dict(d_ffn=(288, 960), synthesizer="random+attention", **_SYNTHESIZER),
    "external": dict(block="external_attention", positions="absolute", layers=5, d_ffn=(384, 1200)),
    "lightweight": dict(d_ffn=(400, 1120), **_CONVOLUTION),
    "dynamic": dict(d_ffn=(384, 1120), convolution="dynamic", **_CONVOLUTION),
    "growing": dict(d_ffn=(400, 1120), kernel_widths=(4, 4, 7, 15, 31), **_CONVOLUTION),
}
# What else belongs to the depth of the wide models.
_WIDE: dict[str, dict[str, Any]] = {
    "hybrid": dict(attention_layers=2),
    "growing": dict(kernel_widths=(4, 4, 4, 4, 7, 7, 15, 15, 31, 31)),
}

# What each scale of a reproduction adds to a config file's argument.
SCALES = {"cpu": ",scale=small", "gpu": ",scale=gpu", "paper": ""}


def image_model(name: str) -> ConfigDict:
    """A config of a published image model, by its name in `gmlp sizes`: encoder, pooling, image and
    patch size."""
    published = PUBLISHED[name]
    model = blocks.settings(published.spec)
    config = gmlp_config.default(task="image_classification", block=model["block"])
    config.model.update(model | dict(published.around))
    if name.startswith(("deit", "resmlp", "ff")):
        config.data.update(mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return config


def language_model(name: str) -> ConfigDict:
    """A config of a published language model, by its name in `gmlp sizes`."""
    published = PUBLISHED[name]
    spec = published.spec
    model = blocks.settings(published.spec)
    config = gmlp_config.default(block=model["block"])
    config.model.update(
        **model, length=spec.length, scale_embeddings=spec.block.mixes_at_start, **published.around
    )
    return config


def gmlp_imagenet(config: ConfigDict) -> None:
    """The paper's augmentation and optimizer on ImageNet (appendix A.1, recalled): all but batch,
    steps and warmup."""
    config.augment.update(auto="autoaugment", mixup=0.8, cutmix=1.0, switch=0.5)
    config.optimizer.update(learning_rate=1e-3, schedule="cosine", b1=0.9, b2=0.999, eps=1e-6)
    config.optimizer.update(weight_decay=0.05, clip=1.0, label_smoothing=0.1)


def deit_imagenet(config: ConfigDict) -> None:
    """DeiT's recipe, from the defaults of its repository, for the models that were published with
    it. Its schedule starts at 1e-6 and ends at 1e-5; ours starts at peak / warmup and ends near
    0."""
    gmlp_imagenet(config)
    config.augment.update(auto="randaugment", erasing=0.25, repeats=3)
    config.augment.update(randaugment_layers=2, randaugment_magnitude=9.0, randaugment_std=0.5)
    config.optimizer.update(eps=1e-8, clip=0.0, ema=0.99996)
    config.model.update(survival=0.9, survival_schedule="linear")


def small_images(
    arg: str, *, image_size: int, examples: int, heldout_share: float, steps: int
) -> ConfigDict:
    """The ImageNet recipe on a set of small square images; the config cifar10 documents the
    argument.

    Args:
        arg: MODEL or MODEL,scale=SCALE.
        image_size: side of the images in pixels, a multiple of 8.
        examples: in an epoch, which sets the length of `scale=gpu`.
        heldout_share: share of the data that is held out if no held-out data is given.
        steps: for `scale=small`; a tenth of them are warmup.

    Raises:
        ConfigError: there is no such model or scale.
    """
    name, scale = gmlp_config.arguments(
        arg or "gmlp", tuple(SMALL_IMAGE_MODELS), scale=("small", "gpu")
    )
    model = SMALL_IMAGE_MODELS[name]
    patch = (image_size // 8, image_size // 8)
    small, wide = model["d_ffn"]
    config = gmlp_config.default(task="image_classification", block=model.get("block", "gmlp"))
    config.model.update(
        model
        | {"d_model": 96, "d_ffn": small, "image_size": (image_size,) * 2, "patch_size": patch}
    )
    config.data.update(train="", heldout_share=heldout_share)  # train is to be given
    gmlp_imagenet(config)
    config.batch_size, config.steps, config.optimizer.warmup = 128, steps, steps // 10
    if scale == "gpu":
        widths = {
            key: 3 * config.model[key] for key in ("d_model", "d_spatial") if key in config.model
        }
        depth = {"layers": 2 * config.model.layers, **_WIDE.get(name, {})}
        config.model.update({"d_ffn": wide, "dtype": "bfloat16", "survival": 0.95} | widths | depth)
        config.batch_size, config.steps, config.optimizer.warmup = 512, 200 * examples // 512, 2000
    config.eval.every = config.checkpoint.every = 1000
    return config


def published(row: str, scale: str) -> str:
    """The config, FILE:ARGUMENT, of a published model at scale "cpu", "gpu" or "paper".

    Language models take the main setting if their source is in `MAIN_SETTING`, and the ablation's
    setting otherwise. Image models take ImageNet or, at a smaller scale, CIFAR-10, for which each
    family has one size.

    Args:
        row: a name in `PUBLISHED`; behind one of the ablation may stand ",data=2", 4 or 8 for so
            many times the data.
        scale: a key of SCALES.
    """
    model = PUBLISHED[row.partition(",")[0]]
    if model.pool:
        file, row = ("imagenet", row) if scale == "paper" else ("cifar10", row.partition("_")[0])
    else:
        file = "c4_bert" if model.source in MAIN_SETTING else "c4_ablation"
    return f"{file}:{row}{SCALES[scale]}"


class Setting(NamedTuple):
    """How a language model trains on 2 CPU cores: what configs/sweeps/table3_rates.py searches.

    Attributes:
        rate: peak learning rate.
        rates: lines of config.optimizer.lr_multipliers.
        norm: whether the embedding has BERT's norm.
    """

    rate: float
    rates: tuple[str, ...] = ()
    norm: bool = False


def small_language(
    config: ConfigDict,
    scale: str,
    setting: Setting,
    tokens: int,
    shape: Mapping[str, Any],
    wide: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Shrinks a language model so that it trains in minutes on 2 CPU cores ("small") or on a GPU
    ("gpu").

    Args:
        config: of the paper.
        scale: "small", or "gpu", which is twice as deep and wide, in bfloat16.
        setting: at "small"; at "gpu" its rate is replaced.
        tokens: in a sequence.
        shape: keys of config.model at "small", and their values.
        wide: those at "gpu" that are not "small"'s, or twice as much for depth and widths.
    """
    config.data.train = ""  # must be given
    config.model.update(
        {
            "d_model": 128,
            "vocab_size": 2000,
            "length": tokens,
            "embedding_norm": setting.norm,
            **shape,
        }
    )
    config.masking.max_predictions = math.ceil(config.masking.rate * tokens)
    config.batch_size = 16 * 128 // tokens
    config.steps = 900
    config.optimizer.update(
        learning_rate=setting.rate, lr_multipliers=setting.rates, warmup=100, clip=1.0
    )
    config.data.heldout_share = 0.02
    config.eval.batch_size, config.eval.examples = 64 * 128 // tokens, 2048 * 128 // tokens
    config.eval.every = config.checkpoint.every = 150
    if scale == "gpu":
        widths = ("layers", "d_model", "d_ffn")  # a d_spatial belongs to n
        twice = {key: 2 * config.model[key] for key in widths if key in config.model}
        config.model.update({"dtype": "bfloat16", **twice, **wide})
        config.batch_size = 256 * 128 // tokens
        config.steps = 10_000
        config.optimizer.update(learning_rate=4e-3, warmup=500)
        config.eval.every = config.checkpoint.every = 2500
