"""Validation of configs: their keys, the values, and values that contradict each other."""

import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import ml_collections
from flax.traverse_util import flatten_dict

from gmlp_flax import tasks
from gmlp_flax.config.optimizers import check as check_optimizer
from gmlp_flax.config.schema import BLOCK, TASK, all_keys, former_names, keys
from gmlp_flax.errors import ConfigError, did_you_mean
from gmlp_flax.models import blocks
from gmlp_flax.models.blocks import trial
from gmlp_flax.models.blocks.causality import looks_ahead
from gmlp_flax.models.sharding import DATA, FSDP, TENSOR
from gmlp_flax.options import Option


def check_name(name: str, where: str, config: ml_collections.ConfigDict | None = None) -> None:
    """Refuses a dotted name that a config does not have.

    Args:
        name: the name.
        where: the source of the name, for the message.
        config: the config; None if the name may belong to any task or block.

    Raises ConfigError: the message has the nearest valid name, or the new name of an old one, or
        says that the task and block do not have it.
    """
    known = all_keys() if config is None else keys(config)
    if name in known:
        return
    renamed = former_names(known)
    inside = [key for key in known if key.startswith(f"{name}.")]
    if name in renamed:
        reason = f"{name} is now called {renamed[name]}"
    elif inside:
        reason = f"{name} is a group of keys; set one of {', '.join(inside)}"
    elif config is not None and name in all_keys():
        kinds = f"{config.task} with {config.model.block}"
        reason = f"{kinds} has no {name}: --help_config lists those that have it"
    else:
        reason = _unknown(name, known)
    raise ConfigError(f"{where}: {reason}")


def _unknown(name: str, known: Mapping[str, Option]) -> str:
    meant = name
    last_part = _last_part(name)
    for key, option in known.items():
        if last_part in (option.short, *option.aliases):
            meant = key
    advice = did_you_mean(meant, known, "--help_config lists them all")
    return f"there is no config key {name!r}; {advice}"


def _last_part(name: str) -> str:
    """The part of a dotted name after the last dot."""
    _, _, last = name.rpartition(".")
    return last


def explain(error: Exception, where: str) -> ConfigError:
    """One line for an exception that was raised by evaluating a config file or an override."""
    message = " ".join(str(error).split())
    if isinstance(error, ConfigError):
        return ConfigError(f"{where}: {message}")
    match = re.search(r'Key "(?P<key>[^"]+)" does not exist', message)
    if not match:
        return ConfigError(f"{where}: {type(error).__name__}: {message}")
    missing = match["key"]
    known = all_keys()
    renamed = former_names(known)
    names = [name for name in (*known, *renamed) if _last_part(name) == missing]
    if not names:
        return ConfigError(f"{where}: {_unknown(missing, known)}")
    meant = " or ".join(f"config.{renamed.get(name, name)}" for name in names)
    advice = "keys of another task or block need config.default(task=..., block=...)"
    return ConfigError(f"{where}: there is no {missing!r} there: set {meant}; {advice}")


def validate(config: ml_collections.ConfigDict) -> None:
    """Checks the keys, their values, and whether they contradict each other, before any data is
    read.

    Raises ConfigError: as `check_values`, or two keys contradict each other; it names the first
        problem.
    """
    check_values(config)
    batch_size = config.batch_size
    microbatches = config.optimizer.grad_accum_steps
    if batch_size % microbatches:
        divisor = f"config.optimizer.grad_accum_steps={microbatches}"
        raise ConfigError(f"config.batch_size is {batch_size}: {divisor} must divide it")
    profile_steps(config.profile.steps, config.steps)
    mesh_rules(config.mesh.rules)
    lr_multipliers(config.optimizer.lr_multipliers)
    for pattern in config.optimizer.freeze:
        check_pattern(pattern, "optimizer.freeze")
    check_optimizer(config.optimizer)
    task = tasks.find(config.task)
    task.check(config)
    try:
        spec = task(config).spec()
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"config.{error}") from None
    require_callable(config.model.block, spec)


def check_values(config: ml_collections.ConfigDict) -> None:
    """Checks that a config has all keys, and no others, and that each value is valid by itself.

    Raises ConfigError: a key is missing or unknown, or a value is invalid; it names the first one.
    """
    values: dict[str, Any] = flatten_dict(config.to_dict(), sep=".")
    advice = "start from gmlp_flax.config.default()"
    for name in (TASK, BLOCK):
        if not isinstance(values.get(name), str):
            raise ConfigError(f"the config has no {name} that is a name: {advice}")
    known = keys(config)
    for name, option in known.items():
        if name not in values:
            raise ConfigError(f"the config has no {name}, which its task and block have: {advice}")
        problem = option.problem(values[name])
        if problem:
            raise ConfigError(f"config.{name} is {shown(values[name])}: {problem}")
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ConfigError(
            f"the config has {unknown[0]}, which its task and block do not know: {advice}"
        )


def warmup_problem(config: ml_collections.ConfigDict) -> str:
    """The problem of a warmup that is longer than the run; "" if there is none, as with rsqrt, whose
    decay does not depend on the end."""
    warmup = config.optimizer.warmup
    steps = config.steps
    if warmup <= steps or config.optimizer.schedule == "rsqrt":
        return ""
    advice = f"give a tenth of the steps, --config.optimizer.warmup={steps // 10}"
    return (
        f"config.optimizer.warmup is {warmup}, longer than the run, config.steps={steps}; {advice}"
    )


def shown(value: Any) -> str:
    """A value for a message, cut if it is long."""
    text = " ".join(repr(value).split())
    if len(text) <= 200:
        return text
    return f"{text[:200]}..."


AXES = (DATA, FSDP, TENSOR)  # of a mesh, in the order of its devices
Axes = tuple[str | None, ...]


class Rule(NamedTuple):
    """How parameters are split: the mesh axis, or None, of each of the last axes of those whose
    path matches a pattern."""

    pattern: str
    axes: Axes


class Multiplier(NamedTuple):
    """A factor on the learning rate of the parameters whose path matches `pattern`.

    `last` differs from `first` if the factor grows with depth: layer l of L has first^(1 - t)
    last^t, t = l / (L - 1).
    """

    pattern: str
    first: float
    last: float


def check_pattern(pattern: str, key: str) -> None:
    """Raises ConfigError if a pattern of `config.KEY` is not a regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"config.{key}: {pattern!r} is not a regular expression ({error})"
        ) from None


def lr_multipliers(lines: Iterable[str]) -> tuple[Multiplier, ...]:
    """Reads config.optimizer.lr_multipliers, each `PATTERN=FACTOR`, or `PATTERN=FIRST..LAST` for
    stacked layers.

    Raises ConfigError: a line has another form.
    """
    multipliers = []
    for line in lines:
        pattern, _, factors = line.rpartition("=")
        check_pattern(pattern, "optimizer.lr_multipliers")
        first_text, dots, last_text = factors.partition("..")
        first = _factor(first_text)
        last = _factor(last_text) if dots else first
        if not pattern or first is None or last is None:
            raise ConfigError(
                f"config.optimizer.lr_multipliers: {line!r} is not PATTERN=FACTOR or FIRST..LAST "
                "above 0"
            )
        multipliers.append(Multiplier(pattern, first, last))
    return tuple(multipliers)


def _factor(text: str) -> float | None:
    """A text as a positive, finite number; None if it is not one."""
    try:
        factor = float(text)
    except ValueError:
        return None
    if 0 < factor < math.inf:
        return factor
    return None


def mesh_rules(lines: Iterable[str]) -> tuple[Rule, ...]:
    """Reads config.mesh.rules, each `PATTERN=AXIS,AXIS,...` with `-` for an axis that stays whole.

    Raises ConfigError: a line has another form.
    """
    rules = []
    for line in lines:
        pattern, equals, names = line.rpartition("=")
        axes = []
        for name in filter(None, names.split(",")):
            axes.append(None if name == "-" else name)
        check_pattern(pattern, "mesh.rules")
        has_pattern = pattern and equals
        are_axes = {*AXES, None}.issuperset(axes)
        if not has_pattern or not are_axes:
            raise ConfigError(
                f"config.mesh.rules: {line!r} is not PATTERN=AXIS,..., each axis "
                f"{', '.join(AXES)} or -"
            )
        rules.append(Rule(pattern, tuple(axes)))
    return tuple(rules)


def profile_steps(text: str, steps: int) -> range:
    """The steps that config.profile.steps traces, FIRST:LAST or empty for none, in a run of
    `steps`.

    Raises ConfigError: it has another form, or there are no such steps.
    """
    if not text:
        return range(0)
    first = 0
    last = 0
    match = re.fullmatch(r"(?P<first>[0-9]{1,10}):(?P<last>[0-9]{1,10})", text)
    if match:
        first = int(match["first"])
        last = int(match["last"])
    if not 1 <= first <= last <= steps:
        raise ConfigError(
            f"config.profile.steps is {text!r}: expected FIRST:LAST, from 1 to config.steps={steps}"
        )
    return range(first, last + 1)


@functools.cache
def require_callable(name: str, spec: Any, padded: bool = False) -> None:
    """Refuses a user's block that cannot be called as in a run, without computing anything. Each
    block is tried once in a process.

    Args:
        name: of the block, for the message.
        spec: of the blocks of the model.
        padded: whether the run has padding.

    Raises:
        ConfigError: what the block does wrong.
    """
    if spec.block in blocks.BLOCKS.values():
        return
    problem = trial.problem_of_calls(spec, padded)
    if problem:
        raise ConfigError(f"{name} {problem}")


@functools.cache
def require_finite(name: str, spec: Any) -> None:
    """Refuses a user's block whose outputs or gradients are NaN or infinite before any training, as
    `require_callable` does."""
    if spec.block in blocks.BLOCKS.values():
        return
    problem = trial.problem_of_values(spec)
    if problem:
        raise ConfigError(f"{name} {problem}")


def require_causal(name: str, spec: Any) -> None:
    """Refuses a user's block of a causal model if it looks ahead, which a numerical test finds.

    Args:
        name: of the block, for the message.
        spec: of the blocks of the model.

    Raises:
        ConfigError: an output of the block depends on a later token.
    """
    is_ours = spec.block in blocks.BLOCKS.values()
    if not is_ours and looks_ahead(spec):
        raise ConfigError(
            f"config.model.block is {name!r}, whose output at a token depends on later tokens: "
            "correct it, or set its can_be_causal to False"
        )
