"""The axes of a mesh, and sharding constraints on activations, which do nothing without a mesh.

Layers state how their parameters are sharded (`parameters.parameter`), and training/partition.py
applies it. The compiler infers the sharding of activations from that, except at a few places, which
call `constrain`.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

DATA = "data"
FSDP = "fsdp"
TENSOR = "tensor"
_PORTABLE = contextvars.ContextVar("portable", default=False)
BATCH = (DATA, FSDP)  # the examples are sharded over both


def compiler_axes() -> set[str]:
    """Axes of the current mesh that have several devices and are left to the compiler
    (`AxisType.Auto`). If there are none, each array is on one device as a whole."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {name for name, kind in kinds if kind == AxisType.Auto and mesh.shape[name] > 1}


def constrain(x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
    """x with its axes sharded over the given axes of the current mesh; others than the compiler's
    are ignored."""
    free = compiler_axes()

    def only_free(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
        return tuple(
            name for name in ((names,) if isinstance(names, str) else names or ()) if name in free
        )

    return jax.lax.with_sharding_constraint(x, PartitionSpec(*map(only_free, axes))) if free else x


def map_shards(function: Callable[..., jax.Array], batched: Any, *whole: Any) -> jax.Array:
    """function(batched, *whole) for a function that treats each example alone; each device runs it
    on its examples.

    It serves functions that the compiler cannot shard: for a Fourier transform it would gather the
    whole batch, and kernels it refuses wherever an axis is its own, even of one device.

    Args:
        function: gives an array [batch, ...].
        batched: an array or a tree of arrays [batch, ...].
        whole: trees of arrays that every device has.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = {
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Auto
    }
    if not axes:
        return function(batched, *whole)
    spec = PartitionSpec(tuple(name for name in BATCH if name in axes))
    specs = spec, *[PartitionSpec()] * len(whole)
    return jax.shard_map(
        function, in_specs=specs, out_specs=spec, axis_names=axes, check_vma=False
    )(batched, *whole)


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """In this context programs are traced for any platform, without the kernels of one: those that
    are exported."""
    token = _PORTABLE.set(True)
    try:
        yield
    finally:
        _PORTABLE.reset(token)


def platform() -> str:
    """What the current program is compiled for: that of the mesh's devices, which may be others
    than this machine's; "cpu", "gpu", "tpu", or "any" if it is `portable`."""
    if _PORTABLE.get():
        return "any"
    device = jax.sharding.get_abstract_mesh().abstract_device
    name = device.platform if device else jax.default_backend()
    return "gpu" if name in ("cuda", "rocm") else name
