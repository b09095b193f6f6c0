"""The timm models that we have too: their sizes, and the names and layouts of their tensors.

A state dict of timm is flat, with one tensor per layer. Our parameters are a nested dict, with all layers stacked along
a leading axis. One table per family maps between the two, and is read in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.errors import RunError
from gmlp_flax.paper.recipes import IMAGENET_MEAN, IMAGENET_STD

Shape = tuple[int, ...]
SHOWN = 3  # names of each kind in a message


class Layout(NamedTuple):
    """How timm lays out one of our tensors.

    Attributes:
        shape: (our shape, shape of a patch as (channels, height, width)) -> timm's shape.
        axes: timm's axes in the order in which its elements are ours; empty for the same order.
    """

    shape: Callable[[Shape, Shape], Shape]
    axes: tuple[int, ...] = ()


SAME = Layout(lambda ours, patch: ours)
TRANSPOSED = Layout(lambda ours, patch: ours[::-1], (1, 0))
LED_BY_ONES = Layout(lambda ours, patch: (1,) * (3 - len(ours)) + ours)
CONVOLUTION = Layout(lambda ours, patch: (ours[1], *patch), (2, 3, 1, 0))  # our patches: [height, width, channels]


class Row(NamedTuple):
    """One tensor: timm's name, in which `*` stands for the layer; our path; and the layout."""

    theirs: str
    ours: str
    layout: Layout


def _rows(weight: Layout, kernel: str, theirs: str, ours: str) -> list[Row]:
    return [Row(f"{theirs}.weight", f"{ours}/{kernel}", weight), Row(f"{theirs}.bias", f"{ours}/bias", SAME)]


def linear(theirs: str, ours: str) -> list[Row]:
    """Kernel and bias of a linear layer."""
    return _rows(TRANSPOSED, "kernel", theirs, ours)


def _over_tokens(theirs: str, ours: str) -> list[Row]:
    return _rows(SAME, "weight", theirs, ours)


def norm(theirs: str, ours: str) -> list[Row]:
    """Scale and bias of a layer norm."""
    return _rows(SAME, "scale", theirs, ours)


def _affine(theirs: str, ours: str) -> list[Row]:
    return [Row(f"{theirs}.alpha", f"{ours}/scale", LED_BY_ONES), Row(f"{theirs}.beta", f"{ours}/bias", LED_BY_ONES)]


def _around(stem: str, final: Callable[[str, str], list[Row]]) -> list[Row]:
    stem_rows = _rows(CONVOLUTION, "kernel", f"{stem}.proj", "stem")
    return [*stem_rows, *final("norm", "encoder/norm"), *linear("head", "head")]


def _blocks(*rows: list[Row]) -> list[Row]:
    return [Row(f"blocks.*.{row.theirs}", f"encoder/blocks/{row.ours}", row.layout) for group in rows for row in group]


GMLP = _around("stem", norm) + _blocks(
    norm("norm", "norm"),
    linear("mlp_channels.fc1", "proj_in"),
    norm("mlp_channels.gate.norm", "gate/norm"),
    _over_tokens("mlp_channels.gate.proj", "gate/spatial"),
    linear("mlp_channels.fc2", "proj_out"),
)
MIXER = _around("stem", norm) + _blocks(
    norm("norm1", "token_norm"),
    _over_tokens("mlp_tokens.fc1", "token_mlp/proj_in"),
    _over_tokens("mlp_tokens.fc2", "token_mlp/proj_out"),
    norm("norm2", "mlp_norm"),
    linear("mlp_channels.fc1", "mlp/proj_in"),
    linear("mlp_channels.fc2", "mlp/proj_out"),
)
RESMLP = _around("stem", _affine) + _blocks(
    _affine("norm1", "token_affine"),
    _over_tokens("linear_tokens", "token_linear"),
    [Row("ls1", "token_scale/scale", SAME), Row("ls2", "mlp_scale/scale", SAME)],
    _affine("norm2", "mlp_affine"),
    linear("mlp_channels.fc1", "mlp/proj_in"),
    linear("mlp_channels.fc2", "mlp/proj_out"),
)
# Both pack q, k and v one after the other, and within each the heads one after the other.
VIT = (
    _around("patch_embed", norm)
    + _blocks(
        norm("norm1", "attention_norm"),
        linear("attn.qkv", "attention/proj_in"),
        linear("attn.proj", "attention/out"),
        norm("norm2", "mlp_norm"),
        linear("mlp.fc1", "mlp/proj_in"),
        linear("mlp.fc2", "mlp/proj_out"),
    )
    + [Row("cls_token", "cls", LED_BY_ONES), Row("pos_embed", "positions/table", LED_BY_ONES)]
)


class TimmModel(NamedTuple):
    """A model of timm.

    Attributes:
        rows: its tensors.
        model: its keys in our config.model.
        data: its preprocessing as keys in our config.data: timm's defaults for the architecture.
    """

    rows: list[Row]
    model: dict[str, Any]
    data: dict[str, Any]


_COMMON = {
    "image_size": (224, 224),
    "channels": 3,
    "activation": "gelu",
    "norm_eps": 1e-6,
    "positions": "none",
    "pool": "mean",
    "pre_logits": False,
    "stem": "patches",
    "causal": False,
}
_HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "eval_crop": 0.875}
_IMAGENET = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "eval_crop": 0.875}


def _model(
    rows: list[Row], block: str, layers: int, d_model: int, data: dict, patch: int = 16, ratio: int = 4, **more
) -> TimmModel:
    size = {"block": block, "layers": layers, "d_model": d_model, "d_ffn": ratio * d_model}
    return TimmModel(rows, _COMMON | size | {"patch_size": (patch, patch)} | more, data)


def _gmlp(d_model: int) -> TimmModel:
    gate = {"gate": "split", "spatial": "dense", "gate_norm_eps": 1e-5, "d_attn": 0}
    return _model(GMLP, "gmlp", 30, d_model, _HALF, ratio=6, **gate)


def _mixer(layers: int, d_model: int, patch: int) -> TimmModel:
    return _model(MIXER, "mixer", layers, d_model, _HALF, patch, d_spatial=d_model // 2)


def _resmlp(layers: int, d_model: int, patch: int, scale: float) -> TimmModel:
    return _model(RESMLP, "resmlp", layers, d_model, _IMAGENET, patch, layer_scale=scale)


def _vit(layers: int, d_model: int, data: dict) -> TimmModel:
    vit = {"heads": d_model // 64, "positions": "absolute", "pool": "cls"}
    return _model(VIT, "transformer", layers, d_model, data | {"eval_crop": 0.9}, **vit)


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
    "deit_tiny_patch16_224": _vit(12, 192, _IMAGENET),
    "deit_small_patch16_224": _vit(12, 384, _IMAGENET),
    "deit_base_patch16_224": _vit(12, 768, _IMAGENET),
    "vit_base_patch16_224": _vit(12, 768, _HALF),
    "vit_large_patch16_224": _vit(24, 1024, _HALF),
}


def config_for(name: str) -> ConfigDict:
    """The config of one of `MODELS`, as a classifier without data."""
    model = MODELS[name]
    config = config_lib.default(task="image_classification", block=model.model["block"])
    config.data.train = ""
    config.model.update(model.model)
    config.data.update(model.data)
    return config


def patch_shape(config: ConfigDict) -> Shape:
    """Channels, height and width of a patch."""
    return config.model.channels, *config.model.patch_size


class Place(NamedTuple):
    """Where one of timm's tensors lies in our tree: at `path`, in layer `layer`, or the whole array if that is None."""

    name: str
    shape: Shape
    axes: tuple[int, ...]
    path: str
    layer: int | None


def places(rows: list[Row], shapes: dict[str, Shape], patch: Shape) -> Iterator[Place]:
    """The place of each of timm's tensors, for a model whose parameters have the given shapes.

    Args:
        rows: the model's tensors.
        shapes: path of a parameter of ours -> its shape.
        patch: channels, height and width.
    """
    for theirs, ours, layout in rows:
        stacked = "*" in theirs
        shape = layout.shape(shapes[ours][stacked:], patch)
        axes = layout.axes or tuple(range(len(shape)))
        for layer in range(shapes[ours][0]) if stacked else (None,):
            yield Place(theirs.replace("*", str(layer)), shape, axes, ours, layer)


def from_torch(state: dict[str, np.ndarray], rows: list[Row], like: dict, patch: Shape, where: str) -> dict:
    """A state dict of timm as our parameters.

    Args:
        state: timm's name -> array.
        rows: the model's tensors.
        like: our parameters or their shapes, a nested dict.
        patch: channels, height and width.
        where: the source of the weights, for messages.

    Returns:
        Nested dict of arrays with the dtypes of `like`.

    Raises:
        RunError: weights are missing, unexpected or of another shape; the message counts each kind and names the first.
    """
    flat: dict[str, Any] = traverse_util.flatten_dict(like, sep="/")
    found = list(places(rows, {path: leaf.shape for path, leaf in flat.items()}, patch))
    require_all(state, {place.name: place.shape for place in found}, where)
    params = {path: np.full(leaf.shape, np.nan, leaf.dtype) for path, leaf in flat.items()}
    for place in found:
        ours = params[place.path]
        target = ours[...] if place.layer is None else ours[place.layer]
        target[...] = state[place.name].transpose(place.axes).reshape(target.shape)
    return traverse_util.unflatten_dict(params, sep="/")


def to_timm(params: dict, rows: list[Row], patch: Shape) -> dict[str, np.ndarray]:
    """Our parameters as a state dict of timm: the exact inverse of `from_torch`."""
    flat = {path: np.asarray(leaf) for path, leaf in traverse_util.flatten_dict(params, sep="/").items()}
    state = {}
    for place in places(rows, {path: leaf.shape for path, leaf in flat.items()}, patch):
        ours = flat[place.path] if place.layer is None else flat[place.path][place.layer]
        permuted = ours.reshape([place.shape[axis] for axis in place.axes])
        state[place.name] = np.ascontiguousarray(permuted.transpose(np.argsort(place.axes)))
    return state


def require_all(state: dict[str, np.ndarray], wanted: dict[str, Shape], where: str) -> None:
    """Raises RunError unless a state dict has all names that are wanted, with their shapes, as floating point numbers,
    and no others."""
    reshaped = [
        f"{name} {list(state[name].shape)}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in state and state[name].shape != shape
    ]
    problems = {
        "missing": [name for name in wanted if name not in state],
        "unexpected": [name for name in state if name not in wanted],
        "of another shape": reshaped,
        "of a type that is no weight's": [
            f"{name} {state[name].dtype}"
            for name in wanted
            if name in state and not jnp.issubdtype(state[name].dtype, np.floating)
        ],
    }
    listed = [f"{len(names)} {kind} ({_first(names)})" for kind, names in problems.items() if names]
    if listed:
        raise RunError(f"{where} does not hold the weights of this model: {'; '.join(listed)}")


def _first(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
