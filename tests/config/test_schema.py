"""Keys, their owners, and configs with their defaults."""

import ml_collections
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.config import schema
from gmlp_flax.errors import ConfigError
from gmlp_flax.models import blocks
from gmlp_flax.options import Option
from tests.failures import raised

TASKS_WITH_GMLP = [(task, "gmlp") for task in tasks.TASKS]
BLOCKS_IN_MASKED_LM = [("masked_lm", block) for block in blocks.BLOCKS]
KINDS = TASKS_WITH_GMLP + BLOCKS_IN_MASKED_LM


@pytest.mark.parametrize("block", blocks.BLOCKS)
@pytest.mark.parametrize("task", tasks.TASKS)
def test_each_key_has_one_owner(task, block):
    owners = [schema.COMMON, schema.of_task(task), schema.of_block(block)]
    keys_of_owners = [len(keys) for keys in owners]
    keys = schema.keys_of(task, block)
    assert len(keys) == sum(keys_of_owners)


def test_keys_must_not_hide_methods_of_the_config(monkeypatch):
    options = {"masking.values": Option(1, "hides ConfigDict.values")}
    monkeypatch.setattr(tasks.find("masked_lm"), "options", options)
    assert "masking.values" in raised(ConfigError, gmlp_config.default)


def test_options_are_single_values_of_plain_types():
    for task in tasks.TASKS:
        for name, option in schema.keys_of(task).items():
            assert isinstance(option, Option), name
            assert type(option.default) in (bool, int, float, str, tuple), name


def test_architecture_keys_are_marked():
    architecture = {name for name, option in schema.keys_of().items() if option.architecture}
    for key in ("block", "d_model", "gate", "vocab_size", "scale_embeddings"):
        assert f"model.{key}" in architecture
    for key in ("length", "dropout", "remat", "dtype", "toeplitz"):
        assert f"model.{key}" not in architecture


@pytest.mark.parametrize(
    ("may_change", "kinds", "names"),
    [
        (
            True,
            ("gmlp", "adamw"),
            "steps optimizer.lr_multipliers model.toeplitz optimizer.b1 optimizer.decay_share",
        ),
        (
            False,
            ("gmlp", "adamw"),
            "model.survival model.block seed optimizer.skip_spikes optimizer.name log.norms",
        ),
        (False, ("gmlp", "adamw"), "optimizer.lora_rank"),
        (True, ("fnet_hybrid", "adamw"), "model.dft"),
        (False, ("mixer", "adamw"), "model.toeplitz"),
        (True, ("gmlp", "schedule_free"), "optimizer.b2"),
        (False, ("gmlp", "schedule_free"), "optimizer.b1"),
    ],
)
def test_some_keys_may_change_during_a_run(may_change, kinds, names):
    """Options of a block that do not change the results, and hyperparameters that the optimizer's
    state does not depend on."""
    block, optimizer = kinds
    config = gmlp_config.default(block=block)
    config.optimizer.name = optimizer
    for name in names.split():
        assert schema.may_change(name, config) is may_change, name


def names_with(fact):
    return {name for name, option in schema.all_keys().items() if getattr(option, fact)}


def test_keys_that_select_data_are_marked():
    """Two of them are paths of data, which may be moved."""
    keys = ("train", "heldout", "split", "heldout_split", "heldout_share", "search")
    data = {f"data.{key}" for key in keys}
    tables = {"glue.task", "own.text", "own.second", "own.label", "squad.version"}
    assert names_with("selects_data") == data | tables
    assert names_with("may_move") == {"data.train", "data.heldout"}
    assert schema.of_task("text_regression")["glue.task"].selects_data


IMAGE_KEYS = {
    "data.mean",
    "data.std",
    "data.transform",
    "model.channels",
    "model.image_size",
}


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("image_classification", IMAGE_KEYS),
        ("text_classification", {"model.pooler"}),
        ("masked_lm", set()),
    ],
)
def test_inherited_keys_of_tasks(task, expected):
    """Only finetuning inherits a pooler; pretraining has its own key for it."""
    inherited = {name for name, option in schema.of_task(task).items() if option.inherited}
    assert inherited == expected


def test_short_names_and_aliases_are_unique():
    assert schema.short_names() == {
        "lr": "optimizer.learning_rate",
        "wd": "optimizer.weight_decay",
    }
    aliases = []
    for option in schema.all_keys().values():
        aliases += option.aliases
    assert len(set(aliases)) == len(aliases)
    assert not set(aliases) & set(schema.short_names())


def test_copies_of_frozen_configs_can_be_changed():
    config = gmlp_config.default()
    frozen = ml_collections.FrozenConfigDict(config)
    copy = schema.mutable_copy(frozen)
    copy.model.layers = 3
    assert frozen.model.layers == 6
    assert config.model.layers == 6
    assert copy.model.layers == 3
    with pytest.raises(AttributeError):
        copy.model.new_key = 1


@pytest.mark.smoke
@pytest.mark.parametrize(("task", "block"), KINDS)
def test_every_key_has_a_comment_and_a_valid_default(task, block):
    config = gmlp_config.default(task, block)
    arguments = {"task": task, "model.block": block}
    for name, option in gmlp_config.keys(config).items():
        assert len(option.comment) > 10, name
        assert not option.comment.endswith("."), name
        assert config[name] == arguments.get(name, option.default), name
    if task == "causal_lm":
        config.model.causal = True
    gmlp_config.validate(config)


def test_changing_the_block_keeps_common_keys():
    config = gmlp_config.default()
    config.steps = 7
    config.model.layers = 3
    config.model.gate = "additive"
    config.masking.rate = 0.3
    other = gmlp_config.changed(config, block="mixer")
    assert other.steps == 7
    assert other.model.layers == 3
    assert other.masking.rate == 0.3
    assert other.model.block == "mixer"
    assert "gate" not in other.model
    assert other.model.d_spatial == 64
    found = gmlp_config.differences(config, other)
    assert found["model.gate"] == ("additive", None)
    assert found["model.d_spatial"] == (None, 64)
    assert found["model.block"] == ("gmlp", "mixer")
    assert "steps" not in found


@pytest.mark.parametrize(("task", "block"), KINDS)
def test_help_has_every_key_of_every_task_and_block(task, block):
    lines = gmlp_config.help_text().splitlines()
    for name, option in schema.keys_of(task, block).items():
        start = f"config.{name} = {option.default!r} "
        of_key = [line for line in lines if line.startswith(start)]
        comment = f"# {option.comment}"
        assert any(comment in line for line in of_key), name


def test_help_has_a_section_for_each_block():
    text = gmlp_config.help_text()
    before, _, after = text.partition("config.model.block=transformer:\n")
    section, _, _ = after.partition("config.model.block=")
    assert "config.model.heads" in section
    assert "config.model.heads" not in before


def test_help_of_a_config_has_its_values():
    text = gmlp_config.help_text(gmlp_config.from_file("quickstart_text"))
    assert "config.steps = 500 " in text
    assert "config.model.length = 64 " in text
    assert "config.augment" not in text
