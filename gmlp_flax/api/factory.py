"""Where models come from: created by name with fresh weights, or loaded with trained ones."""

import fnmatch
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.api.changes import Changes, Classes, ImageSize, changed_task
from gmlp_flax.config.validation import AXES
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import ConfigError, RunError, did_you_mean
from gmlp_flax.io import files as io_files
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.paper import recipes
from gmlp_flax.paper.published import PUBLISHED, VOCAB_SIZE
from gmlp_flax.training import pretrained, warm_start
from gmlp_flax.training.model import Model
from gmlp_flax.training.partition import Partition
from gmlp_flax.weights import exports, timm

Mesh = Mapping[str, int] | jax.sharding.Mesh

# Options of timm's create_model, which create does not have.
_OPTIONS_OF_TIMM = {
    "num_classes": "did you mean 'classes'?",
    "pretrained": "load takes trained weights, such as 'hf-hub:timm/gmlp_s16_224.ra3_in1k'",
}


def list_models(pattern: str = "*") -> list[str]:
    """The names of the models that `create` makes, in order.

    Args:
        pattern: as a shell's: "gmlp*".
    """
    names = sorted(_models())
    return fnmatch.filter(names, pattern)


def list_pretrained(pattern: str = "*") -> list[str]:
    """The names of the trained models that come with gmlp_flax, which `load` takes; `pattern` as in
    `list_models`."""
    names = exports.shipped()
    return fnmatch.filter(names, pattern)


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
    for option in options:
        advice = _OPTIONS_OF_TIMM.get(option)
        if advice:
            raise ConfigError(f"create has no option {option!r}: {advice}")
    config = _config_of(name)
    files = {}
    if tokenizer:
        loaded = Tokenizer.load(tokenizer)
        if loaded.note:
            to_stderr(loaded.note)
        files[TOKENIZER_FILE] = loaded.model
        options = {"vocab_size": loaded.vocab_size, **options}
    changes = Changes(classes, image_size, dtype, options)
    task = changed_task(config, files, changes, f"create({name!r})")
    try:
        sizes = mesh_sizes(mesh)
        mesh_partition = Partition.make(sizes)
        metadata = task.param_metadata()
        partition = mesh_partition.for_model(metadata)
        shapes = task.shapes()
        shardings = partition.shardings(shapes)
    except ValueError as error:
        raise RunError(str(error)) from None
    init = jax.jit(task.init, out_shardings=shardings)
    key = jax.random.key(seed)
    params = init(key)
    return Model(task, params, partition)


def _config_of(name: str) -> ConfigDict:
    """The config of a model of `list_models`, or in a config file."""
    makers = _models()
    if name not in makers:
        return _open_config(name)
    make = makers[name]
    return make()


def load(
    source: str | os.PathLike[str],
    checkpoint: str | int = "best",
    *,
    classes: Classes | None = None,
    image_size: ImageSize | None = None,
    dtype: Any = None,
    mesh: Mesh | None = None,
) -> Model:
    """A trained model, with its tokenizer or image transform.

        model = gmlp_flax.load("runs/text")
        model.predict("The [MASK] statement is used to define a function.", top=3)

    Args:
        source: a run folder, the --workdir of `gmlp train`, or RUN/checkpoints/STEP; a folder that
            `gmlp export` has written; a folder of timm's with its config.json, or a file of weights
            of timm's or vision_transformer's, named after its model; a folder of a BERT or FNet as
            transformers saves it, or the weights in it; "hf-hub:OWNER/NAME"; or one of
            `list_pretrained`.
        checkpoint: of a run: "latest", "best", or a step.
        classes: other classes, their number or names: the head gets fresh weights. A language model
            becomes a classifier of texts.
        image_size: another height and width of images, in pixels, or one number for both: layers
            over tokens and learned positions are interpolated to the new grid of patches.
        dtype: another type of activations and matrix products; parameters keep theirs.
        mesh: devices along the axes data, fsdp and tensor, as in config.mesh, such as {"fsdp": 4};
            or a jax.sharding.Mesh with these axes. Without it, as in the run, or a copy on all
            devices.

    Raises:
        UserError: there is no such model, its files cannot be read, the checkpoint does not exist
            or is damaged, or the model cannot be changed this way. The message is one line.
    """
    sizes = mesh_sizes(mesh)
    source = io_files.user_path(source)
    if source in _models() and not io_files.exists(source):
        raise RunError(
            f"{source!r} names an architecture, not a trained model: create({source!r}) makes one"
        )
    opened = pretrained.open_model(source, str(checkpoint))
    model = opened.load(mesh=sizes)
    if classes is None and image_size is None and dtype is None:
        return model
    changes = Changes(classes, image_size, dtype)
    return _changed(model, changes, source)


def _changed(model: Model, changes: Changes, source: str) -> Model:
    """A loaded model with other classes, images or types; what does not fit gets fresh weights."""
    config = model.config
    files = model.task.files
    task = changed_task(config, files, changes, f"load({source!r})")
    metadata = task.param_metadata()
    partition = model.partition.for_model(metadata)
    carried_over = warm_start.carry_over(model.params, files, task, config, partition, source)
    shardings = partition.shardings(carried_over)
    params = jax.device_put(carried_over, shardings)
    return Model(task, params, partition, model.step)


def _models() -> dict[str, Callable[[], ConfigDict]]:
    """What makes the config of each model of `list_models`, by name."""
    makers: dict[str, Callable[[], ConfigDict]] = {}
    for name in recipes.SMALL_IMAGE_MODELS:
        makers[name] = functools.partial(_of_small_images, name)
    for name in timm.MODELS:
        makers[name] = functools.partial(timm.config_for, name)
    for name in PUBLISHED:
        makers[name] = functools.partial(_published, name)
    return makers


def _of_small_images(name: str) -> ConfigDict:
    path = f"{config_lib.PACKAGED}.cifar10"
    return config_lib.from_file(path, name)


def _published(name: str) -> ConfigDict:
    published = PUBLISHED[name]
    if published.pool:
        return recipes.image_model(name)
    config = recipes.language_model(name)
    config.model.vocab_size = VOCAB_SIZE
    return config


def _open_config(name: str) -> ConfigDict:
    """The config in a file that is named in place of a model."""
    if name in exports.shipped():
        raise ConfigError(
            f"{name!r} is a trained model: load({name!r}) reads it; create takes one of "
            "list_models()"
        )
    if ":" not in name and not name.endswith((".py", ".json")):
        similar = did_you_mean(name, _models(), "list_models() has them all")
        raise ConfigError(f"there is no model {name!r}; {similar}")
    return config_lib.open_config(name)


def mesh_sizes(mesh: Mesh | None) -> dict[str, int]:
    """The sizes of the axes of a mesh, {} for None.

    Raises:
        ConfigError: it is not a mesh, or has other axes.
    """
    if mesh is None:
        return {}
    if not isinstance(mesh, Mapping | jax.sharding.Mesh):
        raise ConfigError(
            f"mesh is {mesh!r}: expected sizes of axes, such as {{'fsdp': 4}}, or a "
            "jax.sharding.Mesh"
        )
    sizes = mesh.shape if isinstance(mesh, jax.sharding.Mesh) else mesh
    for axis in sizes:
        if axis not in AXES:
            known = ", ".join(AXES)
            raise ConfigError(f"mesh has an axis {axis!r}: expected some of {known}")
    return dict(sizes)
