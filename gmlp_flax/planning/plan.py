"""The memory, time and money that a run would need on chips that this machine does not have.

For a TPU slice, the memory is that of the actual training step, which is compiled here, with libtpu (extra `plan`) but
without a TPU. The memory of GPUs, and all times, are estimated from the workload.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.planning import chips, dry_run, workload
from gmlp_flax.planning.workload import Workload
from gmlp_flax.training.partition import Partition

SUFFIXES = {"": 0, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}
GATHERED_BYTES = 2  # per element of a sharded parameter, which is gathered in bfloat16


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a config needs on a topology.

    Attributes:
        topology: as given, such as "v5e:4x4".
        chips: the number of its chips.
        method: of the memory: "compiled", or "estimated" from the workload.
        params: number of parameters.
        flops_per_step: operations in matrix products, over all chips, without recomputation.
        per_chip_bytes: bytes on one chip: arguments, temporaries, peak.
        hbm_bytes: memory of a chip; of a GPU, what JAX gives to programs.
        fits: whether the step fits into that memory.
        collectives: by kind, for one step: count, and bytes of their results on one device. Those that data and fsdp
            parallelism need; a compiler may split or merge them.
        seconds: the time of a step if only one part took time: products, memory or links.
        step_seconds: products and memory traffic run at the same time, so the longer of them counts; the links' time is
            added. Speeds are the printed ones: a real step takes longer.
        run_days, chip_hours: of all steps, without evaluations, checkpoints and preemptions.
        cost: in the unit of the price; None without a price.
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
    seconds: dict[str, float]
    step_seconds: float
    run_days: float
    chip_hours: float
    cost: float | None
    notes: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return dataclasses.asdict(self)


class _Memory(NamedTuple):
    """Bytes on one device. `peak` is the largest sum of arguments and temporaries at any time."""

    arguments: float
    temporaries: float
    peak: float


def make(config: ConfigDict, topology: str, price: float | None = None, mfu: float | None = None) -> Plan:
    """Plans the run of a config.

    Args:
        config: of the run.
        topology: a TPU slice, such as "v5e:16x16", or GPUs, such as "gpu:h100x8".
        price: of one chip for one hour.
        mfu: the share of the chips' peak that the model's products reach, above 0 and at most 1. 1 if None.

    Raises:
        RunError: the topology is unknown, libtpu is missing, or the devices cannot share the batch or the
            parameters. All this is checked before compiling.
    """
    hardware = chips.parse(topology)
    chip, count = hardware.chip, hardware.count
    partition = Partition.make(config.mesh, count if chip.node else dry_run.tpu_devices(topology))
    partition.check_batch(config.batch_size, config.optimizer.grad_accum_steps, "config.batch_size")
    task = tasks.find(config.task).without_data(config)
    partition.for_model(task.param_metadata()).check_parameters(task.shapes())
    work, per_chip = workload.of(config), partition.mesh.size // count  # libtpu lists two devices of some chips
    estimate, traffic = _estimate(config, work, partition)
    memory, exceeds = (estimate, False) if chip.node else _compile(config, estimate, partition)
    collectives, wire_bytes = _exchange(config, work, partition)

    peak = count * chip.flops
    seconds = {
        "products": max(work.executed_flops / peak, work.flops / (peak * (mfu or 1))),
        "memory": traffic * per_chip / chip.hbm_bandwidth,
        "links": chip.link_seconds(per_chip * wire_bytes, count),
    }
    step_seconds = max(seconds["products"], seconds["memory"]) + seconds["links"]
    hours = config.steps * step_seconds / 3600
    return Plan(
        topology=topology,
        chips=count,
        method="estimated" if chip.node else "compiled",
        params=work.params,
        flops_per_step=work.flops,
        per_chip_bytes={name: round(size * per_chip) for name, size in memory._asdict().items()},
        hbm_bytes=round(chip.usable_bytes()),
        fits=not exceeds and memory.peak <= chip.usable_bytes() / per_chip,
        collectives=collectives,
        seconds=seconds,
        step_seconds=step_seconds,
        run_days=hours / 24,
        chip_hours=count * hours,
        cost=None if price is None else price * count * hours,
        notes=tuple(_notes(config, bool(chip.node))),
    )


def _compile(config: ConfigDict, estimate: _Memory, partition: Partition) -> tuple[_Memory, bool]:
    """The memory of the actual step, which is compiled, and whether it exceeds a chip's; then the compiler's error
    tells how much it needs."""
    try:
        sizes: Any = dry_run.lower(config, partition).compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        peak = needed_bytes(str(error))
        if peak is None:
            raise
        return _Memory(estimate.arguments, max(0.0, peak - estimate.arguments), peak), True
    return _Memory(sizes.argument_size_in_bytes, sizes.temp_size_in_bytes, sizes.peak_memory_in_bytes), False


def needed_bytes(message: str) -> float | None:
    """The bytes of a chip's HBM that a program needs, read from an error of libtpu; None if the error is another one,
    such as one of a kernel's own memory.

    libtpu writes "temporaries", but counts arguments and results among them.
    """
    match = re.search(r"(?:HLO temporaries \(|memory space hbm. Used )([\d.]+)([BKMGT]?)\S* (?:exceeds|of)", message)
    return float(match[1]) * 2 ** SUFFIXES[match[2]] if match and "RESOURCE_EXHAUSTED" in message else None


def _estimate(config: ConfigDict, work: Workload, partition: Partition) -> tuple[_Memory, float]:
    """The memory of a device, and the bytes that a step moves to and from it: the state, the gradients (twice with
    accumulation: the sum and the newest), and the arrays that the forward pass saves for the backward pass."""
    microbatches, fsdp = config.optimizer.grad_accum_steps, partition.mesh.shape["fsdp"]
    arguments = work.state_bytes / fsdp + work.batch_bytes * config.batch_size / partition.batch_shares
    saved = work.saved_bytes * config.batch_size / partition.batch_shares / microbatches
    gradients = work.param_bytes / fsdp * min(2, microbatches)
    memory = _Memory(arguments, saved + gradients, arguments + saved + gradients)
    # The state, the gradients and every saved array are written once and read once.
    return memory, 2 * (arguments + saved * microbatches + gradients * microbatches)


def _exchange(config: ConfigDict, work: Workload, partition: Partition) -> tuple[dict[str, dict[str, int]], float]:
    """The collectives that data and fsdp parallelism always need, of float32 gradients and gathered parameters; and the
    least bytes that a device receives for them."""
    fsdp, microbatches = partition.mesh.shape["fsdp"], config.optimizer.grad_accum_steps
    shard, copies = work.param_bytes / fsdp, partition.batch_shares // fsdp
    # Each microbatch gathers the parameters forward and backward, and scatters its gradients.
    rows = (  # kind, count, bytes of a result, devices, bytes that one of them receives per byte of the result
        ("all-reduce", 1, shard, copies, 2 * (copies - 1) / copies),
        ("all-gather", 2 * microbatches, GATHERED_BYTES * work.params, fsdp, (fsdp - 1) / fsdp),
        ("reduce-scatter", microbatches, shard, fsdp, fsdp - 1),
    )
    used = [row for row in rows if row[3] > 1]
    collectives = {kind: {"count": count, "bytes": round(count * size)} for kind, count, size, *_ in used}
    return collectives, sum(count * size * received for _, count, size, _, received in used)


def _notes(config: ConfigDict, on_gpus: bool) -> Iterator[str]:
    if on_gpus:
        yield "an estimate from the workload, nothing was compiled: a compiler may need half as much memory again"
        yield f"JAX gives programs 0.75 of a GPU's memory, or the share that {chips.SHARE} in the environment says"
    if config.model.dtype != "bfloat16":
        yield f"the chips' peak is that of bfloat16, the config's type is {config.model.dtype}"
    if config.mesh.slices > 1:
        yield "the network between slices is not counted"
    if config.mesh.tensor > 1:
        yield "the estimate of times leaves out what tensor parallelism shares and exchanges"
