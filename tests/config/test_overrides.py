"""Overrides of a config's keys, as command lines and sweeps give them."""

import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.config import overrides
from gmlp_flax.errors import ConfigError


def test_words_of_a_command_line():
    words = ["--config.a.b=1=2", "-config.c", "x", "--workdir=w", "--config=file", "--config.d=", "--config.=5"]
    assert overrides.named_overrides(words) == {"a.b": "1=2", "c": "x", "d": "", "": "5"}


def test_values_are_parsed_by_the_type_of_their_key():
    found = overrides.overridden(
        gmlp_config.default(), {"steps": "7", "masking.static": "true", "model.norm_eps": 1e-3}
    )
    assert (found.steps, found.masking.static, found.model.norm_eps) == (7, True, 1e-3)


def test_another_block_brings_its_options(capsys):
    config = gmlp_config.default()
    config.model.gate = "linear"
    found = overrides.overridden(config, {"model.block": "transformer", "model.heads": "8"})
    assert (found.model.block, found.model.heads) == ("transformer", 8) and "gate" not in found.model
    assert capsys.readouterr().err == (
        "note: masked_lm with transformer has no such keys, which the config sets: model.gate='linear'\n"
    )
    assert config.model.gate == "linear"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": "x"}, "config.steps=x"),
        ({"": "5"}, "--config.=5: there is no config key ''"),
    ],
)
def test_what_cannot_be_set_is_one_line(values, message):
    with pytest.raises(ConfigError) as caught:
        overrides.overridden(gmlp_config.default(), values)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_command_line_keeps_its_other_words():
    words = ["train", "a.png", "--config.steps", "7", "--workdir=w", "--config.optimizer.freeze=('a', 'b')", "--typo"]
    config, left = overrides.apply(gmlp_config.default(), words)
    assert (config.steps, config.optimizer.freeze) == (7, ("a", "b"))
    assert left == ["train", "a.png", "--workdir=w", "--typo"]
