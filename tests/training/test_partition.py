"""Meshes and shardings: axis sizes, rules, and what is split over which axis."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec
from numpy.testing import assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.checkpoints.pytree import leaves_by_path
from gmlp_flax.config.optimizers import OPTIMIZERS
from gmlp_flax.config.validation import AXES, Rule, mesh_rules
from gmlp_flax.errors import RunError
from gmlp_flax.models import parameters
from gmlp_flax.models.parameters import ParamMetadata
from gmlp_flax.paper import recipes
from gmlp_flax.paper.published import PUBLISHED, VOCAB_SIZE, param_count
from gmlp_flax.training import step
from gmlp_flax.training.partition import Partition, axis_sizes
from tests.failures import raised
from tests.training import tiny


def sized(data, fsdp, tensor, rules=()):
    """A partition over devices that do not exist."""
    return Partition(AbstractMesh((data, fsdp, tensor), AXES), rules)


@pytest.mark.parametrize(
    ("batch_size", "microbatches", "devices", "advice"),
    [
        (6, 1, 4, "batch is 6, which 4 devices .*: set it to 4 or 8$"),
        (12, 4, 2, "batch is 12, which 2 devices x 4 microbatches .*: set it to 8 or 16$"),
        (3, 1, 8, "batch is 3, which 8 devices .*: set it to 8$"),
    ],
)
def test_uneven_batch_is_refused_with_sizes_that_fit(batch_size, microbatches, devices, advice):
    with pytest.raises(RunError, match=advice):
        sized(1, devices, 3).check_batch(batch_size, microbatches, "batch")
    examples = 2 * microbatches * devices
    sized(1, devices, 3).check_batch(examples, microbatches, "batch")


@pytest.mark.parametrize(
    ("sizes", "devices", "expected"),
    [
        ({"fsdp": 4}, 8, (2, 4, 1)),
        ({"fsdp": -1, "data": 2, "tensor": 2}, 16, (2, 4, 2)),
        ({"data": 2, "fsdp": 2, "tensor": 2}, 8, (2, 2, 2)),
    ],
)
def test_axis_sizes(sizes, devices, expected):
    assert axis_sizes(sizes, devices) == expected


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"fsdp": 3}, "config.mesh is data -1 x fsdp 3 x tensor 1, .* 8 devices"),
        ({"data": -1, "fsdp": -1}, "at most once"),
        ({"tensor": 0}, "at least 1"),
        ({"slices": 3}, "config.mesh.slices=3 .* 8"),
    ],
)
def test_invalid_mesh_sizes_are_refused(sizes, message):
    with pytest.raises(RunError, match=message):
        axis_sizes(sizes, 8)


MODELS = {
    "c4_ablation": ("amlp_36", "bert_rel", "additive"),
    "imagenet": ("gmlp_s_cls", "resmlp_s12", "ff_tiny"),
}


def file_and_name_of_models() -> list[tuple[str, str]]:
    pairs = []
    for file, names in MODELS.items():
        for name in names:
            pairs.append((file, name))
    return pairs


@pytest.mark.parametrize(("file", "name"), file_and_name_of_models())
def test_fsdp_splits_nearly_all_of_every_model(file, name):
    options = gmlp_config.from_file(f"configs/{file}.py", name)
    opened_task = tasks.find(options.task)(options)
    assert_nearly_all_is_split(opened_task, tensor=1)


def assert_nearly_all_is_split(task, tensor):
    """At least 90 % of the elements are split, and every split axis divides evenly."""
    shapes = task.shapes()
    metadata = task.param_metadata()
    model_partition = sized(1, 4, tensor).for_model(metadata)
    model_partition.check_parameters(shapes)
    model_shardings = Partition.make().for_model(metadata)
    shardings = model_shardings.shardings(shapes)
    split = 0
    whole = 0
    leaves = jax.tree.leaves(shapes)
    leaf_shardings = jax.tree.leaves(shardings)
    for leaf, sharding in zip(leaves, leaf_shardings, strict=True):
        if "fsdp" in sharding.spec:
            split += leaf.size
        else:
            whole += leaf.size
    assert split >= 0.9 * (split + whole)


SOURCES = ("2105.03824", "sibling")
OTHER_PAPERS = [name for name, model in PUBLISHED.items() if model.source in SOURCES]


@pytest.mark.parametrize("name", OTHER_PAPERS)
def test_fsdp_splits_nearly_all_of_the_mixers_of_other_papers(name):
    """Except for logits, kernels and memories, whose axes seldom divide: 10 % at most."""
    options = recipes.language_model(name)
    options.model.vocab_size = VOCAB_SIZE
    task = tasks.find(options.task)(options)
    assert_nearly_all_is_split(task, tensor=2)
    count = parameters.count(task.shapes())
    assert count == param_count(PUBLISHED[name])


def specs_of(tree):
    return jax.tree.map(lambda leaf: leaf.sharding.spec, tree)


def test_parameters_are_sharded_by_their_metadata(config, partition):
    task = tasks.find(config.task)(config)
    training = step.Training(task, partition)
    specs = specs_of(training.template.params)
    blocks = specs["encoder"]["blocks"]
    proj_in = blocks["proj_in"]["kernel"]
    assert proj_in == PartitionSpec(None, "fsdp", "tensor")
    proj_out = blocks["proj_out"]["kernel"]
    assert proj_out == PartitionSpec(None, "tensor", "fsdp")
    taps = blocks["gate"]["spatial"]["taps"]
    assert taps == PartitionSpec(None, None)
    assert specs["embedding"] == PartitionSpec("tensor", "fsdp")
    assert specs["bias"] == PartitionSpec("tensor")


def test_optimizer_state_is_sharded_as_its_parameter(config, partition):
    config.optimizer.ema = 0.9
    task = tasks.find(config.task)(config)
    state = step.Training(task, partition).template
    expected = specs_of(state.params)
    adam = state.opt_state[1][0]
    trees = (adam.mu, adam.nu, state.ema)
    for tree in trees:
        assert specs_of(tree) == expected
    count_spec = adam.count.sharding.spec
    step_spec = state.step.sharding.spec
    assert count_spec == step_spec == PartitionSpec()


KINDS = {
    "lora": {"lora_rank": 2},
    "freeze": {"freeze": ("encoder/norm", "^embedding")},
    "spikes": {"skip_spikes": 10.0},
    "amsgrad": {"name": "optax:amsgrad", "weight_decay": 0.0},
} | {name: {**row.requires, "name": name} for name, row in OPTIMIZERS.items()}


def by_suffix(path, metadata):
    """The sharding of the parameter whose path is the longest end of the path of a leaf of the state,
    by search; () if there is none."""
    parts = path.split("/")
    for start in range(len(parts)):
        end = "/".join(parts[start:])
        if end in metadata:
            return metadata[end].sharding
    return ()


def expected_axes(path: str, leaf, metadata, mesh) -> list:
    """The axes of a leaf of the state, by the end of its path; indivisible axes are not split."""
    axes = by_suffix(path, metadata)
    is_of_window = path.startswith("window/")
    if is_of_window or len(axes) > leaf.ndim:
        axes = ()
    missing = leaf.ndim - len(axes)
    leading = [None] * missing
    expected = [*leading, *axes]
    sizes_and_axes = zip(leaf.shape, expected, strict=True)
    for number, (size, axis) in enumerate(sizes_and_axes):
        if axis and size % mesh.shape[axis]:
            expected[number] = None
    return expected


@pytest.mark.parametrize("name", KINDS)
def test_state_of_each_optimizer_is_sharded_as_its_parameters(config, name):
    """Against a search by path: the paths of optax's moments end in the paths of the parameters.
    Adafactor keeps factors of moments, which have fewer axes."""
    config.model.update(layers=2, length=16, d_model=128, d_ffn=256, vocab_size=320)
    config.optimizer.update(KINDS[name])
    task = tasks.find(config.task)(config)
    partition = sized(1, 8, 2)
    metadata = task.param_metadata()
    template = step.Training(task, partition).template
    is_any_split = False
    for path, leaf in leaves_by_path(template).items():
        expected = expected_axes(path, leaf, metadata, partition.mesh)
        spec = list(leaf.sharding.spec)
        missing_axes = leaf.ndim - len(spec)
        missing = [None] * missing_axes
        assert spec + missing == expected, path
        if path.startswith("opt_state/") and any(expected):
            is_any_split = True
    assert is_any_split or name == "lora"


def test_parameter_named_like_a_part_of_the_state_shards_only_itself(config):
    """For `step` and `count`, no search by the end of a path can distinguish it from the state's."""
    names = ("step", "count", "bias")
    shape = jax.ShapeDtypeStruct((8,), jnp.float32)
    shapes = dict.fromkeys(names, shape)
    metadata = dict.fromkeys(names, ParamMetadata(("fsdp",)))
    task = tiny.Line(config)
    adam = optax.adam(1e-3)
    state = jax.eval_shape(lambda params: step.init_state(task, adam, params), shapes)
    partition = sized(1, 8, 1).for_model(metadata)
    paths = step.state_paths(state, shapes)
    described = leaves_by_path(partition.describe_state(state, paths))
    split = set()
    for path, leaf in described.items():
        if "fsdp" in leaf.sharding.spec:
            split.add(path)
    assert "step" in described.keys() - split
    assert "opt_state/0/count" in described.keys() - split
    for tree in ("params", "opt_state/0/mu", "opt_state/0/nu"):
        for name in names:
            assert f"{tree}/{name}" in split
    for path in split:
        assert path.startswith(("params/", "opt_state/0/mu/", "opt_state/0/nu/"))


def test_rules_match_parameter_paths_in_the_whole_state(config):
    """A rule that starts with ^ holds for a parameter, its moments and its EMA."""
    config.model.update(layers=2, length=16, d_model=8, d_ffn=16, vocab_size=320)
    config.optimizer.ema = 0.9
    task = tasks.find(config.task)(config)
    partition = sized(1, 4, 2, mesh_rules(["^embedding$=fsdp,-"]))
    template = step.Training(task, partition).template
    adam = template.opt_state[1][0]
    trees = (template.params, template.ema, adam.mu, adam.nu)
    for tree in trees:
        embedding_sharding = tree["embedding"].sharding
        assert embedding_sharding.spec == PartitionSpec("fsdp", None)


KERNEL = jax.ShapeDtypeStruct((2, 6, 8), jnp.float32)
SHAPES = {"encoder": {"blocks": {"proj_in": {"kernel": KERNEL}}}}
METADATA = {"encoder/blocks/proj_in/kernel": ParamMetadata(("fsdp", "tensor"))}


@pytest.mark.parametrize(
    ("shapes", "rules", "message"),
    [
        (SHAPES, (), r"encoder/blocks/proj_in/kernel has 6, not a multiple of config.mesh.fsdp=4"),
        (
            SHAPES,
            (Rule("kernel$", ()), Rule("nothing", ())),
            "config.mesh.rules: 'nothing' matches no parameter",
        ),
        (
            SHAPES,
            (Rule("kernel$", 4 * (None,)),),
            "names 4 axes of encoder/blocks/proj_in/kernel, which has 3",
        ),
    ],
)
def test_indivisible_parameters_are_named(shapes, rules, message):
    model_partition = sized(1, 4, 2, rules).for_model(METADATA)
    with pytest.raises(RunError, match=message):
        model_partition.check_parameters(shapes)


def first_spec(partition: Partition):
    """The partition of the only leaf of SHAPES."""
    shardings = partition.for_model(METADATA).shardings(SHAPES)
    [sharding] = jax.tree.leaves(shardings)
    return sharding.spec


def test_rules_of_a_config():
    lines = ["blocks/proj_in/kernel$=-,fsdp", "norm="]
    partition = sized(1, 4, 2, mesh_rules(lines[:1])).for_model(METADATA)
    partition.check_parameters(SHAPES)
    assert first_spec(Partition.make({"rules": lines})) == PartitionSpec(None, None, "fsdp")


def test_indivisible_axes_are_replicated():
    """The parameters of a run are checked before, but those of a pretrained run may have such axes."""
    assert first_spec(sized(1, 4, 2)) == PartitionSpec(None, None, "tensor")


def test_batches_are_sharded(partition):
    x = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    batch = partition.put_batch({"x": x})
    assert batch["x"].sharding == partition.over_batch
    assert_array_equal(batch["x"], x)


def test_states_are_described(partition):
    described = partition.describe({"w": np.zeros((2, 3), np.float32)})["w"]
    assert described.shape == (2, 3)
    assert described.dtype == np.float32
    assert described.sharding.is_fully_replicated


def host_share(shape, of_host):
    """The share of host 0 in a mesh. `of_host` gives the host of each device, in the order of the
    mesh."""
    devices = []
    for host in of_host:
        devices.append(types.SimpleNamespace(process_index=host))
    sizes = dict(zip(AXES, shape, strict=True))
    flat_array = np.array(devices, object)
    array = flat_array.reshape(shape)
    mesh = types.SimpleNamespace(devices=array, shape=sizes)
    return Partition(mesh).host_share()


@pytest.mark.parametrize(
    ("shape", "of_host", "share"),
    [
        ((4, 1, 1), [0, 0, 0, 0], (0, 1)),
        # the order of hosts is that of the mesh, not of their numbers
        ((2, 2, 1), [1, 1, 0, 0], (1, 2)),
        ((1, 2, 2), [0, 0, 1, 1], (0, 2)),
        ((1, 2, 2), [1, 0, 1, 0], (0, 1)),  # tensor spans the hosts, so each reads the whole batch
    ],
)
def test_hosts_split_the_batch_without_overlap(shape, of_host, share):
    assert host_share(shape, of_host) == share
    hosts = [0, 0, 0, 1, 1, 1]
    message = raised(RunError, host_share, (3, 1, 2), hosts)
    assert "overlapping parts of the batch" in message
