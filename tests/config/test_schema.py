"""Keys, where they come from, and configs with their defaults."""

import ml_collections
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.config import schema
from gmlp_flax.errors import ConfigError
from gmlp_flax.models import blocks
from gmlp_flax.options import Option
from tests.failures import raised

KINDS = [(task, "gmlp") for task in tasks.TASKS] + [("masked_lm", block) for block in blocks.BLOCKS]


@pytest.mark.parametrize("block", blocks.BLOCKS)
@pytest.mark.parametrize("task", tasks.TASKS)
def test_no_key_has_two_owners(task, block):
    owners = [schema.COMMON, schema.of_task(task), schema.of_block(block)]
    assert len(schema.keys_of(task, block)) == sum(map(len, owners))


def test_a_key_may_not_hide_a_method_of_the_config(monkeypatch):
    monkeypatch.setattr(
        tasks.find("masked_lm"), "options", {"masking.values": Option(1, "hides ConfigDict.values")}
    )
    assert "masking.values" in raised(ConfigError, gmlp_config.default)


def test_options_are_single_values_of_plain_types():
    for task in tasks.TASKS:
        for name, option in schema.keys_of(task).items():
            assert isinstance(option, Option), name
            assert type(option.default) in (
                bool,
                int,
                float,
                str,
                tuple,
            ), name


def test_finetuning_takes_over_the_architecture():
    architecture = {name for name, option in schema.keys_of().items() if option.architecture}
    assert {
        "model.block",
        "model.d_model",
        "model.gate",
        "model.vocab_size",
        "model.scale_embeddings",
    } <= architecture
    assert (
        not {"model.length", "model.dropout", "model.remat", "model.dtype", "model.toeplitz"}
        & architecture
    )


@pytest.mark.parametrize(
    ("may", "kinds", "names"),
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
def test_what_may_change_in_the_middle_of_a_run(may, kinds, names):
    """Options of a block that leave the numbers as they are; hyperparameters that the optimizer's
    state has no part in."""
    block, optimizer = kinds
    config = gmlp_config.default(block=block)
    config.optimizer.name = optimizer
    for name in names.split():
        assert schema.may_change(name, config) is may, name


def names_with(fact):
    return {name for name, option in schema.all_keys().items() if getattr(option, fact)}


def test_keys_that_say_which_data_are_read():
    """Two of them are paths, whose data may be moved."""
    data = {
        f"data.{key}"
        for key in ("train", "heldout", "split", "heldout_split", "heldout_share", "search")
    }
    tables = {"glue.task", "own.text", "own.second", "own.label", "squad.version"}
    assert names_with("selects_data") == data | tables
    assert names_with("may_move") == {"data.train", "data.heldout"}
    assert schema.of_task("text_regression")["glue.task"].selects_data


def test_keys_that_a_run_takes_from_the_run_that_starts_it():
    """A pooler only by finetuning; pretraining decides by itself whether it keeps one."""
    inherited = {
        task: {name for name, option in schema.of_task(task).items() if option.inherited}
        for task in ("image_classification", "text_classification", "masked_lm")
    }
    assert inherited == {
        "image_classification": {
            "data.mean",
            "data.std",
            "data.transform",
            "model.channels",
            "model.image_size",
        },
        "text_classification": {"model.pooler"},
        "masked_lm": set(),
    }


def test_short_names_are_of_one_key_each():
    assert schema.short_names() == {
        "lr": "optimizer.learning_rate",
        "wd": "optimizer.weight_decay",
    }
    aliases = [name for option in schema.all_keys().values() for name in option.aliases]
    assert len(aliases) == len({*aliases})
    assert not {*aliases} & {*schema.short_names()}


def test_a_copy_of_a_frozen_config_can_be_changed():
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
def test_every_key_has_a_comment_and_a_default_that_is_valid(task, block):
    config = gmlp_config.default(task, block)
    for name, option in gmlp_config.keys(config).items():
        assert len(option.comment) > 10, name
        assert not option.comment.endswith("."), name
        assert config[name] == {"task": task, "model.block": block}.get(name, option.default), name
    if task == "causal_lm":
        config.model.causal = True
    gmlp_config.validate(config)


def test_another_block_keeps_what_both_have():
    config = gmlp_config.default()
    config.steps, config.model.layers, config.model.gate, config.masking.rate = (
        7,
        3,
        "additive",
        0.3,
    )
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


def test_help_holds_every_key_of_every_task_and_block():
    text = gmlp_config.help_text()
    lines = text.splitlines()
    for task, block in KINDS:
        for name, option in schema.keys_of(task, block).items():
            start = f"config.{name} = {option.default!r} "
            end = f"# {option.comment}"
            assert any(line.startswith(start) and end in line for line in lines), name
    first = lines.index("config.model.block=transformer:")
    others = [line for line in lines[first + 1 :] if line.startswith("config.model.block=")]
    last = lines.index(others[0]) if others else len(lines)
    assert any("config.model.heads" in line for line in lines[first:last])
    for line in lines[:first]:
        assert "config.model.heads" not in line


def test_help_of_a_config_holds_its_values():
    text = gmlp_config.help_text(gmlp_config.from_file("quickstart_text"))
    assert "config.steps = 500 " in text
    assert "config.model.length = 64 " in text
    assert "config.augment" not in text
