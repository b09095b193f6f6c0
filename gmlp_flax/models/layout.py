"""The names by which a mesh may cut activations. Without a mesh, or without such axes in it, they mean nothing.

What is cut how is decided in training/partition.py, by the paths of parameters. The compiler carries that through a
model, but at a few places it has to be told; those are marked here.
"""

from __future__ import annotations

import jax
from jax.sharding import AxisType, PartitionSpec

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
BATCH = (DATA, FSDP)  # both share the examples


def _free() -> set[str]:
    """Axes of the mesh around that hold several devices, and along which the compiler may cut."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {name for name, kind in kinds if kind == AxisType.Auto and mesh.shape[name] > 1}


def is_whole() -> bool:
    """Whether arrays are whole on their device here: no mesh is around, or it cuts nothing that the compiler sees."""
    return not _free()


def cut(x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
    """x, each of its axes cut along the named axes of the mesh around it, as far as the compiler is free to."""
    free = _free()

    def known(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
        return tuple(name for name in ((names,) if isinstance(names, str) else names or ()) if name in free)

    return jax.lax.with_sharding_constraint(x, PartitionSpec(*map(known, axes))) if free else x
