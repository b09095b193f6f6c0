"""Every kind of trained model, opened in one way: runs, exported folders, models that come with
gmlp_flax, weights of timm, vision_transformer and transformers, on a disk, in a bucket or on the
Hugging Face hub, and models of a program.

They may come from anybody: nothing in them is executed, and everything is checked before it is
used.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints import CHECKPOINTS, CONFIG_FILE
from gmlp_flax.checkpoints.assets import Files, require_same
from gmlp_flax.checkpoints.pytree import leaves_by_path, require_fit
from gmlp_flax.config.optimizers import keeps_mean
from gmlp_flax.errors import RunError, did_you_mean
from gmlp_flax.io import files as io_files
from gmlp_flax.io import hub, weight_files
from gmlp_flax.tasks.base import Task
from gmlp_flax.training.model import Model
from gmlp_flax.training.model_sources import Source, find
from gmlp_flax.training.partition import Partition
from gmlp_flax.training.saved_run import SavedRun
from gmlp_flax.weights import exports, timm, transformers
from gmlp_flax.weights.saved import SavedModel

KINDS_IN_WORDS = (
    "expected a run folder, RUN/checkpoints/STEP, an exported folder, hf-hub:OWNER/NAME, a folder "
    "or file of timm's or transformers' weights, or one of gmlp_flax.list_pretrained()"
)
# These also name the only checkpoint of an exported folder or a file.
_ANY = ("best", "latest")

# From the devices to the parameters on them, a nested dict of arrays.
Read = Callable[[Partition], Any]


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A trained model that exists. Its parameters are read on request.

    Attributes:
        where: the checkpoint, the folder or the file, for messages.
        config: of the model.
        files: what the model needs besides its parameters, by name (`Task.files`).
        read: returns the parameters that it predicts with, in their own shapes: their running mean,
            if it was kept.
        read_unaveraged: returns the parameters themselves; None if no mean was kept.
        step: how many steps the model was trained; 0 if that is not known.
        folder: of the run, or the exported folder; "" for others.
    """

    where: str
    config: ConfigDict
    files: Files
    read: Read
    read_unaveraged: Read | None = None
    step: int = 0
    folder: str = ""

    def load(
        self,
        config: ConfigDict | None = None,
        mesh: Mapping[str, int] | None = None,
        unaveraged: bool = False,
    ) -> Model:
        """The model with its parameters on the devices.

        Args:
            config: replaces the model's own.
            mesh: sizes of the axes data, fsdp and tensor. Without it, the devices are split as
                config.mesh says or, if their number does not suit it, each has a copy.
            unaveraged: whether to also read the parameters themselves, if their running mean was
                kept.

        Raises:
            UserError: the parameters are damaged, or do not fit the config.
        """
        if config is None:
            config = self.config
        resolution = config_lib.resolve(config)
        resolved = resolution.config
        kind = tasks.find(resolved.task)
        task = kind(resolved, self.files)
        partition = _partition(resolved, mesh)
        metadata = task.param_metadata()
        partition = partition.for_model(metadata)
        params = self._read_checked(self.read, task, partition)
        unaveraged_params = None
        if unaveraged and self.read_unaveraged is not None:
            unaveraged_params = self._read_checked(self.read_unaveraged, task, partition)
        return Model(task, params, partition, self.step, unaveraged_params, self.folder)

    def _read_checked(self, read: Read, task: Task, partition: Partition) -> Any:
        """Reads parameters, and raises RunError if they do not fit the task's model."""
        params = read(partition)
        saved = leaves_by_path(params)
        shapes = task.shapes()
        wanted = leaves_by_path(shapes)
        require_fit(saved, wanted, self.where)
        return params


def open_model(source: str | os.PathLike[str] | Model, checkpoint: str = "best") -> Pretrained:
    """Opens a trained model.

    Args:
        source: a run folder; RUN/checkpoints/STEP; a folder that `gmlp export` has written or the
            weights in it; "hf-hub:OWNER/NAME"; a folder of timm's with its config.json; a file of
            weights of timm's or vision_transformer's, named after its model; a folder of a BERT,
            FNet, RoBERTa, DistilBERT, ModernBERT or Llama as transformers saves it, or the weights
            in it; one of `exports.shipped`; or a `Model`.
        checkpoint: for a run, "latest", "best", or a step.

    Raises:
        UserError: there is no such model, the checkpoint does not exist or is damaged, or a file is
            missing or cannot be read. The message is one line long.
    """
    if isinstance(source, Model):
        return _open_given(source)
    name = io_files.user_path(source)
    location = find(name)
    kind = _kind_of(location)
    if kind is not _RUN and checkpoint not in _ANY:
        raise RunError(
            f"{location.name} holds weights, which have no checkpoint {checkpoint!r}: leave it out"
        )
    if location.repository:
        _download(location, kind)
    return kind.open(location, checkpoint)


def config_of(source: str | os.PathLike[str]) -> ConfigDict:
    """The config of a model as `open_model` gives it, without touching a device or a checkpoint.

    Raises:
        UserError: there is no such model, or its config cannot be read.
    """
    name = io_files.user_path(source)
    location = find(name)
    kind = _kind_of(location)
    if kind in (_RUN, _EXPORT):
        config_path = location.path(CONFIG_FILE)
        return config_lib.load(config_path)
    opened = open_model(source)
    return opened.config


def exported_folder(source: str | os.PathLike[str]) -> str:
    """The exported folder that a name leads to; "" if it leads to something else.

    Raises:
        UserError: there is no such model.
    """
    name = io_files.user_path(source)
    location = find(name)
    kind = _kind_of(location)
    if kind is not _EXPORT:
        return ""
    return location.folder


def load(source: str | os.PathLike[str] | Model, checkpoint: str = "best") -> Model:
    """A trained model with its parameters on the devices. Nothing is written. The arguments are
    those of `open_model`.

    Raises:
        UserError: as `open_model` and `Pretrained.load`.
    """
    opened = open_model(source, checkpoint)
    return opened.load()


def _partition(config: ConfigDict, mesh: Mapping[str, int] | None) -> Partition:
    """The devices, see `Pretrained.load`."""
    rules = config.mesh.rules
    if mesh:
        options = {**mesh, "rules": rules}
        return Partition.make(options)
    try:
        return Partition.make(config.mesh)
    except RunError:
        return Partition.make({"rules": rules})


# The kinds.


class Kind(NamedTuple):
    """A kind of trained model.

    Attributes:
        words: what it is called in messages.
        recognizes: whether a source is of this kind; no source is of two.
        open: opens the checkpoint of a source.
        weights: on the hub, the names that its weights may have, the preferred one first.
        other_files: on the hub, the names of other files that it may have.
    """

    words: str
    recognizes: Callable[[Source], bool]
    open: Callable[[Source, str], Pretrained]
    weights: Sequence[str] = ()
    other_files: Callable[[Source], Sequence[str]] = lambda source: ()


def _kind_of(source: Source) -> Kind:
    """Raises RunError if a source is of no kind, or of two."""
    kinds = [kind for kind in KINDS if kind.recognizes(source)]
    if not kinds:
        raise _unrecognized(source)
    if len(kinds) > 1:
        words = [kind.words for kind in kinds]
        both = " and ".join(words)
        raise RunError(f"{source.folder} holds {both}: keep one of them there, or name its file")
    return kinds[0]


def _unrecognized(source: Source) -> RunError:
    """The error that says why a source is of no kind."""
    if source.file:
        name = timm.named_after(source.file)
        advice = did_you_mean(name, timm.MODELS, "gmlp_flax.list_models() has all names")
        return RunError(
            f"{source.name} is not named after a model that gmlp_flax has ({advice}); a file is "
            "named after its model, as gmlp_s16_224.ra3_in1k.safetensors"
        )
    if "task" in source.described:
        return RunError(
            f"there is no checkpoint in {source.folder} yet: wait for the first one, or train it"
        )
    if source.described:
        model_type = source.described.get("model_type")
        of_type = f" (model_type {model_type!r:.40})" if model_type else ""
        return RunError(
            f"the config.json of {source.name} describes no model that gmlp_flax has{of_type}: "
            f"{KINDS_IN_WORDS}"
        )
    name = os.path.basename(source.folder)
    shipped = exports.shipped()
    advice = did_you_mean(name, shipped, KINDS_IN_WORDS)
    return RunError(f"{source.folder} is not a run folder: it has no {CONFIG_FILE}; {advice}")


def _download(source: Source, kind: Kind) -> None:
    """Fetches the files of a kind from the hub, all of the commit of its config.json."""
    config_path = source.path(CONFIG_FILE)
    commit = hub.commit_of(config_path)
    other_files = kind.other_files(source)
    hub.fetch_first(source.repository, kind.weights, commit)
    for name in other_files:
        hub.fetch(source.repository, name, commit, optional=True)


# A run.


def _is_run(source: Source) -> bool:
    if source.step:
        return True
    return not source.file and not source.repository and source.has(CHECKPOINTS)


def _open_run(source: Source, checkpoint: str) -> Pretrained:
    if source.step and checkpoint not in (*_ANY, source.step):
        raise RunError(
            f"{source.name} is the checkpoint {source.step}, not {checkpoint}: give one of the two"
        )
    run = SavedRun.open(source.folder)
    config = run.config
    saved = run.find(source.step or checkpoint)
    files = dict(saved.files)
    task = tasks.find(config.task)
    for name in task.inheritance.files:
        if source.has(name):
            path = source.path(name)
            files[name] = io_files.read_small(path)
    require_same(saved.files, files, saved.where)

    def read_params(partition: Partition) -> Any:
        return run.read("params", saved.step, partition)

    def read_mean(partition: Partition) -> Any:
        return run.read("ema", saved.step, partition)

    read: Read = read_params
    read_unaveraged: Read | None = None
    if keeps_mean(config.optimizer):
        read = read_mean
        read_unaveraged = read_params
    return Pretrained(
        where=saved.where,
        config=config,
        files=files,
        read=read,
        read_unaveraged=read_unaveraged,
        step=saved.step,
        folder=source.folder,
    )


# Files.


def _from_saved(saved: SavedModel, folder: str = "") -> Pretrained:
    def read(partition: Partition) -> Any:
        params = saved.read()
        return _place(params, partition)

    return Pretrained(saved.where, saved.config, saved.files, read, folder=folder)


def _place(params: Any, partition: Partition) -> Any:
    """Parameters on the devices."""
    shardings = partition.shardings(params)
    return jax.device_put(params, shardings)


def _is_export(source: Source) -> bool:
    if "task" not in source.described or source.step:
        return False
    if source.file not in ("", exports.WEIGHTS):
        return False
    return bool(source.repository) or source.has(exports.WEIGHTS)


def _open_export(source: Source, _: str) -> Pretrained:
    saved = exports.open_export(source.folder)
    return _from_saved(saved, source.folder)


def _files_of_export(source: Source) -> Sequence[str]:
    config_path = source.path(CONFIG_FILE)
    config = config_lib.load(config_path)
    task = tasks.find(config.task)
    return task.inheritance.files


def _is_of_timm(source: Source) -> bool:
    return "architecture" in source.described and not source.step


def _open_timm(source: Source, _: str) -> Pretrained:
    weights = _weights_of(source)
    saved = timm.open_described(weights, source.described)
    return _from_saved(saved)


def _is_of_transformers(source: Source) -> bool:
    model_type = source.described.get("model_type")
    is_known = str(model_type) in transformers.FAMILIES
    return is_known and not source.step


def _open_transformers(source: Source, _: str) -> Pretrained:
    weights = _weights_of(source)
    saved = transformers.open_described(weights, source.described)
    return _from_saved(saved)


def _weights_of(source: Source) -> str:
    """The path of the weights beside a config.json of Hugging Face's libraries."""
    if source.file:
        return source.path(source.file)
    for name in weight_files.WEIGHTS:
        if source.has(name):
            return source.path(name)
    names = " and no ".join(weight_files.WEIGHTS)
    raise RunError(f"{source.folder} has no {names}: give the folder of one model, not in shards")


def _is_named_file(source: Source) -> bool:
    is_described = _is_of_timm(source) or _is_of_transformers(source)
    name = timm.named_after(source.file)
    return name in timm.MODELS and not is_described


def _open_named_file(source: Source, _: str) -> Pretrained:
    path = source.path(source.file)
    saved = timm.open_file(path)
    return _from_saved(saved)


_RUN = Kind("a run", _is_run, _open_run)
_EXPORT = Kind(
    "exported weights",
    _is_export,
    _open_export,
    weights=(exports.WEIGHTS,),
    other_files=_files_of_export,
)
_TIMM = Kind("a model of timm", _is_of_timm, _open_timm, weights=weight_files.WEIGHTS)
_NAMED_FILE = Kind("a file named after a model of timm", _is_named_file, _open_named_file)
_TRANSFORMERS = Kind(
    "a model of transformers",
    _is_of_transformers,
    _open_transformers,
    weights=weight_files.WEIGHTS,
    other_files=lambda source: transformers.TOKENIZER_FILES,
)
KINDS = (_RUN, _EXPORT, _TIMM, _NAMED_FILE, _TRANSFORMERS)


# A `Model`.


def _open_given(model: Model) -> Pretrained:
    def read(partition: Partition) -> Any:
        return _place(model.params, partition)

    def read_unaveraged(partition: Partition) -> Any:
        return _place(model.unaveraged, partition)

    return Pretrained(
        where="the given model",
        config=model.config,
        files=model.task.files,
        read=read,
        read_unaveraged=None if model.unaveraged is None else read_unaveraged,
        step=model.step,
        folder=model.folder,
    )
