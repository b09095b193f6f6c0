"""A run from its beginning to its end: set up, resume, train, evaluate, save, finish."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints import run_folder
from gmlp_flax.checkpoints.metrics_file import MetricsFile, read_result
from gmlp_flax.checkpoints.names import METRICS_FILE
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.io import files
from gmlp_flax.io.logs import heartbeat
from gmlp_flax.models import parameters
from gmlp_flax.processes import distributed, stopping
from gmlp_flax.processes.watchdog import Watchdog
from gmlp_flax.training import loading, optimizer, record, step, warm_start
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition
from gmlp_flax.training.profile import Profile
from gmlp_flax.training.progress import HostTime, Progress
from gmlp_flax.training.trackers import Trackers

CLASSES_SHOWN = 8
Window = tuple[int, Any]  # a step, and the sums of its log window, perhaps still computed on the devices


def train(config: ConfigDict, workdir: str, restart: bool = False, again: str = "") -> dict[str, Any] | None:
    """Trains from the start, or resumes from the newest good checkpoint in the run folder.

    Args:
        config: the whole config of the run.
        workdir: the run folder. It is made if it does not exist.
        restart: puts a run that is in the folder aside, and begins anew.
        again: the command that continues the run after a signal; empty for `gmlp train` with this program's arguments.

    Returns:
        The content of result.json, or None if a signal stopped the run before its last step.

    Raises:
        ConfigError, DataError, RunError: the run cannot start or continue. The message is one line.
    """
    config_lib.validate(config)
    with run_folder.hold(files.absolute(workdir), restart) as folder:
        trainer = Trainer(config, folder, again)
        try:
            result = trainer.train()
        except BaseException as error:
            if isinstance(error, Exception):
                distributed.end_if_process_lost(error)  # before closing, which waits for all processes
            with contextlib.suppress(Exception):  # it would say less clearly what this error says
                trainer.close()
            raise
        trainer.close()
        return result


class Trainer:
    """Trains one run in its folder. The constructor makes all checks that need no device time."""

    def __init__(self, config: ConfigDict, folder: run_folder.RunFolder, again: str = ""):
        self.folder, self.workdir, self.again = folder, folder.path, again
        mesh = Partition.make(config.mesh)
        mesh.check_batch(config.batch_size, config.optimizer.grad_accum_steps, "config.batch_size")
        mesh.check_batch(config.eval.batch_size or config.batch_size, 1, "config.eval.batch_size")
        self.config, inherited = warm_start.inherit(config, self.workdir)
        config = self.config
        self.changes = record.changes(self.workdir, config)
        record.refuse_changes(self.changes, config, self.workdir)
        self.trackers = Trackers(config, self.workdir, folder.id)
        distributed.say(_about_run(config, self.workdir))
        self.task = tasks.create(config, self.workdir, inherited)
        loading.check_metric(config, self.task)
        self.assets = self.task.assets()
        self._make_steps(mesh)
        self.profile, self.stop = Profile(config, self.workdir), stopping.StopRequest()
        self.watchdog, self.host_time = Watchdog(config.log.hang_seconds), HostTime()
        self.checkpoints = loading.open_checkpoints(config, self.workdir, self.assets, run=folder.id)
        self.has_checkpoint = False  # one that is finished or being written
        self.metrics: MetricsFile  # opened by `train`, which knows the step
        self.progress: Progress
        self._closing = contextlib.ExitStack()  # the last one closes first
        for part in (self.checkpoints, self.profile, self.watchdog, self.trackers):
            self._closing.callback(part.close)

    def _make_steps(self, mesh: Partition) -> None:
        """Makes the optimizer, the partition of the parameters, and the programs of a training and an evaluation step.
        The programs are compiled when they are first called. All processes must agree."""
        shapes, metadata = parameter_shapes(self.task), self.task.param_metadata()
        self.partition = mesh.for_model(metadata)
        self.partition.check_parameters(shapes)
        self.optimizer = optimizer.make(self.config, shapes, metadata)
        self.train_step = step.make_train_step(self.task, self.optimizer, self.partition, self.config)
        self.evaluator = Evaluator(self.task, self.partition)
        examples = str(self.task.evaluation_examples())
        same = {"the config": config_lib.to_json(self.config).encode(), "the held-out data": examples.encode()}
        distributed.require_alike(same | self.assets)
        distributed.say(f"{parameters.count(shapes):,} parameters; {_about_data(self.task)}")
        for line in [*optimizer.reach_notes(self.config, shapes, metadata), *self.task.notes()]:
            distributed.say(line)

    def train(self) -> dict[str, Any] | None:
        """Trains to the last step, or until a signal asks to stop."""
        self.watchdog.begin()
        state, done = self._resume()
        writes = distributed.is_first()
        self.metrics = MetricsFile(os.path.join(self.workdir, METRICS_FILE), done, read_only=not writes)
        self._closing.callback(self.metrics.close)
        per_step = self.config.batch_size * self.task.units_per_example
        self.progress = Progress(done, self.config.steps, per_step, self.task.unit, silent=not writes)
        self._closing.callback(self.progress.close)
        with self.stop:
            if done and self._evaluates(done) and not distributed.everywhere(done in self.metrics.evaluations):
                self.trackers.begin(self.metrics.resume_step)
                self._evaluate(state, done)  # a signal, or data that could not be read, ended it
                self.watchdog.begin()  # the training step is not compiled yet
            if not self.stop.agreed:
                state, done = self._train_steps(state, done)
            self.checkpoints.wait()
            self.folder.note_checkpoint()
        self.progress.close()
        return self._finish(done)

    def close(self) -> None:
        """Ends the background threads and closes all files."""
        self._closing.close()

    def _resume(self) -> tuple[step.TrainState, int]:
        """The state of the newest good checkpoint, or else of step 0, on the devices; and its step."""
        config, newest = self.config, None
        initial = functools.partial(step.init_state, self.task, self.optimizer, config)
        template = step.describe_state(self.task, self.optimizer, config, self.partition)
        newest = self.checkpoints.restore_newest(template)
        if newest is not None:
            self.has_checkpoint, (done, state) = True, newest
            if done > config.steps:
                beyond = f"beyond config.steps={config.steps}: raise config.steps, or give another --workdir"
                raise RunError(f"{self.workdir} is at step {done}, {beyond}")
            distributed.say(f"resuming {self.workdir} at step {done}")
        else:
            done, shardings = 0, jax.tree.map(lambda x: x.sharding, template)
            if config.init_from and config.init_parameters:
                params = warm_start.load(self.task, self.partition)
                state = jax.jit(initial, out_shardings=shardings)(params)
            else:
                fresh = jax.jit(lambda key: initial(self.task.init(key)), out_shardings=shardings)
                state = fresh(jax.random.key(config.seed))
        unused = ", which no step uses" if done == config.steps else ""
        for name, (old, new) in self.changes.items():
            distributed.say(f"note: config.{name} was {old!r} and is now {new!r}{unused}")
        return state, done

    def _train_steps(self, state: step.TrainState, done: int) -> tuple[step.TrainState, int]:
        """The loop. The metrics of a step are read while the next step runs, so that the device never waits."""
        config, first = self.config, done + 1
        pending: Window | None = None
        self.read_to, end = done, done == config.steps
        with self.task.train_batches(done, *self.partition.host_share()) as batches:
            while not end:
                batch = self._next_batch(batches, pending)
                compiling = heartbeat("compiling the training step", self.progress.say)
                with compiling if done + 1 == first else contextlib.nullcontext():
                    state, window = self.profile.step(done + 1, self.train_step, state, batch)
                done += 1
                self._read(pending)
                self.stop.after_step(window["loss"][0])
                pending = (done, window)
                if done == first:
                    self._begin(pending)
                    pending = None
                end = done == config.steps or self.stop.agreed is not None
                evaluate, save = self._evaluates(done), end or done % config.checkpoint.every == 0
                if evaluate or save:
                    self._read(pending)
                    pending = None
                if end:
                    self.host_time.end()
                # Evaluation first: its metrics are a part of the checkpoint. But a signal leaves little time.
                if evaluate and not self.stop.agreed:
                    self._evaluate_in_training(state, done)
                    end = end or self.stop.agreed is not None
                if save or end:
                    with self._timed("checkpoints"):
                        self._save(state, done)
        return state, done

    def _next_batch(self, batches: Iterator[Any], pending: Window | None) -> dict[str, jax.Array]:
        """Starts to copy the next batch to the devices. Its time counts as waiting only if the step before is done."""
        begin = time.perf_counter()
        batch = self.partition.put_batch(next(batches))
        if pending is None or pending[1]["loss"][0].is_ready():
            self.host_time.add("data", time.perf_counter() - begin)
        return batch

    def _begin(self, window: Window) -> None:
        """Waits for the first step; only now is this a run, or another part of one."""
        jax.block_until_ready(window[1])
        record.take_step(self.folder, self.config, self.assets, self.metrics)
        self.trackers.begin(self.metrics.resume_step)
        self._read(window)
        self.host_time.begin()

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
            with self._timed("report"):
                self._write_line(done, window)

    def _write_line(self, done: int, window: Any) -> None:
        sums = jax.device_get(window)
        means = {name: float(sums[name][0] / sums[name][1]) for name in dict.fromkeys(["loss", *sums])}
        if not all(map(math.isfinite, means.values())):
            raise RunError(
                f"the loss or its gradient stopped being finite between steps {self.read_to + 1} and {done}; "
                f"{self.checkpoints.last_good()}; lower config.optimizer.learning_rate or clip, and start from there"
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

    def _evaluate_in_training(self, state: step.TrainState, done: int) -> None:
        """Evaluates; if the held-out data cannot be read, the state is saved before the run ends."""
        try:
            with self._timed("evaluation"):
                self._evaluate(state, done)
        except DataError:
            if jax.process_count() == 1:  # others do not know of it, and a checkpoint is made together
                self._save(state, done)
            raise

    def _evaluate(self, state: step.TrainState, done: int) -> None:
        """Scores a state and writes its line. A signal ends it without one; the run that resumes evaluates first."""
        try:
            metrics, _ = self.evaluator(state.params, state.ema, self._after_batch)
        except stopping.Stopped:
            return
        last = done == self.config.steps and distributed.is_first()
        baseline = self.evaluator.baseline() if last else None
        beside = {"baseline": {"name": baseline.name, "eval": baseline.metrics}} if baseline else {}
        self.folder.check()
        self.checkpoints.set_metrics(done, metrics)
        self.metrics.write({"step": done, "eval": metrics} | beside)
        self.trackers.log(done, "eval", metrics)
        self.progress.say(f"step {done}  held out: {self.task.format_metrics(metrics)}")
        if baseline:
            self.progress.say(f"to compare: {baseline.name}: {self.task.format_metrics(baseline.metrics)}")
        if self.checkpoints.metric and self.checkpoints.metric not in metrics:
            self.progress.say(
                f"note: there is no {self.checkpoints.metric} in it, by which the best checkpoint is chosen: all are "
                f"kept; consider --config.checkpoint.metric={next(iter(metrics))}"
            )

    def _after_batch(self, result: jax.Array) -> None:
        self.watchdog.alive()
        self.stop.after_batch(result)

    def _save(self, state: step.TrainState, done: int) -> None:
        self.folder.check()
        self.metrics.flush()
        self.checkpoints.save(done, state, self.metrics.evaluations.get(done))
        if self.has_checkpoint:  # the one before is finished
            self.folder.note_checkpoint()
        self.has_checkpoint = True

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        """Adds the time of the block to the time of the host, with signs of life before and after it."""
        begin = time.perf_counter()
        self.watchdog.alive()
        try:
            yield
        finally:
            self.watchdog.alive()
            self.host_time.add(what, time.perf_counter() - begin)

    def _finish(self, done: int) -> dict[str, Any] | None:
        """Writes the result of a finished run; of one that was stopped, says how to continue it."""
        if done < self.config.steps or (self.stop.agreed and done not in self.metrics.evaluations):
            words = [word for word in sys.argv[1:] if not re.match(r"--?restart(=|$)", word)]
            command = self.again or shlex.join([sys.executable, "-m", "gmlp_flax.train", *words])
            again = command if jax.process_count() == 1 else f"start the same {jax.process_count()} processes again"
            distributed.say(f"{self.stop.agreed}: step {done} is saved in {self.workdir}; to go on: {again}")
            return None
        shares = self.host_time.shares
        known = read_result(self.workdir) if distributed.is_first() and not shares else None
        if known is not None and known.get("step") == done:
            return known  # no step was taken
        result = {"step": done, "eval": self.metrics.evaluations[done]}
        result |= {"baseline": self.metrics.baseline} if self.metrics.baseline else {}
        result |= {"waiting": shares}
        self.folder.write_result(result)
        return result


def parameter_shapes(task: tasks.Task) -> Any:
    """The shapes of the parameters.

    Raises:
        RunError: no model can be built from the config.
    """
    try:
        return task.shapes()
    except ValueError as error:
        raise RunError(str(error)) from None


def _about_run(config: ConfigDict, workdir: str) -> str:
    """A line on what is known before any data is read."""
    devices = jax.devices()
    on = f"{len(devices)} {devices[0].device_kind} device{'s' if len(devices) > 1 else ''}"
    steps = f"{config.steps:,} steps of {config.batch_size:,} examples"
    return f"{config.model.block}, {config.task}: {steps} on {on}; writing to {workdir}"


def _about_data(task: tasks.Task) -> str:
    """The sizes of the training and the held-out data, and the classes."""
    length, training = task.units_per_example, task.training_examples()
    examples = task.unit if length == 1 else f"sequences of {length:,} {task.unit}"
    heldout, names = f"{task.evaluation_examples():,}", task.class_names
    if training is None:
        sizes = f"{heldout} {examples} held out"
    else:
        sizes = f"{training:,} {examples} to train on, {heldout} held out"
    shown = ", ".join(map(str, names[:CLASSES_SHOWN])) + ", ..." * (len(names) > CLASSES_SHOWN)
    return f"{sizes}; {len(names):,} classes: {shown}" if names else sizes
