"""Configs: defaults of the schema, load, validate, did-you-mean.

A config file is Python with `get_config(arg="")` that returns `config.default()` with some keys set. This module is
itself such a file for the `config.json` that each run writes: `--config=RUN/config.json` reads it back.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import runpy
from collections.abc import Iterator, Sequence

import ml_collections

from gmlp_flax.schema import RANGES, SCHEMA, Key


class ConfigError(ValueError):
    """A config or a command line that cannot be run; the message is one line that says what to do."""


def keys() -> Iterator[tuple[str, Key]]:
    """Every dotted name with its key."""
    for name, entry in SCHEMA.items():
        if isinstance(entry, Key):
            yield name, entry
        else:
            for inner, key in entry.items():
                yield f"{name}.{inner}", key


def default() -> ml_collections.ConfigDict:
    """A config with every key at its default; a key that does not exist cannot be set on it."""
    config = ml_collections.ConfigDict(
        {
            name: entry.default if isinstance(entry, Key) else {inner: key.default for inner, key in entry.items()}
            for name, entry in SCHEMA.items()
        }
    )
    return config.lock()


def help_text() -> str:
    """The schema for reading: `name = default  # comment`, a line each."""
    lines = []
    for name, key in keys():
        choices = f" ({', '.join(map(str, key.choices))})" if key.choices else ""
        lines.append(f"{f'config.{name} = {key.default!r}':<46}  # {key.comment}{choices}")
    return "\n".join(lines)


def check_name(name: str, where: str) -> None:
    """Refuses a dotted name that the schema does not hold.

    Raises:
        ConfigError: naming it and the nearest valid one.
    """
    names = [known for known, _ in keys()]
    if name in names:
        return
    if name in SCHEMA:
        raise ConfigError(f"{where}: {name} is a group of keys; set one of {', '.join(SCHEMA[name])}")
    raise ConfigError(f"{where}: there is no config key {name!r}{nearest(name, names)}")


def nearest(name: str, names: list[str]) -> str:
    """A question that names the most similar of `names`, by the whole or by its last part; empty if none is."""
    last = {known.rpartition(".")[2]: known for known in reversed(names)}
    close = difflib.get_close_matches(name, names, 1, 0.7)
    close = close or [last[hit] for hit in difflib.get_close_matches(name.rpartition(".")[2], list(last), 1, 0.6)]
    close = close or difflib.get_close_matches(name, names, 1, 0.4)
    return f"; did you mean {close[0]!r}?" if close else "; --help_config lists them all"


def check_overrides(argv: list[str]) -> None:
    """Checks, before absl parses a command line, all names in `--config.a.b` and that a config stands before them.

    Raises:
        ConfigError: a name is unknown, or there is nothing yet that it could change.
    """
    known = False
    for argument in argv:
        known = known or bool(re.match(r"--?config(=|$)", argument))
        if match := re.match(r"--?config\.([^=]+)", argument):
            check_name(match[1], argument)
            if not known:
                raise ConfigError(f"{argument} changes no config yet: give --config=FILE:ARGUMENT before it")


def in_words(error: Exception) -> str:
    """What an error says; of a flag's value that Python cannot convert, what was expected in its place."""
    message = str(error)
    for refusal, expected in (
        (r"invalid literal for int\(\)", "a whole number"), ("could not convert string to float", "a number"),
        (r"\('Non-boolean argument to boolean flag'", "true or false"),
    ):
        message = re.sub(refusal + ".*", f"expected {expected}", message)
    return message


def explain(error: Exception, where: str) -> ConfigError:
    """One line for an exception that came out of evaluating a config file or an override."""
    message = " ".join(str(error).split())
    if isinstance(error, ConfigError):
        return ConfigError(f"{where}: {message}")
    if missing := re.search(r'Key "([^"]+)" does not exist', message):
        known = [name for name, _ in keys()]
        return ConfigError(f"{where}: there is no config key {missing[1]!r}{nearest(missing[1], known)}")
    return ConfigError(f"{where}: {type(error).__name__}: {message}")


def validate(config: ml_collections.ConfigDict) -> None:
    """Checks values against the schema, before any data is read.

    Raises:
        ConfigError: the first value that makes no sense.
    """
    for name, key in keys():
        try:
            value = config[name]
        except (KeyError, TypeError):
            raise ConfigError(f"the config has no {name}: begin with gmlp_flax.config.default()") from None
        if key.choices and value not in key.choices:
            raise ConfigError(f"config.{name} is {value!r}: expected one of {', '.join(map(str, key.choices))}")
    for range_ in RANGES:
        for name in range_.names:
            if not range_.least <= config[name] <= range_.most:  # A NaN is in no range.
                raise ConfigError(f"config.{name} is {config[name]}: expected {range_.words}")
    for name, kinds, least in (
        ("model.image_size", int, 1), ("model.patch_size", int, 1),
        ("data.mean", (int, float), -math.inf), ("data.std", (int, float), 1e-6),
    ):
        value, usual = tuple(config[name]), dict(keys())[name].default
        if len(value) != len(usual) or not all(isinstance(x, kinds) and x >= least for x in value):
            example = ",".join(map(str, usual))
            expected = f"{len(usual)} numbers, as in --config.{name}={example}"
            raise ConfigError(f"config.{name} is {value}: expected {expected}")
    if config.masking.mask_share + config.masking.random_share > 1:
        raise ConfigError("config.masking.mask_share and random_share add up to more than 1")
    if config.batch_size % config.optimizer.accumulate:
        raise ConfigError(
            f"config.batch_size is {config.batch_size}: it must divide into {config.optimizer.accumulate} microbatches "
            "(config.optimizer.accumulate)"
        )
    if (config.augment.mixup or config.augment.cutmix) and config.batch_size // config.optimizer.accumulate % 2:
        raise ConfigError(
            f"config.batch_size is {config.batch_size}: mixup and CutMix mix pairs, so a microbatch (batch_size / "
            "optimizer.accumulate) must be even"
        )
    profiled_steps(config)
    for name in ("optimizer.freeze", "mesh.rules"):
        if strange := [value for value in config[name] if not isinstance(value, str)]:
            raise ConfigError(f"config.{name} has {strange[0]!r}: expected strings, as in --config.{name}=\"('...',)\"")
    for pattern in config.optimizer.freeze:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"config.optimizer.freeze: {pattern!r} is no regular expression ({error})") from None


def profiled_steps(config: ml_collections.ConfigDict) -> range:
    """The steps that `config.profile.steps` asks a trace of.

    Raises:
        ConfigError: it is not FIRST:LAST, or there are no such steps.
    """
    text = config.profile.steps
    if not text:
        return range(0)
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]) <= config.steps:
        expected = f"FIRST:LAST, both from 1 to config.steps={config.steps}"
        raise ConfigError(f"config.profile.steps is {text!r}: expected {expected}")
    return range(int(match[1]), int(match[2]) + 1)


def to_json(config: ml_collections.ConfigDict) -> str:
    """The full resolved config, as it is written to the run folder."""
    return json.dumps(config.to_dict(), indent=2) + "\n"


def from_dict(values: dict, where: str) -> ml_collections.ConfigDict:
    """A config from nested values, as `to_json` writes them; keys that are left out take their defaults.

    Raises:
        ConfigError: a key is unknown or a value has another type.
    """
    config = default()
    flat = {
        f"{group}.{name}" if isinstance(entry, dict) else group: value
        for group, entry in values.items()
        for name, value in (entry.items() if isinstance(entry, dict) else [("", entry)])
    }
    known = dict(keys())
    for name, value in flat.items():
        check_name(name, where)
        value = tuple(value) if isinstance(known[name].default, tuple) else value
        try:
            group, _, last = name.rpartition(".")
            setattr(config[group] if group else config, last, value)
        except (TypeError, ValueError) as error:
            raise explain(error, where) from None
    return config


def load(path: str) -> ml_collections.ConfigDict:
    """Reads a run's config.json.

    Raises:
        ConfigError: the file is missing, is not JSON, or holds an unknown key.
    """
    try:
        with open(path) as file:
            values = json.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the config {path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON (line {error.lineno}: {error.msg})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a {type(values).__name__}, not the config of a run")
    return from_dict(values, path)


def from_file(path: str, arg: str = "") -> ml_collections.ConfigDict:
    """Evaluates a config file as `--config=path:arg` does."""
    return runpy.run_path(path)["get_config"](arg)


def arguments(arg: str, names: Sequence[str], **options: Sequence[str]) -> tuple[str, ...]:
    """Splits a config file's argument, NAME or NAME,option=value,..., into the name and the options' values.

    Args:
        arg: what follows the colon in --config=FILE:ARG.
        names: the names that may stand first.
        options: the values that each option may take; the first is its default.

    Raises:
        ConfigError: a name, an option or a value is unknown, or an option is given twice.
    """
    name, *rest = arg.split(",")
    if name not in names:
        raise ConfigError(f"the config's argument is {name!r}{_among(name, names)}")
    chosen = {option: values[0] for option, values in options.items()}
    for word in rest:
        option, _, value = word.partition("=")
        if option not in options:
            expected = ", ".join(f"{known}=..." for known in options) or "nothing after the name"
            raise ConfigError(f"the config's argument has {word!r}: expected {expected}")
        if value not in options[option]:
            raise ConfigError(f"the config's argument has {word!r}: {option} is one of {', '.join(options[option])}")
        if [other.partition("=")[0] for other in rest].count(option) > 1:
            raise ConfigError(f"the config's argument has {option}=... more than once: give it once")
        chosen[option] = value
    return name, *chosen.values()


def _among(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {close[0]!r}?" if close else f": expected one of {', '.join(names)}"


get_config = load  # This module, as a config file whose argument is the path of a config.json.
