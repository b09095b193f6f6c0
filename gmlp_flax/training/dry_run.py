"""A run's training step without its data: lowered and compiled from shapes, for any device this machine can target.

For benchmarks and for plans: TPU programs compile on a machine without a TPU where libtpu is installed (extra `plan`).
"""

from __future__ import annotations

import os
import types

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh
from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.tasks.base import Task
from gmlp_flax.training import optimizer, partition, step
from gmlp_flax.training.errors import RunError

# libtpu compiles here and must neither look for a chip or a network of them, nor write of it, nor guard it.
LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_LOG_DIR": "disabled", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def dataless_task(config: ConfigDict, classes: int = 1000) -> Task:
    """The task of a config, with as many classes or the vocabulary that it names, and no data behind it."""
    task = tasks.TASKS[config.task]
    tokenizer = types.SimpleNamespace(
        special_ids=tuple(range(5)), pad_id=0, mask_id=4, vocab_size=config.model.vocab_size
    )
    stand_ins = {"tokenizer": tokenizer, "classes": tuple(map(str, range(classes)))}
    return type(f"Dataless{task.__name__}", (task,), stand_ins)(config, "")


def tpu_devices(topology: str) -> list[jax.Device]:
    """The devices of a TPU slice that is not here, such as "v5e:4x4".

    Raises:
        RunError: libtpu is not installed or knows no such topology.
    """
    for name, value in LIBTPU.items():
        os.environ.setdefault(name, value)
    # Without the second, v4 is described by its cores, which hold half of a chip's memory each.
    names = {"topology_name": topology} | ({"chip_config_name": "megacore"} if topology.startswith("v4:") else {})
    try:
        return list(topologies.get_topology_desc(platform="tpu", **names).devices)
    except Exception as error:  # noqa: BLE001 - libtpu raises what it likes
        line = (str(error).splitlines() or [""])[0]
        raise RunError(f"cannot describe the TPU topology {topology!r} ({line}): pip install -e .[plan]") from None


def lower(config: ConfigDict, mesh: Mesh) -> jax.stages.Lowered:
    """The whole training step of a config, lowered for a mesh: `.compile()` it, ask for `.memory_analysis()`."""
    task = dataless_task(config)
    transformation = optimizer.make(config, task.shapes())

    partition.check_parameters(task.shapes(), mesh, partition.parse_rules(config.mesh.rules))
    state = step.describe_state(task, transformation, config, mesh)
    return step.make_train_step(task, transformation, mesh, config).lower(state, batch_shapes(config, mesh))


def batch_shapes(config: ConfigDict, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and shardings of a training batch."""
    text, number = ((config.model.length,), jnp.int32), ((), jnp.int32)
    image = ((*config.model.image_size, config.model.channels), jnp.uint8)
    pair = {"tokens": text, "segments": text, "index": number}
    shapes = {
        "masked_lm": {"tokens": text, "index": number},
        "image_classification": {"image": image, "label": number},
        "text_classification": pair | {"label": number, "part": number},
        "question_answering": pair | {"start": number, "end": number},
    }[config.task]
    sharding = partition.over_batch(mesh)
    return {
        name: jax.ShapeDtypeStruct((config.batch_size, *shape), dtype, sharding=sharding)
        for name, (shape, dtype) in shapes.items()
    }
