"""The names by which a mesh may cut activations. Without a mesh, or without such axes in it, they mean nothing.

Layers state how their parameters are cut (`parameters.parameter`), and training/partition.py applies it. The compiler
infers the rest of a model from that, except at a few places, which call `constrain`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.sharding import AxisType, PartitionSpec

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
BATCH = (DATA, FSDP)  # both share the examples


def _free() -> set[str]:
    """Axes of the mesh around that hold several devices, and along which the compiler may cut."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {name for name, kind in kinds if kind == AxisType.Auto and mesh.shape[name] > 1}


def no_mesh() -> bool:
    """Whether arrays are whole on their device here: no mesh is around, or it cuts nothing that the compiler sees."""
    return not _free()


def constrain(x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
    """x, each of its axes cut along the named axes of the mesh around it, as far as the compiler is free to."""
    free = _free()

    def known(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
        return tuple(name for name in ((names,) if isinstance(names, str) else names or ()) if name in free)

    return jax.lax.with_sharding_constraint(x, PartitionSpec(*map(known, axes))) if free else x


def on_own_examples(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """A function of [batch, ...] that treats each example alone, run by each device on the examples that it holds.

    For what the compiler cannot cut: it would gather the whole batch for a Fourier transform.
    """
    free = _free()
    axes = tuple(name for name in BATCH if name in free)
    if not axes:
        return function(x)
    spec = PartitionSpec(axes)
    return jax.shard_map(function, in_specs=spec, out_specs=spec, axis_names=set(axes), check_vma=False)(x)
