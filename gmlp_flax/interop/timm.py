"""timm's weights as run folders, and run folders as timm's weights."""

from __future__ import annotations

import importlib
import importlib.resources
import json
from typing import Any

import jax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.errors import RunError, decode_errors, did_you_mean, install
from gmlp_flax.interop import converted, timm_names, weight_files
from gmlp_flax.tasks.image_classification import CLASSES_FILE, NAMES_FILE, ImageClassification
from gmlp_flax.training import loading

IMAGENET = "datasets/imagenet2012/labels.txt"  # of TFDS: WordNet ids in the order of the labels
# Keys of config.model in which a run may differ from timm's model: the initial value of scales, an epsilon (which
# changes logits by about 1e-5), and the size of images, which timm takes as an argument.
FREE = ("layer_scale", "gate_norm_eps", "image_size")
PREPROCESSING = {"mean": "mean", "std": "std", "eval_crop": "crop_pct"}  # our key in config.data -> timm's key


def import_beside_torch(package: str) -> Any:
    """Imports timm or transformers, also without a torchvision that fits the installed torch.

    Raises:
        RunError: the package or torch is not installed.
    """
    try:
        _make_up_for_torchvision()
        return importlib.import_module(package)
    except ImportError as error:
        raise RunError(f"{package} is not installed ({error}): {install('parity')}") from None


def _make_up_for_torchvision() -> None:
    """Declares two operators of a torchvision that does not fit the installed torch: packages that import it ask for
    them and never run them."""
    from torch import library

    try:
        importlib.import_module("torchvision")
    except ImportError:
        return  # there is none
    except RuntimeError:
        arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define("torchvision::nms", arguments)
        library.define("torchvision::qnms", arguments)


def class_files(count: int) -> Files:
    """The files of a run folder that name its classes: by id and, for ImageNet and if timm is installed, in words."""
    if count != 1000:
        return {CLASSES_FILE: _json([f"class {label}" for label in range(count)])}
    synsets = importlib.resources.files("tensorflow_datasets").joinpath(IMAGENET).read_text().split()
    try:
        imagenet = import_beside_torch("timm").data.ImageNetInfo()
    except RunError:
        return {CLASSES_FILE: _json(synsets)}
    words = [imagenet.label_name_to_description(synset) for synset in synsets]
    return {CLASSES_FILE: _json(synsets), NAMES_FILE: _json(words)}


def convert(state: dict[str, Any], config: ConfigDict, name: str, out: str, where: str) -> None:
    """Writes timm's weights as a run folder with one checkpoint, at step 0.

    Args:
        state: timm's name -> array.
        config: of the model.
        name: its key in `timm_names.MODELS`.
        out: the folder.
        where: the source of the weights, for messages.

    Raises:
        RunError: the weights belong to another model, or the folder holds a run or cannot be written to.
        DataError: a file cannot be written.
    """
    converted.require_free(out)
    head = state.get("head.bias")
    count = 1000 if head is None else head.size
    like = ImageClassification.without_data(config, count).shapes()
    rows = timm_names.MODELS[name].rows
    params = timm_names.from_torch(state, rows, like, timm_names.patch_shape(config), where)
    converted.write(params, config, class_files(count), out)


def matching(config: ConfigDict) -> str:
    """The name of the timm model that a run trained; of equal models, one that preprocesses pixels as the run does.

    Raises:
        RunError: timm has no such model; the message names the nearest one and the differences.
    """
    if config.task != "image_classification":
        own = f"the run's config.task is {config.task!r}"
        raise RunError(f"timm has image classifiers, and {own}: give --out=FOLDER, for weights with their own names")

    def differences(name: str) -> list[str]:
        wanted = {key: value for key, value in timm_names.MODELS[name].model.items() if key not in FREE}
        own = config.model
        return [f"{key} {own.get(key)}, not {value}" for key, value in wanted.items() if own.get(key) != value]

    def distance(name: str) -> tuple[bool, int, int]:
        another = timm_names.MODELS[name].model["block"] != config.model.block
        return another, len(differences(name)), len(_other_preprocessing(name, config))

    nearest = min(timm_names.MODELS, key=distance)
    if problems := differences(nearest):
        what = f"{nearest} is nearest, but the run's config.model has {'; '.join(problems)}"
        raise RunError(f"timm has no model like the run's: {what}; give --out=FOLDER, for weights with their own names")
    return nearest


def _other_preprocessing(name: str, config: ConfigDict) -> dict[str, Any]:
    """The preprocessing in which the run's config.data differs from timm's default for a model: timm's key -> value."""
    data = timm_names.MODELS[name].data
    return {PREPROCESSING[key]: config.data[key] for key, value in data.items() if config.data[key] != value}


def export(workdir: str, which: str, out: str) -> str:
    """Writes a run's weights with timm's names.

    Args:
        workdir: the run folder of an image classifier.
        which: "latest", "best", or a step.
        out: the .safetensors file.

    Returns:
        The Python expression that loads it.

    Raises:
        ConfigError, RunError: there is no such run or checkpoint, timm has no such model, or `out` has another ending.
        DataError: the file cannot be written.
    """
    trained = loading.load(workdir, which)
    config, name = trained.config, matching(trained.config)
    params = jax.device_get(trained.weights)
    weight_files.write(out, timm_names.to_timm(params, timm_names.MODELS[name].rows, timm_names.patch_shape(config)))
    task: Any = trained.task  # `matching` has checked that it classifies images
    arguments = {"num_classes": len(task.classes), "checkpoint_path": out}
    if tuple(config.model.image_size) != timm_names.MODELS[name].model["image_size"]:
        arguments["img_size"] = tuple(config.model.image_size)
    if preprocessing := _other_preprocessing(name, config):
        arguments["pretrained_cfg_overlay"] = preprocessing
    return f"timm.create_model({name!r}, {', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _json(names: list[str]) -> bytes:
    return json.dumps(names, indent=1).encode()


def from_hub(repository: str) -> tuple[str, ConfigDict, str]:
    """Downloads a model of timm from the Hugging Face hub.

    Returns:
        The path of the weights, the model's config with the hub's normalisation and crop, and its key in
        `timm_names.MODELS`.

    Raises:
        RunError: the model cannot be downloaded, or we do not have it.
    """
    path, described = weight_files.download(repository)
    what = f"{weight_files.HUB}{repository}: its config.json describes no model of timm"
    with decode_errors(what, "give another", RunError):
        name = known(described.get("architecture", repository))
        config, hub = timm_names.config_for(name), described.get("pretrained_cfg", {})
        config.data.update({ours: _as_tuple(hub[theirs]) for ours, theirs in PREPROCESSING.items() if theirs in hub})
        config_lib.validate(config)
    return path, config, name


def known(name: str) -> str:
    """Returns `name` if it is a key of `timm_names.MODELS`.

    Raises:
        RunError: it is not; the message gives the most similar key.
    """
    if name in timm_names.MODELS:
        return name
    raise RunError(f"there is no model {name!r} here; {did_you_mean(name.partition('.')[0], timm_names.MODELS)}")


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
