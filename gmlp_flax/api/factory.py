"""Where models come from: made anew by name, or loaded with their weights."""

import fnmatch
import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.api.model import Model, place
from gmlp_flax.checkpoints import CONFIG_FILE
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.config.validation import AXES
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import ConfigError, RunError, decode_errors, did_you_mean
from gmlp_flax.interop import timm, transformers
from gmlp_flax.io import files as io_files
from gmlp_flax.io import json_files, weight_files
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.paper import recipes
from gmlp_flax.paper.published import PUBLISHED, VOCAB_SIZE
from gmlp_flax.training import loading, warm_start
from gmlp_flax.training.partition import Partition

Classes = int | Sequence[str]
ImageSize = int | tuple[int, int]
Mesh = Mapping[str, int] | jax.sharding.Mesh
OF_OTHERS = {"num_classes": "did you mean 'classes'?"}  # options of timm's create_model
OF_OTHERS |= {
    "pretrained": "load takes trained weights, such as 'hf-hub:timm/gmlp_s16_224.ra3_in1k'"
}


def list_models(pattern: str = "*") -> list[str]:
    """The names of the models that `create` makes, in order.

    Args:
        pattern: as a shell's: "gmlp*".
    """
    return fnmatch.filter(sorted(_models()), pattern)


def list_pretrained(pattern: str = "*") -> list[str]:
    """The names of the trained models that come with gmlp_flax, which `load` takes; `pattern` as in
    `list_models`."""
    return fnmatch.filter(loading.shipped(), pattern)


def create(
    name: str,
    *,
    classes: Classes | None = None,
    image_size: ImageSize | None = None,
    dtype: Any = "float32",
    seed: int = 0,
    tokenizer: str = "",
    mesh: Mesh | None = None,
    **options: Any,
) -> Model:
    """A model with fresh weights.

        model = gmlp_flax.create("gmlp_s", classes=10, dtype="bfloat16")

    Args:
        name: one of `list_models`, or a config file, FILE:ARGUMENT, as `gmlp train --config` takes
            it.
        classes: how many classes, or their names; a language model becomes a classifier of texts.
            Without it, image models have ImageNet's 1,000.
        image_size: height and width of images in pixels, or one number for both.
        dtype: of activations and matrix products: float32, bfloat16 or float64; parameters are
            float32 or float64.
        seed: of the initial weights.
        tokenizer: of text models: a file or a name as config.data.tokenizer takes it. Without it,
            the model reads token ids alone.
        mesh: as in `load`.
        options: other keys of config.model, such as layers or length.

    Raises:
        ConfigError: there is no such model or option, or a value makes no sense.
        RunError, DataError: no model can be built from these options, or the tokenizer cannot be
            read.
    """
    if other := [name for name in options if name in OF_OTHERS]:
        raise ConfigError(f"create has no option {other[0]!r}: {OF_OTHERS[other[0]]}")
    config, files = _models().get(name, functools.partial(_open, name))(), {}
    if tokenizer:
        if (read := Tokenizer.load(tokenizer)).note:
            to_stderr(read.note)
        files[TOKENIZER_FILE], options = read.model, {"vocab_size": read.vocab_size, **options}
    task = _changed(config, files, f"create({name!r})", classes, image_size, dtype, options)
    try:
        partition = Partition.make(_sizes(mesh)).for_model(task.param_metadata())
        shardings = partition.shardings(task.shapes())
    except ValueError as error:
        raise RunError(str(error)) from None
    params = jax.jit(task.init, out_shardings=shardings)(jax.random.key(seed))
    return Model(task.config, task, 0, params, None, partition)


def load(
    source: str | os.PathLike[str],
    checkpoint: str | int = "best",
    *,
    classes: Classes | None = None,
    image_size: ImageSize | None = None,
    dtype: Any = None,
    mesh: Mesh | None = None,
    causal: bool | None = None,
) -> Model:
    """A trained model, with its tokenizer or image transform.

        model = gmlp_flax.load("runs/text")
        model.predict("The [MASK] statement is used to define a function.", top=3)

    Args:
        source: a run folder, the --workdir of `gmlp train`; a folder that `gmlp export` has
            written; a folder of timm's with its config.json, or a file of weights of timm's or
            vision_transformer's, named after its model; a folder of a BERT or FNet as transformers
            saves it, or the weights in it; a state dict of g-mlp-pytorch's gMLP or gMLPVision, in a
            file; "hf-hub:OWNER/NAME"; or one of `list_pretrained`.
        checkpoint: of a run: "latest", "best", or a step.
        classes: other classes, their number or names: the head starts anew. A language model
            becomes a classifier of texts.
        image_size: another height and width of images, in pixels, or one number for both: layers
            over tokens and learned positions are interpolated to the new grid of patches.
        dtype: another type of activations and matrix products; parameters keep theirs.
        mesh: devices along the axes data, fsdp and tensor, as in config.mesh, such as {"fsdp": 4};
            or a jax.sharding.Mesh with these axes. Without it, as in the run, or a copy on all
            devices.
        causal: of g-mlp-pytorch's gMLP, whose state dict does not say it: its argument of this
            name. Without it, it is concluded from the weights, and said on standard error.

    Raises:
        UserError: there is no such model, its files cannot be read, the checkpoint does not exist
            or is damaged, or the model cannot be changed so. The message is one line.
    """
    model = _open_source(os.fspath(source), str(checkpoint), _sizes(mesh), causal)
    if causal is not None and causal is not model.config.model.causal:
        raise ConfigError(
            f"load({str(source)!r}): causal is {causal}, and its model is not: leave causal out"
        )
    if (classes, image_size, dtype) == (None, None, None):
        return model
    files = model.task.assets()
    task = _changed(
        model.config, dict(files), f"load({str(source)!r})", classes, image_size, dtype, {}
    )
    partition = model.partition.for_model(task.param_metadata())
    params = warm_start.carry_over(model.params, files, task, model.config, partition, str(source))
    params = jax.device_put(params, partition.shardings(params))
    return Model(task.config, task, model.step, params, None, partition)


def _models() -> dict[str, Callable[[], ConfigDict]]:
    small, file = recipes.SMALL_IMAGE_MODELS, f"{config_lib.PACKAGED}.cifar10"
    return {
        **{name: functools.partial(config_lib.from_file, file, name) for name in small},
        **{name: functools.partial(timm.config_for, name) for name in timm.MODELS},
        **{name: functools.partial(_published, name) for name in PUBLISHED},
    }


def _published(name: str) -> ConfigDict:
    if PUBLISHED[name].pool:
        return recipes.image_model(name)
    config = recipes.language_model(name)
    config.model.vocab_size = VOCAB_SIZE
    return config


def _open(name: str) -> ConfigDict:
    if name in loading.shipped():
        raise ConfigError(
            f"{name!r} is a trained model: load({name!r}) reads it; create takes one of list_models()"
        )
    if ":" not in name and not name.endswith((".py", ".json")):
        raise ConfigError(
            f"there is no model {name!r}; {did_you_mean(name, _models(), 'list_models() has them all')}"
        )
    return config_lib.open_config(name)


def _open_source(source: str, checkpoint: str, mesh: dict[str, int], causal: bool | None) -> Model:
    is_file = source.endswith((".safetensors", ".npz", *weight_files.PICKLES))
    folder, hub = (
        (os.path.dirname(source) or ".") if is_file else source,
        source.removeprefix(weight_files.HUB),
    )
    described = (
        io_files.join(folder, CONFIG_FILE)
        if hub == source
        else weight_files.fetch(hub, CONFIG_FILE)
    )
    known = json_files.read(described, dict) if io_files.exists(described) else {}
    kind = str(known.get("model_type"))
    if (is_file or "architecture" in known or kind in transformers.FAMILIES) and checkpoint not in (
        "latest",
        "best",
    ):
        raise RunError(
            f"{source} holds weights, which have no checkpoint {checkpoint!r}: leave it out"
        )
    if "architecture" in known:  # as timm saves its models
        return place(*timm.read(*timm.from_folder(source)), mesh=mesh)
    if kind in transformers.FAMILIES:
        return place(*transformers.read(kind, source), mesh=mesh)
    name = timm.named_after(source)
    if is_file and (name in timm.MODELS or not known):
        state = weight_files.read(source)
        # also in its wrapper
        if not {"layers.0.fn.norm.weight", "net.layers.0.fn.norm.weight"}.isdisjoint(state):
            return place(*timm.read_g_mlp_pytorch(state, source, causal), mesh=mesh)
        config = timm.config_for(
            name, "a file is named after its model, as gmlp_s16_224.ra3_in1k.safetensors"
        )
        return place(*timm.read(state, config, name, source), mesh=mesh)
    if source in _models() and not io_files.exists(source):
        raise RunError(
            f"{source!r} names an architecture, not a trained model: create({source!r}) makes one"
        )
    config, folder = None, loading.locate(folder)
    if mesh and io_files.exists(path := io_files.join(folder, CONFIG_FILE)):
        Partition.make(mesh)  # else a run is loaded on all devices
        config = config_lib.load(path)
        config.mesh.update({"data": -1, "fsdp": 1, "tensor": 1, "slices": 1} | mesh)
    run = loading.load(folder, checkpoint, config)
    return Model(run.config, run.task, run.step, run.weights, None, run.partition)


def _sizes(mesh: Mesh | None) -> dict[str, int]:
    if not isinstance(mesh, Mapping | jax.sharding.Mesh | None):
        raise ConfigError(
            f"mesh is {mesh!r}: expected sizes of axes, such as {{'fsdp': 4}}, or a jax.sharding.Mesh"
        )
    sizes = dict(mesh.shape if isinstance(mesh, jax.sharding.Mesh) else mesh or {})
    if unknown := [axis for axis in sizes if axis not in AXES]:
        raise ConfigError(f"mesh has an axis {unknown[0]!r}: expected some of {', '.join(AXES)}")
    return sizes


def as_classifier(config: ConfigDict) -> ConfigDict:
    """The config of a classifier of other classes, with the same model if the task allows it."""
    keys = dict(tasks.find(config.task).as_classifier)
    config = config_lib.changed(config, task=keys.pop("task", ""))
    config.update_from_flattened_dict(keys)
    return config


def _changed(
    config: ConfigDict,
    files: Files,
    where: str,
    classes: Any,
    image_size: Any,
    dtype: Any,
    options: dict[str, Any],
) -> tasks.Task:
    """The task of a config with other values in config.model; `files` are of its assets, to which
    classes are added.

    Raises:
        ConfigError: as in `create`; it begins with `where`.
    """
    config = config.copy_and_resolve_references()
    if classes is not None:
        config, given = as_classifier(config), classes
        given = (
            range(given) if hasattr(given, "__index__") and not getattr(given, "ndim", 0) else given
        )
        names = (
            [*map(str, given)] if isinstance(given, Iterable) and not isinstance(given, str) else []
        )
        heads = [*tasks.find(config.task).heads]
        if not heads:
            raise ConfigError(
                f"{where}: a model of the task {config.task} has no classes: leave classes out"
            )
        if len({*names}) < max(len(names), 1):
            raise ConfigError(
                f"{where}: classes is {classes!r}: expected a number from 1, or different names"
            )
        files[heads[0]] = json.dumps(names).encode()
    values = config.to_dict()
    if image_size is not None:
        options["image_size"] = (
            (int(image_size),) * 2 if hasattr(image_size, "__index__") else image_size
        )
    if dtype is not None:
        with decode_errors(
            f"{where}: dtype is {dtype!r}", "expected float32, bfloat16 or float64", ConfigError
        ):
            options["dtype"] = dtype if isinstance(dtype, str) else jnp.dtype(dtype).name
    values["model"].update(options)
    config = config_lib.from_dict(values, where)
    config_lib.validate(config)
    return tasks.find(config.task).without_data(config, files)
