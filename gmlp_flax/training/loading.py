"""How trained models are loaded: runs, from their folders, and plain files, the exported folders
that lie on a disk, in this package, or on the Hugging Face hub.

model.safetensors   the parameters, float32 or bfloat16, by their paths, such as
                    encoder/blocks/proj_in/kernel. The first axis of what lies under encoder/ is the
                    layer. y = x @ kernel + bias.
config.json         the run's config
tokenizer.model, classes.json, ...  what predictions need besides

They may be anybody's: nothing in them is run, and all of it is checked before it is used.
"""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints import CHECKPOINTS, CONFIG_FILE
from gmlp_flax.checkpoints.assets import Files, require_same
from gmlp_flax.checkpoints.checkpoint import Checkpoints
from gmlp_flax.checkpoints.reading import Damaged
from gmlp_flax.checkpoints.retention import Retention
from gmlp_flax.checkpoints.run_folder import read_identity
from gmlp_flax.config.optimizers import keeps_mean
from gmlp_flax.data.text.tokenizer import NAMED, TOKENIZER_FILE
from gmlp_flax.errors import RunError, did_you_mean
from gmlp_flax.io import files as io_files
from gmlp_flax.io import weight_files
from gmlp_flax.tasks.base import Task
from gmlp_flax.tasks.vocabulary import NO_TOKENIZER
from gmlp_flax.training.partition import Partition

WEIGHTS = "model.safetensors"
# with a folder for each model that comes with gmlp_flax
SHIPPED = Path(__file__).parents[1] / "pretrained"


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A run at one of its checkpoints.

    Attributes:
        config: the run's, unless `load` was given another one.
        task: made from the config.
        step: the step of the checkpoint.
        params: the parameters, split over the devices by `partition`.
        ema: their running mean, or None if the run kept none.
        partition: over the devices that this process can use.
    """

    config: ConfigDict
    task: Task
    step: int
    params: Any
    ema: Any
    partition: Partition

    @property
    def weights(self) -> Any:
        """The parameters to predict with: the running mean if there is one."""
        return self.params if self.ema is None else self.ema


def require_trained(model: Any) -> None:
    """Raises RunError unless it is a model of `load` or `create`."""
    if not isinstance(model, Trained):
        raise RunError(
            f"the model is {model!r:.80}: expected what gmlp_flax.load or gmlp_flax.create gives"
        )


def check_metric(config: ConfigDict, task: Task) -> None:
    """Raises RunError, with the metrics that the task's evaluation gives, if
    `config.checkpoint.metric` is none."""
    known = [
        *task.eval_metrics,
        *(f"ema_{name}" for name in task.eval_metrics if keeps_mean(config.optimizer)),
    ]
    if config.checkpoint.metric and config.checkpoint.metric not in known:
        raise RunError(
            f"config.checkpoint.metric is {config.checkpoint.metric!r}: expected one of {', '.join(known)}"
        )


def open_checkpoints(config: ConfigDict, workdir: str, **options: Any) -> Checkpoints:
    """The checkpoints of a run, kept by the rules of its config. The other options are those of
    `Checkpoints`."""
    metric, mode = best_metric(config)
    rules = config.checkpoint
    retention = Retention(rules.keep, rules.keep_best, metric, mode)
    return Checkpoints(os.path.join(workdir, CHECKPOINTS), retention=retention, **options)


def best_metric(config: ConfigDict) -> tuple[str, str]:
    """The metric that says which checkpoint is the best, and "min" or "max": the task's own, of the
    running mean if there is one, unless the config names another."""
    task = tasks.find(config.task)
    chosen = config.checkpoint.metric
    name, mode = task.best
    if chosen == name:
        return name, mode
    if chosen:
        is_lower_better = chosen.removeprefix("ema_") in task.lower_is_better
        return chosen, "min" if is_lower_better else "max"
    if keeps_mean(config.optimizer):
        return f"ema_{name}", mode
    return name, mode


def shipped() -> dict[str, str]:
    """The models that come with gmlp_flax: name -> folder."""
    return {path.parent.name: str(path.parent) for path in sorted(SHIPPED.glob(f"*/{WEIGHTS}"))}


def locate(name: str | os.PathLike[str]) -> str:
    """The folder of a run or of a model, its absolute path.

    Args:
        name: a path; else one of `shipped`; or "hf-hub:OWNER/NAME", an exported model that is
            downloaded, or taken from the hub's cache.

    Raises:
        RunError: the repository cannot be downloaded.
        ConfigError: it is none of an exported model, or its config cannot be read.
    """
    name = os.fspath(name)
    if not name.startswith(weight_files.HUB):
        return io_files.absolute(name if io_files.exists(name) else shipped().get(name, name))
    repository = name.removeprefix(weight_files.HUB)
    described = weight_files.fetch(repository, CONFIG_FILE)
    kind, commit = tasks.find(config_lib.load(described).task), weight_files.commit_of(described)
    weight_files.fetch(repository, WEIGHTS, commit)
    for asset in (*kind.shared_assets, *kind.heads, *kind.optional_assets):
        weight_files.fetch(repository, asset, commit, optional=True)
    return os.path.dirname(described)


def is_exported(folder: str) -> bool:
    """Whether a folder holds exported weights, and no checkpoints of a run."""
    return io_files.exists(os.path.join(folder, WEIGHTS)) and not io_files.exists(
        os.path.join(folder, CHECKPOINTS)
    )


def open_task(folder: str, config: ConfigDict | None = None) -> Task:
    """The task of an exported folder, with the files that it needs from there. `config` replaces
    the folder's own.

    Raises:
        UserError: the config or a file is missing, or cannot be read.
    """
    if config is None:
        config = config_lib.load(os.path.join(folder, CONFIG_FILE))
    bare = config.data.get("tokenizer") == NO_TOKENIZER
    if "tokenizer" in config.data:
        config.data.tokenizer = ""  # a path on another machine; the folder has the file
    # it makes anew what is missing, from the data that the config names
    kind = tasks.find(config.task)
    needed = kind.heads if bare else (*kind.shared_assets, *kind.heads)
    if missing := [name for name in needed if not io_files.exists(os.path.join(folder, name))]:
        raise RunError(
            f"{folder} has no {missing[0]}, which the weights were trained with: export the run again"
        )
    if bare:
        files = {name: io_files.read_small(os.path.join(folder, name)) for name in needed}
        return kind.without_data(config, files)
    return tasks.create(config, folder)


def read_parameters(task: Task, folder: str, partition: Partition) -> dict[str, Any]:
    """The parameters of an exported folder, for its task: a nested dict of arrays in the task's
    types, split over the devices by a partition.

    Raises:
        RunError: there are weights missing, unexpected, of another shape, or not finite, or the
            file is damaged.
    """
    where = os.path.join(folder, WEIGHTS)
    state = weight_files.read(where)
    like: dict[str, Any] = traverse_util.flatten_dict(task.shapes(), sep="/")
    weight_files.require_all(state, {name: leaf.shape for name, leaf in like.items()}, where)
    params = {name: state[name].astype(leaf.dtype) for name, leaf in like.items()}
    if broken := [name for name, leaf in params.items() if not np.isfinite(leaf).all()]:
        raise RunError(
            f"{where}: {broken[0]} has numbers that are not finite ({len(broken)} such parameters)"
        )
    tree = traverse_util.unflatten_dict(params, sep="/")
    return jax.device_put(tree, partition.shardings(tree))


def load(
    workdir: str | os.PathLike[str], which: str = "latest", config: ConfigDict | None = None
) -> Trained:
    """Loads a run at a checkpoint, or an exported model, which is at step 0. Nothing is written.

    The files beside the weights that are missing in the run folder are those of the checkpoint.

    Args:
        workdir: the run folder, an exported folder, "hf-hub:OWNER/NAME", or a name of `shipped`.
        which: "latest", "best", or a step, of a run.
        config: replaces the run's own.

    Raises:
        UserError: this is not such a folder, its files cannot be read or written, or the checkpoint
            does not exist or is damaged.
    """
    workdir = locate(workdir)
    if is_exported(workdir):
        if which not in ("latest", "best", "0"):
            raise RunError(
                f"{workdir} holds exported weights, which have no checkpoint {which!r}: leave it out"
            )
        task = open_task(workdir, config)
        partition = _mesh(task.config).for_model(task.param_metadata())
        return Trained(
            task.config, task, 0, read_parameters(task, workdir, partition), None, partition
        )
    if not io_files.exists(os.path.join(workdir, CONFIG_FILE)):
        advice = did_you_mean(
            os.path.basename(workdir), shipped(), "give the --workdir of a training run"
        )
        raise RunError(f"{workdir} is no run folder: it has no {CONFIG_FILE}; {advice}")
    if config is None:
        config = config_lib.load(os.path.join(workdir, CONFIG_FILE))
    if not io_files.exists(os.path.join(workdir, CHECKPOINTS)):
        raise RunError(
            f"there is no checkpoint in {workdir} yet: wait for the first one, or train it"
        )
    run = read_identity(workdir).get("id", "")
    checkpoints = open_checkpoints(config, workdir, read_only=True, run=run)
    step = checkpoints.pick(which)
    try:
        files = checkpoints.read_files(step)
        config = _without_lost_tokenizer(config, workdir, files)
        task = tasks.create(config, workdir, files)
        partition = _mesh(config).for_model(task.param_metadata())
        checkpoints.files = task.assets()
        template = {"params": partition.describe(task.shapes())}
        if keeps_mean(config.optimizer):
            template["ema"] = template["params"]
        restored = checkpoints.restore(step, template)
    except Damaged as error:
        others = ", ".join(str(other) for other in checkpoints.steps() if other != step)
        advice = f"the run also has checkpoint {others}" if others else "it is the only one"
        raise Damaged(f"{error}; {advice}") from None
    checkpoints.close()
    return Trained(config, task, step, restored["params"], restored.get("ema"), partition)


def _without_lost_tokenizer(config: ConfigDict, workdir: str, files: Files) -> ConfigDict:
    """The config without the path of a tokenizer that is not there, if a checkpoint's files have
    the tokenizer and the run folder does not."""
    path = config.data.get("tokenizer")
    is_lost = path and path not in NAMED and not io_files.exists(path)
    if not is_lost or TOKENIZER_FILE not in files:
        return config
    if io_files.exists(os.path.join(workdir, TOKENIZER_FILE)):
        return config
    config = config.copy_and_resolve_references()
    config.data.tokenizer = ""
    return config


def _mesh(config: ConfigDict) -> Partition:
    """The devices as config.mesh says or, if there are others than those of the run, all along one
    axis."""
    try:
        return Partition.make(config.mesh)
    except RunError:
        return Partition.make({"rules": config.mesh.rules})


def source_folder(path: str) -> tuple[str, str]:
    """The run folder that `config.init_from` names, as RUN or as RUN/checkpoints/STEP; and "best",
    or the step."""
    path = io_files.absolute(path)
    folder, last = os.path.split(path)
    is_checkpoint = last.isdigit() and os.path.basename(folder) == CHECKPOINTS
    return (os.path.dirname(folder), last) if is_checkpoint else (path, "best")


class Source(NamedTuple):
    """What a run starts from.

    Attributes:
        where: the checkpoint or the exported folder, for messages.
        config: of the model that is there.
        files: those that predictions need beside the parameters.
        read: gives the parameters, split by a partition, and their running mean if there is one, if
            the files that it is given are the same there; else it raises RunError.
    """

    where: str
    config: ConfigDict
    files: Files
    read: Callable[[Partition, Files], Any]


def open_source(name: str) -> Source:
    """The model that `config.init_from` names: a run folder, for its best checkpoint, the folder of
    one checkpoint, an exported folder, "hf-hub:OWNER/NAME", or a model that comes with gmlp_flax.

    Raises:
        UserError: there is no such checkpoint or export, or it cannot be read.
    """
    folder = locate(name)
    if is_exported(folder):
        task = open_task(folder)
        own = task.assets()

        def read(partition: Partition, shared: Files) -> Any:
            require_same(own, shared, folder)
            return read_parameters(task, folder, partition)

        return Source(folder, task.config, own, read)
    run, which = source_folder(folder)
    if not io_files.exists(os.path.join(run, CHECKPOINTS, "" if which == "best" else which)):
        raise RunError(
            f"config.init_from is {name}: expected a run folder, RUN/{CHECKPOINTS}/STEP, an exported folder, "
            "hf-hub:OWNER/NAME or one of gmlp_flax.list_pretrained()"
        )
    config = config_lib.load(os.path.join(run, CONFIG_FILE))
    checkpoints = open_checkpoints(config, run, read_only=True)
    step = checkpoints.pick(which)
    own = checkpoints.read_files(step)
    checkpoints.close()
    part = "ema" if keeps_mean(config.optimizer) else "params"

    def restore(partition: Partition, shared: Files) -> Any:
        checkpoints = open_checkpoints(config, run, read_only=True, files=shared)
        params = checkpoints.restore(
            step, {part: partition.describe(checkpoints.shapes(step)["params"])}
        )[part]
        checkpoints.close()
        return params

    return Source(f"{checkpoints.folder}/{step}", config, own, restore)
