"""The memory, time and money that a run would need on chips that this machine does not have, and
the mesh that suits it (`mesh.auto`).

The actual training step is compiled: for a TPU slice, which needs libtpu (extra `plan`) but no TPU,
and for GPUs with JAX's CUDA plugin (extra `plan-gpu`). Without the plugin the figures of GPUs are
estimated from the workload.
"""

import dataclasses
import math
import re
import sys
from collections.abc import Iterator
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
        topology: as given, such as "v5e:4x4".
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
        products_bound: the batch size from which products take longest; None if memory does at any.
            Memory traffic is taken for that of the state and a part that grows with the batch,
            links for independent of it.
        notes: what the figures leave out.
        moved: what moves most bytes on one device, if that was asked for; the attributes of `Moved`
            by name.
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


class _Device(NamedTuple):
    """What one device needs. `traffic` and `collectives` are None if the compiled program could not
    be read."""

    memory: _Memory
    exceeds: bool = False  # as the compiler says
    traffic: float | None = None
    collectives: dict[str, Collectives] | None = None
    notes: tuple[str, ...] = ()
    moved: tuple[Moved, ...] = ()


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
        moved: how many instructions are listed that move the most bytes.
        devices: of this machine, if they are what the topology says.

    Raises:
        RunError: before compiling: an unknown topology, no libtpu, or a batch or parameters that
            devices cannot share.
    """
    hardware = chips.parse(topology)
    chip = hardware.chip
    count = hardware.count
    devices = dry_run.devices(topology) if devices is None else devices
    task = tasks.find(config.task)(config)
    partition = _partition(config, task, count if devices is None else devices)
    # libtpu lists two devices of some chips
    work = dry_run.workload(config)
    per_chip = partition.mesh.size // count
    share = dry_run.share_of_device(config, partition)
    if devices is None:
        device = _estimate(config, work, share, partition)
    else:
        with heartbeat(f"compiling the training step for {topology}", at_once=False):
            device = _compile(config, work, share, partition, chip)
    collectives = (
        _exchange(config, work, share, partition)
        if device.collectives is None
        else device.collectives
    )

    peak = count * chip.flops
    products = max(work.executed_flops / peak, work.flops / (peak * (mfu or 1)))
    memory = None if device.traffic is None else device.traffic * per_chip / chip.hbm_bandwidth
    links = chip.link_seconds(
        per_chip * sum(kind.wire_bytes for kind in collectives.values()), count
    )
    waiting = chip.link_seconds(
        per_chip * sum(kind.waiting_bytes for kind in collectives.values()), count
    )
    step_seconds = max(products, memory or 0.0, links - waiting) + waiting
    hours = config.steps * step_seconds / 3600
    units = config.batch_size * task.units_per_example
    state = 2 * (share.state + share.params) * per_chip / chip.hbm_bandwidth
    return Plan(
        topology=topology,
        chips=count,
        method="estimated" if devices is None else "compiled",
        params=work.params,
        flops_per_step=work.flops,
        per_chip_bytes={
            name: round(size * per_chip) for name, size in device.memory._asdict().items()
        },
        hbm_bytes=round(chip.usable_bytes()),
        fits=not device.exceeds and device.memory.peak <= chip.usable_bytes() / per_chip,
        collectives={
            name: {"count": kind.count, "bytes": round(kind.bytes)}
            for name, kind in collectives.items()
        },
        seconds={"products": products, "memory": memory, "links": links},
        step_seconds=step_seconds,
        run_days=hours / 24,
        chip_hours=count * hours,
        cost=None if price is None else price * count * hours,
        utilisation=work.flops / (peak * step_seconds),
        per_price=3600 * units / (step_seconds * price * count) if price else None,
        products_bound=compute_bound(
            config.batch_size, products, min(state, memory or 0.0), memory or 0.0, links
        ),
        notes=(*device.notes, *_notes(config, bool(moved and not device.moved))),
        moved=tuple(one._asdict() for one in device.moved[:moved]),
    )


def _partition(config: ConfigDict, task: Task, devices: Devices | int) -> Partition:
    """The devices' shares. Raises RunError if they cannot share the batch or the parameters."""
    partition = Partition.make(config.mesh, devices)
    partition.check_batch(config.batch_size, config.optimizer.grad_accum_steps, "config.batch_size")
    partition.for_model(task.param_metadata()).check_parameters(task.shapes())
    return partition


def compute_bound(
    batch: int, products: float, state: float, memory: float, links: float
) -> int | None:
    """See `Plan.products_bound`; times of a step with `batch` examples, of which `state` is
    memory's at any batch."""
    ahead = products - (memory - state)  # of the part of memory's that grows with the batch
    if ahead <= 0:
        return None
    return max(1, math.ceil(batch * max(state / ahead, links / products)))


def _compile(
    config: ConfigDict, work: Workload, share: Share, partition: Partition, chip: chips.Chip
) -> _Device:
    """Compiles the actual step. If it exceeds the memory, the compiler's error tells how much it
    needs."""
    # Kernels for GPUs that are not here cannot be tried out.
    options: dict[str, Any] | None = (
        {"xla_gpu_autotune_level": 0}
        if chip.processors and jax.default_backend() == "cpu"
        else None
    )
    try:
        compiled = dry_run.lower(config, partition).compile(options)
    except jax.errors.JaxRuntimeError as error:
        peak = needed_bytes(str(error))
        if peak is None:
            raise
        arguments = _arguments(config, work, share, partition)
        note = "the program exceeds the memory: collectives are estimated, the time leaves out memory traffic"
        return _Device(
            _Memory(arguments, max(0.0, peak - arguments), peak), exceeds=True, notes=(note,)
        )
    sizes: Any = compiled.memory_analysis()
    memory = _Memory(
        sizes.argument_size_in_bytes, sizes.temp_size_in_bytes, sizes.peak_memory_in_bytes
    )
    try:
        costs = Program(str(compiled.as_text()), partition.mesh.size).costs()
    except jax.errors.JaxRuntimeError:
        note = "this jaxlib cannot print libtpu's program: collectives are estimated, time leaves out memory traffic"
        return _Device(memory, notes=(note,))
    loops = costs.unknown_loops
    counted = f"{loops} loops whose length depends on the data, as in random draws, count as one iteration"
    return _Device(
        memory, False, costs.traffic, costs.collectives, (counted,) if loops else (), costs.moved
    )


def needed_bytes(message: str) -> float | None:
    """The bytes of a chip's HBM that a program needs, read from an error of libtpu; None if the
    error is another one, such as one of a kernel's own memory.

    libtpu writes "temporaries", but counts arguments and results among them.
    """
    match = re.search(
        r"(?:HLO temporaries \(|memory space hbm. Used )([\d.]+)([BKMGT]?)\S* (?:exceeds|of)",
        message,
    )
    return (
        float(match[1]) * 2 ** SUFFIXES[match[2]]
        if match and "RESOURCE_EXHAUSTED" in message
        else None
    )


def _arguments(config: ConfigDict, work: Workload, share: Share, partition: Partition) -> float:
    batch_bytes = work.batch_bytes * config.batch_size
    return share.state + batch_bytes / partition.batch_shares


def _estimate(config: ConfigDict, work: Workload, share: Share, partition: Partition) -> _Device:
    """Counts the state, the gradients (twice with accumulation: the sum and the newest), and the
    arrays that the forward pass saves for the backward pass."""
    microbatches = config.optimizer.grad_accum_steps
    arguments = _arguments(config, work, share, partition)
    saved = work.saved_bytes * config.batch_size / partition.batch_shares / microbatches
    if partition.mesh.shape["fsdp"] > 1 and config.model.remat != "full":
        saved += GATHERED_BYTES * work.params
    gradients = share.params * min(2, microbatches)
    memory = _Memory(arguments, saved + gradients, arguments + saved + gradients)
    # The state, the gradients and every saved array are written once and read once.
    traffic = 2 * (arguments + saved * microbatches + gradients * microbatches)
    notes = (
        "an estimate from the workload, nothing was compiled: a compiler may need half as much memory again",
        f"JAX gives programs 0.75 of a GPU's memory, or the share that {chips.SHARE} in the environment says",
    )
    return _Device(memory, traffic=traffic, notes=notes)


def _exchange(
    config: ConfigDict, work: Workload, share: Share, partition: Partition
) -> dict[str, Collectives]:
    """The collectives that data and fsdp parallelism always need: float32 gradients and gathered
    parameters."""
    fsdp = partition.mesh.shape["fsdp"]
    microbatches = config.optimizer.grad_accum_steps
    # Each microbatch gathers the parameters, with remat=full forward and backward, and scatters its
    # gradients.
    gathers = microbatches * (2 if config.model.remat == "full" else 1)
    rows = (
        ("all-reduce", 1, share.params, partition.batch_shares // fsdp),
        ("all-gather", gathers, GATHERED_BYTES * work.params, fsdp),
        ("reduce-scatter", microbatches, share.params, fsdp),
    )
    collectives = {}
    for kind, count, size, group in rows:
        if group > 1:
            wire = count * size * WIRE[kind](group)
            collectives[kind] = Collectives(count, count * size, wire, wire)
    return collectives


def _notes(config: ConfigDict, nothing_moved: bool) -> Iterator[str]:
    if nothing_moved:
        yield "--moved needs a compiled program"
    if config.model.dtype != "bfloat16":
        yield f"the chips' peak is that of bfloat16, the config's type is {config.model.dtype}"
    if config.mesh.slices > 1:
        yield "the network between slices is not counted"
    if config.mesh.tensor > 1:
        yield "an estimate leaves out what tensor parallelism shares and exchanges"


def alternatives(config: ConfigDict, topology: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Changes that need less memory on each chip, the cheapest first: the name, the keys that
    change, and the topology. Only those that the batch and the devices allow."""
    current = chips.parse(topology)
    if config.model.remat != "full":
        yield "remat=full", {"model.remat": "full"}, topology
    for times in (2, 4, 8):
        if (
            config.batch_size % (times * current.count) == 0
            and config.optimizer.grad_accum_steps < times
        ):
            yield f"grad_accum_steps={times}", {"optimizer.grad_accum_steps": times}, topology
    for other in current.larger():
        if config.batch_size % (chips.parse(other).count * config.optimizer.grad_accum_steps) == 0:
            yield other, {"mesh.data": -1}, other


def candidate_meshes(devices: int, slices: int = 1) -> Iterator[Sizes]:
    """The meshes that make sense, in the order in which they exchange more: copies of the state;
    the state in parts that eight devices, or all of them, hold; and products in halves."""
    yield devices, 1, 1
    within = devices // slices
    for parts in sorted({8, within}):
        if 1 < parts <= within and within % parts == 0:
            yield devices // parts, parts, 1
    if within % 2 == 0:
        yield slices, within // 2, 2


def choose_mesh(
    config: ConfigDict, topology: str, devices: list | None = None
) -> tuple[Sizes, str]:
    """The mesh with the fastest step of those that fit, by the planner's bounds.

    Args:
        config: of the run, whose own mesh does not count.
        topology: as `make` takes it.
        devices: of this machine, if they are what the topology says.

    Returns:
        The devices along data, fsdp and tensor, and the reason in a line.

    Raises:
        RunError: no mesh fits; or none suits the batch and the model.
    """
    count = chips.parse(topology).count
    plans: dict[Sizes, Plan] = {}
    refused = ""
    for sizes in candidate_meshes(count, config.mesh.slices):
        print(f"planning mesh {config_lib.mesh_name(sizes)}", file=sys.stderr, flush=True)
        try:
            plan = make(config_lib.with_mesh(config, sizes), topology, devices=devices)
        except RunError as error:
            refused = refused or str(error)
            continue
        plans[sizes] = plan
        products, memory, links = (plan.seconds[part] for part in ("products", "memory", "links"))
        if plan.fits and (links or 0.0) < max(products or 0.0, memory or 0.0):
            break  # links do not hold this one up, and those that follow use them more
    if not plans:
        raise RunError(f"config.mesh=auto: no mesh of {topology} suits the run: {refused}")
    fitting = {sizes: plan for sizes, plan in plans.items() if plan.fits}
    if not fitting:
        sizes = min(plans, key=lambda sizes: plans[sizes].per_chip_bytes["peak"])
        peak = plans[sizes].per_chip_bytes["peak"] / 1e9
        available = plans[sizes].hbm_bytes / 1e9
        needs = (
            f"{config_lib.mesh_name(sizes)} needs least, {peak:.1f} of {available:.1f} GB a chip"
        )
        advice = _what_fits(config_lib.with_mesh(config, sizes), topology, devices)
        raise RunError(f"config.mesh=auto: no mesh of {topology} fits; {needs}{advice}")
    fastest = min(fitting, key=lambda sizes: fitting[sizes].step_seconds)
    others = []
    for sizes, plan in plans.items():
        if sizes != fastest:
            others.append(f"{config_lib.mesh_name(sizes)} {_time(plan)}")
    reason = "it fits, and links do not hold it up"
    if others:
        reason = f"the fastest that fits ({'; '.join(others)})"
    return fastest, f"{_time(plans[fastest])}; {reason}"


def choose_mesh_here(config: ConfigDict) -> tuple[Sizes, str]:
    """The mesh that suits a run on this machine's devices, and the reason, for `config.resolve`.

    Raises:
        RunError: as in `choose_mesh`.
    """
    devices = jax.devices()
    along_data = (len(devices), 1, 1)
    if len(devices) == 1:
        return along_data, "one device"
    kind = chips.of_device(devices[0].device_kind)
    topology = chips.usual(kind, len(devices)) if kind else None
    if topology is None:
        name = f"{len(devices)} devices {devices[0].device_kind!r}"
        return along_data, f"no figures of {name} are known"
    return choose_mesh(config, topology, devices)


def _what_fits(config: ConfigDict, topology: str, devices: list | None) -> str:
    """The first change that makes a plan fit, for a message."""
    for name, changes, other in alternatives(config, topology):
        there = devices if other == topology else None
        try:
            changed = config_lib.overridden(config, changes)
            if make(changed, other, devices=there).fits:
                return f": {name} would fit"
        except RunError:
            continue
    return ": nor would gradient accumulation, model.remat=full or the next larger topologies; take a smaller model"


def _time(plan: Plan) -> str:
    return f"{1e3 * plan.step_seconds:.4g} ms at least" if plan.fits else "does not fit"
