import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.config import schema
from gmlp_flax.errors import ConfigError
from gmlp_flax.models import blocks


@pytest.fixture
def config():
    return gmlp_config.default()


KINDS = [(task, "gmlp") for task in tasks.TASKS] + [("masked_lm", block) for block in blocks.BLOCKS]


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


def test_a_config_holds_the_options_of_its_task_and_block_alone():
    gmlp, mixer = gmlp_config.default(), gmlp_config.default("image_classification", "mixer")
    assert "gate" in gmlp.model and "d_spatial" not in gmlp.model and "masking" in gmlp and "augment" not in gmlp
    assert "gate" not in mixer.model and "d_spatial" in mixer.model and "masking" not in mixer and "augment" in mixer


def test_another_block_keeps_what_both_have():
    config = gmlp_config.default()
    config.steps, config.model.layers, config.model.gate, config.masking.rate = 7, 3, "additive", 0.3
    other = gmlp_config.changed(config, block="mixer")
    assert (other.steps, other.model.layers, other.masking.rate, other.model.block) == (7, 3, 0.3, "mixer")
    assert "gate" not in other.model and other.model.d_spatial == 64
    found = gmlp_config.differences(config, other)
    assert found["model.gate"] == ("additive", None) and found["model.d_spatial"] == (None, 64)
    assert found["model.block"] == ("gmlp", "mixer") and "steps" not in found


@pytest.mark.parametrize(
    ("task", "block", "name", "message"),
    [
        (
            "masked_lm",
            "gmlp",
            "model.heads",
            "config.model.block is 'gmlp', which has no model.heads: it is an option of transfo",
        ),
        (
            "masked_lm",
            "mixer",
            "model.gate",
            "config.model.block is 'mixer', which has no model.gate: it is an option of gmlp",
        ),
        (
            "masked_lm",
            "gmlp",
            "augment.mixup",
            "config.task is 'masked_lm', which has no augment.mixup: it is an option of image",
        ),
        (
            "image_classification",
            "gmlp",
            "squad.stride",
            "which has no squad.stride: it is an option of question_answering",
        ),
    ],
)
def test_options_of_another_task_or_block_are_refused(task, block, name, message):
    with pytest.raises(ConfigError, match=f"^--config.{name}=1: .*{message}"):
        gmlp_config.check_name(name, f"--config.{name}=1", gmlp_config.default(task, block))
    gmlp_config.check_name(name, "a sweep of several blocks")


@pytest.mark.parametrize(
    ("set_key", "value", "message"),
    [
        ("model.block", "transformer", "the config has no model.heads: begin with"),
        ("model.block", "gmpl", "config.model.block is 'gmpl'; did you mean 'gmlp'"),
        ("task", "masked", "config.task is 'masked'; did you mean 'masked_lm'"),
        ("model.block", "no_such_package.x:Y", "config.model.block is 'no_such_package.x:Y', which cannot be imported"),
        ("model.block", "gmlp_flax.config:default", "expected a class that extends gmlp_flax.models.blocks.base.Block"),
        (
            "task",
            "gmlp_flax.tasks.base:Task",
            "config.task is 'gmlp_flax.tasks.base:Task': the class lacks assets, eval_metrics",
        ),
    ],
)
def test_a_block_or_task_that_does_not_fit(config, set_key, value, message):
    config.update_from_flattened_dict({set_key: value})
    with pytest.raises(ConfigError, match=message):
        gmlp_config.validate(config)


def test_unknown_key_cannot_be_set(config):
    with pytest.raises(AttributeError):
        config.model.layrs = 3
    with pytest.raises(AttributeError):
        config.stepz = 3


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("model.layrs", "model.layers"),
        ("layers", "model.layers"),
        ("stepz", "steps"),
        ("optimizer.lerning_rate", "optimizer.learning_rate"),
        ("modle.layers", "model.layers"),
        ("optim.warmup", "optimizer.warmup"),
        ("data.batch_size", "batch_size"),
    ],
)
def test_nearest_key(name, nearest):
    with pytest.raises(
        ConfigError, match=rf"^--config: there is no config key '{name}'; did you mean '\S*{nearest}'\?$"
    ):
        gmlp_config.check_name(name, "--config")


def test_name_that_is_like_nothing():
    with pytest.raises(ConfigError, match="there is no config key 'qqqq'; --help_config lists them all$"):
        gmlp_config.check_name("qqqq", "--config")


def test_group_is_no_key():
    with pytest.raises(
        ConfigError, match="masking is a group of keys; set one of masking.rate, masking.max_predictions,"
    ):
        gmlp_config.check_name("masking", "--config.masking=1")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "model.gate",
            "splitt",
            "config.model.gate is 'splitt': expected one of linear, additive, multiplicative, split",
        ),
        ("steps", 0, "config.steps is 0: expected at least 1"),
        ("seed", -1, "config.seed is -1: expected at least 0"),
        ("log.every", 0, "config.log.every is 0: expected at least 1"),
        ("checkpoint.keep", 0, "config.checkpoint.keep is 0: expected at least 1"),
        ("masking.max_predictions", 0, "config.masking.max_predictions is 0: expected from 1 to 1,048,576"),
        ("masking.rate", 1.0, "config.masking.rate is 1.0: expected a share above 0 and below 1"),
        ("model.image_size", ("3x",), "config.model.image_size is ('3x',): expected 2 values, as in (224, 224)"),
        ("model.image_size", (0, 32), "config.model.image_size is (0, 32): in it is 0: expected from 1 to 65,536"),
        ("model.patch_size", (8.5, 8), "config.model.patch_size is (8.5, 8): in it is 8.5: expected a whole number"),
        ("model.patch_size", (8, 8, 3), "config.model.patch_size is (8, 8, 3): expected 2 values, as in (16, 16)"),
        ("data.mean", (1.0,), "config.data.mean is (1.0,): expected 3 values"),
        ("data.std", (1.0, 0.0, 1.0), "config.data.std is (1.0, 0.0, 1.0): in it is 0.0: expected at least 1e-6"),
        ("data.heldout_share", 0.0, "config.data.heldout_share is 0.0: expected a share above 0 and below 1"),
        ("masking.random_share", 0.3, "config.masking.mask_share is 0.8 and random_share is 0.3: lower one"),
        ("optimizer.ema", 1.0, "config.optimizer.ema is 1.0: expected a decay from 0 to below 1"),
        ("optimizer.eps", 0.0, "config.optimizer.eps is 0.0: expected above 0"),
        ("optimizer.clip", -1.0, "config.optimizer.clip is -1.0: expected at least 0"),
        ("optimizer.b2", 1.0, "config.optimizer.b2 is 1.0: expected a decay from 0 to below 1"),
        ("squad.null_threshold", float("nan"), "config.squad.null_threshold is nan: expected a number"),
        ("optimizer.learning_rate", float("nan"), "config.optimizer.learning_rate is nan: expected at least 0"),
        (
            "optimizer.label_smoothing",
            1.0,
            "config.optimizer.label_smoothing is 1.0: expected a share from 0 to below 1",
        ),
        ("data.min_scale", 2.5, "config.data.min_scale is 2.5: expected a share from 0 to 1"),
        ("data.eval_crop", 0.0, "config.data.eval_crop is 0.0: expected a share above 0 and at most 1"),
        ("data.workers", -1, "config.data.workers is -1: expected from 0 to 1,024"),
        ("augment.randaugment_magnitude", 10.5, "config.augment.randaugment_magnitude is 10.5: expected 0 to 10"),
        ("masking.mask_share", -0.1, "config.masking.mask_share is -0.1: expected a share from 0 to 1"),
        ("model.image_size", (30, 32), "config.model.image_size is (30, 32): patches of (16, 16) do not tile it"),
        ("mesh.slices", 0, "config.mesh.slices is 0: expected at least 1"),
        ("model.vocab_size", 0, "config.model.vocab_size is 0: expected from 1 to 16,777,216"),
        ("optimizer.grad_accum_steps", 5, "config.batch_size is 32: it must divide into 5 microbatches"),
        ("optimizer.freeze", ("(",), "config.optimizer.freeze: '(' is no regular expression"),
        (
            "optimizer.lr_multipliers",
            ("bias",),
            "config.optimizer.lr_multipliers: 'bias' is not PATTERN=FACTOR or PATTERN=FIRST..LAST",
        ),
        ("optimizer.lr_multipliers", ("bias=0",), "config.optimizer.lr_multipliers: 'bias=0' is not PATTERN=FACTOR"),
        (
            "optimizer.lr_multipliers",
            ("bias=1..nan",),
            "config.optimizer.lr_multipliers: 'bias=1..nan' is not PATTERN=FACTOR",
        ),
        ("optimizer.lr_multipliers", ("(=2",), "config.optimizer.lr_multipliers: '(' is no regular expression"),
        ("optimizer.freeze", (1,), "config.optimizer.freeze is (1,): in it is 1: expected text"),
        (
            "mesh.rules",
            ("a=-", ("b", "fsdp")),
            "config.mesh.rules is ('a=-', ('b', 'fsdp')): in it is ('b', 'fsdp'): expected text",
        ),
        (
            "log.hang_seconds",
            -1.0,
            "config.log.hang_seconds is -1.0: expected from 0 to 31,536,000, the seconds of a year",
        ),
        ("profile.steps", "10", "config.profile.steps is '10': expected FIRST:LAST, both from 1 to config.steps=1000"),
        ("profile.steps", "0:3", "config.profile.steps is '0:3': expected FIRST:LAST"),
        ("profile.steps", "15:10", "config.profile.steps is '15:10': expected FIRST:LAST"),
        ("profile.steps", "10:1001", "config.profile.steps is '10:1001': expected FIRST:LAST"),
    ],
)
def test_values_that_make_no_sense(name, value, message):
    config = next(found for found in map(gmlp_config.default, tasks.TASKS) if name in gmlp_config.keys(found))
    config.update_from_flattened_dict({name: value})
    with pytest.raises(ConfigError) as caught:
        gmlp_config.validate(config)
    assert str(caught.value).startswith(message)


def test_options_that_contradict_each_other():
    """They are told before any data is read."""
    config = gmlp_config.default("masked_lm", "transformer")
    config.model.heads = 5
    with pytest.raises(ConfigError, match="^config.model.d_model is 128: model.heads, 5, must divide it$"):
        gmlp_config.validate(config)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "optimizer.batch_size",
            "is given 'batch_size' has no such key: set config.batch_size or config.eval.batch_size",
        ),
        ("model.heads", "this task and block have no model.heads, which others have: choose them with config.default"),
    ],
)
def test_a_config_file_that_sets_a_key_in_a_wrong_place(tmp_path, name, message):
    (tmp_path / "x.py").write_text(
        "from gmlp_flax import config\n\ndef get_config(arg=''):\n    c = config.default()\n"
        f"    c.{name} = 3\n    return c\n"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        gmlp_config.from_file(str(tmp_path / "x.py"))


def test_config_without_all_keys():
    import ml_collections

    with pytest.raises(ConfigError, match="the config has no task: begin with gmlp_flax.config.default()"):
        gmlp_config.validate(ml_collections.ConfigDict({"steps": 3}))


@pytest.mark.smoke
def test_json_round_trip(tmp_path):
    config = gmlp_config.default("image_classification")
    config.model.image_size, config.optimizer.freeze, config.model.spatial_init_std = (16, 32), ("a", "b"), 1e-7
    path = tmp_path / "config.json"
    path.write_text(gmlp_config.to_json(config))
    again = gmlp_config.load(str(path))
    assert again.to_dict() == config.to_dict()
    assert gmlp_config.to_json(again) == path.read_text()
    assert again.is_locked


def test_json_takes_defaults_for_keys_that_are_left_out(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"steps": 7, "model": {"layers": 3}}))
    config = gmlp_config.load(str(path))
    assert (config.steps, config.model.layers, config.model.d_ffn) == (7, 3, gmlp_config.default().model.d_ffn)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"modle": {"layers": 3}}', "there is no config key 'modle.layers'; did you mean 'model.layers'?"),
        ('{"model": {"layrs": 3}}', "there is no config key 'model.layrs'; did you mean 'model.layers'?"),
        ('{"model": 3}', "model is a group of keys"),
        ('{"steps": {"a": 1}}', "there is no config key 'steps.a'"),
        ('{"model": {"layers": "3"}}', "config.model.layers is '3': expected a whole number"),
        ('{"model": ', ": not JSON (line 1: Expecting value)"),
        ("[1]", "holds a list: expected a dict"),
        ('{"task": null}', "task None is no name"),
        ('{"model": {"block": ["gmlp"]}}', "model.block ['gmlp'] is no name"),
        ('{"model": {"d_model": 0}}', "config.model.d_model is 0: expected from 1 to 1,048,576"),
        ('{"model": {"d_model": null}}', "config.model.d_model is None: expected a whole number"),
        ('{"optimizer": {"freeze": null}}', "config.optimizer.freeze is None: expected a tuple"),
        ('{"optimizer": {"freeze": 3}}', "config.optimizer.freeze is 3: expected a tuple"),
        ('{"seed": NaN, "batch_size": 1e999}', "config.seed is nan: expected a whole number"),
        ('{"batch_size": 1e999}', "config.batch_size is inf: expected a whole number"),
        ('{"optimizer": {"learning_rate": 1e999}}', "config.optimizer.learning_rate is inf: expected a finite number"),
        ('{"log": {"hang_seconds": 1e30}}', "config.log.hang_seconds is 1e+30: expected from 0 to 31,536,000"),
        ('{"seed": 9223372036854775807}', "config.seed is 9223372036854775807: expected at most 2,147,483,647"),
        ('{"seed": %s}' % ("9" * 6000), ": not JSON (a number of 6,000 digits)"),
        (
            '{"model": {"vocab_size": 2147483648}}',
            "config.model.vocab_size is 2147483648: expected from 1 to 16,777,216",
        ),
        ('{"eval": {"batch_size": 1000000000}}', "config.eval.batch_size is 1000000000: expected from 0 to 1,048,576"),
        (
            r'{"data": {"train": "a\u0000b"}}',
            r"config.data.train is 'a\x00b': expected text without a zero byte or a lone",
        ),
        (
            r'{"data": {"train": "\ud800"}}',
            r"config.data.train is '\ud800': expected text without a zero byte or a lone",
        ),
        ('{"steps": ' + "[" * 40 + "]" * 40 + "}", "nested more than 32 deep"),
        ("[" * 100_000, ": not JSON ("),
    ],
)
def test_bad_json(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        gmlp_config.load(str(path))
    assert str(path) in str(caught.value) and message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoded", ["{}".encode("utf-16"), b'{"init_from": "\xff"}', b""])
def test_json_that_is_not_utf8(tmp_path, encoded):
    path = tmp_path / "config.json"
    path.write_bytes(encoded)
    with pytest.raises(ConfigError, match=f"cannot read the config: {path}: not JSON"):
        gmlp_config.load(str(path))


def test_missing_json(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the config: reading .*none.json failed .No such file"):
        gmlp_config.load(str(tmp_path / "none.json"))


def test_help_holds_every_key_of_every_task_and_block():
    text = gmlp_config.help_text()
    lines = text.splitlines()
    for task, block in KINDS:
        for name, option in schema.keys(task, block).items():
            start, end = f"config.{name} = {option.default!r} ", f"# {option.comment}"
            assert any(line.startswith(start) and end in line for line in lines), name
    first = lines.index("config.model.block=transformer:")
    assert any("config.model.heads" in line for line in lines[first : first + 8])
    assert not any("config.model.heads" in line for line in lines[:first])


def test_help_of_a_config_holds_its_keys_alone():
    text = gmlp_config.help_text(gmlp_config.default("masked_lm", "mixer"))
    assert "config.model.d_spatial" in text and "config.model.heads" not in text and "config.augment" not in text


def test_help_of_a_config_holds_its_values():
    text = gmlp_config.help_text(gmlp_config.from_file("quickstart_text"))
    assert (
        "config.steps = 500 " in text and "config.model.length = 64 " in text and "config.task = 'masked_lm' " in text
    )


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
    ("arg", "message"),
    [
        ("", "the config's argument is '': expected one of sgu, mixer"),
        ("qqqq", "the config's argument is 'qqqq': expected one of sgu, mixer"),
        ("mixr", "the config's argument is 'mixr'; did you mean 'mixer'?"),
        ("Mixer,scale=gpu", "the config's argument is 'Mixer'; did you mean 'mixer'?"),
        ("sgu ,scale=gpu", "the config's argument is 'sgu '; did you mean 'sgu'?"),
        ("scale=gpu", "the config's argument is 'scale=gpu': expected one of sgu, mixer"),
        ("sgu,", "the config's argument has '': expected scale=..., length=..."),
        ("sgu,gpu", "the config's argument has 'gpu': expected scale=..., length=..."),
        ("sgu,scal=gpu", "the config's argument has 'scal=gpu': expected scale=..., length=..."),
        ("sgu, scale=gpu", "the config's argument has ' scale=gpu': expected scale=..., length=..."),
        ("sgu,scale", "the config's argument has 'scale': scale is one of paper, small, gpu"),
        ("sgu,scale=", "the config's argument has 'scale=': scale is one of paper, small, gpu"),
        ("sgu,scale= gpu", "the config's argument has 'scale= gpu': scale is one of paper, small, gpu"),
        ("sgu,scale=gpu=gpu", "the config's argument has 'scale=gpu=gpu': scale is one of paper, small, gpu"),
        ("sgu,length=256", "the config's argument has 'length=256': length is one of 128, 512"),
        ("sgu,scale=gpu,scale=gpu", "the config's argument has scale=... more than once: give it once"),
        ("sgu,scale=gpu,length=128,scale=small", "the config's argument has scale=... more than once: give it once"),
    ],
)
def test_arguments_that_are_wrong(arg, message):
    with pytest.raises(ConfigError) as caught:
        gmlp_config.arguments(arg, ("sgu", "mixer"), **SCALES)
    assert str(caught.value) == message


def test_nothing_may_follow_if_there_are_no_options():
    assert gmlp_config.arguments("sgu", ("sgu",)) == ("sgu",)
    with pytest.raises(ConfigError, match="the config's argument has 'scale=gpu': expected nothing after the name$"):
        gmlp_config.arguments("sgu,scale=gpu", ("sgu",))


words = st.text(st.characters(exclude_characters=",="), min_size=1, max_size=6)
options_and_values = st.dictionaries(
    words.filter(lambda word: word not in ("arg", "names")),
    st.lists(words, min_size=1, max_size=4, unique=True),
    max_size=4,
)


@given(st.lists(words, min_size=1, max_size=5), options_and_values, st.data())
@settings(deadline=None, max_examples=50)
def test_any_order_of_some_of_the_options(names, options, data):
    """Values come in the order that the config file states, defaults among them."""
    name = data.draw(st.sampled_from(names))
    some = data.draw(st.lists(st.sampled_from(sorted(options)), unique=True)) if options else []
    given_values = {option: data.draw(st.sampled_from(options[option])) for option in some}
    arg = ",".join([name, *(f"{option}={value}" for option, value in given_values.items())])
    expected = (name, *({option: values[0] for option, values in options.items()} | given_values).values())
    assert gmlp_config.arguments(arg, names, **options) == expected


@given(st.lists(st.sampled_from(["sgu", "mixer", "scale", "length", "gpu", "512", "=", ",", " ", "x\n"]), max_size=12))
def test_any_text_is_read_or_named_in_one_line(parts):
    """What is accepted reads back as it was given; what is not is quoted in one line."""
    arg = "".join(parts)
    try:
        name, scale, length = gmlp_config.arguments(arg, ("sgu", "mixer"), **SCALES)
    except ConfigError as error:
        message = str(error)
        assert "\n" not in message and message.startswith("the config's argument ")
        assert "more than once" in message or any(f"{word!r}" in message for word in arg.split(","))
        return
    first, *rest = arg.split(",")
    assert first == name and len(rest) == len({word.partition("=")[0] for word in rest})
    assert set(rest) <= {f"scale={scale}", f"length={length}"}


MINE = "from gmlp_flax import config\n\ndef get_config():\n    mine = config.default()\n    mine.steps = 7\n    return mine\n"


@pytest.mark.parametrize("folder", [".", "configs"])
def test_a_name_is_also_looked_for_in_the_users_own_folder(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    os.makedirs(folder, exist_ok=True)
    Path(folder, "mine.py").write_text(MINE)
    assert gmlp_config.open_config("mine").steps == 7
    with pytest.raises(ConfigError, match="^there is no config file quickstart_tex; did you mean 'quickstart_text'"):
        gmlp_config.open_config("quickstart_tex")


@pytest.mark.parametrize("kind, name", [("config", "own_text"), ("sweep", "paper")])
def test_a_name_that_two_places_hold_is_refused(tmp_path, monkeypatch, kind, name):
    packaged = gmlp_config.locate(f"gmlp_flax.configs.{name}", kind)
    monkeypatch.chdir(tmp_path)
    own = Path("configs", *["sweeps"] * (kind == "sweep"), f"{name}.py")
    own.parent.mkdir(parents=True)
    own.write_text(Path(packaged).read_text())
    assert gmlp_config.locate(name, kind) == str(own), "the same file twice, as in a checkout, is no contradiction"
    own.write_text(MINE)
    with pytest.raises(ConfigError) as told:
        gmlp_config.locate(name, kind)
    assert str(told.value) == (
        f"two places hold a {kind} {name}, {own} and {packaged}: give --{kind}={own}, or "
        f"--{kind}=gmlp_flax.configs.{name} for the one that comes with gmlp_flax"
    )
    assert gmlp_config.locate(str(own), kind) == str(own)
    assert gmlp_config.locate(f"gmlp_flax.configs.{name}", kind) == packaged
