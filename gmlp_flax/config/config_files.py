"""Where configs come from: files in Python, as `--config=FILE:ARGUMENT` names them, and the
config.json of runs; and the keys of them that a command line or a sweep sets, their values as
text."""

import importlib.resources
import json
import os
import re
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict, config_flags

from gmlp_flax import registry
from gmlp_flax.config.schema import (
    BLOCK,
    COMMON,
    OPTIMIZER,
    REMOVED,
    RENAMED,
    TASK,
    changed,
    default,
    flat,
    keys,
)
from gmlp_flax.config.validation import check_name, explain, shown, validate, warmup_problem
from gmlp_flax.errors import ConfigError, DataError, UserError, did_you_mean
from gmlp_flax.io import json_files

PACKAGED = "gmlp_flax.configs"


def to_json(config: ConfigDict) -> str:
    """The full resolved config, as it is written to the run folder."""
    return json.dumps(config.to_dict(), indent=2) + "\n"


def from_dict(values: dict, where: str) -> ConfigDict:
    """A config from nested values, as `to_json` writes them; keys that are left out take their
    defaults, and old names count as the new ones, as runs of earlier releases have them, and old
    keys as if they were left out.

    Raises ConfigError: a key is unknown, a value has another type, or it is code that
    `registry.refuse_foreign` refuses.
    """
    flat: dict[str, Any] = flatten_dict(values, sep=".")
    given = {
        RENAMED.get(name, name): value
        for name, value in flat.items()
        if value not in REMOVED.get(name, ())
    }
    kinds = {name: given.get(name, COMMON[name].default) for name in (TASK, BLOCK, OPTIMIZER)}
    for name, kind in kinds.items():
        if not isinstance(kind, str):
            raise ConfigError(f"{where}: {name} {shown(kind)} is no name: expected a string")
        registry.refuse_foreign(kind, f"{where}: {name}")
    config = default(kinds[TASK], kinds[BLOCK])
    known = keys(config)
    for name, value in given.items():
        check_name(name, where, config)
        value = (
            tuple(value)
            if isinstance(known[name].default, tuple) and isinstance(value, list)
            else value
        )
        try:
            config.update_from_flattened_dict({name: value})
        except (OverflowError, TypeError, ValueError) as error:
            reason = known[name].problem(value) or error
            raise ConfigError(f"{where}: config.{name} is {shown(value)}: {reason}") from None
    return config


def load(path: str) -> ConfigDict:
    """Reads a run's config.json, which may be anybody's.

    Raises ConfigError: the file is missing, is not JSON, or holds an unknown key or a value that
        makes no sense.
    """
    config = _from_json(path)
    try:
        validate(config)
    except UserError as error:
        raise ConfigError(f"{path}: {error}") from None
    return config


def _from_json(path: str) -> ConfigDict:  # whose values may still make no sense
    try:
        return from_dict(json_files.read(path, dict), path)
    except DataError as error:
        raise ConfigError(f"cannot read the config: {error}") from None


def locate(name: str, kind: str = "config") -> str:
    """The path of a "config" or "sweep" file.

    Args:
        name: a file; or a name such as c4_ablation, which is looked for in the current folder, in
            its folder configs/
            and in `gmlp_flax.configs` (sweeps: in the folder sweeps/ of each); or
            gmlp_flax.configs.NAME.
        kind: "config" or "sweep".

    Raises ConfigError: there is none, and the nearest name is given; or two places hold different
        files of that name.
    """
    if os.path.isfile(name):
        return name
    bare = (
        name.removeprefix(f"{PACKAGED}.")
        .removeprefix("configs/")
        .removeprefix(f"{kind}s/")
        .removesuffix(".py")
    )
    folders = [Path(str(importlib.resources.files(PACKAGED)))]
    if not name.startswith(f"{PACKAGED}."):
        folders = [Path(), Path("configs"), *folders]
    if kind == "sweep":
        folders = [folder / "sweeps" for folder in folders]
    paths = [path for folder in folders if (path := folder / f"{bare}.py").is_file()]
    if not paths:
        names = {path.stem for folder in folders[-2:] for path in folder.glob("[a-z]*.py")}
        raise ConfigError(f"there is no {kind} file {name}; {did_you_mean(bare, sorted(names))}")
    if other := [path for path in paths[1:] if path.read_bytes() != paths[0].read_bytes()]:
        raise ConfigError(
            f"two places hold a {kind} {bare}, {paths[0]} and {other[0]}: give --{kind}={paths[0]}, or "
            f"--{kind}={PACKAGED}.{bare} for the one that comes with gmlp_flax"
        )
    return str(paths[0])


def open_config(given: str) -> ConfigDict:
    """The config that --config=GIVEN names: FILE or FILE:ARGUMENT, the file as `locate` finds it,
    or a config.json.

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
    if not isinstance(config, ConfigDict):
        raise ConfigError(
            f"{given}: get_config() returned {config!r:.60}: expected a ConfigDict, as config.default makes"
        )
    warmup = config.get("optimizer", {}).get("warmup")  # the default is for any number of steps
    if warmup not in (None, COMMON["optimizer.warmup"].default) and (
        problem := warmup_problem(config)
    ):
        raise ConfigError(f"{given}: {problem}")
    return config


def from_file(name: str, arg: str = "") -> ConfigDict:
    """Evaluates a config file as `--config=NAME:ARG` does."""
    return open_config(f"{name}:{arg}" if arg else name)


def arguments(arg: str, names: Sequence[str], **options: Sequence[str]) -> tuple[str, ...]:
    """Splits a config file's argument, NAME or NAME,option=value,..., into the name and the
    options' values.

    Args:
        arg: what follows the colon in --config=FILE:ARG.
        names: the names that may stand first.
        options: the values that each option may take; the first is its default.

    Raises ConfigError: a name, an option or a value is unknown, or an option is given twice.
    """
    name, *rest = arg.split(",")
    if name not in names:
        raise ConfigError(f"the config's argument is {name!r}; {did_you_mean(name, names)}")
    given: dict[str, str] = {}
    for word in rest:
        option, _, value = word.partition("=")
        if value not in options.get(option, ()) or option in given:
            expected = (
                ", ".join(f"{known}={'|'.join(values)}" for known, values in options.items())
                or "nothing more"
            )
            raise ConfigError(f"the config's argument has {word!r}: expected {expected}, each once")
        given[option] = value
    return name, *(given.get(option, values[0]) for option, values in options.items())


def named_overrides(argv: Sequence[str]) -> dict[str, str]:
    """What a command line's words --config.KEY=VALUE, or --config.KEY VALUE, name, with their
    values as text."""
    overrides = {}
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        if match := re.match(r"--?config\.([^=]*)(?:=(.*))?$", word, re.DOTALL):
            overrides[match[1]] = following if match[2] is None else match[2]
    return overrides


def applying(config: ConfigDict, values: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides whose keys a config has."""
    known = keys(config)
    return {name: value for name, value in values.items() if name in known}


def _change_task_and_block(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
    """A config with the task and block that some overrides name, whose keys are checked; nothing
    else is set yet."""
    task, block = str(values.get(TASK, config.task)), str(values.get(BLOCK, config.model.block))
    new = (
        config
        if (task, block) == (config.task, config.model.block)
        else changed(config, task, block)
    )
    for name in values:
        check_name(name, f"--config.{name}={values[name]}", new)
    values, old, kept = flat(config), keys(config), keys(new)
    lost = [
        f"{name}={values[name]!r}"
        for name in old
        if name not in kept and values[name] != old[name].default
    ]
    if lost:
        print(
            f"note: {task} with {block} has no such keys, which the config sets: {', '.join(lost)}",
            file=sys.stderr,
        )
    return new


def apply_overrides(config: ConfigDict, words: Sequence[str]) -> tuple[ConfigDict, list[str]]:
    """A copy with the overrides of a command line applied; and the words of the command line that
    are something else.

    Args:
        config: the config.
        words: the command line, of which the first is the program's name.

    Raises ConfigError: there is no such key, or a value has another type than its key.
    """
    words = [
        "--config.mesh.auto=True" if re.fullmatch("--?config.mesh=auto", word) else word
        for word in words
    ]
    named = named_overrides(words)
    start = _change_task_and_block(config, named).copy_and_resolve_references()
    parser = flags.FlagValues()
    parser.set_gnu_getopt(True)
    config_flags.DEFINE_config_dict("config", start, flag_values=parser, sys_argv=list(words))
    try:
        left = parser(words, known_only=True)
    except flags.Error as error:
        raise ConfigError(str(error)) from None
    # what ml_collections raises for a value
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise explain(error, "the command line") from None
    new: ConfigDict = parser["config"].value  # type: ignore[assignment] - parsed, so not None
    if "optimizer.warmup" in named and (problem := warmup_problem(new)):
        raise ConfigError(problem)
    return new, left


def overridden(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
    """A copy with some keys set, whose values may be text.

    Raises ConfigError: there is no such key, a value has another type than its key, or makes no
        sense.
    """
    new, _ = apply_overrides(
        config, ["config", *(f"--config.{name}={value}" for name, value in values.items())]
    )
    validate(new)
    return new
