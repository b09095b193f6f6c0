"""timm's weights, as models of ours."""

import contextlib
import importlib
import importlib.resources
import json
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.errors import RunError, decode_errors
from gmlp_flax.interop import timm_names
from gmlp_flax.io import weight_files
from gmlp_flax.tasks.image_classification import CLASSES_FILE, NAMES_FILE, ImageClassification

HEADS = ("head.bias", -1), ("head.weight", 0), ("head/bias", -1), ("head/kernel", -1)  # and their axes of classes
IMAGENET = "datasets/imagenet2012/labels.txt"  # of TFDS: WordNet ids in the order of the labels
PREPROCESSING = {"mean": "mean", "std": "std", "eval_crop": "crop_pct"}  # our key in config.data -> timm's key
SEEN = {"interpolation": "bicubic", "crop_mode": "center"}  # of timm's evaluation, what data.transform=timm does


def class_files(count: int) -> Files:
    """The files that name its classes: by id and, for ImageNet and if timm is installed, in words."""
    names = {CLASSES_FILE: [f"class {label}" for label in range(count)]}
    if count == 1000:
        synsets = importlib.resources.files("tensorflow_datasets").joinpath(IMAGENET).read_text().split()
        names = {CLASSES_FILE: synsets}
        with contextlib.suppress(ImportError, RuntimeError):  # which a torchvision of another torch raises
            imagenet = importlib.import_module("timm.data").ImageNetInfo()
            names[NAMES_FILE] = [imagenet.label_name_to_description(synset) for synset in synsets]
    return {file: json.dumps(classes, indent=1).encode() for file, classes in names.items()}


def read(state: dict[str, Any], config: ConfigDict, name: str, where: str) -> tuple[ImageClassification, dict]:
    """The task and the parameters, a nested dict of numpy arrays, of a state dict or of a Mixer's arrays as
    vision_transformer names them. `config` is of the model, `name` its key in `timm_names.MODELS`, and `where` the
    source of the weights, for messages.

    Raises:
        RunError: the weights belong to another model.
    """
    classes = class_files(next((state[key].shape[axis] for key, axis in HEADS if np.size(state.get(key, ()))), 1000))
    if "head/bias" in state:  # vision_transformer's, trained with Flax's GELU
        config.model.activation = "gelu_tanh"
    task = ImageClassification.without_data(config, classes)
    return task, timm_names.from_torch(state, timm_names.MODELS[name].rows, task.shapes(), where)


def from_folder(source: str) -> tuple[dict[str, Any], ConfigDict, str, str]:
    """A model as timm saves it, with its config.json, in a folder or on the hub (`weight_files.read_folder`).

    Returns:
        Its weights, its config with the normalisation and crop of its config.json, its key in `timm_names.MODELS`, and
        the path of the weights: the arguments of `read` and `convert`.

    Raises:
        RunError, DataError: the files cannot be downloaded or read, or we do not have the model.
    """
    state, described, path = weight_files.read_folder(source)
    what = f"{source}: its config.json describes no model of timm"
    with decode_errors(what, "give another", RunError):
        name = described.get("architecture", source)
        config, hub = timm_names.config_for(name), described.get("pretrained_cfg", {})
        other = {key: hub[key] for key, own in SEEN.items() if hub.get(key, own) != own}
        if other := other | described.get("model_args", {}):
            raise RunError(f"{what} that is here, as it has {other}: give its file, named {name}.safetensors")
        given = {ours: hub[theirs] for ours, theirs in PREPROCESSING.items() if theirs in hub}
        config.data.update({key: type(config.data[key])(value) for key, value in given.items()})
        config_lib.validate(config)
    return state, config, name, path
