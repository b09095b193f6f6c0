"""The story of a run: set up, resume, step, report, save, finish."""

from __future__ import annotations

import collections
import math
import os
import shlex
import signal
import sys
import time
from typing import Any

import jax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.training import folder, optimizer, partition, report, step, warm_start
from gmlp_flax.training.errors import RunError
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.state import TrainState


def train(config: ConfigDict, workdir: str) -> dict[str, Any] | None:
    """Trains, or goes on training where the folder's newest good checkpoint left off.

    Args:
        config: the whole config of the run.
        workdir: the run folder; made if need be.

    Returns:
        What result.json holds, or None where a signal stopped the run before its end.

    Raises:
        ConfigError, DataError, RunError: the run cannot start or go on; one line says why.
    """
    run = Run(config, os.path.abspath(workdir))
    try:
        return run.train()
    finally:
        run.close()


class Run:
    """One run folder and what trains in it. All that can be checked without a device is checked when it is made."""

    def __init__(self, config: ConfigDict, workdir: str):
        config_lib.validate(config)
        partition.check_batch(config.batch_size, config.optimizer.accumulate, "config.batch_size")
        partition.check_batch(config.eval.batch_size or config.batch_size, 1, "config.eval.batch_size")
        config, inherited = warm_start.inherit(config, workdir)
        folder.make(workdir)
        self.config, self.workdir, self.mesh = config, workdir, partition.make_mesh()
        self.task = tasks.create(config, workdir, inherited)
        self.shapes = model_shapes(self.task)
        self.task.evaluation_examples()
        self.optimizer = optimizer.make(config, self.shapes)
        self.trackers = report.trackers(config, workdir)
        self.checkpoints = folder.open_checkpoints(config, workdir, self.task.assets())
        self.evaluator = Evaluator(self.task, self.mesh)
        self.seconds: collections.Counter[str] = collections.Counter()
        self.waiting: dict[str, float] = {}
        self.stopped_by: str | None = None
        self.metrics: report.MetricsFile | None = None

    def train(self) -> dict[str, Any] | None:
        """Runs to the last step, or until a signal asks to stop."""
        state, done = self._resume()
        self._describe()
        self.metrics = report.MetricsFile(os.path.join(self.workdir, report.METRICS_FILE), done)
        per_step = self.config.batch_size * self.task.units_per_example
        self.progress = report.Progress(done, self.config.steps, per_step, self.task.unit)
        handlers = {name: signal.signal(name, self._on_signal) for name in (signal.SIGTERM, signal.SIGINT)}
        try:
            state, done = self._steps(state, done)
            if done == self.config.steps and done not in self.metrics.evaluations:
                self._evaluate(state, done)
            self.checkpoints.wait()
        finally:
            for name, handler in handlers.items():
                signal.signal(name, handler)
            self.progress.close()
        return self._finish(done)

    def close(self) -> None:
        """Ends what runs beside the loop."""
        for output in (*self.trackers, self.metrics):
            if output is not None:
                output.close()
        self.checkpoints.close()

    def _steps(self, state: TrainState, done: int) -> tuple[TrainState, int]:
        """The loop. A step's metrics are read when the next step is under way, so that the device never waits."""
        config, first, pending = self.config, done + 1, None
        train_step = step.make_train_step(self.task, self.optimizer, self.mesh, config)
        self.read_to, end = done, done == config.steps
        with self.task.train_batches(done, jax.process_index(), jax.process_count()) as batches:
            while not end:
                batch = self._next_batch(batches, pending)
                state, window = train_step(state, batch)
                done += 1
                self._read(pending)
                pending = (done, window)
                if done == first:
                    self._read(pending)
                    pending = None
                    self.seconds.clear()
                    self.started = time.perf_counter()
                end = done == config.steps or self.stopped_by is not None
                evaluate = done == config.steps or config.eval.every and done % config.eval.every == 0
                save = end or done % config.checkpoint.every == 0
                if evaluate or save:
                    self._read(pending)
                    pending = None
                if end:
                    self.waiting = self._shares()
                # Evaluation first: a checkpoint vouches for every line of the metrics up to its step.
                if evaluate:
                    self._timed("evaluation", lambda: self._evaluate(state, done))
                if save:
                    self._timed("checkpoints", lambda: self._save(state, done))
        return state, done

    def _next_batch(self, batches: Any, pending: tuple[int, Any] | None) -> dict[str, jax.Array]:
        """The next batch, on its way to the devices. It counts as waiting only if the step before is done by then."""
        begin = time.perf_counter()
        batch = partition.put_batch(self.mesh, next(batches))
        if pending is None or pending[1]["loss"][0].is_ready():
            self.seconds["data"] += time.perf_counter() - begin
        return batch

    def _read(self, pending: tuple[int, Any] | None) -> None:
        """Waits for a step and writes the line of the metrics where one is due.

        Raises:
            RunError: the loss or the gradient is not finite.
        """
        if pending is None:
            return
        done, window = pending
        jax.block_until_ready(window)
        self.progress.advance(done)
        if done % self.config.log.every and done != self.config.steps:
            return
        self._timed("report", lambda: self._write_line(done, window))

    def _write_line(self, done: int, window: Any) -> None:
        sums = jax.device_get(window)
        means = {name: float(sums[name][0] / sums[name][1]) for name in dict.fromkeys(["loss", *sums])}
        if not all(map(math.isfinite, means.values())):
            raise RunError(
                f"the loss or its gradient stopped being finite between steps {self.read_to + 1} and {done}; "
                f"{self.checkpoints.last_good()}; lower config.optimizer.learning_rate or clip, and start from there"
            )
        self.read_to = done
        line = {"step": done, **means, f"{self.task.unit}_per_second": round(self.progress.rate(done), 1)}
        self.metrics.write(line)
        self.progress.show(done, means["loss"])
        for tracker in self.trackers:
            tracker.log(done, {f"train/{name}": value for name, value in means.items()})

    def _evaluate(self, state: TrainState, done: int) -> None:
        metrics, _ = self.evaluator(state.params, state.ema)
        self.metrics.write({"step": done, "eval": metrics})
        self.progress.say(f"step {done}  held out: " + "  ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
        for tracker in self.trackers:
            tracker.log(done, {f"eval/{name}": value for name, value in metrics.items()})

    def _save(self, state: TrainState, done: int) -> None:
        self.checkpoints.save(done, state, self.metrics.evaluations.get(done))

    def _resume(self) -> tuple[TrainState, int]:
        """The newest good checkpoint's state, or that of step 0, on the devices."""
        def initial(params: Any) -> TrainState:
            return step.init_state(self.task, self.optimizer, bool(self.config.optimizer.ema), params)

        template = partition.describe(jax.eval_shape(initial, self.shapes), self.mesh)
        if (found := self.checkpoints.restore_newest(template)) is not None:
            done, state = found
            if done > self.config.steps:
                raise RunError(f"{self.workdir} is at step {done}, beyond config.steps={self.config.steps}: raise it")
            print(f"resuming {self.workdir} at step {done}", file=sys.stderr)
            return state, done
        shardings = jax.tree.map(lambda x: x.sharding, template)
        if self.config.init_from and self.config.init_parameters:
            return jax.jit(initial, out_shardings=shardings)(warm_start.load(self.task, self.shapes, self.mesh)), 0
        fresh = jax.jit(lambda key: initial(self.task.init(key)), out_shardings=shardings)
        return fresh(jax.random.key(self.config.seed)), 0

    def _describe(self) -> None:
        """Writes what this run is: config, environment, and what predictions need."""
        path = os.path.join(self.workdir, folder.CONFIG_FILE)
        if os.path.exists(path):
            before, now = config_lib.load(path), self.config
            for name in [name for name, _ in config_lib.keys() if before[name] != now[name]]:
                print(f"note: config.{name} was {before[name]!r} and is now {now[name]!r}", file=sys.stderr)
        report.write_text(path, config_lib.to_json(self.config))
        report.write_json(os.path.join(self.workdir, report.ENVIRONMENT_FILE), report.environment())
        folder.write_files(self.workdir, self.task.assets(), replace=True)

    def _finish(self, done: int) -> dict[str, Any] | None:
        if done < self.config.steps:
            command = shlex.join([sys.executable, "-m", "gmlp_flax.train", *sys.argv[1:]])
            print(f"{self.stopped_by}: step {done} is saved in {self.workdir}; to go on: {command}", file=sys.stderr)
            return None
        result = {"step": done, "eval": self.metrics.evaluations[done], "waiting": self.waiting}
        report.write_json(os.path.join(self.workdir, report.RESULT_FILE), result)
        return result

    def _shares(self) -> dict[str, float]:
        """Share of the time between the first step and the last, without evaluation, in which the device may have waited
        for data, reports or checkpoints: an upper bound."""
        elapsed = time.perf_counter() - self.started - self.seconds["evaluation"]
        return {name: round(self.seconds[name] / elapsed, 5) for name in ("data", "report", "checkpoints")}

    def _timed(self, what: str, function: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function()
        finally:
            self.seconds[what] += time.perf_counter() - begin

    def _on_signal(self, number: int, _frame: Any) -> None:
        """Stops after the step under way; a second signal ends the process at once."""
        self.stopped_by = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)


def model_shapes(task: tasks.Task) -> Any:
    """Shapes of the parameters.

    Raises:
        RunError: the config describes no model that can be built.
    """
    try:
        return task.shapes()
    except ValueError as error:
        raise RunError(str(error)) from None
