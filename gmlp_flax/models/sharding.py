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
from jax import Array
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
    axes = set()
    for name in _auto_axes():
        if mesh.shape[name] > 1:
            axes.add(name)
    return axes


def _auto_axes() -> set[str]:
    """Axes of the current mesh that are left to the compiler."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = set()
    for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True):
        if kind == AxisType.Auto:
            axes.add(name)
    return axes


def is_sharded_explicitly(x: Array) -> bool:
    """Whether x is sharded over axes of type `AxisType.Explicit`, as those of `jax.make_mesh` are."""
    spec = jax.typeof(x).sharding.spec
    return any(names is not None for names in spec)


def shard_as(x: Array, like: Array, axes: int) -> Array:
    """x, with its first axes sharded over explicit axes as the same axes of `like`.

    JAX refuses to combine an array that is sharded explicitly with a new one, such as zeros, which is
    not sharded.

    Args:
        x: an array whose other axes are not sharded.
        like: an array with the same first axes.
        axes: how many axes these are.
    """
    if not is_sharded_explicitly(like):
        return x
    spec = jax.typeof(like).sharding.spec
    first_axes = spec[:axes]
    spec_of_x = PartitionSpec(*first_axes)
    return jax.sharding.reshard(x, spec_of_x)


def constrain(x: Array, *axes: str | tuple[str, ...] | None) -> Array:
    """x with its axes sharded over the given axes of the current mesh. Axes that are not the
    compiler's are ignored."""
    free = compiler_axes()
    if not free:
        return x
    spec = []
    for names in axes:
        if isinstance(names, str):
            names = (names,)
        free_names = tuple(name for name in names or () if name in free)
        spec.append(free_names)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def map_shards(function: Callable[..., Array], batched: Any, *whole: Any) -> Array:
    """function(batched, *whole) for a function that treats each example independently: each device
    runs it on its own examples.

    This is for functions that the compiler cannot shard: for a Fourier transform it would gather the
    whole batch, and it refuses kernels on a mesh with an axis that is left to it, even an axis of one
    device.

    Args:
        function: returns an array [batch, ...].
        batched: an array or a tree of arrays [batch, ...].
        whole: trees of arrays that every device has.
    """
    axes = _auto_axes()
    if not axes:
        return function(batched, *whole)
    batch_axes = tuple(name for name in BATCH if name in axes)
    spec = PartitionSpec(batch_axes)
    replicated = [PartitionSpec()] * len(whole)
    on_shards = jax.shard_map(
        function,
        in_specs=(spec, *replicated),
        out_specs=spec,
        axis_names=axes,
        check_vma=False,
    )
    return on_shards(batched, *whole)


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """A context in which programs are traced for any platform, without kernels of a particular one.
    It is for programs that are exported."""
    token = _PORTABLE.set(True)
    try:
        yield
    finally:
        _PORTABLE.reset(token)


def platform() -> str:
    """What the current program is compiled for: "cpu", "gpu", "tpu", or "any" if it is `portable`. It
    is the platform of the mesh's devices, which need not be that of this machine."""
    if _PORTABLE.get():
        return "any"
    mesh = jax.sharding.get_abstract_mesh()
    device = mesh.abstract_device
    name = device.platform if device else jax.default_backend()
    is_gpu = name in ("cuda", "rocm")
    return "gpu" if is_gpu else name
