"""Keys, where they come from, and configs with their defaults."""

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
            assert isinstance(option, Option) and type(option.default) in (
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
    ("may", "of", "names"),
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
def test_what_may_change_in_the_middle_of_a_run(may, of, names):
    """Options of a block that leave the numbers as they are; hyperparameters that the optimizer's
    state has no part in."""
    assert {name: schema.may_change(name, *of) for name in names.split()} == dict.fromkeys(
        names.split(), may
    )


@pytest.mark.smoke
@pytest.mark.parametrize(("task", "block"), KINDS)
def test_every_key_has_a_comment_and_a_default_that_is_valid(task, block):
    config = gmlp_config.default(task, block)
    for name, option in gmlp_config.keys(config).items():
        assert len(option.comment) > 10 and not option.comment.endswith("."), name
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
    assert (other.steps, other.model.layers, other.masking.rate, other.model.block) == (
        7,
        3,
        0.3,
        "mixer",
    )
    assert "gate" not in other.model and other.model.d_spatial == 64
    found = gmlp_config.differences(config, other)
    assert found["model.gate"] == ("additive", None) and found["model.d_spatial"] == (None, 64)
    assert found["model.block"] == ("gmlp", "mixer") and "steps" not in found


def test_help_holds_every_key_of_every_task_and_block():
    text = gmlp_config.help_text()
    lines = text.splitlines()
    for task, block in KINDS:
        for name, option in schema.keys_of(task, block).items():
            start, end = f"config.{name} = {option.default!r} ", f"# {option.comment}"
            assert any(line.startswith(start) and end in line for line in lines), name
    first = lines.index("config.model.block=transformer:")
    assert any("config.model.heads" in line for line in lines[first : first + 8])
    assert not any("config.model.heads" in line for line in lines[:first])


def test_help_of_a_config_holds_its_values():
    text = gmlp_config.help_text(gmlp_config.from_file("quickstart_text"))
    assert (
        "config.steps = 500 " in text
        and "config.model.length = 64 " in text
        and "config.augment" not in text
    )
