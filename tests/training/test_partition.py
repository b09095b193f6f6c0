import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from gmlp_flax import config as gmlp_config
from gmlp_flax.training import dry_run, optimizer, partition, step
from gmlp_flax.training.errors import RunError

ONE_EACH = {"data": -1, "fsdp": 1, "tensor": 1, "slices": 1}


def sized(data, fsdp, tensor):
    """What `check_...` and rules read of a mesh of so many devices."""
    return types.SimpleNamespace(shape={"data": data, "fsdp": fsdp, "tensor": tensor})


@pytest.mark.parametrize(
    ("batch_size", "microbatches", "devices", "advice"),
    [
        (6, 1, 4, "batch is 6, which does not divide by 4 devices: set it to 4 or 8"),
        (12, 4, 2, "batch is 12, which does not divide by 2 devices x 4 microbatches: set it to 8 or 16"),
        (3, 1, 8, "batch is 3, which does not divide by 8 devices: set it to 8"),
    ],
)
def test_uneven_batch_is_refused_with_sizes_that_would_do(batch_size, microbatches, devices, advice):
    with pytest.raises(RunError) as caught:
        partition.check_batch(batch_size, microbatches, "batch", sized(1, devices, 3))
    assert str(caught.value) == advice


def test_even_batch_passes():
    partition.check_batch(16, 4, "batch", sized(2, 2, 8))


@pytest.mark.parametrize(("sizes", "devices", "expected"), [
    ({}, 8, (8, 1, 1)), ({"fsdp": 4}, 8, (2, 4, 1)), ({"fsdp": -1, "data": 2, "tensor": 2}, 16, (2, 4, 2)),
    ({"data": 2, "fsdp": 2, "tensor": 2}, 8, (2, 2, 2)),
])
def test_axis_sizes(sizes, devices, expected):
    assert partition.axis_sizes(ONE_EACH | sizes, devices) == expected


@pytest.mark.parametrize(("sizes", "message"), [
    ({"fsdp": 3}, "config.mesh is data -1 x fsdp 3 x tensor 1, which does not make 8 devices: set one to -1"),
    ({"data": 2}, "config.mesh is data 2 x fsdp 1 x tensor 1, which does not make 8 devices"),
    ({"data": -1, "fsdp": -1}, "expected sizes of at least 1, and -1 for the rest at most once"),
    ({"tensor": 0}, "expected sizes of at least 1"),
    ({"slices": 3}, "config.mesh.slices=3 does not divide its data axis of 8"),
])
def test_sizes_that_make_no_mesh(sizes, message):
    with pytest.raises(RunError, match=message):
        partition.axis_sizes(ONE_EACH | sizes, 8)


NAMES = ("gmlp_36", "amlp_36", "bert", "bert_rel", "mixer", "additive")
PICTURES = ("gmlp_s", "gmlp_s_cls", "resmlp_s12", "ff_tiny", "vit_b16", "mixer_b16")


@pytest.mark.parametrize(("file", "name"), [
    *(("c4_ablation", name) for name in NAMES), *(("imagenet", name) for name in PICTURES),
])
def test_rules_cover_every_parameter_of_every_block(file, name):
    """And cut all that is large: more than 90 % of each model is cut by fsdp."""
    shapes = dry_run.dataless_task(gmlp_config.from_file(f"configs/{file}.py", name)).shapes()
    partition.check_parameters(shapes, sized(1, 4, 1))
    mesh = partition.make_mesh()
    leaves = jax.tree.leaves(shapes), jax.tree.leaves(partition.shardings(shapes, mesh))
    cut = sum(leaf.size for leaf, sharding in zip(*leaves, strict=True) if "fsdp" in sharding.spec)
    assert cut >= 0.9 * sum(leaf.size for leaf in leaves[0])


def test_what_the_optimizer_keeps_lies_as_its_parameter(config, mesh):
    config.optimizer.ema = 0.9
    task = dry_run.dataless_task(config)
    transformation = optimizer.make(config, task.shapes())
    state = step.describe_state(task, transformation, config, mesh)
    wanted = jax.tree.map(lambda x: x.sharding.spec, state.params)
    assert wanted["encoder"]["blocks"]["proj_in"]["kernel"] == PartitionSpec(None, "fsdp", "tensor")
    assert wanted["encoder"]["blocks"]["proj_out"]["kernel"] == PartitionSpec(None, "tensor", "fsdp")
    assert wanted["embedding"] == PartitionSpec("tensor", "fsdp") and wanted["bias"] == PartitionSpec("tensor")
    assert wanted["encoder"]["blocks"]["gate"]["spatial"]["taps"] == PartitionSpec(None, None)
    adam = state.opt_state[1][0]
    for tree in (adam.mu, adam.nu, state.ema):
        assert jax.tree.map(lambda x: x.sharding.spec, tree) == wanted
    assert adam.count.sharding.spec == state.step.sharding.spec == PartitionSpec()


SHAPES = {"encoder": {"blocks": {"proj_in": {"kernel": jax.ShapeDtypeStruct((2, 6, 8), jnp.float32)}}}}


@pytest.mark.parametrize(("shapes", "rules", "message"), [
    (SHAPES, (), r"encoder/blocks/proj_in/kernel has 6, not a multiple of config.mesh.fsdp=4"),
    ({"odd": SHAPES["encoder"]["blocks"]["proj_in"]["kernel"]}, (), r"no rule says how to cut odd \[2, 6, 8\]"),
    (SHAPES, (("kernel$", ()), ("nothing", ())), "config.mesh.rules: 'nothing' matches no parameter"),
    (SHAPES, (("kernel$", 4 * (None,)),), "names 4 axes of encoder/blocks/proj_in/kernel, which has 3"),
])
def test_parameters_that_cannot_be_cut_are_named(shapes, rules, message):
    with pytest.raises(RunError, match=message):
        partition.check_parameters(shapes, sized(1, 4, 2), rules)


def test_rules_of_a_config():
    rules = partition.parse_rules(["blocks/proj_in/kernel$=-,fsdp", "norm="])
    assert rules == (("blocks/proj_in/kernel$", (None, "fsdp")), ("norm", ()))
    partition.check_parameters(SHAPES, sized(1, 4, 3), rules[:1])
    found = partition.shardings(SHAPES, partition.make_mesh(), rules)
    assert jax.tree.leaves(found)[0].spec == PartitionSpec(None, None, "fsdp")


@pytest.mark.parametrize(("line", "message"), [
    ("kernel$", "is not PATTERN=AXIS"), ("kernel$=rows", "each axis one of data, fsdp, tensor, -"), ("(=fsdp", "no regular expression"),
])
def test_rules_that_do_not_parse(line, message):
    with pytest.raises(RunError, match=message):
        partition.parse_rules([line])


def hosts(shape, of_host):
    """What `host_share` reads of a mesh whose devices, in order, belong to hosts."""
    devices = np.array([types.SimpleNamespace(process_index=host) for host in of_host], object).reshape(shape)
    return types.SimpleNamespace(devices=devices, shape=dict(zip(partition.AXES, shape, strict=True)))


@pytest.mark.parametrize(("shape", "of_host", "share"), [
    ((4, 1, 1), [0, 0, 0, 0], (0, 1)),
    ((2, 2, 1), [1, 1, 0, 0], (1, 2)),  # hosts stand in the order of the mesh, not of their numbers
    ((1, 2, 2), [0, 0, 1, 1], (0, 2)),
    ((1, 2, 2), [1, 0, 1, 0], (0, 1)),  # tensor goes over hosts, which then all read everything
])
def test_hosts_share_the_batch(shape, of_host, share):
    assert partition.host_share(hosts(shape, of_host)) == share


def test_hosts_that_overlap_are_refused():
    with pytest.raises(RunError, match="overlapping parts of the batch"):
        partition.host_share(hosts((3, 1, 2), [0, 0, 0, 1, 1, 1]))


def test_batches_are_split_and_states_described(mesh):
    batch = partition.put_batch(mesh, {"x": np.arange(6.0, dtype=np.float32).reshape(3, 2)})
    assert batch["x"].sharding == partition.over_batch(mesh)
    np.testing.assert_array_equal(batch["x"], np.arange(6).reshape(3, 2))
    described = partition.describe({"w": np.zeros((2, 3), np.float32)}, mesh)["w"]
    assert (described.shape, described.dtype) == ((2, 3), np.float32)
    assert described.sharding.is_fully_replicated
