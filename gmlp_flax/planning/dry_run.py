"""The training step of a run without its data: lowered from shapes, for any device for which this machine can compile.

For benchmarks and plans. With libtpu (extra `plan`), TPU programs compile on a machine without a TPU.
"""

import importlib.util
import os

import jax
from jax.experimental import topologies
from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.errors import RunError, install
from gmlp_flax.planning import chips
from gmlp_flax.tasks.base import Task
from gmlp_flax.training import step
from gmlp_flax.training.partition import Devices, Partition

# libtpu only compiles: it must not look for chips or other hosts, write logs, or refuse a second process.
LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def tpu_devices(topology: str) -> Devices:
    """The devices of a TPU slice that this machine does not have, such as "v5e:4x4".

    Raises:
        RunError: libtpu is not installed or knows no such topology.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise RunError(f"{topology} needs libtpu, which compiles for TPUs: {install('plan')}")
    for name, value in LIBTPU.items():
        os.environ.setdefault(name, value)
    jax.config.update("jax_enable_compilation_cache", False)  # what was kept for devices that are not here warns
    # Without the chip config, v4 is described by its cores, each with half of a chip's memory.
    names = {"topology_name": topology} | ({"chip_config_name": "megacore"} if topology.startswith("v4:") else {})
    try:
        return list(topologies.get_topology_desc(platform="tpu", **names).devices)
    except Exception as error:
        line = (str(error).splitlines() or [""])[0]
        raise RunError(f"there is no TPU topology {topology!r} ({line}): {chips.known()}") from None


def lower(config: ConfigDict, partition: Partition) -> jax.stages.Lowered:
    """The whole training step of a config, lowered for a partition and ready to compile."""
    training = step.Training(tasks.find(config.task).without_data(config), partition)
    return training.step.lower(training.template, batch_shapes(training.task, partition))


def batch_shapes(task: Task, partition: Partition) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and shardings of a training batch."""
    sharding = partition.over_batch
    return {
        name: jax.ShapeDtypeStruct((task.config.batch_size, *shape), dtype, sharding=sharding)
        for name, (shape, dtype) in task.example_shapes().items()
    }
