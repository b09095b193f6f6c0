"""Weights of timm's models, and of vision_transformer's Mixers, which timm has too."""

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.errors import RunError, decode_errors, did_you_mean
from gmlp_flax.io import weight_files
from gmlp_flax.io.weight_files import Shape, State
from gmlp_flax.weights import imagenet, vision_transformer
from gmlp_flax.weights.saved import SavedModel
from gmlp_flax.weights.state_dicts import from_torch
from gmlp_flax.weights.timm_models import MODELS

MOST_CLASSES = 1 << 20
# Tensors whose sizes say how many classes there are, and the axis: timm's, vision_transformer's.
_HEADS = {"head.bias": -1, "head.weight": 0, "head/bias": -1, "head/kernel": -1}
# Our key of config.data -> timm's key of config.json.
_PREPROCESSING = {"mean": "mean", "std": "std", "eval_crop": "crop_pct"}
# Of timm's evaluation: what data.transform=timm does.
_TRANSFORM = {"interpolation": "bicubic", "crop_mode": "center"}


def named_after(path: str) -> str:
    """The model that a file of weights is named after: timm's, as in
    gmlp_s16_224.ra3_in1k.safetensors, or a Mixer of vision_transformer, as Mixer-B_16.npz."""
    name, _, _ = os.path.basename(path).partition(".")
    return vision_transformer.model_of(path) or name


def config_for(name: str, advice: str = "") -> ConfigDict:
    """The config of one of `MODELS`, as a classifier without data.

    Raises:
        RunError: there is no such model; the message gives the most similar name, and `advice`.
    """
    if name not in MODELS:
        bare_name, _, _ = name.partition(".")
        hints = [did_you_mean(bare_name, MODELS, "gmlp_flax.list_models() has all names")]
        if advice:
            hints.append(advice)
        raise RunError(f"there is no model {name!r} here; {'; '.join(hints)}")
    model = MODELS[name]
    config = config_lib.default(task="image_classification", block=model.model["block"])
    config.data.train = ""
    config.model.update(model.model)
    config.data.update(model.data)
    return config


def open_file(path: str) -> SavedModel:
    """A file of weights that is named after its model.

    Raises:
        RunError: there is no such model, or the file is missing, of another kind or damaged.
    """
    name = named_after(path)
    advice = "a file is named after its model, as gmlp_s16_224.ra3_in1k.safetensors"
    return open_model(name, config_for(name, advice), path)


def open_described(path: str, described: Mapping[str, Any]) -> SavedModel:
    """A file of weights as timm saves it beside a config.json.

    Args:
        path: of the weights.
        described: what config.json says.

    Raises:
        RunError, ConfigError: it describes a model that we do not have, or the weights are missing
            or damaged.
    """
    where = os.path.dirname(path) or "."
    name = str(described["architecture"])
    config = config_for(name, f"the config.json of {where} names it")
    what = f"{where}: its config.json describes no model of timm"
    with decode_errors(what, "give another", RunError):
        preprocessing = dict(described.get("pretrained_cfg", {}))
        other = dict(described.get("model_args", {}))
        other |= _other_transform(preprocessing)
        if other:
            raise RunError(
                f"{what} that gmlp_flax has, because of {other}: give its file, named "
                f"{name}.safetensors"
            )
        for ours, theirs in _PREPROCESSING.items():
            if theirs in preprocessing:
                kind = type(config.data[ours])
                config.data[ours] = kind(preprocessing[theirs])
        config_lib.validate(config)
    return open_model(name, config, path)


def _other_transform(preprocessing: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of timm's preprocessing whose values are not ours."""
    other = {}
    for key, ours in _TRANSFORM.items():
        value = preprocessing.get(key, ours)
        if value != ours:
            other[key] = value
    return other


def open_model(name: str, config: ConfigDict, path: str) -> SavedModel:
    """The model of one of `MODELS` whose weights are in a file.

    Args:
        name: the key.
        config: of the model.
        path: of the file, timm's or vision_transformer's.

    Raises:
        RunError: the file is missing, of another kind, or damaged.
    """
    shapes = weight_files.shapes(path)
    if vision_transformer.is_mixer(shapes):
        config.model.activation = vision_transformer.ACTIVATION
    files = imagenet.class_files(_class_count(shapes, path))

    def read() -> dict[str, Any]:
        resolved = config_lib.resolve(config).config
        kind = tasks.find(config.task)
        task = kind(resolved, files)
        return from_timm(weight_files.read(path), name, task.shapes(), path)

    return SavedModel(path, config, files, read)


def _class_count(shapes: Mapping[str, Shape], where: str) -> int:
    """The number of classes of some weights; ImageNet's if their head is missing."""
    for name, axis in _HEADS.items():
        shape = shapes.get(name, ())
        if not shape or 0 in shape:
            continue
        count = shape[axis]
        if count > MOST_CLASSES:
            raise RunError(f"{where} has {count:,} classes ({name}): give another file")
        return count
    return imagenet.CLASSES


def from_timm(state: State, name: str, like: dict, where: str) -> dict[str, Any]:
    """A state dict of timm's, or a Mixer's arrays as vision_transformer names them, as our
    parameters, a nested dict of arrays.

    Args:
        state: the tensors.
        name: the key of the model in `MODELS`.
        like: our parameters or their shapes, a nested dict.
        where: the source of the weights, for messages.

    Raises:
        RunError: weights are missing, unexpected, of another shape or not finite.
    """
    with decode_errors(f"{where} is damaged", "download it again", RunError):
        if vision_transformer.is_mixer(state):
            state = vision_transformer.as_timm(state)
        state = folded(state, like)
    return from_torch(state, MODELS[name].rows, like, where)


def folded(state: State, like: Mapping[str, Any]) -> State:
    """A ViT's tensors as those of the same function in our block, `like`: the scale of a branch goes
    into its last layer, queries, keys and values without biases get zeros, and so does the cls token
    if only patches have positions. The tensors of other models stay as they are."""
    tensors = dict(state)
    _fold_scales(tensors)
    _add_biases(tensors)
    _add_cls_position(tensors, like)
    return tensors


def _fold_scales(tensors: State) -> None:
    last_layers = {".ls1.gamma": ".attn.proj", ".ls2.gamma": ".mlp.fc2"}
    for key in list(tensors):
        for end, last_layer in last_layers.items():
            if key.endswith(end):
                block = key.removesuffix(end)
                _fold_scale(tensors, key, block + last_layer)


def _fold_scale(tensors: State, key: str, layer: str) -> None:
    """Multiplies the outputs of a linear layer, the first axis of its tensors, by the scale
    [outputs] at a key. A scale that does not fit stays, an unexpected tensor."""
    scale = tensors[key]
    scaled = {}
    for name in (f"{layer}.weight", f"{layer}.bias"):
        if name not in tensors:
            continue
        tensor = tensors[name]
        if tensor.shape[:1] != scale.shape:
            return
        input_axes = (1,) * (tensor.ndim - 1)
        scale_of_outputs = scale.reshape(-1, *input_axes)
        scaled[name] = tensor * scale_of_outputs
    del tensors[key]
    tensors |= scaled


def _add_biases(tensors: State) -> None:
    if any(key.endswith("attn.qkv.bias") for key in tensors):
        return
    for key, tensor in list(tensors.items()):
        if key.endswith("attn.qkv.weight"):
            layer = key.removesuffix("weight")
            tensors[f"{layer}bias"] = np.zeros_like(tensor[:, 0])


def _add_cls_position(tensors: State, like: Mapping[str, Any]) -> None:
    if "cls_token" not in tensors or "pos_embed" not in tensors or "positions" not in like:
        return
    cls = tensors["cls_token"]
    patches = tensors["pos_embed"]
    wanted = math.prod(like["positions"]["table"].shape)
    if patches.size + cls.size == wanted:
        zeros = np.zeros_like(cls)
        tensors["pos_embed"] = np.concatenate([zeros, patches], axis=-2)
