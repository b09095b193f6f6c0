"""Whether a config makes sense: its keys, their values, and values that contradict each other."""

import re
from typing import Any

import ml_collections
from flax.traverse_util import flatten_dict

from gmlp_flax import tasks
from gmlp_flax.config.optimizers import check as check_optimizer
from gmlp_flax.config.parsing import check_pattern, lr_multipliers, mesh_rules, profile_steps
from gmlp_flax.config.schema import BLOCK, RENAMED, SHORT, TASK, all_keys, keys, owners
from gmlp_flax.errors import ConfigError, did_you_mean


def check_name(name: str, where: str, config: ml_collections.ConfigDict | None = None) -> None:
    """Refuses a dotted name that a config does not have.

    Args:
        name: the name.
        where: what named it, for the message.
        config: the config; None if the name may belong to any task or block.

    Raises ConfigError: it names the nearest valid name, the new name of an old one, or the blocks or tasks with it.
    """
    known = all_keys() if config is None else list(keys(config))
    if name in known:
        return
    if name in RENAMED:
        reason = f"{name} is now called {RENAMED[name]}"
    elif inside := [key for key in known if key.startswith(f"{name}.")]:
        reason = f"{name} is a group of keys; set one of {', '.join(inside)}"
    elif config is not None and (having := owners(name)):
        kind, names = next(iter(having.items()))
        reason = f"config.{kind} is {config[kind]!r}, which has no {name}: it is an option of {', '.join(names)}"
    else:
        reason = _unknown(name, known)
    raise ConfigError(f"{where}: {reason}")


def _unknown(name: str, known: list[str]) -> str:
    meant = SHORT.get(name.rpartition(".")[2], name)
    return f"there is no config key {name!r}; {did_you_mean(meant, known, '--help_config lists them all')}"


def explain(error: Exception, where: str) -> ConfigError:
    """One line for an exception that came out of evaluating a config file or an override."""
    message = " ".join(str(error).split())
    if isinstance(error, ConfigError):
        return ConfigError(f"{where}: {message}")
    missing = re.search(r'Key "([^"]+)" does not exist', message)
    if not missing:
        return ConfigError(f"{where}: {type(error).__name__}: {message}")
    known, last = all_keys(), missing[1]
    meant = [f"config.{RENAMED.get(name, name)}" for name in (*known, *RENAMED) if name.rpartition(".")[2] == last]
    if not meant:
        return ConfigError(f"{where}: {_unknown(last, known)}")
    advice = "keys of another task or block need config.default(task=..., block=...)"
    return ConfigError(f"{where}: there is no {last!r} there: set {' or '.join(meant)}; {advice}")


def validate(config: ml_collections.ConfigDict) -> None:
    """Checks the keys and their values, before any data is read.

    Raises ConfigError: a key is missing or unknown, or a value makes no sense; it names the first one.
    """
    values: dict[str, Any] = flatten_dict(config.to_dict(), sep=".")
    begin = "begin with gmlp_flax.config.default()"
    for name in (TASK, BLOCK):
        if not isinstance(values.get(name), str):
            raise ConfigError(f"the config has no {name} that is a name: {begin}")
    for name, option in keys(config).items():
        if name not in values:
            raise ConfigError(f"the config has no {name}, which its task and block have: {begin}")
        if problem := option.problem(value := values.pop(name)):
            raise ConfigError(f"config.{name} is {shown(value)}: {problem}")
    if values:
        raise ConfigError(f"the config has {next(iter(values))}, which its task and block do not know: {begin}")
    optimizer, steps, batch = config.optimizer, config.steps, config.batch_size
    if batch % (parts := optimizer.grad_accum_steps):
        raise ConfigError(f"config.batch_size is {batch}: config.optimizer.grad_accum_steps={parts} must divide it")
    profile_steps(config.profile.steps, steps)
    mesh_rules(config.mesh.rules)
    lr_multipliers(optimizer.lr_multipliers)
    for pattern in optimizer.freeze:
        check_pattern(pattern, "optimizer.freeze")
    check_optimizer(optimizer)
    task = tasks.find(config.task)
    task.check(config)
    try:
        task.without_data(config).spec()
    except ValueError as error:
        raise error if isinstance(error, ConfigError) else ConfigError(f"config.{error}") from None


def warmup_problem(config: ml_collections.ConfigDict) -> str:
    """Why a warmup that is longer than the run is wrong; "" for rsqrt as well, whose decay does not look at the end."""
    warmup, steps = config.optimizer.warmup, config.steps
    if warmup <= steps or config.optimizer.schedule == "rsqrt":
        return ""
    advice = f"give a tenth of the steps, --config.optimizer.warmup={steps // 10}"
    return f"config.optimizer.warmup is {warmup}, longer than the run, config.steps={steps}; {advice}"


def shown(value: Any) -> str:
    """A value for a message, cut if it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
