"""The data and the programs of a run, made after all checks that need no device time."""

import jax
import optax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints.run_folder import RunFolder, checkpoint_steps
from gmlp_flax.config import validation
from gmlp_flax.data.holdout import ROLES
from gmlp_flax.errors import RunError
from gmlp_flax.io.logs import heartbeat
from gmlp_flax.models import parameters
from gmlp_flax.processes import distributed
from gmlp_flax.tasks.base import Task
from gmlp_flax.tasks.data.base import RunFiles, TaskData
from gmlp_flax.training import record, warm_start
from gmlp_flax.training.checkpoints import check_metric
from gmlp_flax.training.partition import Partition
from gmlp_flax.training.pretrained import Pretrained
from gmlp_flax.training.step import Training


def build(
    resolved: config_lib.Resolved,
    folder: RunFolder,
    init: Pretrained | None = None,
    transformation: optax.GradientTransformation | None = None,
    other_data: bool = False,
) -> tuple[Training, TaskData]:
    """Reads the data, runs all checks that need no device time, and builds the programs of the run.
    All processes must agree.

    Args:
        resolved: the final config of the run.
        folder: of the run.
        init: the model that the run starts from, instead of config.init_from.
        transformation: from gradients to updates, instead of the config's optimizer.
        other_data: allows resuming over other data than those of the steps before.

    Raises:
        UserError: the run cannot start or resume.
    """
    config = resolved.config
    mesh = _make_mesh(config)
    for note in resolved.notes:
        distributed.say(note)
    record.refuse_changes(folder.path, config)
    _check_lora(config, init)
    distributed.say(_describe_run(config, folder.path))
    kind = tasks.find(config.task)
    task_without_data = kind(config)
    check_metric(config, task_without_data)
    with heartbeat("trying the block", distributed.say, at_once=False):
        validation.require_finite(config.model.block, task_without_data.spec())
    with heartbeat("reading the data", distributed.say, at_once=False):
        files = RunFiles(folder.path, inherited=resolved.files)
        data = kind.Data(config, files)
        _print_data(data)
        assets = data.assets()
    with heartbeat("building the model", distributed.say, at_once=False):
        task = kind(config, assets)
        if config.model.get("causal", False):
            spec = task.spec()
            validation.require_causal(config.model.block, spec)
        training = Training(task, mesh, transformation)
        _require_alike(task, data)
        shapes = task.shapes()
        count = parameters.count(shapes)
        sizes = _describe_sizes(task, data)
        distributed.say(f"{count:,} parameters; {sizes}")
    advice = "start over with --restart, or resume over these with --other_data"
    # Without a checkpoint nothing learned from the data is left, as when the user replaced an image
    # that could not be read.
    starts_over = not checkpoint_steps(folder.path)
    consequence = ": it has no checkpoint, and starts with these" if starts_over else ""
    with heartbeat("comparing the data with those of the run", distributed.say, at_once=False):
        folder.data = record.check_data(
            folder.path, data, advice, other_data or starts_over, consequence=consequence
        )
    _print_warnings(training)
    return training, data


def _make_mesh(config: ConfigDict) -> Partition:
    """The devices of a run. Raises RunError if they cannot share its batches."""
    mesh = Partition.make(config.mesh)
    microbatches = config.optimizer.grad_accum_steps
    mesh.check_batch(config.batch_size, microbatches, "config.batch_size")
    eval_batch_size = config.eval.batch_size or config.batch_size
    mesh.check_batch(eval_batch_size, 1, "config.eval.batch_size")
    return mesh


def _check_lora(config: ConfigDict, init: Pretrained | None) -> None:
    """Raises RunError if adapters of new parameters would be trained."""
    rank = config.optimizer.lora_rank
    if rank and not warm_start.inherits_parameters(config, init):
        raise RunError(
            f"config.optimizer.lora_rank is {rank}, and there is nothing to adapt: give "
            "--config.init_from"
        )


def _describe_run(config: ConfigDict, workdir: str) -> str:
    """What is known before any data is read, in one line."""
    devices = jax.devices()
    count = len(devices)
    kind = devices[0].device_kind
    noun = "device" if count == 1 else "devices"
    model = f"{config.model.block}, {config.task}"
    steps = f"{config.steps:,} steps of {config.batch_size:,} examples"
    return f"{model}: {steps} on {count} {kind} {noun}; writing to {workdir}"


def _print_data(data: TaskData) -> None:
    for role in ROLES:
        for line in data.lines(role):
            distributed.say(line)
    for line in data.notes():
        distributed.say(line)


def _require_alike(task: Task, data: TaskData) -> None:
    """Raises an error unless all processes have the same config, files and held-out data."""
    config = config_lib.to_json(task.config)
    heldout = str(data.evaluation_examples())
    contents = {
        "the config": config.encode(),
        "the held-out data": heldout.encode(),
    }
    distributed.require_alike({**contents, **task.files})


def _describe_sizes(task: Task, data: TaskData) -> str:
    """How many examples there are to train on, and held out."""
    length = task.units_per_example
    examples = task.unit if length == 1 else f"sequences of {length:,} {task.unit}"
    heldout = data.evaluation_examples()
    training = data.training_examples()
    if training is None:
        return f"{heldout:,} {examples} held out"
    return f"{training:,} {examples} to train on, {heldout:,} held out"


def _print_warnings(training: Training) -> None:
    config = training.task.config
    # Only config.steps makes the warmup too long here: otherwise the config was refused before.
    shortened = validation.warmup_problem(config)
    if shortened:
        distributed.say(f"note: {shortened}")
    if config.optimizer.learning_rate == 0 and training.has_rate:
        distributed.say("warning: config.optimizer.learning_rate is 0: no parameter changes")
    for line in training.task.notes():
        distributed.say(line)
