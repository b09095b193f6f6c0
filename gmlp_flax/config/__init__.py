"""Configs: defaults of the schema, load, validate, did-you-mean.

A config file is Python with `get_config(arg="")` that returns `config.default(task=..., block=...)` with some keys set.
`load` reads back the `config.json` that each run writes.
"""

from __future__ import annotations

import difflib
import filecmp
import importlib.resources
import itertools
import json
import os
import re
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections

from gmlp_flax import registry, tasks
from gmlp_flax.config import parsing, schema
from gmlp_flax.config.optimizers import OPTIMIZERS
from gmlp_flax.config.schema import BLOCK, TASK
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.io import json_files
from gmlp_flax.models import blocks
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import Option, options_of

PACKAGED = "gmlp_flax.configs"


def default(task: str = "masked_lm", block: str = "gmlp") -> ml_collections.ConfigDict:
    """A config of a task and a block with every key at its default; no other key can be set on it.

    Raises:
        ConfigError: there is no such task or block.
    """
    values: dict[str, Any] = {}
    for name, option in schema.keys(task, block).items():
        group, _, last = name.rpartition(".")
        (values.setdefault(group, {}) if group else values)[last] = option.default
    values["task"], values["model"]["block"] = task, block
    return ml_collections.ConfigDict(values).lock()


def keys(config: ml_collections.ConfigDict) -> dict[str, Option]:
    """Every dotted name of a config, with its option."""
    return schema.keys(config.task, config.model.block)


def flat(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """The values by dotted name."""
    return {name: config[name] for name in keys(config)}


def differences(one: ml_collections.ConfigDict, other: ml_collections.ConfigDict) -> dict[str, tuple[Any, Any]]:
    """The keys in which two configs differ, with both values; None stands for a key that a config does not have."""
    first, second = flat(one), flat(other)
    names = dict.fromkeys((*first, *second))
    return {name: (first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)}


def changed(config: ml_collections.ConfigDict, task: str = "", block: str = "") -> ml_collections.ConfigDict:
    """A copy with another task or block: keys that both have keep their values, the new ones take their defaults.

    Raises:
        ConfigError: there is no such task or block.
    """
    new = default(task or config.task, block or config.model.block)
    known = keys(new)
    kept = {name: value for name, value in flat(config).items() if name in known and name not in (TASK, BLOCK)}
    new.update_from_flattened_dict(kept)
    return new


def help_text(config: ml_collections.ConfigDict | None = None) -> str:
    """The keys for reading, `name = value  # comment`: of a config, or of every task and block in turn with their defaults."""
    values = {} if config is None else flat(config)

    def lines(title: str, found: Mapping[str, Option]) -> str:
        shown = {name: values.get(name, key.default) for name, key in found.items()}
        listed = (f"{f'config.{name} = {shown[name]!r}':<46}  # {key.meaning}" for name, key in found.items())
        return "\n".join([f"{title}:", *listed])

    if config is not None:
        return lines(f"config.task={config.task}, config.model.block={config.model.block}", keys(config))
    shared = {f"model.{name}": option for name, option in options_of(BlockSpec).items()}
    parts = [lines("every run", schema.COMMON), lines("every block", shared)]
    for name in blocks.BLOCKS:
        own = {key: option for key, option in schema.of_block(name).items() if option != shared.get(key)}
        parts.append(lines(f"config.model.block={name}", own))
    parts += [lines(f"config.task={name}", schema.of_task(name)) for name in tasks.TASKS]
    return "\n\n".join(parts)


def check_name(name: str, where: str, config: ml_collections.ConfigDict | None = None) -> None:
    """Refuses a dotted name that a config does not have.

    Args:
        name: the name.
        where: what named it, for the message.
        config: the config; None if the name may belong to any task or block.

    Raises:
        ConfigError: naming the nearest valid name, or the blocks or tasks that have this one.
    """
    known = _everywhere() if config is None else list(keys(config))
    if name in known:
        return
    if inside := [each for each in known if each.startswith(f"{name}.")]:
        raise ConfigError(f"{where}: {name} is a group of keys; set one of {', '.join(inside)}")
    for own, table, declared in ((BLOCK, blocks.BLOCKS, schema.of_block), (TASK, tasks.TASKS, schema.of_task)):
        having = [each for each in table if name in declared(each)]
        if config is not None and having:
            raise ConfigError(
                f"{where}: config.{own} is {config[own]!r}, which has no {name}: it is an option of {', '.join(having)}"
            )
    raise ConfigError(f"{where}: there is no config key {name!r}{nearest(name, known)}")


def _everywhere() -> list[str]:
    """The names of all keys, of whatever task and block."""
    found = [schema.of_block(each) for each in blocks.BLOCKS] + [schema.of_task(each) for each in tasks.TASKS]
    return list(dict.fromkeys([*schema.COMMON, *itertools.chain(*found)]))


def nearest(name: str, names: list[str]) -> str:
    """A question that names the most similar of `names`, by the whole or by its last part; empty if none is."""
    last = {known.rpartition(".")[2]: known for known in reversed(names)}
    close = difflib.get_close_matches(name, names, 1, 0.7)
    close = close or [last[hit] for hit in difflib.get_close_matches(name.rpartition(".")[2], list(last), 1, 0.6)]
    close = close or difflib.get_close_matches(name, names, 1, 0.4)
    return f"; did you mean {close[0]!r}?" if close else "; --help_config lists them all"


def explain(error: Exception, where: str) -> ConfigError:
    """One line for an exception that came out of evaluating a config file or an override."""
    message = " ".join(str(error).split())
    if isinstance(error, ConfigError):
        return ConfigError(f"{where}: {message}")
    if missing := re.search(r'Key "([^"]+)" does not exist', message):
        known = _everywhere()
        owners = [name for name in known if name.rpartition(".")[2] == missing[1]]
        if any(name in schema.COMMON for name in owners):
            meant = " or ".join(f"config.{name}" for name in owners)
            return ConfigError(f"{where}: the group that is given {missing[1]!r} has no such key: set {meant}")
        if owners:
            advice = "which others have: choose them with config.default(task=..., block=...)"
            return ConfigError(f"{where}: this task and block have no {' or '.join(owners)}, {advice}")
        return ConfigError(f"{where}: there is no config key {missing[1]!r}{nearest(missing[1], known)}")
    return ConfigError(f"{where}: {type(error).__name__}: {message}")


def validate(config: ml_collections.ConfigDict) -> None:
    """Checks the keys and their values, before any data is read.

    Raises:
        ConfigError: a key is missing or unknown, or a value makes no sense; it names the first one.
    """
    for name in (TASK, BLOCK):
        if not isinstance(kind := _value(config, name, "begin with gmlp_flax.config.default()"), str):
            raise ConfigError(f"config.{name} is {_shown(kind)}: expected a name")
    known = keys(config)
    begin = f"begin with gmlp_flax.config.default(task={config.task!r}, block={config.model.block!r})"
    for name, option in known.items():
        value = _value(config, name, begin)
        if problem := option.problem(value):
            raise ConfigError(f"config.{name} is {_shown(value)}: {problem}")
    for group, value in config.items():
        names = [f"{group}.{name}" for name in value] if isinstance(value, ml_collections.ConfigDict) else [group]
        if strange := [name for name in names if name not in known]:
            raise ConfigError(f"the config has {strange[0]}, which its task and block do not know: {begin}")
    if config.batch_size % config.optimizer.grad_accum_steps:
        raise ConfigError(
            f"config.batch_size is {config.batch_size}: it must divide into {config.optimizer.grad_accum_steps} microbatches "
            "(config.optimizer.grad_accum_steps)"
        )
    parsing.profile_steps(config.profile.steps, config.steps)
    parsing.mesh_rules(config.mesh.rules)
    for pattern in config.optimizer.freeze:
        parsing.check_pattern(pattern, "optimizer.freeze")
    parsing.lr_multipliers(config.optimizer.lr_multipliers)
    for row in OPTIMIZERS:
        for name, option in OPTIMIZERS[row].options.items():
            if row != config.optimizer.name and config.optimizer[name] != option.default:
                raise ConfigError(
                    f"config.optimizer.{name} is {config.optimizer[name]!r}: config.optimizer.name is "
                    f"{config.optimizer.name!r}, which does not use it; {row} does"
                )
    task = tasks.find(config.task)
    task.check(config)
    try:
        task.without_data(config).spec()
    except ValueError as error:
        raise error if isinstance(error, ConfigError) else ConfigError(f"config.{error}") from None


def _value(config: ml_collections.ConfigDict, name: str, advice: str) -> Any:
    try:
        return config[name]
    except (AttributeError, KeyError, TypeError):
        raise ConfigError(f"the config has no {name}: {advice}") from None


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:200]}..."


def to_json(config: ml_collections.ConfigDict) -> str:
    """The full resolved config, as it is written to the run folder."""
    return json.dumps(config.to_dict(), indent=2) + "\n"


def from_dict(values: dict, where: str) -> ml_collections.ConfigDict:
    """A config from nested values, as `to_json` writes them; keys that are left out take their defaults.

    Raises:
        ConfigError: a key is unknown, a value has another type, or `registry.refuse_foreign` refuses a class.
    """
    given = {
        f"{group}.{name}" if isinstance(entry, dict) else group: value
        for group, entry in values.items()
        for name, value in (entry.items() if isinstance(entry, dict) else [("", entry)])
    }
    kinds = {name: given[name] for name in (TASK, BLOCK) if name in given}
    if strange := [f"{name} {_shown(value)}" for name, value in kinds.items() if not isinstance(value, str)]:
        raise ConfigError(f"{where}: {strange[0]} is no name: expected a string")
    for name, kind in kinds.items():
        registry.refuse_foreign(kind, f"{where}: {name}")
    config = default(**{name.rpartition(".")[2]: kind for name, kind in kinds.items()})
    known = keys(config)
    for name, value in given.items():
        check_name(name, where, config)
        value = tuple(value) if isinstance(known[name].default, tuple) and isinstance(value, list) else value
        try:
            group, _, last = name.rpartition(".")
            setattr(config[group] if group else config, last, value)
        except (OverflowError, TypeError, ValueError) as error:
            reason = known[name].problem(value) or error
            raise ConfigError(f"{where}: config.{name} is {_shown(value)}: {reason}") from None
    return config


def load(path: str) -> ml_collections.ConfigDict:
    """Reads a run's config.json, which may be anybody's.

    Raises:
        ConfigError: the file is missing, is not JSON, or holds an unknown key or a value that makes no sense.
    """
    config = _from_json(path)
    try:
        validate(config)
    except (ConfigError, RunError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return config


def _from_json(path: str) -> ml_collections.ConfigDict:  # whose values may still make no sense
    try:
        return from_dict(json_files.read(path, dict), path)
    except DataError as error:
        raise ConfigError(f"cannot read the config: {error}") from None


def locate(name: str, kind: str = "config") -> str:
    """The path of a "config" or "sweep" file.

    Args:
        name: a file; or a name such as c4_ablation, which is looked for in the current folder, in its folder configs/
            and in `gmlp_flax.configs` (sweeps: in the folder sweeps/ of each); or gmlp_flax.configs.NAME.
        kind: "config" or "sweep".

    Raises:
        ConfigError: there is none, and the nearest name is given; or two places hold different files of that name.
    """
    if os.path.isfile(name):
        return name
    bare = name.removeprefix(f"{PACKAGED}.").removeprefix("configs/").removeprefix(f"{kind}s/").removesuffix(".py")
    own = () if name.startswith(f"{PACKAGED}.") else (".", "configs")
    packaged = importlib.resources.files(PACKAGED)
    folders = [*map(Path, own), Path(str(packaged))]
    if kind == "sweep":
        folders = [folder / "sweeps" for folder in folders]
    found = [path for folder in folders if (path := folder / f"{bare}.py").is_file()]
    if not found:
        names = {path.stem for folder in folders[-2:] for path in folder.glob("[a-z]*.py")}
        raise ConfigError(f"there is no {kind} file {name}{_among(bare, sorted(names))}")
    try:
        other = [path for path in found[1:] if not filecmp.cmp(path, found[0], shallow=False)]
    except OSError as error:
        raise ConfigError(f"cannot read the {kind} {error.filename}: {error.strerror}") from None
    if other:
        raise ConfigError(
            f"two places hold a {kind} {bare}, {found[0]} and {other[0]}: give --{kind}={found[0]}, or "
            f"--{kind}={PACKAGED}.{bare} for the one that comes with gmlp_flax"
        )
    return str(found[0])


def open_config(given: str) -> ml_collections.ConfigDict:
    """The config that --config=GIVEN names: FILE or FILE:ARGUMENT, the file as `locate` finds it, or a config.json.

    Raises:
        ConfigError: there is no such file, or it gives no config.
    """
    if given.endswith(".json"):
        return _from_json(given)  # other flags may mend a value
    path, colon, argument = given.partition(":")
    path = locate(path)
    try:
        config = runpy.run_path(path)["get_config"](*[argument] if colon else [])
    except Exception as error:
        raise explain(error, given) from None
    if config is None:
        raise ConfigError(f"{given}: get_config() returned nothing: return the config")
    return config


def from_file(name: str, arg: str = "") -> ml_collections.ConfigDict:
    """Evaluates a config file as `--config=NAME:ARG` does."""
    return open_config(f"{name}:{arg}" if arg else name)


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
