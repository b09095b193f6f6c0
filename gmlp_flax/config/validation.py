"""Whether a config makes sense: its keys, their values, and values that contradict each other."""

from __future__ import annotations

import re
from typing import Any

import ml_collections

from gmlp_flax import tasks
from gmlp_flax.config.optimizers import OPTIMIZERS
from gmlp_flax.config.parsing import check_pattern, lr_multipliers, mesh_rules, profile_steps
from gmlp_flax.config.schema import BLOCK, COMMON, RENAMED, TASK, all_keys, keys, owners
from gmlp_flax.errors import ConfigError, did_you_mean


def check_name(name: str, where: str, config: ml_collections.ConfigDict | None = None) -> None:
    """Refuses a dotted name that a config does not have.

    Args:
        name: the name.
        where: what named it, for the message.
        config: the config; None if the name may belong to any task or block.

    Raises:
        ConfigError: it names the nearest valid name, the new name of an old one, or the blocks or tasks that have it.
    """
    known = all_keys() if config is None else list(keys(config))
    if name in known:
        return
    if name in RENAMED:
        raise ConfigError(f"{where}: {name} is now called {RENAMED[name]}")
    if inside := [key for key in known if key.startswith(f"{name}.")]:
        raise ConfigError(f"{where}: {name} is a group of keys; set one of {', '.join(inside)}")
    if config is not None and (having := owners(name)):
        kind, names = next(iter(having.items()))
        raise ConfigError(
            f"{where}: config.{kind} is {config[kind]!r}, which has no {name}: it is an option of {', '.join(names)}"
        )
    raise ConfigError(f"{where}: {_unknown(name, known)}")


def _unknown(name: str, known: list[str]) -> str:
    return f"there is no config key {name!r}; {did_you_mean(name, known, '--help_config lists them all')}"


def explain(error: Exception, where: str) -> ConfigError:
    """One line for an exception that came out of evaluating a config file or an override."""
    message = " ".join(str(error).split())
    if isinstance(error, ConfigError):
        return ConfigError(f"{where}: {message}")
    missing = re.search(r'Key "([^"]+)" does not exist', message)
    if not missing:
        return ConfigError(f"{where}: {type(error).__name__}: {message}")
    known, last = all_keys(), missing[1]
    named = [name for name in known if name.rpartition(".")[2] == last]
    if new := [new for old, new in RENAMED.items() if old.rpartition(".")[2] == last]:
        return ConfigError(f"{where}: {last!r} is now called: config.{new[0]}")
    if any(name in COMMON for name in named):
        meant = " or ".join(f"config.{name}" for name in named)
        return ConfigError(f"{where}: the group that is given {last!r} has no such key: set {meant}")
    if named:
        advice = "which others have: choose them with config.default(task=..., block=...)"
        return ConfigError(f"{where}: this task and block have no {' or '.join(named)}, {advice}")
    return ConfigError(f"{where}: {_unknown(last, known)}")


def validate(config: ml_collections.ConfigDict) -> None:
    """Checks the keys and their values, before any data is read.

    Raises:
        ConfigError: a key is missing or unknown, or a value makes no sense; it names the first one.
    """
    for name in (TASK, BLOCK):
        if not isinstance(kind := _value(config, name, "begin with gmlp_flax.config.default()"), str):
            raise ConfigError(f"config.{name} is {kind!r}: expected a name")
    _check_keys(config)
    optimizer, steps = config.optimizer, config.steps
    if config.batch_size % optimizer.grad_accum_steps:
        raise ConfigError(
            f"config.batch_size is {config.batch_size}: it must divide into {optimizer.grad_accum_steps} microbatches "
            "(config.optimizer.grad_accum_steps)"
        )
    profile_steps(config.profile.steps, steps)
    mesh_rules(config.mesh.rules)
    lr_multipliers(optimizer.lr_multipliers)
    for pattern in optimizer.freeze:
        check_pattern(pattern, "optimizer.freeze")
    for owner, row in OPTIMIZERS.items():
        changed = [name for name, option in row.options.items() if optimizer[name] != option.default]
        if changed and owner != optimizer.name:
            raise ConfigError(
                f"config.optimizer.{changed[0]} is {optimizer[changed[0]]!r}: config.optimizer.name is "
                f"{optimizer.name!r}, which does not have it; {owner} has"
            )
    task = tasks.find(config.task)
    task.check(config)
    try:
        task.without_data(config).spec()
    except ValueError as error:
        raise error if isinstance(error, ConfigError) else ConfigError(f"config.{error}") from None


def _check_keys(config: ml_collections.ConfigDict) -> None:
    """Checks that a config has exactly the keys of its task and block, with values that they may have."""
    known = keys(config)
    begin = f"begin with gmlp_flax.config.default(task={config.task!r}, block={config.model.block!r})"
    for name, option in known.items():
        value = _value(config, name, begin)
        if problem := option.problem(value):
            raise ConfigError(f"config.{name} is {shown(value)}: {problem}")
    for group, value in config.items():
        names = [f"{group}.{name}" for name in value] if isinstance(value, ml_collections.ConfigDict) else [group]
        if strange := [name for name in names if name not in known]:
            raise ConfigError(f"the config has {strange[0]}, which its task and block do not know: {begin}")


def _value(config: ml_collections.ConfigDict, name: str, advice: str) -> Any:
    try:
        return config[name]
    except (AttributeError, KeyError, TypeError):
        raise ConfigError(f"the config has no {name}: {advice}") from None


def shown(value: Any) -> str:
    """A value for a message, cut if it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
