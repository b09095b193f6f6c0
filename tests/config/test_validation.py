"""Invalid configs are refused. Messages name the key and the value."""

import ml_collections
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.config import validation
from gmlp_flax.errors import ConfigError
from tests.failures import raised

FORMER_NAMES = {
    "optimizer.accumulate": "optimizer.grad_accum_steps",
    "optimizer.rates": "optimizer.lr_multipliers",
}


@pytest.fixture
def config():
    return gmlp_config.default()


def assert_refused(config, *words):
    message = raised(ConfigError, gmlp_config.validate, config)
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("task", "block", "name"),
    [
        ("masked_lm", "gmlp", "model.heads"),
        ("masked_lm", "mixer", "model.gate"),
        ("masked_lm", "gmlp", "augment.mixup"),
        ("image_classification", "gmlp", "squad.stride"),
    ],
)
def test_options_of_another_task_or_block_are_refused(task, block, name):
    config = gmlp_config.default(task, block)
    flag = f"--config.{name}=1"
    message = raised(ConfigError, gmlp_config.check_name, name, flag, config)
    assert message.startswith(f"{flag}: {task} with {block} has no {name}")
    gmlp_config.check_name(name, "a sweep of several blocks")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("model.layrs", "model.layers'"),
        ("stepz", "'steps'"),
        ("data.batch_size", "batch_size'"),
        ("masking", "masking.rate, masking.max_predictions"),
        ("qqqq", "--help_config"),
        ("data.dev", "'data.heldout'"),
        ("depth", "'model.layers'"),
        ("train_steps", "'steps'"),
        ("optimizer.lr", "'optimizer.learning_rate'"),
        *FORMER_NAMES.items(),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_one(name, nearest):
    message = raised(ConfigError, gmlp_config.check_name, name, "--config", None)
    assert message.startswith("--config: ")
    assert name in message
    assert nearest in message


@pytest.mark.parametrize(
    "name", [*FORMER_NAMES, "optimizer.batch_size", "model.heads", "model.layrs"]
)
def test_unknown_keys_in_config_files_are_refused(tmp_path, name):
    """The message names the file and the intended key."""
    meant = {
        "optimizer.batch_size": "config.eval.batch_size",
        "model.layrs": "model.layers",
        **FORMER_NAMES,
    }
    lines = [
        "from gmlp_flax import config",
        "def get_config(arg=''):",
        "    c = config.default()",
        f"    c.{name} = 3",
        "    return c",
    ]
    path = tmp_path / "x.py"
    path.write_text("\n".join(lines))
    message = raised(ConfigError, gmlp_config.from_file, str(path))
    assert "x.py: " in message
    assert meant.get(name, name) in message


BAD_MULTIPLIERS = (
    "bias",
    "bias=",
    "=2",
    "bias=0",
    "bias=-1",
    "bias=1..",
    "bias=nan",
    "bias=inf",
    "(=2",
)
BAD_RULES = ("kernel$", "kernel$=rows", "(=fsdp", "=fsdp")
BAD_STEPS = ("5", "0:5", "9:5", "10:1001", "a:b", "1:2:3")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("model.block", "transformer", ["the config has no model.norm_type"]),
        ("model.block", "gmpl", ["config.model.block is 'gmpl'", "'gmlp'"]),
        ("task", "masked", ["config.task is 'masked'", "'masked_lm'"]),
        (
            "task",
            "gmlp_flax.tasks.base:Task",
            ["config.task is 'gmlp_flax.tasks.base:Task'", "example_shapes", "module"],
        ),
        ("optimizer.beta", 0.9, ["config.optimizer.beta is 0.9", "'adamw'", "muon"]),
        ("masking.random_share", 0.3, ["config.masking.mask_share is 0.8", "random_share is 0.3"]),
        (
            "optimizer.grad_accum_steps",
            5,
            ["config.batch_size is 32", "5", "config.optimizer.grad_accum_steps"],
        ),
        ("optimizer.freeze", ("(",), ["config.optimizer.freeze: '('"]),
    ],
)
def test_contradicting_values_are_refused(config, name, value, words):
    config.update_from_flattened_dict({name: value})
    assert_refused(config, *words)


@pytest.mark.parametrize("line", BAD_MULTIPLIERS)
def test_invalid_lr_multipliers_are_refused(config, line):
    config.optimizer.lr_multipliers = (line,)
    assert_refused(config, "config.optimizer.lr_multipliers: ")


@pytest.mark.parametrize("line", BAD_RULES)
def test_invalid_mesh_rules_are_refused(config, line):
    config.mesh.rules = (line,)
    assert_refused(config, "config.mesh.rules: ")


@pytest.mark.parametrize("steps", BAD_STEPS)
def test_invalid_profile_steps_are_refused(config, steps):
    config.profile.steps = steps
    assert_refused(config, f"is {steps!r}", "config.steps=1000")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model.gate", "splitt"),
        ("steps", 0),
        ("model.image_size", ("3x",)),
        ("model.image_size", (30, 32)),
        ("model.patch_size", (8, 8, 3)),
        ("data.std", (1.0, 0.0, 1.0)),
        ("data.heldout_share", 0.0),
        ("squad.null_threshold", float("nan")),
        ("data.min_scale", 2.5),
        ("optimizer.freeze", (1,)),
        ("mesh.rules", ("a=-", ("b", "fsdp"))),
    ],
)
def test_invalid_values_are_refused(name, value):
    config = config_with(name)
    config.update_from_flattened_dict({name: value})
    assert_refused(config, f"config.{name} is {value!r}: ")


def config_with(name):
    """The default config of the first task that has this key."""
    for task in tasks.TASKS:
        config = gmlp_config.default(task)
        if name in gmlp_config.keys(config):
            return config
    raise ValueError(f"no task has {name}")


def test_checks_of_blocks_need_no_data():
    config = gmlp_config.default("masked_lm", "transformer")
    config.model.heads = 5
    assert_refused(config, "config.model.d_model is 128", "model.heads, 5")


def test_incomplete_configs_are_refused():
    config = ml_collections.ConfigDict({"steps": 3})
    assert_refused(config, "no task", "gmlp_flax.config.default()")


def test_lr_multipliers_are_a_factor_or_a_range():
    found = validation.lr_multipliers(["a=b=8", "^encoder/=0.25..1"])
    assert found == (("a=b", 8.0, 8.0), ("^encoder/", 0.25, 1.0))


def test_mesh_rules_are_parsed():
    found = validation.mesh_rules(["proj_in/kernel$=-,fsdp", "norm="])
    assert found == (("proj_in/kernel$", (None, "fsdp")), ("norm", ()))


def test_profile_steps_are_parsed():
    assert validation.profile_steps("", 20) == range(0)
    assert validation.profile_steps("10:15", 20) == range(10, 16)
