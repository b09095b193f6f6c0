"""Runs that differ in their seed and their learning rate alone, trained together: one compiled
program takes a step of all of them (`jax.vmap`).

A small model leaves most of an accelerator idle. Eight runs in one program take about as long there
as one run, and they are compiled once. Each run has its own folder, with the same files as a run
that is trained alone, and either way of training can resume the other's runs.
"""

import collections
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints import run_folder
from gmlp_flax.config.schema import MEMBER_KEYS
from gmlp_flax.data.pipeline import Batch
from gmlp_flax.data.workers import end_if_imported_again
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.io import files
from gmlp_flax.io.logs import heartbeat
from gmlp_flax.processes import distributed, stopping
from gmlp_flax.tasks.data import config as data_config
from gmlp_flax.training import loop as loop_lib
from gmlp_flax.training.loop import Loop, TrainOptions
from gmlp_flax.training.step import Member, TrainState


class Run(NamedTuple):
    """A run to train together with others.

    Attributes:
        config: of the run, with all overrides.
        workdir: the run folder.
    """

    config: ConfigDict
    workdir: str


class Outcome(NamedTuple):
    """How a run ended.

    Attributes:
        result: the content of result.json; None if a signal stopped the run, or it failed.
        problem: why it failed; "" if it did not.
    """

    result: dict[str, Any] | None
    problem: str = ""


def train_together(runs: Sequence[Run], options: TrainOptions = TrainOptions()) -> list[Outcome]:
    """Trains runs from their start, or resumes each from the newest good checkpoint in its folder.
    Runs that are at the same step share a program; the others follow.

    The numbers are those of runs that are trained alone, up to rounding: products of several runs
    may be summed in another order.

    Args:
        runs: their configs are equal but for MEMBER_KEYS.
        options: how all of them are trained.

    Returns:
        How each run ended, in their order. A run whose loss stops being finite fails alone.

    Raises:
        UserError: a run cannot start or resume, or the configs differ in another key.
    """
    end_if_imported_again()
    if options.optimizer is not None:
        raise RunError(
            "runs that are trained together have the optimizer of their config: leave out yours"
        )
    _require_alike(runs)
    if runs[0].config.log.wandb:
        raise RunError(
            "config.log.wandb is set, and Weights & Biases has one run in a process: train the runs one "
            "by one, or log to TensorBoard"
        )
    _require_one_device()
    stop = stopping.StopRequest()
    with contextlib.ExitStack() as closing:
        members: list[_Member] = []
        for run in runs:
            twin = members[0].loop if members else None
            opened = _opened(run, options, twin)
            member = closing.enter_context(opened)
            member.loop.stop = stop
            members.append(member)
        with stopping.handle(stopping.STOPPING, stop.on_signal):
            for group in _by_step(members):
                if stop.agreed is None:
                    _train(group)
            for member in members:
                if member.loop.has_checkpoint:
                    member.loop.finish_saving()
        return [member.outcome() for member in members]


def _require_alike(runs: Sequence[Run]) -> None:
    """Raises RunError unless the configs differ in MEMBER_KEYS alone, and the folders all differ."""
    first = runs[0]
    allowed = " and ".join(MEMBER_KEYS)
    for run in runs[1:]:
        differences = config_lib.differences(first.config, run.config)
        for key, (old, new) in differences.items():
            if key not in MEMBER_KEYS:
                raise RunError(
                    f"config.{key} is {old!r} in {first.workdir} and {new!r} in {run.workdir}: runs "
                    f"that are trained together may differ in {allowed} alone"
                )
    folders = [files.absolute(run.workdir) for run in runs]
    for folder in folders:
        if folders.count(folder) > 1:
            raise RunError(f"{folder} is the folder of two runs: give each its own")


def _require_one_device() -> None:
    count = jax.device_count()
    if count > 1:
        raise RunError(
            f"runs are trained together on one device, and there are {count}: train them one by one, "
            "or show JAX one device, as with CUDA_VISIBLE_DEVICES=0"
        )


class _Member:
    """A run among others.

    Attributes:
        loop: what evaluates and saves it, and writes its files.
        state: the state at the step from which it resumes.
        done: the step that it has reached.
        problem: why it failed.
    """

    def __init__(self, loop: Loop, state: TrainState, done: int):
        self.loop = loop
        self.state: TrainState | None = state
        self.done = done
        self.problem = ""

    @property
    def hyperparameters(self) -> Member:
        """What the program of all members takes for this one."""
        config = self.loop.config
        seed = np.int32(config.seed)
        peak = np.float32(config.optimizer.learning_rate)
        return Member(seed, peak)

    def take_state(self) -> TrainState:
        """The state from which it resumes. It is no longer kept here."""
        state = self.state
        assert state is not None
        self.state = None
        return state

    def outcome(self) -> Outcome:
        """How the run ended; writes its result if it has one."""
        if self.problem:
            return Outcome(None, self.problem)
        if self.loop.has_ended(self.done):
            result = self.loop.write_result()
            return Outcome(result)
        folder = self.loop.folder.path
        distributed.say(f"{self.loop.stop.agreed}: step {self.done} is saved in {folder}")
        return Outcome(None)


@contextlib.contextmanager
def _opened(run: Run, options: TrainOptions, twin: Loop | None) -> Iterator[_Member]:
    """A run that is ready to train, until the block ends."""
    workdir = files.absolute(run.workdir)
    resolved = loop_lib.resolve(run.config, workdir, options)
    data_config.require_outside_data(workdir, resolved.config)
    name = os.path.basename(workdir)
    with (
        run_folder.hold(workdir, options.restart) as folder,
        loop_lib.opened(resolved, folder, options, twin=twin, name=name) as (loop, state, done),
    ):
        yield _Member(loop, state, done)


def _by_step(members: Sequence[_Member]) -> list[list[_Member]]:
    """The members that are at the same step, those at the earliest step first."""
    groups: dict[int, list[_Member]] = collections.defaultdict(list)
    for member in members:
        group = groups[member.done]
        group.append(member)
    steps = sorted(groups)
    return [groups[done] for done in steps]


def _train(members: Sequence[_Member]) -> None:
    """Trains members that are at the same step to their ends, or until a signal."""
    unfinished = []
    for member in members:
        assert member.state is not None
        member.loop.evaluate_if_missing(member.state, member.done)
        if not member.loop.is_last(member.done):
            unfinished.append(member)
    stopped = members[0].loop.stop.agreed is not None
    if unfinished and not stopped:
        with _batches(unfinished) as batches:
            _Steps(unfinished).take(batches)


@contextlib.contextmanager
def _batches(members: Sequence[_Member]) -> Iterator[Callable[[], Batch]]:
    """A function that returns the next batch of all members: arrays [members, batch, ...]."""
    with contextlib.ExitStack() as closing:
        iterators = []
        for member in members:
            batches = member.loop.data.train_batches(member.done, 0, 1)
            iterator = closing.enter_context(batches)
            iterators.append(iterator)

        def stack(*leaves: np.ndarray) -> np.ndarray:
            return np.stack(leaves)

        def next_batch() -> Batch:
            batches = [next(iterator) for iterator in iterators]
            return jax.tree.map(stack, *batches)

        yield next_batch


class _Window(NamedTuple):
    """The sums of the log windows of all members after a step, which the device may still
    compute."""

    done: int
    sums: Any


class _Steps:
    """The steps of members that are at the same step."""

    def __init__(self, members: Sequence[_Member]):
        first = members[0]
        self.members = members
        self.running = list(members)
        self.first = first.loop
        self.config = self.first.config
        self.done = first.done
        step = jax.vmap(self.first.training.member_step)
        self.step = jax.jit(step, donate_argnums=0)
        self.pick = jax.jit(_pick)

    def take(self, next_batch: Callable[[], Batch]) -> None:
        """Takes steps until all members have ended, or until a signal."""
        state = self._take_states()
        hyperparameters = [member.hyperparameters for member in self.members]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *hyperparameters)
        is_first = True
        pending: _Window | None = None
        while self.running:
            self.done += 1
            batch = jax.device_put(next_batch())
            compiling = contextlib.nullcontext()
            if is_first:
                compiling = heartbeat("compiling the training step", distributed.say)
            with compiling:
                # Its trace, if the config asks for one, is of all members.
                state, sums = self.first.profile.step(self.done, self.step, state, batch, stacked)
            self._read(pending)
            pending = _Window(self.done, sums)
            losses, _ = sums["loss"]
            self.first.stop.after_step(losses)
            if is_first:
                self._record_first_step(sums)
            if is_first or self._is_boundary():
                self._read(pending)
                pending = None
            if self._is_boundary():
                self._at_boundary(state)
            is_first = False

    def _take_states(self) -> TrainState:
        """The states of all members as one. The members no longer keep them."""

        def stack(*leaves: jax.Array) -> jax.Array:
            return jnp.stack(leaves)

        states = [member.take_state() for member in self.members]
        return jax.tree.map(stack, *states)

    def _is_boundary(self) -> bool:
        """Whether a step is followed by an evaluation or a checkpoint, or is the last one."""
        return self._is_saved or self._has_signal or self.first.evaluates(self.done)

    @property
    def _is_saved(self) -> bool:
        """Whether a checkpoint is due after this step."""
        return self.done % self.config.checkpoint.every == 0

    @property
    def _has_signal(self) -> bool:
        return self.first.stop.agreed is not None

    def _record_first_step(self, sums: Any) -> None:
        jax.block_until_ready(sums)
        for member in self.running:
            member.loop.record_first_step(sums)

    def _read(self, pending: _Window | None) -> None:
        """Waits for a step, and writes each member's line of the metrics if one is due."""
        if pending is None:
            return
        done, sums = pending
        jax.block_until_ready(sums)
        for member in self.running:
            member.loop.watchdog.alive()
            member.loop.progress.advance(done)
        ends_window = done % self.config.log.every == 0
        is_last = done == self.config.steps
        if not ends_window and not is_last:
            return
        on_host = jax.device_get(sums)
        for member in list(self.running):
            number = self.members.index(member)
            own_sums = _pick(on_host, number)
            try:
                member.loop.write_line(done, own_sums)
            except RunError as error:
                member.problem = str(error)
                self.running.remove(member)
                member.loop.progress.show(f"failed: {error}; the others continue")

    def _at_boundary(self, states: TrainState) -> None:
        """Evaluates and saves each member, as is due after this step. All are saved before an error
        of the held-out data ends them."""
        is_evaluated = self.first.evaluates(self.done) and not self._has_signal
        if is_evaluated:
            try:
                self._evaluate(states)
            except DataError:
                self._save(states, self.running)
                raise
        ended = []
        for member in self.running:
            member.done = self.done
            if self._has_signal or member.loop.is_last(self.done):
                ended.append(member)
        to_save = self.running if self._is_saved else ended
        self._save(states, to_save)
        self.running = [member for member in self.running if member not in ended]

    def _evaluate(self, states: TrainState) -> None:
        """Evaluates each running member."""
        for member in self.running:
            state = self._state_of(member, states)
            member.loop.evaluate(state, self.done)

    def _save(self, states: TrainState, members: Sequence[_Member]) -> None:
        """Writes a checkpoint of each of some members."""
        for member in members:
            state = self._state_of(member, states)
            member.loop.save(state, self.done)

    def _state_of(self, member: _Member, states: TrainState) -> TrainState:
        number = self.members.index(member)
        return self.pick(states, number)


def _pick(tree: Any, number: int) -> Any:
    """One member's leaves of a tree whose leaves are stacked over the members."""
    return jax.tree.map(lambda leaf: leaf[number], tree)
