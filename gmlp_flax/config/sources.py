"""Where configs come from: files in Python, as `--config=FILE:ARGUMENT` names them, and the config.json of runs."""

import importlib.resources
import json
import os
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_collections
from flax.traverse_util import flatten_dict

from gmlp_flax import registry
from gmlp_flax.config.schema import BLOCK, COMMON, OPTIMIZER, REMOVED, RENAMED, TASK, default, keys
from gmlp_flax.config.validation import check_name, explain, shown, validate, warmup_problem
from gmlp_flax.errors import ConfigError, DataError, RunError, did_you_mean
from gmlp_flax.io import json_files

PACKAGED = "gmlp_flax.configs"


def to_json(config: ml_collections.ConfigDict) -> str:
    """The full resolved config, as it is written to the run folder."""
    return json.dumps(config.to_dict(), indent=2) + "\n"


def from_dict(values: dict, where: str) -> ml_collections.ConfigDict:
    """A config from nested values, as `to_json` writes them; keys that are left out take their defaults, and
    old names count as the new ones, as runs of earlier releases have them, and old keys as if they were left out.

    Raises ConfigError: a key is unknown, a value has another type, or it is code that `registry.refuse_foreign`
    refuses.
    """
    flat: dict[str, Any] = flatten_dict(values, sep=".")
    given = {RENAMED.get(name, name): value for name, value in flat.items() if value not in REMOVED.get(name, ())}
    kinds = {name: given.get(name, COMMON[name].default) for name in (TASK, BLOCK, OPTIMIZER)}
    for name, kind in kinds.items():
        if not isinstance(kind, str):
            raise ConfigError(f"{where}: {name} {shown(kind)} is no name: expected a string")
        registry.refuse_foreign(kind, f"{where}: {name}")
    config = default(kinds[TASK], kinds[BLOCK])
    known = keys(config)
    for name, value in given.items():
        check_name(name, where, config)
        value = tuple(value) if isinstance(known[name].default, tuple) and isinstance(value, list) else value
        try:
            config.update_from_flattened_dict({name: value})
        except (OverflowError, TypeError, ValueError) as error:
            reason = known[name].problem(value) or error
            raise ConfigError(f"{where}: config.{name} is {shown(value)}: {reason}") from None
    return config


def load(path: str) -> ml_collections.ConfigDict:
    """Reads a run's config.json, which may be anybody's.

    Raises ConfigError: the file is missing, is not JSON, or holds an unknown key or a value that makes no sense.
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

    Raises ConfigError: there is none, and the nearest name is given; or two places hold different files of that name.
    """
    if os.path.isfile(name):
        return name
    bare = name.removeprefix(f"{PACKAGED}.").removeprefix("configs/").removeprefix(f"{kind}s/").removesuffix(".py")
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
    warmup = config.get("optimizer", {}).get("warmup")  # the default is for any number of steps
    if warmup not in (None, COMMON["optimizer.warmup"].default) and (problem := warmup_problem(config)):
        raise ConfigError(f"{given}: {problem}")
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

    Raises ConfigError: a name, an option or a value is unknown, or an option is given twice.
    """
    name, *rest = arg.split(",")
    if name not in names:
        raise ConfigError(f"the config's argument is {name!r}; {did_you_mean(name, names)}")
    given: dict[str, str] = {}
    for word in rest:
        option, _, value = word.partition("=")
        if value not in options.get(option, ()) or option in given:
            expected = ", ".join(f"{known}={'|'.join(values)}" for known, values in options.items()) or "nothing more"
            raise ConfigError(f"the config's argument has {word!r}: expected {expected}, each once")
        given[option] = value
    return name, *(given.get(option, values[0]) for option, values in options.items())
