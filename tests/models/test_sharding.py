"""Sharding constraints of activations without a mesh, on one device, and on meshes that do not
have the axis."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from gmlp_flax.models import sharding
from tests.models.reference import program

AXES = ("data", "fsdp", "tensor")


def mesh_of(data, fsdp, tensor):
    """A mesh of this many devices on each axis, which the compiler partitions."""
    return AbstractMesh((data, fsdp, tensor), AXES, (AxisType.Auto,) * 3)


def constraints(mesh, *axes):
    """The axes of the mesh over which `sharding.constrain` shards an array."""

    def constrained(x):
        return sharding.constrain(x, *axes)

    with jax.sharding.use_abstract_mesh(mesh):
        equations = program(constrained, jnp.zeros((4, 6, 8)))
    specs = []
    for equation in equations:
        if equation.primitive.name == "sharding_constraint":
            spec = equation.params["sharding"].spec
            specs.append([mesh_axes(names) for names in spec])
    return specs


def mesh_axes(names) -> list[str]:
    """The axes of an entry of a spec: None, a name or a tuple of names."""
    if not names:
        return []
    return np.ravel(names).tolist()


def test_nothing_is_constrained_without_a_mesh():
    x = jnp.arange(24.0).reshape(2, 3, 4)
    assert not sharding.compiler_axes()
    assert sharding.constrain(x, sharding.BATCH, None, sharding.TENSOR) is x


def test_nothing_is_constrained_on_one_device():
    mesh = mesh_of(1, 1, 1)
    assert constraints(mesh, sharding.BATCH) == []
    with jax.sharding.use_abstract_mesh(mesh):
        assert not sharding.compiler_axes()


def test_only_axes_of_several_devices_are_constrained():
    mesh = mesh_of(1, 2, 2)
    [spec] = constraints(mesh, sharding.BATCH, None, sharding.TENSOR)
    assert spec == [["fsdp"], [], ["tensor"]]
    with jax.sharding.use_abstract_mesh(mesh):
        assert sharding.compiler_axes()


def test_manual_axes_are_not_constrained():
    """Inside shard_map over `data`, an array is its device's share already."""
    types = (AxisType.Manual, AxisType.Auto, AxisType.Auto)
    mesh = AbstractMesh((2, 1, 2), AXES, types)
    [spec] = constraints(mesh, sharding.BATCH, None, sharding.TENSOR)
    assert spec == [[], [], ["tensor"]]


def test_missing_axes_are_not_constrained():
    mesh = AbstractMesh((2,), ("data",), (AxisType.Auto,))
    [spec] = constraints(mesh, sharding.BATCH, None, sharding.TENSOR)
    batch, *others = spec
    assert batch == ["data"]
    assert not any(others)


def test_new_arrays_are_sharded_as_others_over_explicit_axes():
    """Only along the first axes."""
    mesh = AbstractMesh((2,), ("data",), (AxisType.Explicit,))
    over_batch = NamedSharding(mesh, PartitionSpec("data", None, None))
    x = jax.ShapeDtypeStruct((4, 6, 8), jnp.float32, sharding=over_batch)

    def zeros_as(x):
        assert sharding.is_sharded_explicitly(x)
        return sharding.shard_as(jnp.zeros((4, 3)), x, 1)

    with jax.sharding.use_abstract_mesh(mesh):
        zeros = jax.eval_shape(zeros_as, x)
    assert tuple(zeros.sharding.spec) == ("data", None)


def test_new_arrays_stay_as_they_are_without_explicit_axes():
    zeros = jnp.zeros((4, 3))
    assert not sharding.is_sharded_explicitly(zeros)
    assert sharding.shard_as(zeros, zeros, 1) is zeros


@pytest.mark.parametrize(
    ("backend", "platform"),
    [
        ("cuda", "gpu"),
        ("tpu", "tpu"),
        ("cpu", "cpu"),
    ],
)
def test_exported_programs_are_traced_for_no_platform(monkeypatch, backend, platform):
    """They must not have the kernels of the GPU or TPU on which they are exported."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert sharding.platform() == platform
    with sharding.portable():
        assert sharding.platform() == "any"
    assert sharding.platform() == platform
