"""The training step of a run without its data: its operations and memory, traced on shapes for no
particular machine, and its program, lowered for any device for which this machine can compile.

For benchmarks and plans. With libtpu (extra `plan`), TPU programs compile on a machine without a
TPU, with the CUDA plugin (extra `plan-gpu`) GPU programs on one without a GPU.
"""

import importlib.util
import math
import os
from typing import Any, NamedTuple

import jax
import optax
from jax.experimental import topologies
from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.errors import RunError, install
from gmlp_flax.models import parameters, sharding
from gmlp_flax.models.matmul import matmul_flops
from gmlp_flax.planning import chips
from gmlp_flax.processes.platforms import gpu_plugin
from gmlp_flax.tasks.base import Task
from gmlp_flax.training import optimizer, step
from gmlp_flax.training.partition import Devices, Partition

# libtpu only compiles: it must not look for chips or other hosts, write logs, or refuse a second
# process.
LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def devices(topology: str) -> Devices | None:
    """The devices of a topology that this machine does not have, such as "v5e:4x4"; None for GPUs
    without JAX's CUDA plugin. GPUs need no driver. This process does not see the GPUs of this
    machine afterwards.

    Raises:
        RunError: libtpu is not installed or knows no such topology.
    """
    hardware = chips.parse(topology)
    # JAX warns of cached programs for devices that are not here.
    jax.config.update("jax_enable_compilation_cache", False)
    if hardware.chip.node:
        return _gpus(hardware)
    return _tpus(topology)


def _gpus(hardware: chips.Topology) -> Devices | None:
    if gpu_plugin() is None:
        return None
    os.environ |= {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    per_node = hardware.chip.node
    nodes, remainder = divmod(hardware.count, per_node)
    shape = f"1x1x{hardware.count}"
    if nodes and remainder == 0:
        shape = f"1x{nodes}x{per_node}"
    target = _target_config(hardware.chip)
    description = topologies.get_topology_desc(
        platform="cuda", target_config=target, topology=shape
    )
    return list(description.devices)


def _tpus(topology: str) -> Devices:
    if importlib.util.find_spec("libtpu") is None:
        raise RunError(f"{topology} needs libtpu, which compiles for TPUs: {install('plan')}")
    for name, value in LIBTPU.items():
        os.environ.setdefault(name, value)
    options = {"topology_name": topology}
    # Without the chip config, v4 is described by its cores, each with half of a chip's memory.
    if topology.startswith("v4:"):
        options["chip_config_name"] = "megacore"
    try:
        description = topologies.get_topology_desc(platform="tpu", **options)
        return list(description.devices)
    except Exception as error:
        first_line, _, _ = str(error).partition("\n")
        raise RunError(
            f"there is no TPU topology {topology!r} ({first_line}): {chips.advice(topology)}"
        ) from None


def _target_config(chip: chips.Chip) -> str:
    """A GPU, as XLA's GpuTargetConfigProto in text."""
    device: dict[str, Any] = chip.processors._asdict() if chip.processors else {}
    major, minor = device.pop("capability").split(".")
    device |= {
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 << 10,
        "shared_memory_per_block_optin": device["shared_memory_per_core"] - 1024,
        "registers_per_core_limit": 1 << 16,
        "registers_per_block_limit": 1 << 16,
        "memory_bandwidth": round(chip.hbm_bandwidth),
        "device_memory_size": round(chip.hbm_bytes),
    }
    fields = [f"{name}: {value}" for name, value in device.items()]
    numbers = " ".join(fields)
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    return (
        f"gpu_device_info {{ {numbers} {capability} }} "
        'platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } '
        "runtime_version { major: 12 minor: 8 } "
        f'device_description_str: "{chip.device}"'
    )


def lower(config: ConfigDict, partition: Partition) -> jax.stages.Lowered:
    """The whole training step of a config, lowered for a partition and ready to compile."""
    kind = tasks.find(config.task)
    task = kind(config)
    batch = batch_shapes(task, config.batch_size, partition.over_batch)
    training = step.Training(task, partition)
    return training.step.lower(training.template, batch)


def batch_shapes(task: Task, size: int, sharding: Any = None) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, and shardings if they are given, of a training batch of `size` examples."""
    batch = {}
    for name, (shape, dtype) in task.example_shapes().items():
        batch_shape = (size, *shape)
        batch[name] = jax.ShapeDtypeStruct(batch_shape, dtype, sharding=sharding)
    return batch


class Workload(NamedTuple):
    """One training step.

    Attributes:
        params: number of parameters.
        param_bytes: bytes of the parameters.
        state_bytes: bytes of parameters, optimizer state and running mean.
        batch_bytes: bytes of one example.
        flops: operations in matrix products without recomputation, known as "model FLOPs": three
            times the count of the forward pass, since the backward pass has two products for each
            of its products. Tied logits at masked positions count.
        executed_flops: operations in all matrix products of the step, with recomputation.
        saved_bytes: what the forward pass of one example saves for the backward pass, under the
            config's remat policy.
    """

    params: int
    param_bytes: int
    state_bytes: int
    batch_bytes: int
    flops: float
    executed_flops: float
    saved_bytes: int


@sharding.portable()
def workload(config: ConfigDict) -> Workload:
    """Counts the step of a config by tracing it on shapes."""
    task = tasks.find(config.task)(config)
    params = task.shapes()
    transformation = optimizer.make(config, params, task.param_metadata())
    state = _state_shapes(task, transformation)
    # Mixup mixes pairs, so a batch has at least two examples.
    pair = _mixed(task, 2)
    two_pairs = _mixed(task, 4)
    forward = forward_flops(task)
    executed = matmul_flops(jax.grad(task.loss, has_aux=True), params, pair)
    pairs = config.batch_size / 2
    saved_by_pair = _saved(task, params, two_pairs) - _saved(task, params, pair)
    return Workload(
        params=parameters.count(params),
        param_bytes=_bytes(params),
        state_bytes=_bytes(state),
        batch_bytes=_bytes(batch_shapes(task, 1)),
        flops=3 * forward * config.batch_size,
        executed_flops=executed * pairs,
        saved_bytes=saved_by_pair // 2,
    )


def _state_shapes(task: Task, transformation: optax.GradientTransformation) -> step.TrainState:
    """The shapes of the state before the first step."""

    def init(params: Any) -> step.TrainState:
        return step.init_state(task, transformation, params)

    return jax.eval_shape(init, task.shapes())


class Share(NamedTuple):
    """Bytes on one device."""

    state: int
    params: int


@sharding.portable()
def share_of_device(config: ConfigDict, partition: Partition) -> Share:
    """The part of the state and of the parameters that one device holds: what the mesh does not
    split, such as biases, is on every device."""
    task = tasks.find(config.task)(config)
    params = task.shapes()
    metadata = task.param_metadata()
    mesh = partition.for_model(metadata)
    transformation = optimizer.make(config, params, metadata)
    state = _state_shapes(task, transformation)
    trained = optimizer.trained(config, params, metadata)
    paths = step.state_paths(state, trained)
    state_with_shardings = mesh.describe_state(state, paths)
    params_with_shardings = mesh.describe(params)
    return Share(
        state=_bytes_of_shard(state_with_shardings),
        params=_bytes_of_shard(params_with_shardings),
    )


def _bytes_of_shard(tree: Any) -> int:
    """The bytes of shapes with shardings on one device."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        shape = leaf.sharding.shard_shape(leaf.shape)
        total += math.prod(shape) * leaf.dtype.itemsize
    return total


@sharding.portable()
def forward_flops(task: Task) -> float:
    """Operations in matrix products of one example's forward pass, with its loss."""
    pair = _mixed(task, 2)
    return matmul_flops(task.loss, task.shapes(), pair) / 2


def _mixed(task: Task, size: int) -> Any:
    """A batch as the loss gets it: with one key per example, and with mixed images."""

    def mix(batch: Any) -> Any:
        key = jax.random.key(0)
        example_keys = jax.random.split(key, size)
        return task.mix(batch | {"key": example_keys}, key)

    return jax.eval_shape(mix, batch_shapes(task, size))


def _saved(task: Task, params: Any, batch: Any) -> int:
    """Bytes that the forward pass saves for the backward pass, parameters included."""

    def forward(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            total, _ = task.loss(params, batch)
            return total

        _, backward = jax.vjp(loss, params)
        return backward

    saved = jax.eval_shape(forward, params, batch)
    return _bytes(saved)


def _bytes(tree: Any) -> int:
    """The bytes of all arrays in a tree of shapes."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        total += math.prod(leaf.shape) * leaf.dtype.itemsize
    return total
