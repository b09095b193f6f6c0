"""Configs from JSON files of runs and Python files of users, and their arguments."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax import config as gmlp_config
from gmlp_flax.checkpoints import ENVIRONMENT_FILE
from gmlp_flax.config import schema
from gmlp_flax.errors import ConfigError
from tests.failures import raised


@pytest.mark.smoke
def test_configs_survive_json(tmp_path):
    config = gmlp_config.default("image_classification")
    config.model.image_size = (16, 32)
    config.optimizer.freeze = ("a", "b")
    config.model.spatial_init_std = 1e-7
    path = tmp_path / "config.json"
    path.write_text(gmlp_config.to_json(config))
    again = gmlp_config.load(str(path))
    assert again.to_dict() == config.to_dict()
    assert gmlp_config.to_json(again) == path.read_text()
    assert again.is_locked


def test_removed_keys_are_read_at_their_accepted_values():
    values = gmlp_config.default().to_dict()
    for name, accepted in schema.REMOVED.items():
        group, _, key = name.partition(".")
        values[group][key] = accepted[0]
    assert gmlp_config.from_dict(values, "RUN/config.json") == gmlp_config.default()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"modle": {"layers": 3}}',
            "there is no config key 'modle.layers'; did you mean 'model.layers'?",
        ),
        ('{"model": 3}', "model is a group of keys"),
        ('{"steps": {"a": 1}}', "there is no config key 'steps.a'"),
        ('{"model": {"layers": "3"}}', "config.model.layers is '3': expected a whole number"),
        ('{"model": ', ": not JSON (Expecting value: line 1 column "),
        ("[1]", "holds a list: expected a dict"),
        ('{"task": null}', "task None is not a name"),
        ('{"model": {"block": ["gmlp"]}}', "model.block ['gmlp'] is not a name"),
        ('{"optimizer": {"freeze": null}}', "config.optimizer.freeze is None: expected a tuple"),
        (
            '{"optimizer": {"learning_rate": 1e999}}',
            "config.optimizer.learning_rate is inf: expected a finite number",
        ),
        ('{"seed": %s}' % ("9" * 6000), ": not JSON (a number of 6,000 digits)"),
        (r'{"data": {"train": "a\u0000b"}}', r"config.data.train is 'a\x00b': expected text"),
        ('{"steps": ' + "[" * 100_000, "nested too deep"),
        ("[" * 100_000, ": not JSON ("),
        ('{"data": {"packing": "documents"}}', "there is no config key 'data.packing'"),
        ('{"task": "masked_lmm"}', "config.task is 'masked_lmm'"),
        ('{"model": {"block": "gmlpp"}}', "config.model.block is 'gmlpp'"),
        ("{}".encode("utf-16"), "config.json: not JSON"),
        (b'{"init_from": "\xff"}', "config.json: not JSON"),
        (b"", "config.json: not JSON"),
    ],
)
def test_invalid_json_is_refused(tmp_path, text, expected):
    path = tmp_path / "config.json"
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(content)
    message = raised(ConfigError, gmlp_config.load, str(path))
    assert str(path) in message
    assert expected in message


def test_missing_files_are_refused(tmp_path):
    path = tmp_path / "config.json"
    message = raised(ConfigError, gmlp_config.load, str(path))
    assert f"reading {path}" in message


def test_former_names_in_configs_of_runs_are_read(tmp_path):
    """The release before the last one wrote them. Everywhere else, they are refused."""
    path = tmp_path / "config.json"
    path.write_text('{"batch_size": 4, "optimizer": {"rates": ["bias=2"], "accumulate": 2}}')
    for read in (gmlp_config.load, gmlp_config.open_config):
        optimizer = read(str(path)).optimizer
        assert optimizer.lr_multipliers == ("bias=2",)
        assert optimizer.grad_accum_steps == 2


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"model": {"toeplitz_form": "fft"}}, "model.toeplitz_form"),
        ({"data": {"packing": "documents"}}, "data.packing"),
        ({"augment": {"auto": "autoaugment_v0"}, "task": "image_classification"}, "augment.auto"),
    ],
)
def test_configs_of_older_runs_name_the_version_that_opens_them(tmp_path, values, key):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    assert "gmlp_flax 0.1.0" not in raised(ConfigError, gmlp_config.load, str(path))
    (tmp_path / ENVIRONMENT_FILE).write_text('{"packages": {"gmlp_flax": "0.1.0"}}')
    message = raised(ConfigError, gmlp_config.load, str(path))
    assert key in message
    assert message.count("gmlp_flax 0.1.0") == 1


@pytest.mark.parametrize(
    "environment", ["[", "[1]", "{}", '{"packages": 3}', '{"packages": {"gmlp_flax": null}}']
)
def test_damaged_environments_do_not_hide_errors_of_the_config(tmp_path, environment):
    path = tmp_path / "config.json"
    path.write_text('{"steps": 0}')
    (tmp_path / ENVIRONMENT_FILE).write_text(environment)
    message = raised(ConfigError, gmlp_config.load, str(path))
    assert "config.steps is 0" in message


SCALES = {"scale": ("paper", "small", "gpu"), "length": ("128", "512")}


@pytest.mark.parametrize(
    ("arg", "found"),
    [
        ("sgu", ("sgu", "paper", "128")),
        ("mixer,scale=gpu", ("mixer", "gpu", "128")),
        ("sgu,length=512,scale=small", ("sgu", "small", "512")),
        ("sgu,scale=small,length=512", ("sgu", "small", "512")),
    ],
)
def test_arguments_are_a_name_and_options(arg, found):
    names = ("sgu", "mixer")
    assert gmlp_config.arguments(arg, names, **SCALES) == found


@pytest.mark.parametrize(
    ("arg", "words"),
    [
        ("", ["''", "sgu, mixer"]),
        ("Mixer,scale=gpu", ["'Mixer'", "'mixer'"]),
        ("sgu,", ["''", "scale=paper|small|gpu, length="]),
        ("sgu,scal=gpu", ["'scal=gpu'", "scale=paper|small|gpu, length="]),
        ("sgu,scale=", ["'scale='", "paper|small|gpu"]),
        ("sgu,scale=gpu,length=128,scale=small", ["'scale=small'", "once"]),
    ],
)
def test_invalid_arguments_are_refused(arg, words):
    names = ("sgu", "mixer")
    message = raised(ConfigError, gmlp_config.arguments, arg, names, **SCALES)
    for word in words:
        assert word in message


def test_options_are_refused_if_there_are_none():
    assert gmlp_config.arguments("sgu", ("sgu",)) == ("sgu",)
    message = raised(ConfigError, gmlp_config.arguments, "sgu,scale=gpu", ("sgu",))
    assert "the config's argument has 'scale=gpu': expected nothing more" in message


WORDS = st.sampled_from(["sgu", "mixer", "scale", "length", "gpu", "512", "=", ",", " ", "x\n"])


@given(st.lists(WORDS, max_size=12))
def test_any_argument_is_read_or_quoted_in_one_line(parts):
    arg = "".join(parts)
    try:
        names = ("sgu", "mixer")
        name, scale, length = gmlp_config.arguments(arg, names, **SCALES)
    except ConfigError as error:
        message = str(error)
        assert "\n" not in message
        assert message.startswith("the config's argument ")
        words = arg.split(",")
        is_quoted = any(repr(word) in message for word in words)
        assert is_quoted or "more than once" in message
        return
    first, *options = arg.split(",")
    assert first == name
    option_names = {word.partition("=")[0] for word in options}
    assert len(option_names) == len(options)
    expected = {f"scale={scale}", f"length={length}"}
    assert set(options) <= expected


MINE = """
from gmlp_flax import config

def get_config():
    mine = config.default()
    mine.steps = 7
    return mine
"""


@pytest.mark.parametrize("folder", [".", "configs"])
def test_names_are_found_in_the_current_folder_too(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    os.makedirs(folder, exist_ok=True)
    Path(folder, "mine.py").write_text(MINE)
    assert gmlp_config.open_config("mine").steps == 7


def test_unknown_names_are_refused_with_the_nearest_one():
    message = raised(ConfigError, gmlp_config.open_config, "quickstart_tex")
    assert message.startswith(
        "there is no config file quickstart_tex; did you mean 'quickstart_text'"
    )


CONFIG_AND_SWEEP = pytest.mark.parametrize(
    ("kind", "name", "folder"),
    [
        ("config", "own_text", "configs"),
        ("sweep", "paper", "configs/sweeps"),
    ],
)


@CONFIG_AND_SWEEP
def test_copies_of_packaged_files_may_have_their_name(tmp_path, monkeypatch, kind, name, folder):
    """A checkout has such copies."""
    packaged = gmlp_config.locate(f"gmlp_flax.configs.{name}", kind)
    monkeypatch.chdir(tmp_path)
    path = Path(folder, f"{name}.py")
    path.parent.mkdir(parents=True)
    path.write_text(Path(packaged).read_text())
    located = gmlp_config.locate(name, kind)
    assert located == str(path)


@CONFIG_AND_SWEEP
def test_ambiguous_names_are_refused(tmp_path, monkeypatch, kind, name, folder):
    packaged_name = f"gmlp_flax.configs.{name}"
    packaged = gmlp_config.locate(packaged_name, kind)
    monkeypatch.chdir(tmp_path)
    path = Path(folder, f"{name}.py")
    path.parent.mkdir(parents=True)
    path.write_text(MINE)
    message = raised(ConfigError, gmlp_config.locate, name, kind)
    assert str(path) in message
    assert packaged in message
    assert f"--{kind}={path}" in message
    assert f"--{kind}={packaged_name}" in message
    located = gmlp_config.locate(str(path), kind)
    assert located == str(path)
    assert gmlp_config.locate(packaged_name, kind) == packaged


def test_overrides_are_found_among_other_flags():
    words = [
        "--config.a.b=1=2",
        "-config.c",
        "x",
        "--workdir=w",
        "--config=file",
        "--config.d=",
        "--config.=5",
    ]
    assert gmlp_config.named_overrides(words) == {"a.b": "1=2", "c": "x", "d": "", "": "5"}


def test_values_are_parsed_by_the_type_of_their_key():
    values = {"steps": "7", "masking.static": "true", "model.norm_eps": 1e-3}
    config = gmlp_config.overridden(gmlp_config.default(), values)
    assert config.steps == 7
    assert config.masking.static is True
    assert config.model.norm_eps == 1e-3


def test_other_blocks_have_their_own_options(capsys):
    config = gmlp_config.default()
    config.model.gate = "linear"
    found = gmlp_config.overridden(config, {"model.block": "transformer", "model.heads": "8"})
    assert found.model.block == "transformer"
    assert found.model.heads == 8
    assert "gate" not in found.model
    note = "note: masked_lm with transformer has no such keys, which the config sets: "
    assert capsys.readouterr().err == f"{note}model.gate='linear'\n"
    assert config.model.gate == "linear"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": "x"}, "config.steps=x"),
        ({"": "5"}, "--config.=5: there is no config key ''"),
    ],
)
def test_invalid_overrides_are_refused(values, message):
    default = gmlp_config.default()
    assert message in raised(ConfigError, gmlp_config.overridden, default, values)


def test_other_words_of_a_command_line_are_kept():
    words = [
        "train",
        "a.png",
        "--config.steps",
        "7",
        "--workdir=w",
        "--config.optimizer.freeze=('a', 'b')",
        "--typo",
    ]
    config, left = gmlp_config.apply_overrides(gmlp_config.default(), words)
    assert config.steps == 7
    assert config.optimizer.freeze == ("a", "b")
    assert left == ["train", "a.png", "--workdir=w", "--typo"]
