"""Every kind of trained model, opened in one way: runs, exported folders, models that come with
gmlp_flax, weights of timm, vision_transformer and transformers, on a disk, in a bucket or on the
Hugging Face hub, and models of a program.

They may be anybody's: nothing in them is run, and all of it is checked before it is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints import CHECKPOINTS, CONFIG_FILE
from gmlp_flax.checkpoints.assets import Files, require_same
from gmlp_flax.checkpoints.checkpoint import Checkpoints
from gmlp_flax.checkpoints.pytree import leaves_by_path, require_fit
from gmlp_flax.checkpoints.reading import Damaged
from gmlp_flax.checkpoints.run_folder import read_identity
from gmlp_flax.config.optimizers import keeps_mean
from gmlp_flax.errors import RunError, did_you_mean
from gmlp_flax.io import files as io_files
from gmlp_flax.io import hub, json_files, weight_files
from gmlp_flax.training.checkpoints import open_checkpoints
from gmlp_flax.training.model import Model
from gmlp_flax.training.partition import Partition
from gmlp_flax.weights import exports, timm, transformers
from gmlp_flax.weights.saved import SavedModel

KINDS_IN_WORDS = (
    "expected a run folder, RUN/checkpoints/STEP, an exported folder, hf-hub:OWNER/NAME, a folder "
    "or file of timm's or transformers' weights, or one of gmlp_flax.list_pretrained()"
)
# What stands for the only checkpoint of an exported folder or a file, too.
_ANY = ("best", "latest")

# From the devices to hold them to parameters, a nested dict of arrays.
Read = Callable[[Partition], Any]


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A trained model that has been found. Its parameters are read when they are asked for.

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
                config.mesh says or, if there are others than those of the run, each has a copy.
            unaveraged: whether to read the parameters themselves, too, if their running mean was
                kept.

        Raises:
            UserError: the parameters are damaged, or do not fit the config.
        """
        resolved = config_lib.resolve(self.config if config is None else config).config
        task = tasks.find(resolved.task)(resolved, self.files)
        partition = _partition(resolved, mesh).for_model(task.param_metadata())
        wanted = leaves_by_path(task.shapes())
        params = self.read(partition)
        require_fit(leaves_by_path(params), wanted, self.where)
        others = None
        if unaveraged and self.read_unaveraged is not None:
            others = self.read_unaveraged(partition)
            require_fit(leaves_by_path(others), wanted, self.where)
        return Model(task, params, partition, self.step, others, self.folder)


@dataclasses.dataclass(frozen=True)
class Source:
    """What a name leads to, before anything but config.json is read.

    Attributes:
        name: as it was given.
        folder: its absolute path; of the hub, that of the cache.
        file: the name of a file of weights in the folder, if the name is of that.
        step: of RUN/checkpoints/STEP; else "".
        repository: on the hub; else "".
        described: what config.json says; empty without one.
    """

    name: str
    folder: str
    file: str = ""
    step: str = ""
    repository: str = ""
    described: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def path(self, name: str) -> str:
        """Where a file of the folder is, or would be."""
        return io_files.join(self.folder, name)

    def has(self, name: str) -> bool:
        """Whether the folder has a file."""
        return io_files.exists(self.path(name))


def find(name: str) -> Source:
    """What a name leads to: a path, one of `exports.shipped`, or "hf-hub:OWNER/NAME", whose
    config.json is downloaded, or taken from the hub's cache.

    Raises:
        RunError: the repository cannot be downloaded.
        DataError: config.json is damaged.
    """
    repository = hub.repository_of(name)
    if repository:
        described = hub.fetch(repository, CONFIG_FILE)
        folder = os.path.dirname(described)
        return _described(Source(name, folder, repository=repository))
    shipped = exports.shipped()
    path = name
    if name in shipped and not io_files.exists(name):
        path = shipped[name]
    path = io_files.absolute(path)
    folder, last = os.path.split(path)
    if weight_files.is_weight_file(path) and not io_files.is_folder(path):
        return _described(Source(name, folder, file=last))
    if last.isdigit() and os.path.basename(folder) == CHECKPOINTS:
        return _described(Source(name, os.path.dirname(folder), step=last))
    return _described(Source(name, path))


def _described(source: Source) -> Source:
    """With what config.json says."""
    if not source.has(CONFIG_FILE):
        return source
    described = json_files.read(source.path(CONFIG_FILE), dict)
    return dataclasses.replace(source, described=described)


def open_model(source: str | os.PathLike[str] | Model, checkpoint: str = "best") -> Pretrained:
    """Opens a trained model.

    Args:
        source: a run folder, RUN/checkpoints/STEP, a folder that `gmlp export` has written or the
            weights in it, "hf-hub:OWNER/NAME", a folder of timm's with its config.json, a file of
            weights of timm's or vision_transformer's, named after its model, a folder of a BERT or
            FNet as transformers saves it, or the weights in it, one of `exports.shipped`, or a
            model of a program.
        checkpoint: of a run: "latest", "best", or a step.

    Raises:
        UserError: there is no such model, the checkpoint does not exist or is damaged, or a file is
            missing or cannot be read. The message is one line.
    """
    if isinstance(source, Model):
        return _open_given(source)
    found = find(io_files.user_path(source))
    kind = _kind_of(found)
    if kind is not _RUN and checkpoint not in _ANY:
        raise RunError(
            f"{found.name} holds weights, which have no checkpoint {checkpoint!r}: leave it out"
        )
    if found.repository:
        _download(found, kind)
    return kind.open(found, checkpoint)


def config_of(source: str | os.PathLike[str]) -> ConfigDict:
    """The config of a model as `open_model` gives it, without touching a device or a checkpoint.

    Raises:
        UserError: there is no such model, or its config cannot be read.
    """
    found = find(io_files.user_path(source))
    if _kind_of(found) in (_RUN, _EXPORT):
        return config_lib.load(found.path(CONFIG_FILE))
    return open_model(source).config


def exported_folder(source: str | os.PathLike[str]) -> str:
    """The exported folder that a name leads to; "" if it leads to something else.

    Raises:
        UserError: there is no such model.
    """
    found = find(io_files.user_path(source))
    return found.folder if _kind_of(found) is _EXPORT else ""


def load(source: str | os.PathLike[str] | Model, checkpoint: str = "best") -> Model:
    """A trained model with its parameters on the devices. Nothing is written. The arguments are
    those of `open_model`.

    Raises:
        UserError: as `open_model` and `Pretrained.load`.
    """
    return open_model(source, checkpoint).load()


def _partition(config: ConfigDict, mesh: Mapping[str, int] | None) -> Partition:
    rules = config.mesh.rules
    if mesh:
        return Partition.make({**mesh, "rules": rules})
    try:
        return Partition.make(config.mesh)
    except RunError:
        return Partition.make({"rules": rules})


# The kinds.


class Kind(NamedTuple):
    """A kind of trained model.

    Attributes:
        words: what it is called in messages.
        recognises: whether a source is of this kind; no source is of two.
        open: opens the checkpoint of a source.
        weights: on the hub, the names that its weights may have, the preferred one first.
        others: on the hub, the names of other files that it may have.
    """

    words: str
    recognises: Callable[[Source], bool]
    open: Callable[[Source, str], Pretrained]
    weights: Sequence[str] = ()
    others: Callable[[Source], Sequence[str]] = lambda source: ()


def _kind_of(source: Source) -> Kind:
    """Raises RunError if a source is of no kind, or of two."""
    kinds = [kind for kind in KINDS if kind.recognises(source)]
    if not kinds:
        raise _unrecognised(source)
    if len(kinds) > 1:
        both = " and ".join(kind.words for kind in kinds)
        raise RunError(f"{source.folder} holds {both}: keep one of them there, or name its file")
    return kinds[0]


def _unrecognised(source: Source) -> RunError:
    """The error that says why a source is of no kind."""
    if source.file:
        name = timm.named_after(source.file)
        advice = did_you_mean(name, timm.MODELS, "gmlp_flax.list_models() has all names")
        return RunError(
            f"{source.name} is named after no model that is here ({advice}); a file is named after "
            "its model, as gmlp_s16_224.ra3_in1k.safetensors"
        )
    if "task" in source.described:
        return RunError(
            f"there is no checkpoint in {source.folder} yet: wait for the first one, or train it"
        )
    if source.described:
        return RunError(
            f"the config.json of {source.name} describes no model that is here: {KINDS_IN_WORDS}"
        )
    name = os.path.basename(source.folder)
    advice = did_you_mean(name, exports.shipped(), KINDS_IN_WORDS)
    return RunError(f"{source.folder} is no run folder: it has no {CONFIG_FILE}; {advice}")


def _download(source: Source, kind: Kind) -> None:
    """Fetches the files of a kind from the hub, all of the commit of its config.json."""
    commit = hub.commit_of(source.path(CONFIG_FILE))
    others = kind.others(source)
    hub.fetch_first(source.repository, kind.weights, commit)
    for name in others:
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
    config = config_lib.load(source.path(CONFIG_FILE))
    identity = read_identity(source.folder)
    run = _Run(source.folder, config, identity.get("id", ""))
    with run.checkpoints() as checkpoints:
        step = checkpoints.pick(source.step or checkpoint)
        where = f"{checkpoints.folder}/{step}"
        with _naming_others(checkpoints, step):
            saved = checkpoints.read_files(step)
    files = dict(saved)
    for name in tasks.find(config.task).inheritance.files:
        if source.has(name):
            files[name] = io_files.read_small(source.path(name))
    require_same(saved, files, where)

    def read_params(partition: Partition) -> Any:
        return run.read("params", step, partition)

    def read_mean(partition: Partition) -> Any:
        return run.read("ema", step, partition)

    if keeps_mean(config.optimizer):
        return Pretrained(where, config, files, read_mean, read_params, step, source.folder)
    return Pretrained(where, config, files, read_params, None, step, source.folder)


class _Run(NamedTuple):
    """A run whose checkpoints are read."""

    folder: str
    config: ConfigDict
    id: str

    def checkpoints(self) -> contextlib.closing[Checkpoints]:
        """Its checkpoints, to read from."""
        checkpoints = open_checkpoints(self.config, self.folder, read_only=True, run=self.id)
        return contextlib.closing(checkpoints)

    def read(self, part: str, step: int, partition: Partition) -> Any:
        """A part of the state of a step, "params" or "ema"."""
        with self.checkpoints() as checkpoints, _naming_others(checkpoints, step):
            shapes = checkpoints.shapes(step)
            if part not in shapes:
                raise Damaged(f"{checkpoints.folder}/{step} has no {part}")
            template = {part: partition.describe(shapes[part])}
            return checkpoints.restore(step, template)[part]


@contextlib.contextmanager
def _naming_others(checkpoints: Checkpoints, step: int) -> Iterator[None]:
    """Adds to the error that a checkpoint is damaged which others the run has."""
    try:
        yield
    except Damaged as error:
        others = [str(other) for other in checkpoints.steps() if other != step]
        advice = "it is the only one"
        if others:
            advice = f"the run also has checkpoint {', '.join(others)}"
        raise Damaged(f"{error}; {advice}") from None


# Files.


def _of_files(saved: SavedModel, folder: str = "") -> Pretrained:
    def read(partition: Partition) -> Any:
        params = saved.read()
        return jax.device_put(params, partition.shardings(params))

    return Pretrained(saved.where, saved.config, saved.files, read, folder=folder)


def _is_export(source: Source) -> bool:
    if "task" not in source.described or source.step:
        return False
    if source.file not in ("", exports.WEIGHTS):
        return False
    return bool(source.repository) or source.has(exports.WEIGHTS)


def _open_export(source: Source, _: str) -> Pretrained:
    return _of_files(exports.open_export(source.folder), source.folder)


def _files_of_export(source: Source) -> Sequence[str]:
    config = config_lib.load(source.path(CONFIG_FILE))
    return tasks.find(config.task).inheritance.files


def _is_of_timm(source: Source) -> bool:
    return "architecture" in source.described and not source.step


def _open_timm(source: Source, _: str) -> Pretrained:
    return _of_files(timm.open_described(_weights_of(source), source.described))


def _is_of_transformers(source: Source) -> bool:
    return str(source.described.get("model_type")) in transformers.FAMILIES and not source.step


def _open_transformers(source: Source, _: str) -> Pretrained:
    return _of_files(transformers.open_described(_weights_of(source), source.described))


def _weights_of(source: Source) -> str:
    """The path of the weights beside a config.json of Hugging Face's libraries."""
    if source.file:
        return source.path(source.file)
    for name in weight_files.WEIGHTS:
        if source.has(name):
            return source.path(name)
    raise RunError(
        f"{source.folder} has no {' and no '.join(weight_files.WEIGHTS)}: give the folder of one "
        "model, not in shards"
    )


def _is_named_file(source: Source) -> bool:
    is_described = _is_of_timm(source) or _is_of_transformers(source)
    return timm.named_after(source.file) in timm.MODELS and not is_described


def _open_named_file(source: Source, _: str) -> Pretrained:
    return _of_files(timm.open_file(source.path(source.file)))


_RUN = Kind("a run", _is_run, _open_run)
_EXPORT = Kind("exported weights", _is_export, _open_export, (exports.WEIGHTS,), _files_of_export)
KINDS = (
    _RUN,
    _EXPORT,
    Kind("a model of timm", _is_of_timm, _open_timm, weight_files.WEIGHTS),
    Kind("a file named after a model of timm", _is_named_file, _open_named_file),
    Kind(
        "a model of transformers",
        _is_of_transformers,
        _open_transformers,
        weight_files.WEIGHTS,
        lambda source: transformers.TOKENIZER_FILES,
    ),
)


# A model of a program.


def _open_given(model: Model) -> Pretrained:
    def read(partition: Partition) -> Any:
        return jax.device_put(model.params, partition.shardings(model.params))

    def read_unaveraged(partition: Partition) -> Any:
        return jax.device_put(model.unaveraged, partition.shardings(model.unaveraged))

    return Pretrained(
        "the given model",
        model.config,
        model.task.files,
        read,
        None if model.unaveraged is None else read_unaveraged,
        model.step,
        model.folder,
    )
