"""Overrides: keys of a config that a command line or a sweep sets, their values as text."""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
from absl import flags
from ml_collections import config_flags

from gmlp_flax.config.schema import BLOCK, TASK, changed, flat, keys
from gmlp_flax.config.validation import check_name, explain, validate, warmup_problem
from gmlp_flax.errors import ConfigError


def named_overrides(argv: Sequence[str]) -> dict[str, str]:
    """What a command line's words --config.KEY=VALUE, or --config.KEY VALUE, name, with their values as text."""
    found = {}
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        if match := re.match(r"--?config\.([^=]*)(?:=(.*))?$", word, re.DOTALL):
            found[match[1]] = following if match[2] is None else match[2]
    return found


def applying(config: ml_collections.ConfigDict, values: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides whose keys a config has."""
    known = keys(config)
    return {name: value for name, value in values.items() if name in known}


def _change_task_and_block(config: ml_collections.ConfigDict, values: Mapping[str, Any]) -> ml_collections.ConfigDict:
    """A config with the task and block that some overrides name, whose keys are checked; nothing else is set yet."""
    task, block = str(values.get(TASK, config.task)), str(values.get(BLOCK, config.model.block))
    new = config if (task, block) == (config.task, config.model.block) else changed(config, task, block)
    for name in values:
        check_name(name, f"--config.{name}={values[name]}", new)
    values, old, kept = flat(config), keys(config), keys(new)
    lost = [f"{name}={values[name]!r}" for name in old if name not in kept and values[name] != old[name].default]
    if lost:
        print(f"note: {task} with {block} has no such keys, which the config sets: {', '.join(lost)}", file=sys.stderr)
    return new


def apply(config: ml_collections.ConfigDict, words: Sequence[str]) -> tuple[ml_collections.ConfigDict, list[str]]:
    """A copy with the overrides of a command line applied; and the words of the command line that are something else.

    Args:
        config: the config.
        words: the command line, of which the first is the program's name.

    Raises ConfigError: there is no such key, or a value has another type than its key.
    """
    words = ["--config.mesh.auto=True" if re.fullmatch("--?config.mesh=auto", word) else word for word in words]
    named = named_overrides(words)
    start = _change_task_and_block(config, named).copy_and_resolve_references()
    parser = flags.FlagValues()
    parser.set_gnu_getopt(True)
    config_flags.DEFINE_config_dict("config", start, flag_values=parser, sys_argv=list(words))
    try:
        left = parser(words, known_only=True)
    except flags.Error as error:
        raise ConfigError(str(error)) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # what ml_collections raises for a value
        raise explain(error, "the command line") from None
    new: ml_collections.ConfigDict = parser["config"].value  # type: ignore[assignment] - parsed, so not None
    if "optimizer.warmup" in named and (problem := warmup_problem(new)):
        raise ConfigError(problem)
    return new, left


def overridden(config: ml_collections.ConfigDict, values: Mapping[str, Any]) -> ml_collections.ConfigDict:
    """A copy with some keys set, whose values may be text.

    Raises ConfigError: there is no such key, a value has another type than its key, or makes no sense.
    """
    new, _ = apply(config, ["config", *(f"--config.{name}={value}" for name, value in values.items())])
    validate(new)
    return new
