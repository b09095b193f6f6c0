"""Classes by their names, in a table or in a user's package."""

import json

import pytest

from gmlp_flax import config
from gmlp_flax.errors import ConfigError
from gmlp_flax.models.blocks import BLOCKS, Block, GMLPBlock, find, name_of, settings
from gmlp_flax.registry import find as find_class
from gmlp_flax.registry import load, refuse_foreign
from tests.failures import raised


def test_classes_are_found_by_name_or_by_path():
    assert find("gmlp") is GMLPBlock
    assert find("gmlp_flax.models.blocks.gmlp:GMLPBlock") is GMLPBlock
    assert [name_of(block) for block in BLOCKS.values()] == list(BLOCKS)
    assert name_of(Block) == "gmlp_flax.models.blocks.base:Block"
    assert (
        find_class(
            "there", {"there": "gmlp_flax.models.blocks.gmlp:GMLPBlock"}, Block, "model.block"
        )
        is GMLPBlock
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "qqqq",
            "config.model.block is 'qqqq'; expected one of gmlp, transformer, mixer, resmlp, feed_forward",
        ),
        ("no_such.module:X", "which cannot be imported (ModuleNotFoundError: "),
        (
            "gmlp_flax.errors:X",
            "which cannot be imported: gmlp_flax.errors has no 'X'; it defines UserError, ",
        ),
        ("tests.custom_blocks:OtherSpec", "its Spec must extend gmlp_flax.models.spec.BlockSpec"),
        ("tests.custom_blocks:UndecoratedSpec", "decorate its Spec with @dataclasses.dataclass("),
        ("gmlp_flax.errors:RunErorr", "did you mean 'RunError'?"),
        (
            "gmlp_flax.errors:RunError",
            "expected a class that extends gmlp_flax.models.blocks.base.Block",
        ),
        (
            "gmlp_flax.errors:__doc__",
            "expected a class that extends gmlp_flax.models.blocks.base.Block",
        ),
    ],
)
def test_errors_about_blocks_are_one_line(name, message):
    assert message in raised(ConfigError, find, name)


def test_settings_build_the_spec_again():
    spec = GMLPBlock.spec(length=5, layers=2, d_model=6, d_ffn=8, gate="additive", d_attn=3)
    values = settings(spec)
    assert values["block"] == "gmlp"
    assert values["gate"] == "additive"
    assert "length" not in values
    assert find(values.pop("block")).spec(length=5, **values) == spec


def test_modules_in_untrusted_configs_are_not_imported(tmp_path, monkeypatch):
    """A run's config may name classes of gmlp_flax and of modules that the user has imported."""
    (tmp_path / "stranger.py").write_text("raise AssertionError('imported')")
    (tmp_path / "friend.py").write_text("from gmlp_flax.models.blocks import GMLPBlock as Own")
    monkeypatch.syspath_prepend(tmp_path)
    packaged = ("gmlp", "", "gmlp_flax.models.blocks.gmlp:GMLPBlock", "gmlp_flax.no_such:X")
    for name in (*packaged, "os:system"):
        refuse_foreign(name, "model.block")
    for module in ("stranger", "friend", "friend.more", "gmlp_flaxx", ""):
        name = f"{module}:Own"
        message = raised(ConfigError, refuse_foreign, name, "RUN/config.json: model.block")
        assert message.startswith(f"RUN/config.json: model.block is '{name}', which is code")
        assert f"add --trust={module} (in Python: import it first)" in message
    load("friend", "--trust=friend")
    refuse_foreign("friend:Own", "model.block")
    assert find("friend:Own") is GMLPBlock
    message = raised(ConfigError, load, "stranger", "--trust=stranger")
    assert message.startswith("--trust=stranger cannot be imported (AssertionError: imported): ")


def test_the_config_of_a_run_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "config.json"
    contents = {
        "task": {"task": "stranger:X"},
        "model.block": {"model": {"block": "stranger:X"}},
    }
    for key, values in contents.items():
        path.write_text(json.dumps(values))
        for read in (config.load, config.open_config):
            message = raised(ConfigError, read, str(path))
            start = f"{path}: {key} is 'stranger:X', which is code from outside"
            assert message.startswith(start)


def test_modules_that_exit_on_import_are_reported(tmp_path, monkeypatch):
    """As a script without a main guard does."""
    (tmp_path / "ending_script.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    message = raised(ConfigError, load, "ending_script:Block", "--rows")
    assert "--rows cannot be imported (SystemExit: 3)" in message


def test_advice_depends_on_what_cannot_be_imported(tmp_path, monkeypatch):
    """The module itself, a module that it imports, or its syntax."""
    (tmp_path / "needing.py").write_text("\nimport needed_elsewhere\n")
    (tmp_path / "unparsed.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    message = raised(ConfigError, load, "absent.blocks:Block", "--rows")
    assert message.endswith(f"change to the folder that contains it (this one is {tmp_path})")
    package = tmp_path / "my_mixers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "fourier.py").touch()
    message = raised(ConfigError, load, "my_mixers.fourie:Block", "--rows")
    assert message.endswith("my_mixers has no module 'fourie'; did you mean 'fourier'?")
    message = raised(ConfigError, load, "my_mixers.wavelets:Block", "--rows")
    assert message.endswith("my_mixers has no module 'wavelets'; it has fourier")
    message = raised(ConfigError, load, "my_mixers.fourier.Block:Block", "--rows")
    assert message.endswith("my_mixers.fourier has no module 'Block'; it has none")
    message = raised(ConfigError, load, "needing:Block", "--rows")
    assert f"install needed_elsewhere, or fix line 2 of {tmp_path}/needing.py" in message
    message = raised(ConfigError, load, "unparsed:Block", "--rows")
    assert "(unparsed.py, line 1)" in message
    assert message.endswith("fix unparsed")
