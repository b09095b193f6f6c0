"""The memory, time and money that a run would need on chips that this machine does not have, and
the mesh that suits it (`mesh.auto`).

The actual training step is compiled: for a TPU slice, which needs libtpu (extra `plan`) but no TPU,
and for GPUs with JAX's CUDA plugin (extra `plan-gpu`). Without the plugin the figures of GPUs are
estimated from the workload.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.config import Sizes
from gmlp_flax.errors import RunError
from gmlp_flax.io.logs import heartbeat
from gmlp_flax.planning import chips, dry_run
from gmlp_flax.planning.dry_run import Share, Workload
from gmlp_flax.planning.hlo import WIRE, Collectives, Moved, Program
from gmlp_flax.tasks.base import Task
from gmlp_flax.training.partition import Devices, Partition

SUFFIXES = {"": 0, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}
GATHERED_BYTES = 2  # per element of a sharded parameter, which is gathered in bfloat16


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a config needs on a topology.

    Attributes:
        topology: the text of it, such as "v5e:4x4".
        chips: the number of its chips.
        method: "compiled", or "estimated" from the workload.
        params: number of parameters.
        flops_per_step: operations in matrix products, over all chips, without recomputation.
        per_chip_bytes: bytes on one chip: arguments, temporaries, peak.
        hbm_bytes: memory of a chip; of a GPU, what JAX gives to programs.
        fits: whether the step fits into that memory.
        collectives: by kind, for one step: count, and bytes of their results on one device.
        seconds: the time of a step if only one part took time: products, memory or links. Memory is
            None if the compiled program could not be read.
        step_seconds: a lower bound. Products, memory traffic and overlapping collectives run at the
            same time, so the longest of them counts; collectives for which the program waits are
            added.
        run_days, chip_hours: of all steps, without evaluations, checkpoints and preemptions.
        cost: in the unit of the price; None without a price.
        utilisation: model FLOPs utilisation (MFU) of such a step.
        per_price: tokens, images or examples for one unit of the price; None without a price.
        products_bound: the batch size from which products take longest; None if memory does at any
            batch size. Here memory traffic is that of the state and a part that grows with the
            batch, and links do not depend on the batch.
        notes: what the figures leave out.
        moved: the instructions that move most bytes on one device, on request; the attributes of
            `Moved` by name.
    """

    topology: str
    chips: int
    method: str
    params: int
    flops_per_step: float
    per_chip_bytes: dict[str, int]
    hbm_bytes: int
    fits: bool
    collectives: dict[str, dict[str, int]]
    seconds: dict[str, float | None]
    step_seconds: float
    run_days: float
    chip_hours: float
    cost: float | None
    utilisation: float
    per_price: float | None
    products_bound: int | None
    notes: tuple[str, ...]
    moved: tuple[dict[str, Any], ...] = ()


class _Memory(NamedTuple):
    """Bytes on one device. `peak` is the largest sum of arguments and temporaries at any time."""

    arguments: float
    temporaries: float
    peak: float


class _Needs(NamedTuple):
    """What a step needs of one device. `traffic` and `collectives` are None if no compiled program
    could be read."""

    memory: _Memory
    exceeds: bool = False  # as the compiler says
    traffic: float | None = None
    collectives: dict[str, Collectives] | None = None
    notes: tuple[str, ...] = ()
    moved: tuple[Moved, ...] = ()
    is_compiled: bool = True


@dataclasses.dataclass(frozen=True)
class _Step:
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
    def make(cls, config: ConfigDict, devices: Devices | int) -> _Step:
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


@dataclasses.dataclass(frozen=True)
class _Times:
    """Seconds of a step.

    Attributes:
        products: if only matrix products took time.
        memory: if only memory traffic took time; None if it is not known.
        links: if only collectives took time.
        waiting: the part of `links` during which nothing else runs.
    """

    products: float
    memory: float | None
    links: float
    waiting: float

    @property
    def step(self) -> float:
        """A lower bound: what can run at the same time does."""
        overlapping = max(self.products, self.memory or 0.0, self.links - self.waiting)
        return overlapping + self.waiting


def make(
    config: ConfigDict,
    topology: str,
    price: float | None = None,
    mfu: float | None = None,
    moved: int = 0,
    devices: Devices | None = None,
) -> Plan:
    """Plans the run of a config.

    Args:
        config: of the run.
        topology: a TPU slice, such as "v5e:16x16", or GPUs, such as "gpu:h100x8".
        price: of one chip for one hour.
        mfu: the share of the chips' peak that the model's products reach, above 0 and at most 1. 1
            if None.
        moved: how many of the instructions that move the most bytes are listed.
        devices: of this machine, if they are what the topology says.

    Raises:
        RunError: before compiling: an unknown topology, no libtpu, or a batch or parameters that
            devices cannot share.
    """
    hardware = chips.parse(topology)
    if devices is None:
        devices = dry_run.devices(topology)
    if devices is None:
        step = _Step.make(config, hardware.count)
        needs = _estimate(step)
    else:
        step = _Step.make(config, devices)
        with heartbeat(f"compiling the training step for {topology}", at_once=False):
            needs = _compile(step, hardware.chip)
    lacks_moved = moved > 0 and not needs.moved
    notes = (
        *needs.notes,
        *_notes(config, lacks_moved),
        *_notes_of_block(step.task, topology),
    )
    needs = needs._replace(notes=notes, moved=needs.moved[:moved])
    return _plan(topology, step, hardware, needs, price, mfu)


def _plan(
    topology: str,
    step: _Step,
    hardware: chips.Topology,
    needs: _Needs,
    price: float | None,
    mfu: float | None,
) -> Plan:
    """The plan of a step, from what it needs of each device; `price` and `mfu` as in `make`."""
    config = step.config
    work = step.work
    chip = hardware.chip
    count = hardware.count
    collectives = needs.collectives
    if collectives is None:
        collectives = _exchange(step)
    # libtpu lists two devices of some chips
    per_chip = step.partition.mesh.size // count
    times = _times(work, needs.traffic, collectives, hardware, per_chip, mfu)
    hours = config.steps * times.step / 3600
    cost = None
    per_price = None
    if price is not None:
        cost = price * count * hours
    if price:
        units = config.batch_size * step.task.units_per_example
        per_price = 3600 * units / (times.step * price * count)
    memory_of_device = chip.usable_bytes() / per_chip
    return Plan(
        topology=topology,
        chips=count,
        method="compiled" if needs.is_compiled else "estimated",
        params=work.params,
        flops_per_step=work.flops,
        per_chip_bytes=_bytes_per_chip(needs.memory, per_chip),
        hbm_bytes=round(chip.usable_bytes()),
        fits=not needs.exceeds and needs.memory.peak <= memory_of_device,
        collectives=_figures(collectives),
        seconds={"products": times.products, "memory": times.memory, "links": times.links},
        step_seconds=times.step,
        run_days=hours / 24,
        chip_hours=count * hours,
        cost=cost,
        utilisation=work.flops / (count * chip.flops * times.step),
        per_price=per_price,
        products_bound=_products_bound(step, times, chip, per_chip),
        notes=needs.notes,
        moved=tuple(instruction._asdict() for instruction in needs.moved),
    )


def _bytes_per_chip(memory: _Memory, per_chip: int) -> dict[str, int]:
    """The bytes on a chip, which has `per_chip` devices."""
    sizes = {}
    for name, size in memory._asdict().items():
        sizes[name] = round(size * per_chip)
    return sizes


def _figures(collectives: Mapping[str, Collectives]) -> dict[str, dict[str, int]]:
    """See `Plan.collectives`."""
    figures = {}
    for name, kind in collectives.items():
        size = round(kind.bytes)
        figures[name] = {"count": kind.count, "bytes": size}
    return figures


def _products_bound(step: _Step, times: _Times, chip: chips.Chip, per_chip: int) -> int | None:
    """See `Plan.products_bound`."""
    batch_size = step.config.batch_size
    memory = times.memory or 0.0
    share = step.share
    state_bytes = share.state + share.params
    traffic = 2 * state_bytes * per_chip
    state_seconds = traffic / chip.hbm_bandwidth
    state = min(state_seconds, memory)
    return compute_bound(batch_size, times.products, state, memory, times.links)


def _times(
    work: Workload,
    traffic: float | None,
    collectives: Mapping[str, Collectives],
    hardware: chips.Topology,
    per_chip: int,
    mfu: float | None,
) -> _Times:
    """The times of a step on chips with `per_chip` devices each."""
    chip = hardware.chip
    peak = hardware.count * chip.flops
    reached = peak * (mfu or 1)
    products = max(work.executed_flops / peak, work.flops / reached)
    memory = None
    if traffic is not None:
        memory = traffic * per_chip / chip.hbm_bandwidth
    wire_bytes = 0.0
    waiting_bytes = 0.0
    for kind in collectives.values():
        wire_bytes += kind.wire_bytes
        waiting_bytes += kind.waiting_bytes
    links = chip.link_seconds(per_chip * wire_bytes, hardware.count)
    waiting = chip.link_seconds(per_chip * waiting_bytes, hardware.count)
    return _Times(products, memory, links, waiting)


def compute_bound(
    batch: int, products: float, state: float, memory: float, links: float
) -> int | None:
    """See `Plan.products_bound`. The times are of a step with `batch` examples; `state` is the part
    of memory's time that does not depend on the batch."""
    growing = memory - state
    ahead = products - growing
    if ahead <= 0:
        return None
    ratio = max(state / ahead, links / products)
    return max(1, math.ceil(batch * ratio))


def _compile(step: _Step, chip: chips.Chip) -> _Needs:
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
    memory = _Memory(
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
        return _Needs(memory, notes=(note,))
    notes: tuple[str, ...] = ()
    if costs.unknown_loops:
        note = (
            f"{costs.unknown_loops} loops whose length depends on the data, as in random draws, "
            "count as one iteration"
        )
        notes = (note,)
    return _Needs(
        memory,
        traffic=costs.traffic,
        collectives=costs.collectives,
        notes=notes,
        moved=costs.moved,
    )


def _exceeding(step: _Step, peak: float) -> _Needs:
    """The needs of a step that does not fit into the memory."""
    arguments = step.argument_bytes
    temporaries = max(0.0, peak - arguments)
    note = (
        "the program exceeds the memory: collectives are estimated, the time leaves out memory "
        "traffic"
    )
    return _Needs(_Memory(arguments, temporaries, peak), exceeds=True, notes=(note,))


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


def _estimate(step: _Step) -> _Needs:
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
    memory = _Memory(arguments, saved + gradients, arguments + saved + gradients)
    # The state, the gradients and every saved array are written once and read once.
    traffic = 2 * (arguments + saved * microbatches + gradients * microbatches)
    notes = (
        "an estimate from the workload, nothing was compiled: a compiler may need half as much "
        "memory again",
        "JAX gives programs 0.75 of a GPU's memory, or the share that "
        f"{chips.SHARE} in the environment says",
    )
    return _Needs(memory, traffic=traffic, notes=notes, is_compiled=False)


def _exchange(step: _Step) -> dict[str, Collectives]:
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


def _notes(config: ConfigDict, lacks_moved: bool) -> Iterator[str]:
    """What the figures leave out. `lacks_moved`: whether --moved was asked for in vain."""
    if lacks_moved:
        yield "--moved needs a compiled program"
    if config.model.dtype != "bfloat16":
        yield f"the chips' peak is that of bfloat16, the config's type is {config.model.dtype}"
    if config.mesh.slices > 1:
        yield "the network between slices is not counted"
    if config.mesh.tensor > 1:
        yield "an estimate leaves out what tensor parallelism shares and exchanges"


def _notes_of_block(task: Task, topology: str) -> list[str]:
    """What the block of a task's model says of its program."""
    if "block" not in task.config.model:
        return []
    spec = task.spec()
    platform = "gpu" if topology.startswith("gpu:") else "tpu"
    return spec.block.notes(spec, platform)


class Alternative(NamedTuple):
    """A change of a plan: its name, the keys of the config that change, and the topology."""

    name: str
    changes: dict[str, Any]
    topology: str


def alternatives(config: ConfigDict, topology: str) -> Iterator[Alternative]:
    """Changes that need less memory on each chip, the cheapest first. Changes that the batch and
    the devices do not allow are left out."""
    current = chips.parse(topology)
    batch_size = config.batch_size
    if config.model.remat != "full":
        yield Alternative("remat=full", {"model.remat": "full"}, topology)
    microbatches = config.optimizer.grad_accum_steps
    for steps in (2, 4, 8):
        parts = steps * current.count
        is_even = batch_size % parts == 0
        if is_even and microbatches < steps:
            changes = {"optimizer.grad_accum_steps": steps}
            yield Alternative(f"grad_accum_steps={steps}", changes, topology)
    for larger in current.larger():
        parts = chips.parse(larger).count * microbatches
        is_even = batch_size % parts == 0
        if is_even:
            yield Alternative(larger, {"mesh.data": -1}, larger)


def candidate_meshes(devices: int, slices: int = 1) -> Iterator[Sizes]:
    """The meshes that make sense, those that exchange less first: copies of the state; the state in
    parts that eight devices, or all of them, hold; and products in halves."""
    yield devices, 1, 1
    per_slice = devices // slices
    for parts in sorted({8, per_slice}):
        if 1 < parts <= per_slice and per_slice % parts == 0:
            copies = devices // parts
            yield copies, parts, 1
    if per_slice % 2 == 0:
        halves = per_slice // 2
        yield slices, halves, 2


def choose_mesh(
    config: ConfigDict, topology: str, devices: list | None = None
) -> tuple[Sizes, str]:
    """The mesh with the fastest step of those that fit, by the planner's bounds.

    Args:
        config: of the run. Its own mesh is ignored.
        topology: as `make` takes it.
        devices: of this machine, if they are what the topology says.

    Returns:
        The devices along data, fsdp and tensor, and the reason in a line.

    Raises:
        RunError: no mesh fits; or none suits the batch and the model.
    """
    plans = _plan_meshes(config, topology, devices)
    fitting = [sizes for sizes, plan in plans.items() if plan.fits]
    if not fitting:
        smallest = min(plans, key=lambda sizes: plans[sizes].per_chip_bytes["peak"])
        with_smallest = config_lib.with_mesh(config, smallest)
        advice = _what_fits(with_smallest, topology, devices)
        raise _no_mesh_fits(smallest, plans[smallest], advice)
    fastest = min(fitting, key=lambda sizes: plans[sizes].step_seconds)
    time = _time(plans.pop(fastest))
    others = []
    for sizes, plan in plans.items():
        name = config_lib.mesh_name(sizes)
        others.append(f"{name} {_time(plan)}")
    reason = "it fits, and links do not hold it up"
    if others:
        reason = f"the fastest that fits ({'; '.join(others)})"
    return fastest, f"{time}; {reason}"


def _no_mesh_fits(smallest: Sizes, plan: Plan, advice: str) -> RunError:
    """The error if even the mesh that needs the least memory does not fit."""
    name = config_lib.mesh_name(smallest)
    peak = plan.per_chip_bytes["peak"] / 1e9
    available = plan.hbm_bytes / 1e9
    return RunError(
        f"config.mesh=auto: no mesh of {plan.topology} fits; {name} needs least, {peak:.1f} of "
        f"{available:.1f} GB a chip{advice}"
    )


def _plan_meshes(config: ConfigDict, topology: str, devices: list | None) -> dict[Sizes, Plan]:
    """The plans of candidate meshes, up to the first one that links do not hold up. Raises RunError
    if none suits the run."""
    count = chips.parse(topology).count
    plans: dict[Sizes, Plan] = {}
    first_error = ""
    for sizes in candidate_meshes(count, config.mesh.slices):
        print(f"planning mesh {config_lib.mesh_name(sizes)}", file=sys.stderr, flush=True)
        try:
            plan = make(config_lib.with_mesh(config, sizes), topology, devices=devices)
        except RunError as error:
            first_error = first_error or str(error)
            continue
        plans[sizes] = plan
        if plan.fits and not _is_held_up_by_links(plan):
            break  # the meshes that follow use links more
    if not plans:
        raise RunError(f"config.mesh=auto: no mesh of {topology} suits the run: {first_error}")
    return plans


def _is_held_up_by_links(plan: Plan) -> bool:
    links = plan.seconds["links"] or 0.0
    products = plan.seconds["products"] or 0.0
    memory = plan.seconds["memory"] or 0.0
    return links >= max(products, memory)


def choose_mesh_here(config: ConfigDict) -> tuple[Sizes, str]:
    """The mesh that suits a run on this machine's devices, and the reason, for `config.resolve`.

    Raises:
        RunError: as in `choose_mesh`.
    """
    devices = jax.devices()
    along_data = (len(devices), 1, 1)
    if len(devices) == 1:
        return along_data, "one device"
    name = devices[0].device_kind
    kind = chips.of_device(name)
    topology = chips.usual(kind, len(devices)) if kind else None
    if topology is None:
        return along_data, f"no figures of {len(devices)} devices {name!r} are known"
    return choose_mesh(config, topology, devices)


def _what_fits(config: ConfigDict, topology: str, devices: list | None) -> str:
    """The first change that makes a plan fit, for a message."""
    for other in alternatives(config, topology):
        other_devices = devices if other.topology == topology else None
        try:
            changed = config_lib.overridden(config, other.changes)
            plan = make(changed, other.topology, devices=other_devices)
        except RunError:
            continue
        if plan.fits:
            return f": {other.name} would fit"
    return (
        ": nor would gradient accumulation, model.remat=full or the next larger topologies; take a "
        "smaller model"
    )


def _time(plan: Plan) -> str:
    if not plan.fits:
        return "does not fit"
    milliseconds = 1e3 * plan.step_seconds
    return f"{milliseconds:.4g} ms at least"
