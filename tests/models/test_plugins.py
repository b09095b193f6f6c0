"""Classes by their names, in a table or in a package of the user's own."""

import pytest

from gmlp_flax.errors import ConfigError
from gmlp_flax.models.blocks import BLOCKS, Block, GMLPBlock, find, name_of, settings
from gmlp_flax.models.plugins import find as find_class


def test_a_name_or_a_place():
    assert find("gmlp") is GMLPBlock and find("gmlp_flax.models.blocks.gmlp:GMLPBlock") is GMLPBlock
    assert [name_of(block) for block in BLOCKS.values()] == list(BLOCKS)
    assert name_of(Block) == "gmlp_flax.models.blocks.base:Block"
    assert find_class("there", {"there": "gmlp_flax.models.blocks.gmlp:GMLPBlock"}, Block, "model.block") is GMLPBlock


@pytest.mark.parametrize(("name", "message"), [
    ("gmpl", "config.model.block is 'gmpl'; did you mean 'gmlp'?"),
    ("qqqq", "config.model.block is 'qqqq'; expected one of gmlp, transformer, mixer, resmlp, feed_forward"),
    ("no_such.module:X", "config.model.block is 'no_such.module:X', which cannot be imported (ModuleNotFoundError: "),
    ("gmlp_flax.errors:X", "config.model.block is 'gmlp_flax.errors:X', which cannot be imported (AttributeError: "),
    ("gmlp_flax.errors:RunError", "expected a class that extends gmlp_flax.models.blocks.base.Block"),
    ("gmlp_flax.errors:__doc__", "expected a class that extends gmlp_flax.models.blocks.base.Block"),
])
def test_errors_about_blocks_are_one_line(name, message):
    with pytest.raises(ConfigError) as caught:
        find(name)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_settings_build_the_spec_again():
    spec = GMLPBlock.spec(length=5, layers=2, d_model=6, d_ffn=8, gate="additive", d_attn=3)
    values = settings(spec)
    assert values["block"] == "gmlp" and values["gate"] == "additive" and "length" not in values
    assert find(values.pop("block")).spec(length=5, **values) == spec
