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
from gmlp_flax.paper import custom_rows
from gmlp_flax.paper.published import MAIN_SETTING, PUBLISHED

IMAGE_MODELS = tuple(name for name, model in PUBLISHED.items() if model.pool)

# For CPUs: 64 patches, and 0.525 M parameters in the encoder, up to 2 %, in 5 or 6 layers. For a
# GPU: twice the depth, three times the width, and 9.0 M parameters, up to 1 %. d_ffn has the width
# of the small model and of the wide one.
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
    "bigs": dict(block="bigs", layers=5, d_ffn=(232, 648)),
    "delta": dict(block="delta", layers=5, d_ffn=(240, 672), heads=2),
    "hydra": dict(block="hydra", layers=5, d_ffn=(208, 648), heads=3, d_state=16),
    "depthwise": dict(layers=6, d_ffn=(536, 1664), spatial="depthwise"),
    "long_conv": dict(block="long_conv", layers=5, d_ffn=(288, 880), filter_width=32),
}
# Further options that go with the depth of the wide models.
_WIDE: dict[str, dict[str, Any]] = {
    "hybrid": dict(attention_layers=2),
    "growing": dict(kernel_widths=(4, 4, 4, 4, 7, 7, 15, 15, 31, 31)),
    "long_conv": dict(filter_width=64),
}

# Scale of a reproduction -> what it adds to a config file's argument.
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
    model = blocks.settings(spec)
    config = gmlp_config.default(block=model["block"])
    config.model.update(model)
    config.model.update(length=spec.length, scale_embeddings=spec.block.mixes_at_start)
    config.model.update(dict(published.around))
    return config


def gmlp_imagenet(config: ConfigDict) -> None:
    """The paper's augmentation and optimizer on ImageNet (appendix A.1, recalled): everything but
    batch, steps and warmup."""
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
        arg: MODEL, with ,scale=SCALE behind it; for a class of the user's, ,match=MATCH as well.
        image_size: side of the images in pixels, a multiple of 8.
        examples: in an epoch, which sets the length of `scale=gpu`.
        heldout_share: share of the data that is held out if no held-out data is given.
        steps: for `scale=small`; a tenth of them are warmup.

    Raises:
        ConfigError: there is no such model or scale.
    """
    row, scale = custom_rows.arguments(
        arg or "gmlp", tuple(SMALL_IMAGE_MODELS), scale=("small", "gpu")
    )
    if custom_rows.is_custom(row):
        transformer = small_images(
            f"vit,scale={scale}",
            image_size=image_size,
            examples=examples,
            heldout_share=heldout_share,
            steps=steps,
        )
        transformer.model.pool = "mean"  # a class token is ViT's own
        return custom_rows.in_place_of(transformer, row)
    model = SMALL_IMAGE_MODELS[row]
    small_d_ffn, wide_d_ffn = model["d_ffn"]
    patch = image_size // 8
    config = gmlp_config.default(task="image_classification", block=model.get("block", "gmlp"))
    config.model.update(model | {"d_model": 96, "d_ffn": small_d_ffn})
    config.model.update(image_size=(image_size, image_size), patch_size=(patch, patch))
    config.data.update(train="", heldout_share=heldout_share)  # train is to be given
    gmlp_imagenet(config)
    config.batch_size = 128
    config.steps = steps
    config.optimizer.warmup = steps // 10
    if scale == "gpu":
        _widen(config, wide_d_ffn)
        config.model.update(_WIDE.get(row, {}))
        config.batch_size = 512
        config.steps = 200 * examples // 512
        config.optimizer.warmup = 2000
    config.eval.every = 1000
    config.checkpoint.every = 1000
    return config


def _widen(config: ConfigDict, d_ffn: int) -> None:
    """Makes a small image model twice as deep and three times as wide, for a GPU."""
    model = config.model
    model.layers = 2 * model.layers
    model.d_ffn = d_ffn
    for key in ("d_model", "d_spatial"):
        if key in model:
            model[key] = 3 * model[key]
    model.dtype = "bfloat16"
    model.survival = 0.95


def published(row: str, scale: str) -> str:
    """The config, FILE:ARGUMENT, of a published model at scale "cpu", "gpu" or "paper".

    Language models have the main setting if their source is in `MAIN_SETTING`, and the ablation's
    setting otherwise. Image models have ImageNet or, at a smaller scale, CIFAR-10, for which each
    family has one size.

    Args:
        row: a name in `PUBLISHED`; a name of the ablation may be followed by ",data=2", 4 or 8 for
            that many times the data. Or a class, which has the ablation's setting.
        scale: a key of SCALES.
    """
    if custom_rows.is_custom(row):
        return f"c4_ablation:{row}{SCALES[scale]}"
    name, _, _ = row.partition(",")
    model = PUBLISHED[name]
    argument = row
    if not model.pool:
        file = "c4_bert" if model.source in MAIN_SETTING else "c4_ablation"
    elif scale == "paper":
        file = "imagenet"
    else:
        file = "cifar10"
        argument, _, _ = row.partition("_")
    return f"{file}:{argument}{SCALES[scale]}"


class Setting(NamedTuple):
    """How a language model trains on 2 CPU cores, as searched by configs/sweeps/table3_rates.py.

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
        config: the config of the paper.
        scale: "small", or "gpu", which is twice as deep and wide, in bfloat16.
        setting: the setting at "small"; at "gpu" its rate is replaced.
        tokens: the length of a sequence.
        shape: keys of config.model at "small", and their values.
        wide: those at "gpu" that are neither the same nor, as depth and widths, doubled.
    """
    config.data.train = ""  # must be given
    config.model.update(d_model=128, vocab_size=2000, length=tokens, embedding_norm=setting.norm)
    config.model.update(dict(shape))
    config.masking.max_predictions = math.ceil(config.masking.rate * tokens)
    config.batch_size = 16 * 128 // tokens
    config.steps = 900
    config.optimizer.update(
        learning_rate=setting.rate, lr_multipliers=setting.rates, warmup=100, clip=1.0
    )
    config.data.heldout_share = 0.02
    config.eval.batch_size = 64 * 128 // tokens
    config.eval.examples = 2048 * 128 // tokens
    config.eval.every = 150
    config.checkpoint.every = 150
    if scale == "gpu":
        for key in ("layers", "d_model", "d_ffn"):  # a d_spatial belongs to n
            if key in config.model:
                config.model[key] = 2 * config.model[key]
        config.model.dtype = "bfloat16"
        config.model.update(dict(wide))
        config.batch_size = 256 * 128 // tokens
        config.steps = 10_000
        config.optimizer.update(learning_rate=4e-3, warmup=500)
        config.eval.every = 2500
        config.checkpoint.every = 2500
