"""A run from its beginning to its end: resolve, build, resume, train, save."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import optax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints import METRICS_FILE, run_folder
from gmlp_flax.checkpoints.checkpoint import Checkpoints
from gmlp_flax.checkpoints.metrics_file import MetricsFile, read_result
from gmlp_flax.data.workers import end_if_imported_again
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.io import files
from gmlp_flax.io.logs import heartbeat
from gmlp_flax.processes import distributed, stopping
from gmlp_flax.tasks.base import Baseline, Sums
from gmlp_flax.tasks.data import config as data_config
from gmlp_flax.tasks.data.base import TaskData
from gmlp_flax.training import record, warm_start
from gmlp_flax.training.build import build
from gmlp_flax.training.checkpoints import best_metric, open_checkpoints
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.observers import Callback, Profile, Progress, Trackers
from gmlp_flax.training.pretrained import Pretrained
from gmlp_flax.training.step import Training, TrainState

_PROGRAM = "gmlp"  # the name of the script on the command line
# Flags that apply only to this start of a run.
_OF_THIS_START = re.compile(r"--?(restart|other[_-]data)(=|$)")


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """How a run is trained, besides what its config says.

    Attributes:
        restart: moves a run that is in the folder aside, and starts over.
        other_data: allows resuming over other data than those of the steps before.
        explicit_keys: the keys of the config that the user set, even if to their defaults: they are
            not inherited from the run that starts this one.
        choose_mesh: chooses the mesh of a config with mesh.auto, see `config.resolve`. With None,
            all devices are along the data axis.
        resume_command: the command that resumes the run after a signal; if empty, the command line
            of this process.
        optimizer: from gradients to updates, instead of the config's optimizer and its rate.
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
        init: the model that the run starts from, instead of config.init_from.

    Returns:
        The content of result.json, or None if a signal stopped the run before its last step.

    Raises:
        UserError: the run cannot start or resume. The message is one line.
    """
    end_if_imported_again()
    workdir = files.absolute(workdir)
    resolved = resolve(config, workdir, options, init)
    config = resolved.config
    data_config.require_outside_data(workdir, config)
    with run_folder.hold(workdir, options.restart) as folder:
        loop, done = _run(resolved, folder, options, init)
        if loop.has_ended(done):
            # This is last: from now on the run is done, whatever ends this process.
            return loop.write_result()
        saved = f"{loop.stop.agreed}: step {done} is saved in {folder.path}"
        command = _resume_command(options)
        distributed.say(f"{saved}; to resume: {command}")
        return None


def resolve(
    config: ConfigDict, workdir: str, options: TrainOptions, init: Pretrained | None = None
) -> config_lib.Resolved:
    """The final config of the run in a folder. A restart does not read the run there."""
    run_to_resume = "" if options.restart else workdir
    read_start = functools.partial(warm_start.read_start, workdir=run_to_resume, init=init)
    return config_lib.resolve(config, read_start, options.choose_mesh, options.explicit_keys)


def _run(
    resolved: config_lib.Resolved,
    folder: run_folder.RunFolder,
    options: TrainOptions,
    init: Pretrained | None,
) -> tuple[Loop, int]:
    """Makes all that a run needs, trains, and closes it. Returns the step that was reached."""
    with (
        opened(resolved, folder, options, init) as (loop, state, done),
        stopping.handle(stopping.STOPPING, loop.stop.on_signal),
    ):
        done = loop.run(state, done)
        loop.finish_saving()
    return loop, done


@contextlib.contextmanager
def opened(
    resolved: config_lib.Resolved,
    folder: run_folder.RunFolder,
    options: TrainOptions,
    init: Pretrained | None = None,
    twin: Loop | None = None,
    name: str = "",
) -> Iterator[tuple[Loop, TrainState, int]]:
    """All that a run needs, closed when the block ends: its loop, and the state at the step from
    which it resumes.

    Args:
        resolved: the final config of the run.
        folder: of the run.
        options, init: as `train` takes them.
        twin: a run that differs in its seed and its rate alone: its programs are used, so that they
            are compiled once.
        name: of the run, before each line that it prints.
    """
    config = resolved.config
    with _closing() as close_later:
        profile = close_later(Profile(config, folder.path))
        trackers = close_later(Trackers(config.log, options.callbacks))
        training, data = build(resolved, folder, init, options.optimizer, options.other_data)
        if twin is not None:
            training.init = twin.training.init
        task = training.task
        watchdog = close_later(stopping.Watchdog(config.log.hang_seconds))
        watchdog.begin()
        with heartbeat("making the first state", distributed.say, at_once=False):
            checkpoints = open_checkpoints(config, folder.path, files=task.files, run=folder.id)
            close_later(checkpoints)
            state, done = _resume(training, checkpoints, init)
        metrics_path = os.path.join(folder.path, METRICS_FILE)
        is_reader = not distributed.is_first()
        metrics = close_later(MetricsFile(metrics_path, done, read_only=is_reader))
        units_per_step = config.batch_size * task.units_per_example
        progress = close_later(Progress(done, config.steps, units_per_step, task.unit, name))
        loop = Loop(
            training=training,
            data=data,
            folder=folder,
            checkpoints=checkpoints,
            metrics=metrics,
            progress=progress,
            trackers=trackers,
            profile=profile,
            watchdog=watchdog,
        )
        if twin is not None:
            loop.evaluator.step = twin.evaluator.step
        yield loop, state, done


@contextlib.contextmanager
def _closing() -> Iterator[Callable[[Any], Any]]:
    """Yields a function that registers a thing to close at the end of the block. The thing that is
    registered last closes first. No error of closing hides the error that ended the block."""
    closing = contextlib.ExitStack()

    def close_later(thing: Any) -> Any:
        return closing.enter_context(contextlib.closing(thing))

    try:
        yield close_later
    except BaseException as error:
        if isinstance(error, Exception):
            distributed.end_if_process_lost(error)  # before closing, which waits for all processes
        with contextlib.suppress(Exception):
            closing.close()
        raise
    closing.close()


def _resume(
    training: Training, checkpoints: Checkpoints, init: Pretrained | None
) -> tuple[TrainState, int]:
    """The state of the newest good checkpoint, or else of step 0, on the devices; and its step."""
    config = training.task.config
    workdir = os.path.dirname(checkpoints.folder)
    newest = checkpoints.restore_newest(training.template)
    if newest is None:
        done = 0
        state = _first_state(training, init)
    else:
        done, state = newest
        if done > config.steps:
            raise RunError(
                f"{workdir} is at step {done}, beyond config.steps={config.steps}: raise it"
            )
        distributed.say(f"resuming {workdir} at step {done}")
        if done == config.steps:
            distributed.say(
                f"note: all {done:,} steps are done: raise config.steps to train longer"
            )
    unused = ", which no step uses" if done == config.steps else ""
    changes = record.changes(workdir, config)
    for name, (old, new) in changes.items():
        distributed.say(f"note: config.{name} was {old!r} and is now {new!r}{unused}")
    return state, done


def _first_state(training: Training, init: Pretrained | None) -> TrainState:
    """The state before the first step, perhaps with the parameters of another model."""
    config = training.task.config
    params = None
    if warm_start.inherits_parameters(config, init):
        params = warm_start.load(training.task, training.partition, init)
    key = jax.random.key(config.seed)
    return training.init(key, params)


def _resume_command(options: TrainOptions) -> str:
    """What the user does to resume the run."""
    processes = jax.process_count()
    if processes > 1:
        return f"start the same {processes} processes again"
    return options.resume_command or command_as_typed()


def command_as_typed() -> str:
    """The command line of this process, without the flags that apply only to this start."""
    program, *words = sys.orig_argv
    # The system starts this script as PYTHON PATH.
    is_script = bool(words) and os.path.basename(words[0]) == _PROGRAM
    if is_script:
        program, *words = words
        if program == shutil.which(_PROGRAM):
            program = _PROGRAM
    kept = [word for word in words if not _OF_THIS_START.match(word)]
    return shlex.join([program, *kept])


class _Window(NamedTuple):
    """The sums of the log window after a step, which the devices may still compute."""

    done: int
    sums: Any


class _Stopped(Exception):
    """All processes stop during an evaluation."""


@dataclasses.dataclass
class Loop:
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
        """Trains from a step to the last one, or until a signal. Returns the step that was
        reached."""
        self.evaluate_if_missing(state, done)
        if self.stop.agreed or self.is_last(done):
            return done
        host, hosts = self.partition.host_share()
        with self.data.train_batches(done, host, hosts) as batches:
            return self._train(state, done, batches)

    def is_last(self, done: int) -> bool:
        """Whether the run ends with a step, whose evaluation is written if it has one."""
        scores = self.metrics.evaluations.get(done, {})
        return self._ends_with(done, scores)

    def has_ended(self, done: int) -> bool:
        """Whether a step is the last one and has its evaluation."""
        return self.is_last(done) and done in self.metrics.evaluations

    def write_result(self) -> dict[str, Any]:
        """Writes the result of a finished run. If it is there already, no step was taken, and the
        same result is returned."""
        evaluations = self.metrics.evaluations
        done = max(evaluations)
        if distributed.is_first():
            known = read_result(self.folder.path)
            if known is not None and known.get("step") == done:
                return known
        scores = evaluations[done]
        result: dict[str, Any] = {"step": done, "eval": scores}
        baselines = self.metrics.baselines
        if baselines:
            result["baselines"] = baselines
        self.folder.write_result(result)
        return result

    def finish_saving(self) -> None:
        """Waits until the last checkpoint is written, and records it."""
        with heartbeat("saving", self.progress.show, at_once=False):
            self.checkpoints.wait()
        self.folder.note_checkpoint()

    def _ends_with(self, done: int, scores: Mapping[str, float]) -> bool:
        """Whether the run ends with a step: it is the last one, or its held-out scores are as good
        as config.eval.stop_at."""
        if done == self.config.steps:
            return True
        goal = self.config.eval.stop_at
        name, mode = best_metric(self.config)
        if not goal or name not in scores:
            return False
        score = scores[name]
        if mode == "min":
            return score <= goal
        return score >= goal

    def evaluate_if_missing(self, state: TrainState, done: int) -> None:
        """Scores the state from which the run resumes, if its evaluation was interrupted."""
        if self._has_missing_evaluation(done):
            self._begin_trackers()
            self.evaluate(state, done)
            self.watchdog.begin()  # the training step is not compiled yet

    def _has_missing_evaluation(self, done: int) -> bool:
        """Whether a signal, or data that could not be read, ended the evaluation of the step at
        which the run resumes."""
        if done == 0 or not self.evaluates(done):
            return False
        has_scores = done in self.metrics.evaluations
        return not distributed.everywhere(has_scores)

    def _train(self, state: TrainState, done: int, batches: Iterator[Any]) -> int:
        """Takes steps. The metrics of a step are read while the next step runs, so that the device
        never waits."""
        config = self.config
        is_first = True
        end = False
        pending: _Window | None = None
        while not end:
            step = done + 1
            with self._waiting_for_batch(step):
                host_batch = next(batches)
            batch = self.partition.put_batch(host_batch)  # only begins to copy it to the devices
            with self._waiting_for_step(step, is_first):
                state, sums = self.profile.step(step, self.training.step, state, batch)
                self._read(pending)
            done = step
            loss, _ = sums["loss"]
            self.stop.after_step(loss)
            pending = _Window(done, sums)
            if is_first:
                self.record_first_step(sums)
            has_signal = self.stop.agreed is not None
            end = done == config.steps or has_signal
            is_evaluated = self.evaluates(done)
            is_saved = done % config.checkpoint.every == 0
            save = end or is_saved
            if is_evaluated or save or is_first:
                self._read(pending)
                pending = None
            # Evaluation first: its metrics are a part of the checkpoint. But a signal leaves little
            # time.
            if is_evaluated and not has_signal:
                self._evaluate_or_save(state, done)
                end = self.is_last(done) or self.stop.agreed is not None
            if save or end:
                self.save(state, done)
            is_first = False
        return done

    def _waiting_for_batch(self, step: int) -> contextlib.AbstractContextManager[None]:
        """Reports that a batch is being read, if that takes long and steps are slow."""
        if self.progress.is_slow(step - 1):
            return heartbeat(f"reading batch {step}", self.progress.show, at_once=False)
        return contextlib.nullcontext()

    def _waiting_for_step(
        self, step: int, is_first: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Reports that the step is being compiled or, if steps are slow, that it is being taken."""
        if is_first:
            return heartbeat("compiling the training step", self.progress.show)
        if self.progress.is_slow(step - 1):
            return heartbeat(f"taking step {step}", self.progress.show, at_once=False)
        return contextlib.nullcontext()

    def record_first_step(self, sums: Sums) -> None:
        """Waits for the first step of this process, and records the config under which it was
        taken. If it fails, the run folder is as it was before."""
        with heartbeat("taking the first step", self.progress.show, at_once=False):
            jax.block_until_ready(sums)
        record.take_step(self.folder, self.config, self.task.files, self.metrics)
        self._begin_trackers()

    def _begin_trackers(self) -> None:
        folder = self.folder
        resume_step = self.metrics.resume_step
        self.trackers.begin(self.config, folder.path, folder.id, resume_step)

    def _read(self, pending: _Window | None) -> None:
        """Waits for a step, and writes its line of the metrics if one is due.

        Raises:
            RunError: the loss or the gradient is not finite.
        """
        if pending is None:
            return
        done, sums = pending
        jax.block_until_ready(sums)
        self.watchdog.alive()
        self.progress.advance(done)
        ends_window = done % self.config.log.every == 0
        is_last = done == self.config.steps
        if ends_window or is_last:
            on_host = jax.device_get(sums)
            self.write_line(done, on_host)
        else:
            self.progress.show_step(done)

    def write_line(self, done: int, sums: Sums) -> None:
        """Writes the line of the log window after a step, from its sums on the host.

        Raises:
            RunError: the loss or the gradient is not finite.
        """
        means = _means(sums)
        skipped_share = means.get("skipped", 0.0)
        if skipped_share == 1:
            self._write_skipped_window(done, sums)
            return
        is_finite = all(map(math.isfinite, means.values()))
        if not is_finite:
            first_unread = self.read_to + 1
            last_good = self.checkpoints.last_good()
            raise RunError(
                f"the loss or its gradient stopped being finite between steps {first_unread} and "
                f"{done}; {last_good}; lower config.optimizer.learning_rate or clip, and start "
                "from there"
            )
        if skipped_share:
            skipped, _ = sums["skipped"]
            count = round(float(skipped))
            self.progress.show(f"note: skipped {count} steps before {done} (skip_spikes)")
        self.read_to = done
        self.folder.check()
        rate = self.progress.rate(done)
        rate_name = f"{self.task.unit}_per_second"
        line = {"step": done, **means, rate_name: round(rate, 1)}
        self.metrics.write(line)
        loss = means["loss"]
        self.progress.show_loss(done, loss)
        self.trackers.log(done, "train", means)

    def _write_skipped_window(self, done: int, sums: Sums) -> None:
        """The line of a log window whose steps were all skipped, so that nothing has a mean."""
        _, steps = sums["skipped"]
        count = round(float(steps))
        self.progress.show(f"note: skipped all {count} steps before {done} (skip_spikes)")
        self.read_to = done
        self.folder.check()
        line = {"step": done, "skipped": 1.0}
        self.metrics.write(line)

    def evaluates(self, done: int) -> bool:
        """Whether a step has an evaluation."""
        if done == self.config.steps:
            return True
        every = self.config.eval.every
        return every > 0 and done % every == 0

    def evaluate(self, state: TrainState, done: int) -> None:
        """Scores a state and writes its line. If a signal ends the evaluation, there is no line, and
        the run that resumes evaluates first."""

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
        self.folder.check()
        self.checkpoints.set_metrics(done, metrics)
        baselines: list[Baseline] = []
        is_last = self._ends_with(done, metrics)
        if is_last and distributed.is_first():
            with heartbeat("scoring the baselines", self.progress.show, at_once=False):
                baselines = self.evaluator.baselines()
        self._write_evaluation(done, metrics, baselines)
        self.trackers.log(done, "eval", metrics)
        self._show_evaluation(done, metrics, baselines)

    def _write_evaluation(
        self, done: int, metrics: dict[str, float], baselines: Sequence[Baseline]
    ) -> None:
        line: dict[str, Any] = {"step": done, "eval": metrics}
        if baselines:
            entries = []
            for name, scores in baselines:
                entry = {"name": name, "eval": scores}
                entries.append(entry)
            line["baselines"] = entries
        self.metrics.write(line)

    def _show_evaluation(
        self, done: int, metrics: dict[str, float], baselines: Sequence[Baseline]
    ) -> None:
        show = self.progress.show
        shown = self.task.format_metrics(metrics)
        show(f"step {done}  held out: {shown}")
        is_early = done < self.config.steps
        if is_early and self.is_last(done):
            show(f"step {done} is the last: the run reached eval.stop_at")
        for name, scores in baselines:
            shown = self.task.format_metrics(scores)
            show(f"to compare: {name}: {shown}")

    def _evaluate_or_save(self, state: TrainState, done: int) -> None:
        """Evaluates. If the held-out data cannot be read, saves the state before the error ends the
        run."""
        try:
            self.evaluate(state, done)
        except DataError:
            # Other processes do not know of the error, and all make a checkpoint together.
            if jax.process_count() == 1:
                self.save(state, done)
            raise

    def save(self, state: TrainState, done: int) -> None:
        """Writes a checkpoint; it may not be finished on return."""
        self.watchdog.alive()
        self.folder.check()
        self.metrics.flush()
        scores = self.metrics.evaluations.get(done)
        with heartbeat("saving", self.progress.show, at_once=False):
            self.checkpoints.save(done, state, scores)
        if self.has_checkpoint:  # saving another one has waited for it
            self.folder.note_checkpoint()
        self.has_checkpoint = True
        self.watchdog.alive()


def _means(sums: Sums) -> dict[str, float]:
    """The mean of each metric, the loss first; NaN for a weight of 0."""
    loss_first = {"loss": sums["loss"], **sums}
    means = {}
    for name, (total, weight) in loss_first.items():
        divisor = float(weight) or math.nan
        means[name] = float(total) / divisor
    return means
