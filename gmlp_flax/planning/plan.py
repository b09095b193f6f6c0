"""The memory, time and money that a run would need on chips that this machine does not have.

The actual training step is compiled: for a TPU slice, which needs libtpu (extra `plan`) but no TPU,
and for GPUs with JAX's CUDA plugin (extra `plan-gpu`). Without the plugin the figures of GPUs are
estimated from the workload.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax.io.logs import heartbeat
from gmlp_flax.planning import chips, dry_run, needs
from gmlp_flax.planning.dry_run import Workload
from gmlp_flax.planning.hlo import Collectives
from gmlp_flax.planning.needs import Memory, Needs, Step
from gmlp_flax.tasks.base import Task
from gmlp_flax.training.partition import Devices


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
        utilization: model FLOPs utilization (MFU) of such a step.
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
    utilization: float
    per_price: float | None
    products_bound: int | None
    notes: tuple[str, ...]
    moved: tuple[dict[str, Any], ...] = ()


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
        step = Step.make(config, hardware.count)
        needed = needs.estimate(step)
    else:
        step = Step.make(config, devices)
        with heartbeat(f"compiling the training step for {topology}", at_once=False):
            needed = needs.compile_step(step, hardware.chip)
    lacks_moved = moved > 0 and not needed.moved
    notes = (
        *needed.notes,
        *_notes(config, lacks_moved),
        *_notes_of_block(step.task, topology),
    )
    needed = needed._replace(notes=notes, moved=needed.moved[:moved])
    return _plan(topology, step, hardware, needed, price, mfu)


def _plan(
    topology: str,
    step: Step,
    hardware: chips.Topology,
    needed: Needs,
    price: float | None,
    mfu: float | None,
) -> Plan:
    """The plan of a step, from what it needs of each device; `price` and `mfu` as in `make`."""
    config = step.config
    work = step.work
    chip = hardware.chip
    count = hardware.count
    collectives = needed.collectives
    if collectives is None:
        collectives = needs.exchange(step)
    # libtpu lists two devices of some chips
    per_chip = step.partition.mesh.size // count
    times = _times(work, needed.traffic, collectives, hardware, per_chip, mfu)
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
        method="compiled" if needed.is_compiled else "estimated",
        params=work.params,
        flops_per_step=work.flops,
        per_chip_bytes=_bytes_per_chip(needed.memory, per_chip),
        hbm_bytes=round(chip.usable_bytes()),
        fits=not needed.exceeds and needed.memory.peak <= memory_of_device,
        collectives=_figures(collectives),
        seconds={"products": times.products, "memory": times.memory, "links": times.links},
        step_seconds=times.step,
        run_days=hours / 24,
        chip_hours=count * hours,
        cost=cost,
        utilization=work.flops / (count * chip.flops * times.step),
        per_price=per_price,
        products_bound=_products_bound(step, times, chip, per_chip),
        notes=needed.notes,
        moved=tuple(instruction._asdict() for instruction in needed.moved),
    )


def _bytes_per_chip(memory: Memory, per_chip: int) -> dict[str, int]:
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


def _products_bound(step: Step, times: _Times, chip: chips.Chip, per_chip: int) -> int | None:
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
