"""The models of timm that are models of ours: names of their tensors, sizes, and how pixels are
seen."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gmlp_flax.models.image import IMAGENET_MEAN, IMAGENET_STD
from gmlp_flax.weights.state_dicts import (
    AFFINE,
    LINEAR,
    NORM,
    OF_ALL_EXAMPLES,
    OVER_TOKENS,
    SINGLE,
    Row,
    TensorName,
    Tensors,
)

Options = Mapping[str, Any]  # keys of a part of the config, with their values


class TimmModel(NamedTuple):
    """A model of timm.

    Attributes:
        rows: its tensors.
        model: its keys of config.model.
        data: keys of config.data: timm's preprocessing for its architecture.
    """

    rows: Sequence[Row]
    model: Options
    data: Options


# Tensors.


def _convolution(ours: np.ndarray) -> np.ndarray:
    """The kernel of a stem, [height * width * channels, d_model], as that of torch's convolution,
    [d_model, channels, height, width]; patches are square and in RGB, as all of timm's."""
    side = math.isqrt(len(ours) // 3)
    return ours.reshape(side, side, 3, -1).transpose(3, 2, 0, 1)


_PATCHES: Tensors = (TensorName(".weight", "/kernel", _convolution), TensorName(".bias", "/bias"))


def _around_blocks(stem: str, norm: Tensors) -> list[Row]:
    return [
        Row(f"{stem}.proj", "stem", _PATCHES),
        Row("norm", "encoder/norm", norm),
        Row("head", "head", LINEAR),
    ]


def _in_block(theirs: str, ours: str, tensors: Tensors) -> Row:
    return Row(f"blocks.*.{theirs}", f"encoder/blocks/{ours}", tensors)


GMLP = [
    *_around_blocks("stem", NORM),
    _in_block("norm", "norm", NORM),
    _in_block("mlp_channels.fc1", "proj_in", LINEAR),
    _in_block("mlp_channels.gate.norm", "gate/norm", NORM),
    _in_block("mlp_channels.gate.proj", "gate/spatial", OVER_TOKENS),
    _in_block("mlp_channels.fc2", "proj_out", LINEAR),
]
MIXER = [
    *_around_blocks("stem", NORM),
    _in_block("norm1", "token_norm", NORM),
    _in_block("mlp_tokens.fc1", "token_mlp/proj_in", OVER_TOKENS),
    _in_block("mlp_tokens.fc2", "token_mlp/proj_out", OVER_TOKENS),
    _in_block("norm2", "mlp_norm", NORM),
    _in_block("mlp_channels.fc1", "mlp/proj_in", LINEAR),
    _in_block("mlp_channels.fc2", "mlp/proj_out", LINEAR),
]
RESMLP = [
    *_around_blocks("stem", AFFINE),
    _in_block("norm1", "token_affine", AFFINE),
    _in_block("linear_tokens", "token_linear", OVER_TOKENS),
    _in_block("ls1", "token_scale/scale", SINGLE),
    _in_block("ls2", "mlp_scale/scale", SINGLE),
    _in_block("norm2", "mlp_affine", AFFINE),
    _in_block("mlp_channels.fc1", "mlp/proj_in", LINEAR),
    _in_block("mlp_channels.fc2", "mlp/proj_out", LINEAR),
]
VIT = [
    *_around_blocks("patch_embed", NORM),
    _in_block("norm1", "attention_norm", NORM),
    # Both pack queries, keys and values in turn, and within each the heads in turn.
    _in_block("attn.qkv", "attention/proj_in", LINEAR),
    _in_block("attn.proj", "attention/out", LINEAR),
    _in_block("norm2", "mlp_norm", NORM),
    _in_block("mlp.fc1", "mlp/proj_in", LINEAR),
    _in_block("mlp.fc2", "mlp/proj_out", LINEAR),
    Row("cls_token", "cls", OF_ALL_EXAMPLES),
    Row("pos_embed", "positions/table", OF_ALL_EXAMPLES),
]

# How pixels are seen.

_HALF = MappingProxyType(
    {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "eval_crop": 0.875, "transform": "timm"}
)
_IMAGENET = MappingProxyType({**_HALF, "mean": IMAGENET_MEAN, "std": IMAGENET_STD})

# Models.

_IMAGE_MODEL = {
    "activation": "gelu",
    "norm_eps": 1e-6,
    "positions": "none",
    "causal": False,
    "image_size": (224, 224),
    "channels": 3,
    "stem": "patches",
    "pool": "mean",
    "pre_logits": False,
}


def _gmlp(d_model: int) -> TimmModel:
    model = {
        **_IMAGE_MODEL,
        "block": "gmlp",
        "layers": 30,
        "d_model": d_model,
        "d_ffn": 6 * d_model,
        "patch_size": (16, 16),
        "gate": "split",
        "spatial": "dense",
        "gate_norm_eps": 1e-5,
        "d_attn": 0,
    }
    return TimmModel(GMLP, model, _HALF)


def _mixer(layers: int, d_model: int, patch: int) -> TimmModel:
    model = {
        **_IMAGE_MODEL,
        "block": "mixer",
        "layers": layers,
        "d_model": d_model,
        "d_ffn": 4 * d_model,
        "d_spatial": d_model // 2,
        "patch_size": (patch, patch),
    }
    return TimmModel(MIXER, model, _HALF)


def _resmlp(layers: int, d_model: int, patch: int, layer_scale: float) -> TimmModel:
    model = {
        **_IMAGE_MODEL,
        "block": "resmlp",
        "layers": layers,
        "d_model": d_model,
        "d_ffn": 4 * d_model,
        "patch_size": (patch, patch),
        "layer_scale": layer_scale,
    }
    return TimmModel(RESMLP, model, _IMAGENET)


class _Width(NamedTuple):
    """A size of ViTs."""

    layers: int
    d_model: int
    heads: int
    d_ffn: int


_WIDTHS = {
    "tiny": _Width(12, 192, 3, 768),
    "small": _Width(12, 384, 6, 1536),
    "medium": _Width(12, 512, 8, 2048),
    "betwixt": _Width(12, 640, 10, 2560),
    "base": _Width(12, 768, 12, 3072),
    "large": _Width(24, 1024, 16, 4096),
    "so400m": _Width(27, 1152, 16, 4304),
    "huge": _Width(32, 1280, 16, 5120),
    "giant": _Width(40, 1408, 16, 6144),
    "giantopt": _Width(40, 1536, 16, 6144),
    "gigantic": _Width(48, 1664, 16, 8192),
}


class _ViTs(NamedTuple):
    """ViTs that differ in their sizes alone.

    Attributes:
        name: timm's, with places for size, patch and image.
        sizes: the name of each width, the side of its patches, and the sides of its images.
        data: how pixels are seen, but for the crop.
        crop: the share of the image that evaluation crops; None: 0.9, and 1 for images of 300
            pixels and more.
        model: keys of config.model that differ from the first ViTs'.
    """

    name: str
    sizes: Sequence[tuple[str, int, Sequence[int]]]
    data: Options = _HALF
    crop: float | None = None
    model: Options = MappingProxyType({})


_PLAIN = "vit_{size}_patch{patch}_{image}"
_GAP = "vit_{size}_patch{patch}_gap_{image}"
_SIGLIP = "vit_{size}_patch{patch}_siglip_gap_{image}"
_DEIT = "deit_{size}_patch{patch}_{image}"
_DEIT3 = "deit3_{size}_patch{patch}_{image}"
_MEAN = {"pool": "mean"}
_MEAN_TANH = {"pool": "mean", "activation": "gelu_tanh"}

_FAMILIES_OF_VITS = (
    _ViTs(
        _DEIT3,
        [
            ("small", 16, (224, 384)),
            ("medium", 16, (224,)),
            ("base", 16, (224, 384)),
            ("large", 16, (224, 384)),
            ("huge", 14, (224,)),
        ],
        _IMAGENET,
    ),
    _ViTs(
        _DEIT, [("tiny", 16, (224,)), ("small", 16, (224,)), ("base", 16, (224, 384))], _IMAGENET
    ),
    _ViTs(
        _PLAIN,
        [
            ("tiny", 16, (224, 384)),
            ("small", 16, (224, 384)),
            ("small", 32, (224, 384)),
            ("base", 8, (224,)),
            ("base", 16, (224, 384)),
            ("base", 32, (224, 384)),
            ("large", 14, (224,)),
            ("large", 16, (224, 384)),
            ("large", 32, (224, 384)),
            ("huge", 14, (224,)),
            ("giant", 14, (224,)),
            ("gigantic", 14, (224,)),
        ],
    ),
    _ViTs(_PLAIN, [("small", 8, (224,))], _IMAGENET),
    _ViTs(_GAP, [("medium", 16, (240, 256, 384)), ("betwixt", 16, (256,))], crop=0.95, model=_MEAN),
    _ViTs(_GAP, [("base", 16, (224,))], model={**_MEAN, "heads": 16}),
    _ViTs(
        _GAP,
        [("huge", 14, (224,)), ("huge", 16, (448,)), ("giant", 16, (224,))],
        _IMAGENET,
        model=_MEAN,
    ),
    _ViTs(
        _SIGLIP,
        [
            ("base", 16, (224, 256, 384, 512)),
            ("large", 16, (256, 384)),
            ("so400m", 14, (224, 378)),
        ],
        crop=0.9,
        model=_MEAN,
    ),
    _ViTs(_SIGLIP, [("so400m", 14, (448, 896))], model=_MEAN),
    _ViTs(
        _SIGLIP,
        [
            ("base", 32, (256,)),
            ("large", 16, (512,)),
            ("giantopt", 16, (256, 384)),
            ("so400m", 16, (256, 384, 512)),
        ],
        crop=0.9,
        model=_MEAN_TANH,
    ),
)


def _vit(family: _ViTs, width: _Width, patch: int, image: int) -> TimmModel:
    usual_crop = 0.9 if image < 300 else 1.0
    model = {
        **_IMAGE_MODEL,
        "block": "transformer",
        "layers": width.layers,
        "d_model": width.d_model,
        "d_ffn": width.d_ffn,
        "heads": width.heads,
        "d_qkv": 0,
        "attention_bias": True,
        "positions": "absolute",
        "pool": "cls",
        "patch_size": (patch, patch),
        "image_size": (image, image),
        **family.model,
    }
    return TimmModel(VIT, model, {**family.data, "eval_crop": family.crop or usual_crop})


def _vits() -> dict[str, TimmModel]:
    models = {}
    for family in _FAMILIES_OF_VITS:
        for size, patch, images in family.sizes:
            for image in images:
                name = family.name.format(size=size, patch=patch, image=image)
                models[name] = _vit(family, _WIDTHS[size], patch, image)
    return models


MODELS: dict[str, TimmModel] = {
    "gmlp_ti16_224": _gmlp(128),
    "gmlp_s16_224": _gmlp(256),
    "gmlp_b16_224": _gmlp(512),
    "mixer_s32_224": _mixer(8, 512, 32),
    "mixer_s16_224": _mixer(8, 512, 16),
    "mixer_b32_224": _mixer(12, 768, 32),
    "mixer_b16_224": _mixer(12, 768, 16),
    "mixer_l32_224": _mixer(24, 1024, 32),
    "mixer_l16_224": _mixer(24, 1024, 16),
    "resmlp_12_224": _resmlp(12, 384, 16, 1e-4),
    "resmlp_24_224": _resmlp(24, 384, 16, 1e-5),
    "resmlp_36_224": _resmlp(36, 384, 16, 1e-6),
    "resmlp_big_24_224": _resmlp(24, 768, 8, 1e-6),
    **_vits(),
}
