"""What the training step of a config needs of one device: memory, memory traffic and collectives.

The step is compiled for the devices, or, where no compiler for them is installed, estimated from the
workload.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.planning import chips, dry_run
from gmlp_flax.planning.dry_run import Share, Workload
from gmlp_flax.planning.hlo import WIRE, Collectives, Moved, Program
from gmlp_flax.tasks.base import Task
from gmlp_flax.training.partition import Devices, Partition

SUFFIXES = {"": 0, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}
GATHERED_BYTES = 2  # per element of a sharded parameter, which is gathered in bfloat16


class Memory(NamedTuple):
    """Bytes on one device. `peak` is the largest sum of arguments and temporaries at any time."""

    arguments: float
    temporaries: float
    peak: float


class Needs(NamedTuple):
    """What a step needs of one device. `traffic` and `collectives` are None if no compiled program
    could be read."""

    memory: Memory
    exceeds: bool = False  # as the compiler says
    traffic: float | None = None
    collectives: dict[str, Collectives] | None = None
    notes: tuple[str, ...] = ()
    moved: tuple[Moved, ...] = ()
    is_compiled: bool = True


@dataclasses.dataclass(frozen=True)
class Step:
    """The training step of a config on devices, counted on shapes.

    Attributes:
        config: of the run.
        task: of the run.
        partition: the devices.
        work: of the whole step.
        share: what one device holds of the state.
    """

    config: ConfigDict
    task: Task
    partition: Partition
    work: Workload
    share: Share

    @classmethod
    def make(cls, config: ConfigDict, devices: Devices | int) -> Step:
        """Raises RunError if the devices cannot share the batch or the parameters."""
        kind = tasks.find(config.task)
        task = kind(config)
        partition = Partition.make(config.mesh, devices)
        microbatches = config.optimizer.grad_accum_steps
        partition.check_batch(config.batch_size, microbatches, "config.batch_size")
        of_model = partition.for_model(task.param_metadata())
        of_model.check_parameters(task.shapes())
        work = dry_run.workload(config)
        share = dry_run.share_of_device(config, partition)
        return cls(config, task, partition, work, share)

    @property
    def argument_bytes(self) -> float:
        """The bytes of the state and of a batch on one device."""
        batch_bytes = self.work.batch_bytes * self.config.batch_size
        return self.share.state + batch_bytes / self.partition.batch_shares


def compile_step(step: Step, chip: chips.Chip) -> Needs:
    """Compiles the actual step. If it exceeds the memory, the compiler's error says how much it
    needs."""
    options: dict[str, Any] | None = None
    # Kernels for GPUs that are not here cannot be tried out.
    if chip.processors and jax.default_backend() == "cpu":
        options = {"xla_gpu_autotune_level": 0}
    try:
        compiled = dry_run.lower(step.config, step.partition).compile(options)
    except jax.errors.JaxRuntimeError as error:
        peak = needed_bytes(str(error))
        if peak is None:
            raise
        return _exceeding(step, peak)
    sizes: Any = compiled.memory_analysis()
    memory = Memory(
        arguments=sizes.argument_size_in_bytes,
        temporaries=sizes.temp_size_in_bytes,
        peak=sizes.peak_memory_in_bytes,
    )
    try:
        text = str(compiled.as_text())
        program = Program(text, step.partition.mesh.size)
        costs = program.costs()
    except jax.errors.JaxRuntimeError:
        note = (
            "this jaxlib cannot print libtpu's program: collectives are estimated, time leaves out "
            "memory traffic"
        )
        return Needs(memory, notes=(note,))
    notes: tuple[str, ...] = ()
    if costs.unknown_loops:
        note = (
            f"{costs.unknown_loops} loops whose length depends on the data, as in random draws, "
            "count as one iteration"
        )
        notes = (note,)
    return Needs(
        memory,
        traffic=costs.traffic,
        collectives=costs.collectives,
        notes=notes,
        moved=costs.moved,
    )


def _exceeding(step: Step, peak: float) -> Needs:
    """The needs of a step that does not fit into the memory."""
    arguments = step.argument_bytes
    temporaries = max(0.0, peak - arguments)
    note = (
        "the program exceeds the memory: collectives are estimated, the time leaves out memory "
        "traffic"
    )
    return Needs(Memory(arguments, temporaries, peak), exceeds=True, notes=(note,))


def needed_bytes(message: str) -> float | None:
    """The bytes of a chip's HBM that a program needs, read from an error of libtpu; None if the
    error is another one, such as one of a kernel's own memory.

    libtpu writes "temporaries", but counts arguments and results among them.
    """
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    match = re.search(
        r"(?:HLO temporaries \(|memory space hbm. Used )([\d.]+)([BKMGT]?)\S* (?:exceeds|of)",
        message,
    )
    if not match:
        return None
    number, suffix = match.groups()
    return float(number) * 2 ** SUFFIXES[suffix]


def estimate(step: Step) -> Needs:
    """Counts the state, the gradients (twice with accumulation: the sum and the newest), and the
    arrays that the forward pass saves for the backward pass."""
    config = step.config
    partition = step.partition
    microbatches = config.optimizer.grad_accum_steps
    arguments = step.argument_bytes
    saved = step.work.saved_bytes * config.batch_size / partition.batch_shares / microbatches
    if partition.mesh.shape["fsdp"] > 1 and config.model.remat != "full":
        saved += GATHERED_BYTES * step.work.params
    gradients = step.share.params * min(2, microbatches)
    memory = Memory(arguments, saved + gradients, arguments + saved + gradients)
    # The state, the gradients and every saved array are written once and read once.
    traffic = 2 * (arguments + saved * microbatches + gradients * microbatches)
    notes = (
        "an estimate from the workload, nothing was compiled: a compiler may need half as much "
        "memory again",
        "JAX gives programs 0.75 of a GPU's memory, or the share that "
        f"{chips.SHARE} in the environment says",
    )
    return Needs(memory, traffic=traffic, notes=notes, is_compiled=False)


def exchange(step: Step) -> dict[str, Collectives]:
    """The collectives that data and fsdp parallelism always need: float32 gradients and gathered
    parameters."""
    config = step.config
    partition = step.partition
    fsdp = partition.mesh.shape["fsdp"]
    copies = partition.batch_shares // fsdp
    microbatches = config.optimizer.grad_accum_steps
    # Each microbatch gathers the parameters, with remat=full forward and backward, and scatters its
    # gradients.
    gathers = microbatches
    if config.model.remat == "full":
        gathers = 2 * microbatches
    gradients = step.share.params
    collectives = {}
    if copies > 1:
        collectives["all-reduce"] = _collectives("all-reduce", 1, gradients, copies)
    if fsdp > 1:
        gathered = GATHERED_BYTES * step.work.params
        collectives["all-gather"] = _collectives("all-gather", gathers, gathered, fsdp)
        collectives["reduce-scatter"] = _collectives(
            "reduce-scatter", microbatches, gradients, fsdp
        )
    return collectives


def _collectives(kind: str, count: int, size: float, group: int) -> Collectives:
    """`count` collectives among `group` devices, for which the program waits; each result has
    `size` bytes."""
    wire = count * size * WIRE[kind](group)
    return Collectives(count, count * size, wire, wire)
