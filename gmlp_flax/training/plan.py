"""What a run would need on chips that are not here: memory, time and money, before anything is launched.

For a TPU slice the true training step is compiled, which needs libtpu (extra `plan`) and no TPU. For GPUs the same
figures are estimated from the workload.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh
from ml_collections import ConfigDict

from gmlp_flax.training import chips, dry_run, partition, workload
from gmlp_flax.training.chips import Chip
from gmlp_flax.training.errors import RunError
from gmlp_flax.training.program import WIRE, Collectives, Program
from gmlp_flax.training.workload import Workload

SUFFIXES = {"": 0, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}
GATHERED_BYTES = 2  # of a sharded parameter, which is gathered in bfloat16


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device: what the step is given, what it needs meanwhile, and the most of both at once."""

    arguments: float
    temporaries: float
    peak: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """A config on a topology.

    Attributes:
        topology, chips: as asked for, and how many chips that is.
        method: "compiled", or "estimated" from the workload.
        params: number of parameters.
        flops_per_step: operations of the model in matrix products, over all chips; recomputation is left out.
        per_chip_bytes: bytes of one chip: arguments, temporaries, peak.
        hbm_bytes: memory of a chip.
        fits: whether the step can run there.
        collectives: by kind, those of a step: count, and bytes of their results on one device.
        seconds: what the step would take if only one thing took time: products, memory, links; of memory None where
            no program could be read.
        step_seconds: at least so long: products, memory and those collectives that run beside other work go on at once,
            so the longest of them counts; collectives that the program waits for are added.
        run_days, chip_hours: of all steps, with no evaluation, checkpoint or preemption.
        cost: at the price given, in its unit; None without one.
        notes: what the figures leave out.
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
    notes: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class _Findings:
    """Of one device. `traffic` and `collectives` are None where no program could be read."""

    memory: Memory
    fits: bool
    traffic: float | None = None
    collectives: dict[str, Collectives] | None = None
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Devices, how many of them a chip has, over how many the batch is split, and over how many the state."""

    devices: int
    per_chip: int
    data: int
    fsdp: int


def make(config: ConfigDict, topology: str, price: float | None = None, mfu: float | None = None) -> Plan:
    """Plans a config's run.

    Args:
        config: the run's.
        topology: a TPU slice, such as "v5e:16x16", or GPUs, such as "gpu:h100x8".
        price: of one chip for an hour.
        mfu: share of the chips' peak that the model's products are known to reach, above 0 and at most 1; 1 if None.

    Raises:
        RunError: the topology is unknown, libtpu is missing, or the devices cannot share the batch; before compiling.
    """
    kind, chip, count = chips.parse(topology)
    if chip.node:
        mesh = AbstractMesh(partition.axis_sizes(config.mesh, count), partition.AXES)
    else:
        mesh = partition.make_mesh(config.mesh, _devices(topology, kind))
    partition.check_batch(config.batch_size, config.optimizer.accumulate, "config.batch_size", mesh)
    layout, work = _layout(mesh, count), workload.of(config)
    if chip.node:
        found, method = _estimate(config, work, chip, layout), "estimated"
    else:
        found, method = _compile(config, work, chip, layout, mesh), "compiled"
    collectives = found.collectives
    if collectives is None:
        collectives = _exchange(config, work, layout)
    seconds = _seconds(chip, count, layout, work, found.traffic, collectives, mfu)
    waiting = seconds.pop("waiting")
    step_seconds = max(seconds["products"], seconds["memory"] or 0.0, seconds["links"] - waiting) + waiting
    hours = config.steps * step_seconds / 3600
    sizes = {name: round(size * layout.per_chip) for name, size in dataclasses.asdict(found.memory).items()}
    return Plan(
        topology=topology, chips=count, method=method, params=work.params, flops_per_step=work.flops,
        per_chip_bytes=sizes, hbm_bytes=round(chip.hbm_bytes), fits=found.fits,
        collectives={name: {"count": each.count, "bytes": round(each.bytes)} for name, each in collectives.items()},
        seconds=seconds, step_seconds=step_seconds, run_days=hours / 24, chip_hours=count * hours,
        cost=None if price is None else price * count * hours, notes=(*found.notes, *_notes(config)),
    )


def _devices(topology: str, kind: str) -> list[jax.Device]:
    if importlib.util.find_spec("libtpu") is None:
        raise RunError(f"to plan for {topology} needs libtpu, which compiles for TPUs: pip install -e .[plan]")
    try:
        return dry_run.tpu_devices(topology)
    except RunError as error:
        usual = ", ".join(f"{kind}:{shape}" for shape in chips.CHIPS[kind].slices)
        raise RunError(f"{str(error).partition(': pip')[0]}; of this kind there are {usual}") from None


def _layout(mesh: Mesh | AbstractMesh, count: int) -> _Layout:
    return _Layout(mesh.size, mesh.size // count, partition.batch_shares(mesh), mesh.shape["fsdp"])


def _compile(config: ConfigDict, work: Workload, chip: Chip, layout: _Layout, mesh: Mesh) -> _Findings:
    """Compiles the true step; one that exceeds the memory raises while it compiles, and says by how much."""
    available = chip.hbm_bytes / layout.per_chip
    try:
        compiled = dry_run.lower(config, mesh).compile()
    except jax.errors.JaxRuntimeError as error:
        peak = needed_bytes(str(error))
        if peak is None:
            raise
        arguments = _arguments(config, work, layout)
        return _Findings(
            Memory(arguments, max(0.0, peak - arguments), peak), False,
            notes=("the compiler gave up for want of memory: collectives are estimated, time without memory traffic",),
        )
    sizes = compiled.memory_analysis()
    memory = Memory(sizes.argument_size_in_bytes, sizes.temp_size_in_bytes, sizes.peak_memory_in_bytes)
    fits = memory.peak <= available
    try:
        costs = Program(compiled.as_text(), layout.devices).costs()
    except jax.errors.JaxRuntimeError:
        note = "this jaxlib cannot print the program that libtpu made: collectives are estimated, time without traffic"
        return _Findings(memory, fits, notes=(note,))
    loops = len(costs.unknown_loops)
    notes = (f"{loops} loops whose length depends on the data, as in random draws, count as one turn",) * bool(loops)
    return _Findings(memory, fits, costs.traffic, costs.collectives, notes)


def needed_bytes(message: str) -> float | None:
    """What libtpu says that a program needs of a chip, arguments included, or None if a message is of something else.

    It says "temporaries", but counts arguments and results with them.
    """
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    found = re.search(r"(?:HLO temporaries \(|Used )([\d.]+)([BKMGT]?)\S* (?:exceeds|of)", message)
    return float(found[1]) * 2 ** SUFFIXES[found[2]] if found else float("nan")


def _arguments(config: ConfigDict, work: Workload, layout: _Layout) -> float:
    return work.state_bytes / layout.fsdp + work.batch_bytes * config.batch_size / layout.data


def _estimate(config: ConfigDict, work: Workload, chip: Chip, layout: _Layout) -> _Findings:
    """State, gradients (twice with accumulation: the sum and the newest) and what forward leaves for backward."""
    microbatches = config.optimizer.accumulate
    arguments = _arguments(config, work, layout)
    saved = work.saved_bytes * config.batch_size / layout.data / microbatches
    gradients = work.param_bytes / layout.fsdp * min(2, microbatches)
    memory = Memory(arguments, saved + gradients, arguments + saved + gradients)
    # Every saved array is written and read, every part of the state as well, and gradients between.
    traffic = 2 * (arguments + saved * microbatches + gradients * microbatches)
    note = "an estimate from the workload, nothing was compiled: a compiler may need half as much memory again"
    return _Findings(memory, memory.peak <= chip.hbm_bytes, traffic, notes=(note,))


def _exchange(config: ConfigDict, work: Workload, layout: _Layout) -> dict[str, Collectives]:
    """The collectives that data and fsdp parallelism cannot do without: float32 gradients, gathered parameters."""
    found = {}

    def add(kind: str, count: int, size: float, group: int) -> None:
        if group > 1:
            wire = count * size * WIRE[kind](group)
            found[kind] = Collectives(count, count * size, wire, wire)

    shard = work.param_bytes / layout.fsdp
    add("all-reduce", 1, shard, layout.data // layout.fsdp)
    # Each microbatch gathers the parameters forward and backward, and scatters its gradients.
    microbatches = config.optimizer.accumulate
    add("all-gather", 2 * microbatches, GATHERED_BYTES * work.params, layout.fsdp)
    add("reduce-scatter", microbatches, shard, layout.fsdp)
    return found


def _seconds(
    chip: Chip, count: int, layout: _Layout, work: Workload, traffic: float | None,
    collectives: dict[str, Collectives], mfu: float | None,
) -> dict[str, float | None]:
    """Seconds of a step's products, memory traffic and links, each alone; "waiting" is the part of the links' during
    which nothing else runs."""
    peak = count * chip.flops
    products = max(work.executed_flops / peak, work.flops / (peak * (mfu or 1)))
    memory = None if traffic is None else traffic * layout.per_chip / chip.hbm_bandwidth

    def link(size: float) -> float:
        # Beyond a node, the GPUs of each first add up among themselves: an eighth of the bytes a GPU crosses over.
        beyond = size / chip.node / chip.network if chip.node and count > chip.node else 0.0
        return size * layout.per_chip / chip.link + beyond

    wire = link(sum(each.wire_bytes for each in collectives.values()))
    waiting = link(sum(each.waiting_bytes for each in collectives.values()))
    return {"products": products, "memory": memory, "links": wire, "waiting": waiting}


def _notes(config: ConfigDict) -> Iterator[str]:
    if config.model.dtype != "bfloat16":
        yield f"the chips' peak is that of bfloat16, the config's type is {config.model.dtype}"
    if config.mesh.slices > 1:
        yield "the network between slices is not counted"
    if config.mesh.tensor > 1:
        yield "an estimate leaves out what tensor parallelism shares and exchanges"


@dataclasses.dataclass(frozen=True)
class Alternative:
    """A change to a plan: in words, the overrides of config keys that make it, and the topology."""

    name: str
    overrides: dict[str, Any]
    topology: str


def alternatives(config: ConfigDict, topology: str) -> Iterator[Alternative]:
    """What may make a plan fit, cheapest change first; only those that the batch and the devices allow."""
    kind, chip, count = chips.parse(topology)
    full, sharded = {"model.remat": "full"}, {"mesh.data": -1}
    if config.model.remat != "full":
        yield Alternative("remat=full", full, topology)
    for times in (2, 4, 8):
        if config.batch_size % (times * count) == 0 and config.optimizer.accumulate < times:
            yield Alternative(f"accumulate={times}", {"optimizer.accumulate": times}, topology)
    if config.mesh.fsdp == 1 and config.mesh.tensor == 1:
        for size in [*(size for size in (2, 8, 32, 128) if size < count and count % size == 0), count]:
            yield Alternative(f"fsdp={size}", sharded | {"mesh.fsdp": size}, topology)
        if config.model.remat != "full":
            yield Alternative(f"fsdp={count}, remat=full", full | sharded | {"mesh.fsdp": count}, topology)
    more = [f"{kind}x{2 * count}", f"{kind}x{4 * count}"] if chip.node else chips.larger(kind, count)[:2]
    for other in more:
        if config.batch_size % (chips.parse(other)[2] * config.optimizer.accumulate) == 0:
            yield Alternative(other, {}, other)


def changed(config: ConfigDict, overrides: dict[str, Any]) -> ConfigDict:
    """A copy of a config with some dotted keys set."""
    copy = config.copy_and_resolve_references()
    copy.update_from_flattened_dict(overrides)
    return copy
