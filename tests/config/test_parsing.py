import pytest

from gmlp_flax.config import parsing
from gmlp_flax.errors import ConfigError


def test_multipliers_of_one_factor_and_of_a_factor_that_grows():
    found = parsing.lr_multipliers(["a=b=8", "^encoder/=0.25..1"])
    assert found == (("a=b", 8.0, 8.0), ("^encoder/", 0.25, 1.0))


@pytest.mark.parametrize(
    "line", ["bias", "bias=", "=2", "bias=0", "bias=-1", "bias=1..", "bias=nan", "bias=inf", "(=2"]
)
def test_multipliers_that_do_not_parse(line):
    with pytest.raises(ConfigError, match="config.optimizer.lr_multipliers"):
        parsing.lr_multipliers([line])


def test_rules_of_the_mesh():
    found = parsing.mesh_rules(["proj_in/kernel$=-,fsdp", "norm="])
    assert found == (("proj_in/kernel$", (None, "fsdp")), ("norm", ()))


@pytest.mark.parametrize("line", ["kernel$", "kernel$=rows", "(=fsdp", "=fsdp"])
def test_rules_that_do_not_parse(line):
    with pytest.raises(ConfigError, match="config.mesh.rules"):
        parsing.mesh_rules([line])


def test_steps_to_profile():
    assert parsing.profile_steps("", 20) == range(0)
    assert parsing.profile_steps("10:15", 20) == range(10, 16)


@pytest.mark.parametrize("text", ["5", "0:5", "9:5", "10:21", "a:b", "1:2:3"])
def test_steps_that_a_run_does_not_have(text):
    with pytest.raises(ConfigError, match="config.profile.steps"):
        parsing.profile_steps(text, 20)
