"""Weights of timm's models as run folders, and back.

    python -m gmlp_flax.interop.timm --model=gmlp_s16_224 --checkpoint=FILE.safetensors --out=DIR [--data=PATH]
    python -m gmlp_flax.interop.timm --model=hf-hub:timm/gmlp_s16_224.ra3_in1k --out=DIR [--data=PATH]
    python -m gmlp_flax.interop.timm --to_timm --workdir=RUN --out=FILE.safetensors [--checkpoint=latest|best|STEP]
    python -m gmlp_flax.interop.timm --parity

The first two write a folder that is used like that of a run: by predict, by config.init_from, by analysis.filters and,
where --data names pictures (what config.data.heldout takes), by evaluate. The third writes what timm.create_model(NAME,
checkpoint_path=FILE) loads. The last prints how far our models are from timm's with the same weights.

Classes: a model of 1,000 is taken for one of ImageNet-1k. Its classes are then called by their WordNet ids, as
ImageNet's folders and TFDS call them, and predict shows timm's words for them if timm is installed when the folder is
written. Of any other number, they are called by their numbers. Pixels are normalised and cropped as is timm's default
for the architecture; a model from the hub brings its own numbers.
"""

from __future__ import annotations

import difflib
import importlib.resources
import json
import os
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict

from gmlp_flax import cli
from gmlp_flax import config as config_lib
from gmlp_flax.interop import parity, timm_names, weight_files
from gmlp_flax.tasks.image_classification import CLASSES_FILE, NAMES_FILE
from gmlp_flax.training import dry_run, folder
from gmlp_flax.training.assets import Files
from gmlp_flax.training.errors import RunError

HUB = "hf-hub:"
IMAGENET = "datasets/imagenet2012/labels.txt"  # in TFDS: the WordNet ids in the order of the labels
# Keys of config.model in which a run may differ from timm's model: where scales start, an epsilon (its effect on logits
# is about 1e-5), and a size of images that timm takes as an argument.
FREE = ("layer_scale", "gate_norm_eps", "image_size")
SEEN = {"mean": "mean", "std": "std", "eval_crop": "crop_pct"}  # keys of our config.data, and timm's for them
BACK = "interop.timm --to_timm --workdir=RUN --out=FILE.safetensors"
INTO = f"interop.timm --model=NAME --checkpoint=FILE --out=DIR, or --model={HUB}timm/NAME.TAG --out=DIR"


def class_files(count: int) -> Files:
    """The files of a run folder that name so many classes: by id, and, where timm is here, in words for people."""
    if count != 1000:
        return {CLASSES_FILE: _json([f"class {label}" for label in range(count)])}
    synsets = importlib.resources.files("tensorflow_datasets").joinpath(IMAGENET).read_text().split()
    try:
        imagenet = parity.import_timm().data.ImageNetInfo()
    except RunError:
        return {CLASSES_FILE: _json(synsets)}
    words = [imagenet.label_name_to_description(synset) for synset in synsets]
    return {CLASSES_FILE: _json(synsets), NAMES_FILE: _json(words)}


def convert(state: dict[str, Any], config: ConfigDict, name: str, out: str, where: str) -> None:
    """Writes weights of timm's as a run folder with one checkpoint, of step 0.

    Args:
        state: arrays by timm's names.
        config: of the model.
        name: its row in `timm_names.MODELS`.
        out: the folder.
        where: what was read, for messages.

    Raises:
        RunError: the weights are not this model's, or the folder holds a run or cannot be written to.
    """
    taken = [entry for entry in (folder.CONFIG_FILE, folder.CHECKPOINTS) if os.path.exists(os.path.join(out, entry))]
    if taken:
        raise RunError(f"--out={out} holds a run already ({taken[0]}): give another folder")
    head = state.get("head.bias")
    count = 1000 if head is None else head.size
    like = dry_run.dataless_task(config, count).shapes()
    rows = timm_names.MODELS[name].rows
    params = timm_names.from_timm(state, rows, like, timm_names.patch_shape(config), where)
    files = class_files(count)
    folder.make(out)
    folder.write_files(out, files, replace=True)
    checkpoints = folder.open_checkpoints(config, os.path.abspath(out), files)
    checkpoints.save(0, {"params": jax.device_put(params)}, None)
    checkpoints.wait()
    checkpoints.close()
    folder.write_files(out, {folder.CONFIG_FILE: config_lib.to_json(config).encode()}, replace=True)


def matching(config: ConfigDict) -> str:
    """The model of timm's that a run trained; of two alike, one that normalises pixels as the run does.

    Raises:
        RunError: timm has none like it; the nearest is named, with what differs.
    """
    if config.task != "image_classification":
        raise RunError(f"timm has image classifiers, and the run's config.task is {config.task!r}")

    def differences(name: str) -> list[str]:
        wanted = {key: value for key, value in timm_names.MODELS[name].model.items() if key not in FREE}
        own = config.model
        return [f"{key} {own[key]}, not {value}" for key, value in wanted.items() if own[key] != value]

    def distance(name: str) -> tuple[bool, int, int]:
        another = timm_names.MODELS[name].model["block"] != config.model.block
        return another, len(differences(name)), len(_seen(name, config))

    nearest = min(timm_names.MODELS, key=distance)
    if problems := differences(nearest):
        raise RunError(f"timm has no model like the run's; beside {nearest} its config.model has {'; '.join(problems)}")
    return nearest


def _seen(name: str, config: ConfigDict) -> dict[str, Any]:
    """What the run's config.data has otherwise than timm's default for a model, as timm calls it."""
    data = timm_names.MODELS[name].data
    return {SEEN[key]: config.data[key] for key, value in data.items() if config.data[key] != value}


def export(workdir: str, which: str, out: str) -> str:
    """Writes a run's weights as timm names them.

    Args:
        workdir: the run folder of an image classifier.
        which: "latest", "best", or a step.
        out: the .safetensors file.

    Returns:
        The Python expression that loads it.

    Raises:
        ConfigError, RunError: there is no such run or checkpoint, or timm has no such model.
    """
    trained = folder.load(workdir, which)
    config, name = trained.config, matching(trained.config)
    params = jax.device_get(trained.weights)
    weight_files.write(out, timm_names.to_timm(params, timm_names.MODELS[name].rows, timm_names.patch_shape(config)))
    arguments = {"num_classes": len(trained.task.classes), "checkpoint_path": out}
    if tuple(config.model.image_size) != timm_names.MODELS[name].model["image_size"]:
        arguments["img_size"] = tuple(config.model.image_size)
    if seen := _seen(name, config):
        arguments["pretrained_cfg_overlay"] = seen
    return f"timm.create_model({name!r}, {', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _json(names: list[str]) -> bytes:
    return json.dumps(names, indent=1).encode()


def from_hub(repository: str) -> tuple[str, ConfigDict, str]:
    """Downloads a model of timm's: its file, its config with the hub's own normalisation and crop, and its row.

    Raises:
        RunError: it cannot be downloaded, or is no model that we have.
    """
    path, described = weight_files.download(repository)
    name = known(described.get("architecture", repository))
    config, seen = timm_names.config_for(name), described.get("pretrained_cfg", {})
    config.data.update({ours: _plain(seen[theirs]) for ours, theirs in SEEN.items() if theirs in seen})
    return path, config, name


def known(name: str) -> str:
    """The name, if it is a row of `timm_names.MODELS`.

    Raises:
        RunError: it is not; the most similar one is named.
    """
    if name in timm_names.MODELS:
        return name
    close = difflib.get_close_matches(name.partition(".")[0], timm_names.MODELS, 1)
    advice = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(timm_names.MODELS)}"
    raise RunError(f"there is no model {name!r} here; {advice}")


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def main(_argv: list[str]) -> None:
    """Converts in the direction that the flags name, or prints the table of errors."""
    given = flags.FLAGS
    if given.parity:
        print(parity.table())
        return
    if given.to_timm:
        workdir, out = cli.required("workdir", BACK), cli.required("out", BACK)
        print(f"wrote {out}: {export(workdir, given.checkpoint or 'best', out)}")
        return
    name, out = cli.required("model", INTO), cli.required("out", INTO)
    if name.startswith(HUB):
        path, config, name = from_hub(name.removeprefix(HUB))
    else:
        config, path = timm_names.config_for(known(name)), cli.required("checkpoint", INTO)
    config.data.heldout = given.data
    convert(weight_files.read(path), config, name, out, path)
    print(f"wrote {out}: {name} from {path}")


if __name__ == "__main__":
    flags.DEFINE_string("model", None, f"timm's name of the model, or {HUB}REPOSITORY, which downloads it.")
    flags.DEFINE_string("checkpoint", None, "The file to convert; with --to_timm: latest, best, or a step.")
    flags.DEFINE_string("out", None, "The folder to write; with --to_timm: the .safetensors file.")
    flags.DEFINE_string("data", "", "Held-out pictures for `evaluate`, what config.data.heldout takes.")
    flags.DEFINE_boolean("to_timm", False, "Convert a run to timm's names instead.")
    flags.DEFINE_string("workdir", None, "With --to_timm: the run folder.")
    flags.DEFINE_boolean("parity", False, "Print how far our models are from timm's, and nothing else.")
    cli.run(main)
