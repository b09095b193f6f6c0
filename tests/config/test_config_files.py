"""Configs from files: JSON of runs, Python of users, and arguments of both."""

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
def test_json_round_trip(tmp_path):
    config = gmlp_config.default("image_classification")
    config.model.image_size, config.optimizer.freeze, config.model.spatial_init_std = (
        (16, 32),
        ("a", "b"),
        1e-7,
    )
    path = tmp_path / "config.json"
    path.write_text(gmlp_config.to_json(config))
    again = gmlp_config.load(str(path))
    assert again.to_dict() == config.to_dict()
    assert gmlp_config.to_json(again) == path.read_text()
    assert again.is_locked


def test_keys_that_are_gone_are_read_at_their_usual_values():
    values = gmlp_config.default().to_dict()
    for name, usual in schema.REMOVED.items():
        values[name.partition(".")[0]][name.partition(".")[2]] = usual[0]
    assert gmlp_config.from_dict(values, "RUN/config.json") == gmlp_config.default()


@pytest.mark.parametrize(
    ("text", "message"),
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
        ('{"task": null}', "task None is no name"),
        ('{"model": {"block": ["gmlp"]}}', "model.block ['gmlp'] is no name"),
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
        *(
            (data, "config.json: not JSON")
            for data in ("{}".encode("utf-16"), b'{"init_from": "\xff"}', b"")
        ),
        (None, "reading "),
    ],
)
def test_bad_json(tmp_path, text, message):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    told = raised(ConfigError, gmlp_config.load, str(path))
    assert str(path) in told
    assert message in told


def test_old_names_in_the_config_of_a_run_are_read(tmp_path):
    """As the release before the last wrote them; everywhere else they are refused."""
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
def test_the_config_of_an_older_run_names_the_version_that_opens_it(tmp_path, values, key):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    assert "gmlp_flax 0.1.0" not in raised(ConfigError, gmlp_config.load, str(path))
    (tmp_path / ENVIRONMENT_FILE).write_text('{"packages": {"gmlp_flax": "0.1.0"}}')
    told = raised(ConfigError, gmlp_config.load, str(path))
    assert key in told
    assert told.count("gmlp_flax 0.1.0") == 1


@pytest.mark.parametrize(
    "environment", ["[", "[1]", "{}", '{"packages": 3}', '{"packages": {"gmlp_flax": null}}']
)
def test_a_damaged_environment_hides_no_error_of_the_config(tmp_path, environment):
    path = tmp_path / "config.json"
    path.write_text('{"steps": 0}')
    (tmp_path / ENVIRONMENT_FILE).write_text(environment)
    assert "config.steps is 0" in raised(ConfigError, gmlp_config.load, str(path))


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
def test_arguments(arg, found):
    assert gmlp_config.arguments(arg, ("sgu", "mixer"), **SCALES) == found


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
def test_arguments_that_are_wrong(arg, words):
    with pytest.raises(ConfigError) as caught:
        gmlp_config.arguments(arg, ("sgu", "mixer"), **SCALES)
    for word in words:
        assert word in str(caught.value)


def test_nothing_may_follow_if_there_are_no_options():
    assert gmlp_config.arguments("sgu", ("sgu",)) == ("sgu",)
    with pytest.raises(
        ConfigError, match="the config's argument has 'scale=gpu': expected nothing more"
    ):
        gmlp_config.arguments("sgu,scale=gpu", ("sgu",))


@given(
    st.lists(
        st.sampled_from(["sgu", "mixer", "scale", "length", "gpu", "512", "=", ",", " ", "x\n"]),
        max_size=12,
    )
)
def test_any_text_is_read_or_named_in_one_line(parts):
    """What is accepted reads back as it was given; what is not is quoted in one line."""
    arg = "".join(parts)
    try:
        name, scale, length = gmlp_config.arguments(arg, ("sgu", "mixer"), **SCALES)
    except ConfigError as error:
        message = str(error)
        assert "\n" not in message
        assert message.startswith("the config's argument ")
        assert "more than once" in message or any(f"{word!r}" in message for word in arg.split(","))
        return
    first, *rest = arg.split(",")
    assert first == name
    expected = len({word.partition("=")[0] for word in rest})
    assert len(rest) == expected
    assert set(rest) <= {f"scale={scale}", f"length={length}"}


MINE = """
from gmlp_flax import config

def get_config():
    mine = config.default()
    mine.steps = 7
    return mine
"""


@pytest.mark.parametrize("folder", [".", "configs"])
def test_a_name_is_also_looked_for_in_the_users_own_folder(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    os.makedirs(folder, exist_ok=True)
    Path(folder, "mine.py").write_text(MINE)
    assert gmlp_config.open_config("mine").steps == 7
    with pytest.raises(
        ConfigError, match="^there is no config file quickstart_tex; did you mean 'quickstart_text'"
    ):
        gmlp_config.open_config("quickstart_tex")


@pytest.mark.parametrize("kind, name", [("config", "own_text"), ("sweep", "paper")])
def test_a_name_that_two_places_hold_is_refused(tmp_path, monkeypatch, kind, name):
    packaged = gmlp_config.locate(f"gmlp_flax.configs.{name}", kind)
    monkeypatch.chdir(tmp_path)
    own = Path("configs", *["sweeps"] * (kind == "sweep"), f"{name}.py")
    own.parent.mkdir(parents=True)
    own.write_text(Path(packaged).read_text())
    assert gmlp_config.locate(name, kind) == str(own), (
        "the same file twice, as in a checkout, is no contradiction"
    )
    own.write_text(MINE)
    with pytest.raises(ConfigError) as told:
        gmlp_config.locate(name, kind)
    expected = (
        f"two places hold a {kind} {name}, {own} and {packaged}: give --{kind}={own}, or "
        f"--{kind}=gmlp_flax.configs.{name} for the one that comes with gmlp_flax"
    )
    assert str(told.value) == (expected)
    assert gmlp_config.locate(str(own), kind) == str(own)
    assert gmlp_config.locate(f"gmlp_flax.configs.{name}", kind) == packaged


def test_words_of_a_command_line():
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
    found = gmlp_config.overridden(
        gmlp_config.default(), {"steps": "7", "masking.static": "true", "model.norm_eps": 1e-3}
    )
    assert (found.steps, found.masking.static, found.model.norm_eps) == (7, True, 1e-3)


def test_another_block_brings_its_options(capsys):
    config = gmlp_config.default()
    config.model.gate = "linear"
    found = gmlp_config.overridden(config, {"model.block": "transformer", "model.heads": "8"})
    assert found.model.block == "transformer"
    assert found.model.heads == 8
    assert "gate" not in found.model
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
    assert message in raised(ConfigError, gmlp_config.overridden, gmlp_config.default(), values)


def test_a_command_line_keeps_its_other_words():
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
