"""Cuts of activations: what they mean under no mesh, under one device, and where a mesh lacks the
axis."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from gmlp_flax.models import sharding

AUTO = (AxisType.Auto,)


def cuts(mesh, *axes):
    """The specs that `sharding.cut` asks for in a program traced under a mesh."""
    with jax.sharding.use_abstract_mesh(mesh):
        jaxpr = jax.make_jaxpr(lambda x: sharding.constrain(x, *axes))(jnp.zeros((4, 6, 8)))
    found = [
        eqn.params["sharding"].spec
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "sharding_constraint"
    ]
    return [tuple(spec) for spec in found]


def test_without_a_mesh_nothing_is_cut():
    x = jnp.arange(24.0).reshape(2, 3, 4)
    assert not sharding.compiler_axes()
    assert sharding.constrain(x, sharding.BATCH, None, sharding.TENSOR) is x


def test_axes_of_one_device_cut_nothing():
    mesh = AbstractMesh((1, 1, 1), ("data", "fsdp", "tensor"), 3 * AUTO)
    assert cuts(mesh, sharding.BATCH) == []
    with jax.sharding.use_abstract_mesh(mesh):
        assert not sharding.compiler_axes()


def test_only_axes_of_several_devices_cut():
    mesh = AbstractMesh((1, 2, 2), ("data", "fsdp", "tensor"), 3 * AUTO)
    [(batch, tokens, channels)] = cuts(mesh, sharding.BATCH, None, sharding.TENSOR)
    assert np.ravel(batch).tolist() == ["fsdp"]
    assert not tokens
    assert np.ravel(channels).tolist() == ["tensor"]
    with jax.sharding.use_abstract_mesh(mesh):
        assert sharding.compiler_axes()


def test_axes_that_a_program_handles_itself_are_left_alone():
    """Inside shard_map over `data`, an array is its device's share already."""
    mesh = AbstractMesh((2, 1, 2), ("data", "fsdp", "tensor"), (AxisType.Manual, *AUTO, *AUTO))
    [(batch, _, channels)] = cuts(mesh, sharding.BATCH, None, sharding.TENSOR)
    assert not batch
    assert np.ravel(channels).tolist() == ["tensor"]


def test_axes_that_a_mesh_does_not_have_are_left_alone():
    [(batch, *_)] = cuts(AbstractMesh((2,), ("data",), AUTO), sharding.BATCH, None, sharding.TENSOR)
    assert np.ravel(batch).tolist() == ["data"]


def test_new_arrays_are_sharded_as_others_over_explicit_axes():
    """The first axes alone; without such a sharding they stay as they are."""
    mesh = AbstractMesh((2,), ("data",), (AxisType.Explicit,))
    shape = jax.ShapeDtypeStruct(
        (4, 6, 8), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data", None, None))
    )
    zeros = jnp.zeros((4, 3))

    def made(like):
        assert sharding.is_sharded_explicitly(like)
        return sharding.shard_as(jnp.zeros((4, 3)), like, 1)

    with jax.sharding.use_abstract_mesh(mesh):
        found = jax.eval_shape(made, shape)
    assert tuple(found.sharding.spec) == ("data", None)
    assert not sharding.is_sharded_explicitly(zeros)
    assert sharding.shard_as(zeros, zeros, 1) is zeros


def test_what_is_exported_is_traced_for_no_platform(monkeypatch):
    """On a machine with GPUs or TPUs, too: their kernels are in no program for other platforms."""
    for name, platform in (("cuda", "gpu"), ("tpu", "tpu"), ("cpu", "cpu")):
        monkeypatch.setattr(jax, "default_backend", lambda name=name: name)
        assert sharding.platform() == platform
        with sharding.portable():
            assert sharding.platform() == "any"
        assert sharding.platform() == platform
