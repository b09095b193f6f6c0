"""A run from its beginning to its end: resolve, build, resume, train, save."""

import contextlib
import dataclasses
import functools
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints import METRICS_FILE, run_folder
from gmlp_flax.checkpoints.checkpoint import Checkpoints
from gmlp_flax.checkpoints.metrics_file import MetricsFile, read_result
from gmlp_flax.config import validation
from gmlp_flax.data.holdout import ROLES
from gmlp_flax.data.workers import end_if_imported_again
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.io import files
from gmlp_flax.io.logs import heartbeat
from gmlp_flax.models import parameters
from gmlp_flax.processes import distributed, stopping
from gmlp_flax.tasks import data_config
from gmlp_flax.tasks.data import RunFiles, TaskData
from gmlp_flax.training import record, warm_start
from gmlp_flax.training.checkpoints import check_metric, open_checkpoints
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.observers import Callback, Profile, Progress, Trackers
from gmlp_flax.training.partition import Partition
from gmlp_flax.training.pretrained import Pretrained
from gmlp_flax.training.step import Training, TrainState

# a step, and the sums of its log window, perhaps still computed on the devices
Window = tuple[int, Any]


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """How a run is trained, besides what its config says.

    Attributes:
        restart: puts a run that is in the folder aside, and begins anew.
        other_data: resumes over other data than the steps before were taken on.
        explicit_keys: the keys of the config that the user set, if only to their defaults: they are
            not inherited from the run that starts this one.
        choose_mesh: chooses the mesh of a config with mesh.auto, see `config.resolve`; None leaves
            all devices along the data axis.
        resume_command: how the run is resumed after a signal; empty: by this process's own command
            line.
        optimizer: from gradients to updates, in the place of the config's optimizer, with a rate of
            its own.
        callbacks: see `Trackers`.
    """

    restart: bool = False
    other_data: bool = False
    explicit_keys: Collection[str] = ()
    choose_mesh: Callable[[ConfigDict], tuple[config_lib.Sizes, str]] | None = None
    resume_command: str = ""
    optimizer: optax.GradientTransformation | None = None
    callbacks: Sequence[Callback] = ()


def train(
    config: ConfigDict,
    workdir: str,
    options: TrainOptions = TrainOptions(),
    init: Pretrained | None = None,
) -> dict[str, Any] | None:
    """Trains from the start, or resumes from the newest good checkpoint in the run folder.

    Args:
        config: of the run, with all overrides; it is resolved here.
        workdir: the run folder. It is made if it does not exist.
        options: how the run is trained.
        init: the model that the run starts from, in the place of config.init_from.

    Returns:
        The content of result.json, or None if a signal stopped the run before its last step.

    Raises:
        UserError: the run cannot start or resume. The message is one line.
    """
    end_if_imported_again()
    workdir = files.absolute(workdir)
    resolved = _resolve(config, workdir, options, init)
    config = resolved.config
    data_config.require_outside_data(workdir, config)
    with run_folder.hold(workdir, options.restart) as folder:
        with _closing() as close_later:
            profile = close_later(Profile(config, folder.path))
            trackers = close_later(Trackers(config.log, options.callbacks))
            training, data = build(resolved, folder, options, init)
            task = training.task
            watchdog = close_later(stopping.Watchdog(config.log.hang_seconds))
            watchdog.begin()
            with heartbeat("making the first state", distributed.say, at_once=False):
                checkpoints = open_checkpoints(config, folder.path, files=task.files, run=folder.id)
                close_later(checkpoints)
                state, done = _resume(training, checkpoints, init)
            file = os.path.join(folder.path, METRICS_FILE)
            metrics = close_later(MetricsFile(file, done, read_only=not distributed.is_first()))
            units_per_step = config.batch_size * task.units_per_example
            progress = close_later(Progress(done, config.steps, units_per_step, task.unit))
            loop = _Loop(
                training, data, folder, checkpoints, metrics, progress, trackers, profile, watchdog
            )
            with stopping.handle(stopping.STOPPING, loop.stop.on_signal):
                done = loop.run(state, done)
                with heartbeat("saving", progress.show, at_once=False):
                    checkpoints.wait()
                folder.note_checkpoint()
        if done == config.steps and done in metrics.evaluations:
            return _result(folder, metrics)  # last: a run that has it is done, whatever ends it now
        saved = f"{loop.stop.agreed}: step {done} is saved in {folder.path}"
        distributed.say(f"{saved}; to resume: {_resume_command(options)}")
        return None


def _resolve(
    config: ConfigDict, workdir: str, options: TrainOptions, init: Pretrained | None
) -> config_lib.Resolved:
    """The final config of the run in a folder, which a restart moves away."""
    own_folder = "" if options.restart else workdir
    read_start = functools.partial(warm_start.read_start, workdir=own_folder, init=init)
    return config_lib.resolve(config, read_start, options.choose_mesh, options.explicit_keys)


def _resume_command(options: TrainOptions) -> str:
    if jax.process_count() > 1:
        return f"start the same {jax.process_count()} processes again"
    return options.resume_command or command_as_typed()


def command_as_typed() -> str:
    """The command line of this process, without the flags that hold for one start alone."""
    program, *words = sys.orig_argv
    # the system starts this script as PYTHON PATH
    if words and os.path.basename(words[0]) == "gmlp":
        program = "gmlp" if words[0] == shutil.which("gmlp") else words[0]
        words = words[1:]
    return shlex.join(
        [
            program,
            *(word for word in words if not re.match(r"--?(restart|other[_-]data)(=|$)", word)),
        ]
    )


@contextlib.contextmanager
def _closing() -> Iterator[Callable[[Any], Any]]:
    """Gives a function that has a thing closed at the end of the block; the last one closes first,
    and no error of closing hides the one that ended the block."""
    closing = contextlib.ExitStack()
    try:
        yield lambda thing: closing.enter_context(contextlib.closing(thing))
    except BaseException as error:
        if isinstance(error, Exception):
            distributed.end_if_process_lost(error)  # before closing, which waits for all processes
        with contextlib.suppress(Exception):
            closing.close()
        raise
    closing.close()


def build(
    resolved: config_lib.Resolved,
    folder: run_folder.RunFolder,
    options: TrainOptions = TrainOptions(),
    init: Pretrained | None = None,
) -> tuple[Training, TaskData]:
    """Reads the data, makes all checks that need no device time, and the programs of the run. All
    processes must agree. The arguments are those of `train`; the config is resolved.

    Raises:
        UserError: the run cannot start or resume.
    """
    config = resolved.config
    mesh = Partition.make(config.mesh)
    mesh.check_batch(config.batch_size, config.optimizer.grad_accum_steps, "config.batch_size")
    mesh.check_batch(config.eval.batch_size or config.batch_size, 1, "config.eval.batch_size")
    for note in resolved.notes:
        distributed.say(note)
    record.refuse_changes(folder.path, config)
    rank = config.optimizer.lora_rank
    if rank and not _takes_parameters(config, init):
        raise RunError(
            f"config.optimizer.lora_rank is {rank}, and there is nothing to adapt: give --config.init_from"
        )
    distributed.say(_about_run(config, folder.path))
    kind = tasks.find(config.task)
    check_metric(config, kind(config))
    data = kind.Data(config, RunFiles(folder.path, inherited=resolved.files))
    for role in ROLES:
        for line in data.lines(role):
            distributed.say(line)
    for line in data.notes():
        distributed.say(line)
    task = kind(config, data.assets())
    training = Training(task, mesh, options.optimizer)
    distributed.require_alike(
        {
            "the config": config_lib.to_json(config).encode(),
            "the held-out data": str(data.evaluation_examples()).encode(),
            **task.files,
        }
    )
    distributed.say(f"{parameters.count(task.shapes()):,} parameters; {sizes_of(task, data)}")
    advice = "start over with --restart, or resume over these with --other_data"
    folder.data = record.check_data(folder.path, data, advice, options.other_data)
    # by config.steps alone, else it would have been refused
    shortened = validation.warmup_problem(config)
    if shortened:
        distributed.say(f"note: {shortened}")
    if config.optimizer.learning_rate == 0 and options.optimizer is None:
        distributed.say("warning: config.optimizer.learning_rate is 0: no parameter changes")
    for line in task.notes():
        distributed.say(line)
    return training, data


def _takes_parameters(config: ConfigDict, init: Pretrained | None) -> bool:
    """Whether a run starts from the parameters of another model."""
    return init is not None or bool(config.init_from and config.init_parameters)


def _about_run(config: ConfigDict, workdir: str) -> str:
    """A line on what is known before any data is read."""
    devices = jax.devices()
    on = f"{len(devices)} {devices[0].device_kind} device{'s' if len(devices) > 1 else ''}"
    steps = f"{config.steps:,} steps of {config.batch_size:,} examples"
    return f"{config.model.block}, {config.task}: {steps} on {on}; writing to {workdir}"


def sizes_of(task: tasks.Task, data: TaskData) -> str:
    """How many examples there are to train on, and held out."""
    length = task.units_per_example
    examples = task.unit if length == 1 else f"sequences of {length:,} {task.unit}"
    heldout = f"{data.evaluation_examples():,}"
    training = data.training_examples()
    if training is None:
        return f"{heldout} {examples} held out"
    return f"{training:,} {examples} to train on, {heldout} held out"


def _resume(
    training: Training, checkpoints: Checkpoints, init: Pretrained | None
) -> tuple[TrainState, int]:
    """The state of the newest good checkpoint, or else of step 0, on the devices; and its step."""
    config = training.task.config
    workdir = os.path.dirname(checkpoints.folder)
    newest = checkpoints.restore_newest(training.template)
    if newest is not None:
        done, state = newest
        if done > config.steps:
            raise RunError(
                f"{workdir} is at step {done}, beyond config.steps={config.steps}: raise it"
            )
        distributed.say(f"resuming {workdir} at step {done}")
    else:
        done = 0
        params = None
        if _takes_parameters(config, init):
            params = warm_start.load(training.task, training.partition, init)
        state = training.init(jax.random.key(config.seed), params)
    unused = ", which no step uses" if done == config.steps else ""
    for name, (old, new) in record.changes(workdir, config).items():
        distributed.say(f"note: config.{name} was {old!r} and is now {new!r}{unused}")
    return state, done


class _Stopped(Exception):
    """All processes stop, inside an evaluation."""


@dataclasses.dataclass
class _Loop:
    """The steps of a run, with its evaluations, its checkpoints and the lines of its log."""

    training: Training
    data: TaskData
    folder: run_folder.RunFolder
    checkpoints: Checkpoints
    metrics: MetricsFile
    progress: Progress
    trackers: Trackers
    profile: Profile
    watchdog: stopping.Watchdog
    stop: stopping.StopRequest = dataclasses.field(default_factory=stopping.StopRequest)

    def __post_init__(self):
        self.task = self.training.task
        self.partition = self.training.partition
        self.config = self.task.config
        self.evaluator = Evaluator(self.task, self.data, self.partition)
        self.read_to = self.metrics.resume_step
        self.has_checkpoint = self.read_to > 0  # one that is finished or being written

    def run(self, state: TrainState, done: int) -> int:
        """Trains from a step to the last one, or until a signal; returns the step that was
        reached."""
        if (
            done
            and self._evaluates(done)
            and not distributed.everywhere(done in self.metrics.evaluations)
        ):
            self._begin_trackers()
            self._evaluate(state, done)  # a signal, or data that could not be read, ended it
            self.watchdog.begin()  # the training step is not compiled yet
        if self.stop.agreed or done == self.config.steps:
            return done
        with self.data.train_batches(done, *self.partition.host_share()) as batches:
            return self._train(state, done, batches)

    def _train(self, state: TrainState, done: int, batches: Iterator[Any]) -> int:
        """The metrics of a step are read while the next step runs, so that the device never
        waits."""
        config = self.config
        first = done + 1
        end = False
        pending: Window | None = None
        while not end:
            batch = self.partition.put_batch(next(batches))  # only begins to copy it to the devices
            compiling = heartbeat("compiling the training step", self.progress.show)
            with compiling if done + 1 == first else contextlib.nullcontext():
                state, window = self.profile.step(done + 1, self.training.step, state, batch)
            done += 1
            self._read(pending)
            self.stop.after_step(window["loss"][0])
            pending = (done, window)
            if done == first:
                jax.block_until_ready(window)  # only now is this a run, or another part of one
                record.take_step(self.folder, config, self.task.files, self.metrics)
                self._begin_trackers()
            end = done == config.steps or self.stop.agreed is not None
            evaluate = self._evaluates(done)
            save = end or done % config.checkpoint.every == 0
            if evaluate or save or done == first:
                self._read(pending)
                pending = None
            # Evaluation first: its metrics are a part of the checkpoint. But a signal leaves little
            # time.
            if evaluate and not self.stop.agreed:
                try:
                    self._evaluate(state, done)
                except DataError:
                    # others do not know of it, and a checkpoint is made together
                    if jax.process_count() == 1:
                        self._save(state, done)
                    raise
                end = end or self.stop.agreed is not None
            if save or end:
                self._save(state, done)
        return done

    def _begin_trackers(self) -> None:
        self.trackers.begin(self.config, self.folder.path, self.folder.id, self.metrics.resume_step)

    def _read(self, pending: Window | None) -> None:
        """Waits for a step, and writes its line of the metrics if one is due.

        Raises:
            RunError: the loss or the gradient is not finite.
        """
        if pending is None:
            return
        done, window = pending
        jax.block_until_ready(window)
        self.watchdog.alive()
        self.progress.advance(done)
        if done % self.config.log.every == 0 or done == self.config.steps:
            self._write_line(done, jax.device_get(window))

    def _write_line(self, done: int, sums: Any) -> None:
        sums = {"loss": sums["loss"], **sums}
        means = {
            name: float(total) / (float(weight) or math.nan)
            for name, (total, weight) in sums.items()
        }
        if not all(map(math.isfinite, means.values())):
            raise RunError(
                f"the loss or its gradient stopped being finite between steps {self.read_to + 1} and {done}; "
                f"{self.checkpoints.last_good()}; lower config.optimizer.learning_rate or clip, and start from there"
            )
        if skipped := means.get("skipped"):
            self.progress.show(
                f"note: skipped {round(skipped * sums['skipped'][1])} steps before {done} (skip_spikes)"
            )
        self.read_to = done
        self.folder.check()
        rate = round(self.progress.rate(done), 1)
        self.metrics.write({"step": done, **means, f"{self.task.unit}_per_second": rate})
        self.progress.show_loss(done, means["loss"])
        self.trackers.log(done, "train", means)

    def _evaluates(self, done: int) -> bool:
        every = self.config.eval.every
        return done == self.config.steps or (every > 0 and done % every == 0)

    def _evaluate(self, state: TrainState, done: int) -> None:
        """Scores a state and writes its line. A signal ends it without one; the run that resumes
        evaluates first."""

        def after_batch(result: jax.Array) -> None:
            self.watchdog.alive()
            self.stop.after_step(result)
            if self.stop.agreed:
                raise _Stopped

        try:
            with heartbeat("evaluating", self.progress.show, at_once=False):
                metrics, _ = self.evaluator(state.params, state.ema, after_batch)
        except _Stopped:
            return
        last = done == self.config.steps and distributed.is_first()
        baselines = self.evaluator.baselines() if last else []
        beside = [{"name": name, "eval": scores} for name, scores in baselines]
        self.folder.check()
        self.checkpoints.set_metrics(done, metrics)
        self.metrics.write(
            {"step": done, "eval": metrics} | ({"baselines": beside} if beside else {})
        )
        self.trackers.log(done, "eval", metrics)
        self.progress.show(f"step {done}  held out: {self.task.format_metrics(metrics)}")
        for name, scores in baselines:
            self.progress.show(f"to compare: {name}: {self.task.format_metrics(scores)}")

    def _save(self, state: TrainState, done: int) -> None:
        self.watchdog.alive()
        self.folder.check()
        self.metrics.flush()
        with heartbeat("saving", self.progress.show, at_once=False):
            self.checkpoints.save(done, state, self.metrics.evaluations.get(done))
        if self.has_checkpoint:  # the one before is finished
            self.folder.note_checkpoint()
        self.has_checkpoint = True
        self.watchdog.alive()


def _result(folder: run_folder.RunFolder, metrics: MetricsFile) -> dict[str, Any]:
    """Writes the result of a finished run, unless it is there: then no step was taken."""
    known = read_result(folder.path) if distributed.is_first() else None
    done = max(metrics.evaluations)
    if known is not None and known.get("step") == done:
        return known
    baselines = {"baselines": metrics.baselines} if metrics.baselines else {}
    result = {"step": done, "eval": metrics.evaluations[done], **baselines}
    folder.write_result(result)
    return result
