"""The timm models that we have too: their sizes, and the names and layouts of their tensors.

A state dict of torch is flat, with one tensor per layer. Our parameters are a nested dict, all layers stacked along a
leading axis. One table per family maps between the two, and is read in both directions.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.errors import RunError, did_you_mean
from gmlp_flax.io import weight_files
from gmlp_flax.paper.recipes import IMAGENET_MEAN, IMAGENET_STD

# Views of our arrays in the layout of torch's tensors.
Layout = Callable[[np.ndarray], np.ndarray]


def _same(ours: np.ndarray) -> np.ndarray:
    return ours


def _transposed(ours: np.ndarray) -> np.ndarray:
    return ours.T


def _led_by_ones(ours: np.ndarray) -> np.ndarray:
    return ours.reshape((1,) * (3 - ours.ndim) + ours.shape)


def _convolution(ours: np.ndarray) -> np.ndarray:
    side = math.isqrt(len(ours) // 3)  # our patches: [height, width, channels], square and in RGB as all of timm's
    return ours.reshape(side, side, 3, -1).transpose(3, 2, 0, 1)


# The tensors of a layer: what ends torch's name, what ends our path, and the layout.
Tensors = tuple[tuple[str, str, Layout], ...]
LINEAR: Tensors = ((".weight", "/kernel", _transposed), (".bias", "/bias", _same))
OVER_TOKENS: Tensors = ((".weight", "/weight", _same), (".bias", "/bias", _same))
PATCHES: Tensors = ((".weight", "/kernel", _convolution), (".bias", "/bias", _same))
NORM: Tensors = ((".weight", "/scale", _same), (".bias", "/bias", _same))
AFFINE: Tensors = ((".alpha", "/scale", _led_by_ones), (".beta", "/bias", _led_by_ones))
SINGLE: Tensors = (("", "", _same),)
OF_ALL_EXAMPLES: Tensors = (("", "", _led_by_ones),)


class Row(NamedTuple):
    """A layer: torch's name, in which `*` stands for the number of the block; our path; and its tensors."""

    theirs: str
    ours: str
    tensors: Tensors


def _rows(stem: str, norm: Tensors, *blocks: tuple[str, str, Tensors]) -> list[Row]:
    around = [Row(f"{stem}.proj", "stem", PATCHES), Row("norm", "encoder/norm", norm), Row("head", "head", LINEAR)]
    return around + [Row(f"blocks.*.{theirs}", f"encoder/blocks/{ours}", tensors) for theirs, ours, tensors in blocks]


GMLP = _rows(
    "stem",
    NORM,
    ("norm", "norm", NORM),
    ("mlp_channels.fc1", "proj_in", LINEAR),
    ("mlp_channels.gate.norm", "gate/norm", NORM),
    ("mlp_channels.gate.proj", "gate/spatial", OVER_TOKENS),
    ("mlp_channels.fc2", "proj_out", LINEAR),
)
MIXER = _rows(
    "stem",
    NORM,
    ("norm1", "token_norm", NORM),
    ("mlp_tokens.fc1", "token_mlp/proj_in", OVER_TOKENS),
    ("mlp_tokens.fc2", "token_mlp/proj_out", OVER_TOKENS),
    ("norm2", "mlp_norm", NORM),
    ("mlp_channels.fc1", "mlp/proj_in", LINEAR),
    ("mlp_channels.fc2", "mlp/proj_out", LINEAR),
)
RESMLP = _rows(
    "stem",
    AFFINE,
    ("norm1", "token_affine", AFFINE),
    ("linear_tokens", "token_linear", OVER_TOKENS),
    ("ls1", "token_scale/scale", SINGLE),
    ("ls2", "mlp_scale/scale", SINGLE),
    ("norm2", "mlp_affine", AFFINE),
    ("mlp_channels.fc1", "mlp/proj_in", LINEAR),
    ("mlp_channels.fc2", "mlp/proj_out", LINEAR),
)
VIT = _rows(
    "patch_embed",
    NORM,
    ("norm1", "attention_norm", NORM),
    ("attn.qkv", "attention/proj_in", LINEAR),  # both pack q, k and v in turn, and within each the heads in turn
    ("attn.proj", "attention/out", LINEAR),
    ("norm2", "mlp_norm", NORM),
    ("mlp.fc1", "mlp/proj_in", LINEAR),
    ("mlp.fc2", "mlp/proj_out", LINEAR),
)
VIT += [Row("cls_token", "cls", OF_ALL_EXAMPLES), Row("pos_embed", "positions/table", OF_ALL_EXAMPLES)]


class TimmModel(NamedTuple):
    """A model of timm: its tensors, its keys in our config.model, and timm's preprocessing for its architecture as keys
    in our config.data."""

    rows: list[Row]
    model: dict[str, Any]
    data: dict[str, Any]


_ENCODER = {"activation": "gelu", "norm_eps": 1e-6, "positions": "none", "causal": False}
_IMAGES = {"image_size": (224, 224), "channels": 3, "stem": "patches", "pool": "mean", "pre_logits": False}
_GATE = {"gate": "split", "spatial": "dense", "gate_norm_eps": 1e-5, "d_attn": 0}
_HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "eval_crop": 0.875}
_IMAGENET = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "eval_crop": 0.875}


def _model(rows: list[Row], block: str, layers: int, d_model: int, patch: int, data: dict, **more) -> TimmModel:
    sizes = {"block": block, "layers": layers, "d_model": d_model, "patch_size": (patch, patch)}
    return TimmModel(rows, _ENCODER | _IMAGES | sizes | {"d_ffn": 4 * d_model} | more, data)


def _vit(layers: int, d_model: int, data: dict) -> TimmModel:
    options = {"heads": d_model // 64, "positions": "absolute", "pool": "cls"}
    return _model(VIT, "transformer", layers, d_model, 16, data | {"eval_crop": 0.9}, **options)


MODELS: dict[str, TimmModel] = {
    "gmlp_ti16_224": _model(GMLP, "gmlp", 30, 128, 16, _HALF, d_ffn=768, **_GATE),
    "gmlp_s16_224": _model(GMLP, "gmlp", 30, 256, 16, _HALF, d_ffn=1536, **_GATE),
    "gmlp_b16_224": _model(GMLP, "gmlp", 30, 512, 16, _HALF, d_ffn=3072, **_GATE),
    "mixer_s32_224": _model(MIXER, "mixer", 8, 512, 32, _HALF, d_spatial=256),
    "mixer_s16_224": _model(MIXER, "mixer", 8, 512, 16, _HALF, d_spatial=256),
    "mixer_b32_224": _model(MIXER, "mixer", 12, 768, 32, _HALF, d_spatial=384),
    "mixer_b16_224": _model(MIXER, "mixer", 12, 768, 16, _HALF, d_spatial=384),
    "mixer_l32_224": _model(MIXER, "mixer", 24, 1024, 32, _HALF, d_spatial=512),
    "mixer_l16_224": _model(MIXER, "mixer", 24, 1024, 16, _HALF, d_spatial=512),
    "resmlp_12_224": _model(RESMLP, "resmlp", 12, 384, 16, _IMAGENET, layer_scale=1e-4),
    "resmlp_24_224": _model(RESMLP, "resmlp", 24, 384, 16, _IMAGENET, layer_scale=1e-5),
    "resmlp_36_224": _model(RESMLP, "resmlp", 36, 384, 16, _IMAGENET, layer_scale=1e-6),
    "resmlp_big_24_224": _model(RESMLP, "resmlp", 24, 768, 8, _IMAGENET, layer_scale=1e-6),
    "deit_tiny_patch16_224": _vit(12, 192, _IMAGENET),
    "deit_small_patch16_224": _vit(12, 384, _IMAGENET),
    "deit_base_patch16_224": _vit(12, 768, _IMAGENET),
    "vit_base_patch16_224": _vit(12, 768, _HALF),
    "vit_large_patch16_224": _vit(24, 1024, _HALF),
}


def config_for(name: str) -> ConfigDict:
    """The config of one of `MODELS`, as a classifier without data.

    Raises:
        RunError: there is no such model; the message gives the most similar name.
    """
    if name not in MODELS:
        raise RunError(f"there is no model {name!r} here; {did_you_mean(name.partition('.')[0], MODELS)}")
    model = MODELS[name]
    config = config_lib.default(task="image_classification", block=model.model["block"])
    config.data.train = ""
    config.model.update(model.model)
    config.data.update(model.data)
    return config


def torch_views(flat: dict[str, np.ndarray], rows: list[Row]) -> dict[str, np.ndarray]:
    """Views of our parameters, given by path, under torch's names and in torch's layouts: what is written to a view is
    written to our parameter."""
    views = {}
    for theirs, ours, tensors in rows:
        for end, name, layout in tensors:
            stacked = enumerate(flat[ours + name]) if "*" in theirs else [("", flat[ours + name])]
            views |= {theirs.replace("*", str(layer)) + end: layout(array) for layer, array in stacked}
    return views


def from_torch(state: dict[str, np.ndarray], rows: list[Row], like: dict, where: str) -> dict:
    """A state dict of torch as our parameters, with the names and dtypes of `like`, a nested dict of arrays or shapes.

    Raises:
        RunError: weights are missing, unexpected or of another shape; the message names their source, `where`, counts
            each kind and names the first.
    """
    flat: dict[str, Any] = traverse_util.flatten_dict(like, sep="/")
    params = {path: np.full(leaf.shape, np.nan, leaf.dtype) for path, leaf in flat.items()}
    views = torch_views(params, rows)
    weight_files.require_all(state, {name: view.shape for name, view in views.items()}, where)
    for name, view in views.items():
        view[...] = state[name]
    return traverse_util.unflatten_dict(params, sep="/")


def to_torch(params: dict, rows: list[Row]) -> dict[str, np.ndarray]:
    """Our parameters as a state dict of torch: the exact inverse of `from_torch`."""
    flat = {path: np.asarray(leaf) for path, leaf in traverse_util.flatten_dict(params, sep="/").items()}
    return {name: np.ascontiguousarray(view) for name, view in torch_views(flat, rows).items()}
