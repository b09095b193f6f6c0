"""Which device holds what: a mesh, and the sharding of state and batches. The only file that decides it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from gmlp_flax.training.errors import RunError


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The given devices, or all of all hosts, in one axis, `data`."""
    devices = jax.devices() if devices is None else devices
    return jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)


def check_batch(batch_size: int, microbatches: int, name: str) -> None:
    """Refuses a batch that the devices cannot share evenly.

    Raises:
        RunError: saying which sizes would do.
    """
    devices = jax.device_count()
    share = devices * microbatches
    if batch_size % share:
        lower, upper = batch_size // share * share, -(-batch_size // share) * share
        wanted = f"{lower} or {upper}" if lower else str(upper)
        by = f"{devices} devices" + (f" x {microbatches} microbatches" if microbatches > 1 else "")
        raise RunError(f"{name} is {batch_size}, which does not divide by {by}: set it to {wanted}")


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds all of it: parameters, optimizer state, metrics."""
    return NamedSharding(mesh, PartitionSpec())


def over_batch(mesh: Mesh) -> NamedSharding:
    """The leading axis is split over the devices."""
    return NamedSharding(mesh, PartitionSpec("data"))


def put_batch(mesh: Mesh, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """This host's share of a batch, as the global batch on the devices. Returns before the copy is done."""
    sharding = over_batch(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, value) for name, value in batch.items()}


def gather(tree: Any) -> Any:
    """Arrays split over the batch as whole numpy arrays, on every host."""
    return multihost_utils.process_allgather(tree, tiled=True)


def describe(tree: Any, mesh: Mesh) -> Any:
    """Shapes of a replicated tree, with their sharding: the template for restoring it."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh)), tree)
