"""timm's weights as folders that we load, and runs as timm's weights."""

import contextlib
import importlib
import importlib.resources
import json
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.errors import RunError, decode_errors, install
from gmlp_flax.interop import converted, timm_names
from gmlp_flax.io import weight_files
from gmlp_flax.tasks.image_classification import CLASSES_FILE, NAMES_FILE, ImageClassification
from gmlp_flax.training import loading

HEADS = ("head.bias", -1), ("head.weight", 0), ("head/bias", -1), ("head/kernel", -1)  # and their axes of classes
IMAGENET = "datasets/imagenet2012/labels.txt"  # of TFDS: WordNet ids in the order of the labels
# Keys of config.model in which a run may differ from timm's model: the initial value of scales, an epsilon (which
# changes logits by about 1e-5), and the size of images, which timm takes as an argument.
FREE = ("layer_scale", "gate_norm_eps", "image_size")
PREPROCESSING = {"mean": "mean", "std": "std", "eval_crop": "crop_pct"}  # our key in config.data -> timm's key
SEEN = {"interpolation": "bicubic", "crop_mode": "center"}  # of timm's evaluation, what data.transform=timm does


def import_beside_torch(package: str) -> Any:
    """Imports timm or transformers, also beside a torchvision that does not fit the installed torch.

    Raises:
        RunError: the package or torch is not installed.
    """
    try:
        from torch import library

        try:
            importlib.import_module("torchvision")
        except ImportError:
            pass  # timm and transformers do without
        except RuntimeError:  # of another torch; both packages ask for two of its operators, and never run them
            for operator in ("nms", "qnms"):
                library.define(
                    f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
        return importlib.import_module(package)
    except ImportError as error:
        raise RunError(f"{package} is not installed ({error}): {install('parity')}") from None


def class_files(count: int) -> Files:
    """The files that name its classes: by id and, for ImageNet and if timm is installed, in words."""
    names = {CLASSES_FILE: [f"class {label}" for label in range(count)]}
    if count == 1000:
        synsets = importlib.resources.files("tensorflow_datasets").joinpath(IMAGENET).read_text().split()
        names = {CLASSES_FILE: synsets}
        with contextlib.suppress(RunError):
            imagenet = import_beside_torch("timm").data.ImageNetInfo()
            names[NAMES_FILE] = [imagenet.label_name_to_description(synset) for synset in synsets]
    return {file: json.dumps(classes, indent=1).encode() for file, classes in names.items()}


def convert(state: dict[str, Any], config: ConfigDict, name: str, out: str, where: str) -> None:
    """Writes a state dict of timm's weights as the folder `out`, which is loaded like a run. `config` is of the
    model, `name` its key in `timm_names.MODELS`, and `where` the source of the weights, for messages.

    Raises:
        RunError, DataError: the weights belong to another model, or the folder holds a run or cannot be written to.
    """
    converted.require_free(out)
    task, params = read(state, config, name, where)
    converted.write(params, config, dict(task.inherited), out)


def read(state: dict[str, Any], config: ConfigDict, name: str, where: str) -> tuple[ImageClassification, dict]:
    """The task and the parameters, a nested dict of numpy arrays, of a state dict or of a Mixer's arrays as
    vision_transformer names them; arguments as in `convert`.

    Raises:
        RunError: the weights belong to another model.
    """
    classes = class_files(next((state[key].shape[axis] for key, axis in HEADS if np.size(state.get(key, ()))), 1000))
    if "head/bias" in state:  # vision_transformer's, trained with Flax's GELU
        config.model.activation = "gelu_tanh"
    task = ImageClassification.without_data(config, classes)
    return task, timm_names.from_torch(state, timm_names.MODELS[name].rows, task.shapes(), where)


def matching(config: ConfigDict) -> str:
    """The name of the timm model that a run trained; of equal models, one that preprocesses pixels as the run does.

    Raises:
        RunError: timm has no such model.
    """
    given, otherwise = config.model, "give --out=FOLDER, for weights with their own names"
    if config.task != "image_classification":
        raise RunError(f"timm has image classifiers, and the run's config.task is {config.task!r}: {otherwise}")
    equal = [
        name
        for name, model in timm_names.MODELS.items()
        if name not in timm_names.FOLDED
        and all(given.get(key) == value for key, value in model.model.items() if key not in FREE)
    ]
    if not equal:
        sizes = ", ".join(f"{key} {given[key]}" for key in ("block", "layers", "d_model", "d_ffn"))
        raise RunError(f"timm has no model with the run's config.model ({sizes}, ...): {otherwise}")

    def distance(name: str) -> tuple[int, bool]:
        resized = timm_names.MODELS[name].model["image_size"] != tuple(given.image_size)
        return len(_other_preprocessing(name, config)), resized

    return min(equal, key=distance)


def _other_preprocessing(name: str, config: ConfigDict) -> dict[str, Any]:
    """The preprocessing in which the run's config.data differs from timm's default for a model: timm's key -> value."""
    data = timm_names.MODELS[name].data
    return {theirs: config.data[key] for key, theirs in PREPROCESSING.items() if config.data[key] != data[key]}


def export(workdir: str, which: str, out: str) -> str:
    """Writes the weights of an image classifier's checkpoint ("latest", "best", or a step) with timm's names, as the
    .safetensors file `out`.

    Returns:
        The Python expression that loads it.

    Raises:
        ConfigError, RunError, DataError: there is no such run or checkpoint, timm has no such model, or `out` has
            another ending or cannot be written.
    """
    trained = loading.load(workdir, which)
    config, name = trained.config, matching(trained.config)
    weight_files.write(out, timm_names.to_torch(jax.device_get(trained.weights), timm_names.MODELS[name].rows))
    task: Any = trained.task  # `matching` has checked that it classifies images
    arguments = {"num_classes": len(task.classes), "checkpoint_path": out}
    if tuple(config.model.image_size) != timm_names.MODELS[name].model["image_size"]:
        arguments["img_size"] = tuple(config.model.image_size)
    if preprocessing := _other_preprocessing(name, config):
        arguments["pretrained_cfg_overlay"] = preprocessing
    return f"timm.create_model({name!r}, {', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def from_hub(repository: str) -> tuple[str, ConfigDict, str]:
    """Downloads a model of timm from the Hugging Face hub: the path of the weights, the model's config with the hub's
    normalisation and crop, and its key in `timm_names.MODELS`.

    Raises:
        RunError: the model cannot be downloaded, or we do not have it.
    """
    path, described = weight_files.download(repository)
    what = f"{weight_files.HUB}{repository}: its config.json describes no model of timm"
    with decode_errors(what, "give another", RunError):
        name = described.get("architecture", repository)
        config, hub = timm_names.config_for(name), described.get("pretrained_cfg", {})
        other = {key: hub[key] for key, own in SEEN.items() if hub.get(key, own) != own}
        if other := other | described.get("model_args", {}):
            raise RunError(f"{what} that is here, as it has {other}: give its file by --checkpoint, as --model={name}")
        given = {ours: hub[theirs] for ours, theirs in PREPROCESSING.items() if theirs in hub}
        config.data.update({key: type(config.data[key])(value) for key, value in given.items()})
        config_lib.validate(config)
    return path, config, name
