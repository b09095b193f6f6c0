"""The sources of configs: files in Python, as `--config=FILE:ARGUMENT` names them, and the
config.json of runs; and overrides, the keys that a command line or a sweep sets, with values as
text."""

import contextlib
import importlib.resources
import json
import os
import re
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict, config_flags

from gmlp_flax import __version__, registry
from gmlp_flax.config.schema import (
    BLOCK,
    COMMON,
    OPTIMIZER,
    REMOVED,
    TASK,
    changed,
    default,
    former_names,
    keys,
    mutable_copy,
)
from gmlp_flax.config.validation import check_name, explain, shown, validate, warmup_problem
from gmlp_flax.errors import ConfigError, DataError, UserError, did_you_mean
from gmlp_flax.io import files, json_files, logs

PACKAGED = "gmlp_flax.configs"
KINDS = (TASK, BLOCK, OPTIMIZER)  # the keys that may name code
# The file next to a run's config.json with the versions that took its steps. Configs do not know
# checkpoints, which define it as ENVIRONMENT_FILE.
ENVIRONMENT_FILE = "environment.json"


def to_json(config: ConfigDict) -> str:
    """The full resolved config, as it is written to the run folder."""
    return json.dumps(config.to_dict(), indent=2) + "\n"


def from_dict(values: dict, where: str) -> ConfigDict:
    """A config from nested values, as `to_json` writes them; missing keys get their defaults.
    `where` is the source of the values, for messages.

    Names of the last release are accepted. A key that was removed since then is ignored if it has
    one of the values in `schema.REMOVED`.

    Raises ConfigError: a task, a block or a key is unknown, a value has another type, or it is code
        that `registry.refuse_foreign` refuses.
    """
    flat_values: dict[str, Any] = flatten_dict(values, sep=".")
    kinds = {name: flat_values.get(name, COMMON[name].default) for name in KINDS}
    for name, kind in kinds.items():
        if not isinstance(kind, str):
            raise ConfigError(f"{where}: {name} {shown(kind)} is not a name: expected a string")
        registry.refuse_foreign(kind, f"{where}: {name}")
    try:
        config = default(kinds[TASK], kinds[BLOCK])
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    renamed = former_names(keys(config))
    for written_name, value in flat_values.items():
        if value in REMOVED.get(written_name, ()):
            continue
        name = renamed.get(written_name, written_name)
        set_value(config, name, value, where)
    return config


def set_value(config: ConfigDict, name: str, value: Any, where: str) -> None:
    """Sets a key of a config, by its dotted name; a tuple may be given as a list.

    Raises ConfigError: there is no such key, or the value has another type. The message begins with
        `where`, the source of the value.
    """
    check_name(name, where, config)
    option = keys(config)[name]
    if isinstance(option.default, tuple) and isinstance(value, list):
        value = tuple(value)
    try:
        config.update_from_flattened_dict({name: value})
    except (OverflowError, TypeError, ValueError) as error:
        reason = option.problem(value) or error
        what = f"config.{name} is {shown(value)}"
        raise ConfigError(f"{where}: {what}: {reason}") from None


def load(path: str) -> ConfigDict:
    """Reads a run's config.json, which may come from anybody.

    Raises ConfigError: the file is missing, is not JSON, or has an unknown key or an invalid value.
        If another version of gmlp_flax wrote it, the message names the version.
    """
    with _naming_version(path):
        config = _from_json(path)
        try:
            validate(config)
        except UserError as error:
            raise ConfigError(f"{path}: {error}") from None
    return config


def _from_json(path: str) -> ConfigDict:
    """The config in a file; its values are not validated."""
    try:
        values = json_files.read(path, dict)
    except DataError as error:
        raise ConfigError(f"cannot read the config: {error}") from None
    return from_dict(values, path)


@contextlib.contextmanager
def _naming_version(path: str) -> Iterator[None]:
    """Adds the version of gmlp_flax that opens a run's config.json to a ConfigError about it."""
    try:
        yield
    except ConfigError as error:
        version = _version_of(os.path.dirname(path))
        if version in ("", __version__):
            raise
        advice = f"gmlp_flax {version} wrote it, and opens it"
        raise ConfigError(f"{error}; {advice}") from None


def _version_of(folder: str) -> str:
    """The version of gmlp_flax that took the last steps of the run in a folder; "" if unknown."""
    path = os.path.join(folder, ENVIRONMENT_FILE)
    if not files.exists(path):
        return ""
    environment = json_files.parse_object(files.read_small(path))
    packages = environment.get("packages")
    if not isinstance(packages, dict):
        return ""
    version = packages.get("gmlp_flax")
    return version if isinstance(version, str) else ""


def locate(name: str, kind: str = "config") -> str:
    """The path of a "config" or "sweep" file.

    Args:
        name: a file; or a name such as c4_ablation, which is searched for in the current folder, in
            its folder configs/ and in `gmlp_flax.configs` (sweeps: in the folder sweeps/ of each);
            or gmlp_flax.configs.NAME.
        kind: "config" or "sweep".

    Raises ConfigError: there is none, and the message has the nearest name; or two folders hold
        different files of that name.
    """
    if os.path.isfile(name):
        return name
    bare = name
    for prefix in (f"{PACKAGED}.", "configs/", f"{kind}s/"):
        bare = bare.removeprefix(prefix)
    bare = bare.removesuffix(".py")
    folders = [Path(str(importlib.resources.files(PACKAGED)))]
    if not name.startswith(f"{PACKAGED}."):
        folders = [Path(), Path("configs"), *folders]
    if kind == "sweep":
        folders = [folder / "sweeps" for folder in folders]
    candidates = [folder / f"{bare}.py" for folder in folders]
    paths = [path for path in candidates if path.is_file()]
    if not paths:
        names: set[str] = set()
        for folder in folders[-2:]:
            names.update(path.stem for path in folder.glob("[a-z]*.py"))
        advice = did_you_mean(bare, sorted(names))
        raise ConfigError(f"there is no {kind} file {name}; {advice}")
    first, *others = paths
    for other in others:
        if other.read_bytes() != first.read_bytes():
            raise ConfigError(
                f"two places hold a {kind} {bare}, {first} and {other}: give --{kind}={first}, or "
                f"--{kind}={PACKAGED}.{bare} for the one that comes with gmlp_flax"
            )
    return str(first)


def open_config(name: str) -> ConfigDict:
    """The config that --config=NAME names: FILE or FILE:ARGUMENT, with a file that `locate` finds,
    or a config.json.

    Raises:
        ConfigError: there is no such file, or it gives no config.
    """
    if name.endswith(".json"):
        with _naming_version(name):
            return _from_json(name)  # the command line may fix a value
    file, colon, argument = name.partition(":")
    path = locate(file)
    try:
        get_config = runpy.run_path(path)["get_config"]
        config = get_config(argument) if colon else get_config()
    except Exception as error:
        raise explain(error, name) from None
    if not isinstance(config, ConfigDict):
        expected = "expected a ConfigDict, as config.default makes"
        raise ConfigError(f"{name}: get_config() returned {config!r:.60}: {expected}")
    warmup = config.get("optimizer", {}).get("warmup")
    # The default is for any number of steps.
    if warmup not in (None, COMMON["optimizer.warmup"].default):
        problem = warmup_problem(config)
        if problem:
            raise ConfigError(f"{name}: {problem}")
    return config


def from_file(name: str, arg: str = "") -> ConfigDict:
    """Evaluates a config file as `--config=NAME:ARG` does."""
    return open_config(f"{name}:{arg}" if arg else name)


def arguments(
    arg: str, names: Sequence[str], *, takes_classes: bool = False, **options: Sequence[str]
) -> tuple[str, ...]:
    """Splits a config file's argument, NAME or NAME,option=value,..., into the name and the
    options' values.

    Args:
        arg: the text after the colon in --config=FILE:ARG.
        names: the valid names.
        takes_classes: whether `my_package.my_module:MyBlock` is a valid name, too.
        options: the values that each option may have; the first is its default.

    Raises ConfigError: a name, an option or a value is unknown, or an option is given twice.
    """
    name, *words = arg.split(",")
    is_class = takes_classes and ":" in name
    if name not in names and not is_class:
        raise ConfigError(f"the config's argument is {name!r}; {did_you_mean(name, names)}")
    chosen: dict[str, str] = {}
    for word in words:
        option, _, value = word.partition("=")
        is_known = value in options.get(option, ())
        is_repeated = option in chosen
        if is_repeated or not is_known:
            expected = _forms(options)
            raise ConfigError(f"the config's argument has {word!r}: expected {expected}, each once")
        chosen[option] = value
    values_in_order = []
    for option, (default_value, *_) in options.items():
        value = chosen.get(option, default_value)
        values_in_order.append(value)
    return (name, *values_in_order)


def note_path(config: str, name: str) -> None:
    """Says that a config's argument is taken as a name, if it is also a file or a folder; raises
    ConfigError if it is a path to nothing."""
    if "/" in name and not files.exists(name):
        raise ConfigError(f"there is no file or folder {name}: check the path")
    if name and files.exists(name):
        print(
            f"{config}:{name} is a name of the config; for the data in the folder or file {name}, "
            f"give --config={config}:./{name}",
            file=sys.stderr,
        )


def _forms(options: Mapping[str, Sequence[str]]) -> str:
    """What may follow the name in a config file's argument, for messages."""
    forms = []
    for option, values in options.items():
        alternatives = "|".join(values)
        forms.append(f"{option}={alternatives}")
    return ", ".join(forms) or "nothing more"


def named_overrides(argv: Sequence[str]) -> dict[str, str]:
    """The keys that a command line sets by --config.KEY=VALUE, or --config.KEY VALUE, with their
    values as text."""
    overrides = {}
    following_words = [*argv[1:], ""]
    for word, following in zip(argv, following_words, strict=False):
        match = re.match(r"--?config\.(?P<key>[^=]*)(?:=(?P<value>.*))?$", word, re.DOTALL)
        if match is None:
            continue
        value = match["value"]
        if value is None:
            value = following
        overrides[match["key"]] = value
    return overrides


def applying(config: ConfigDict, values: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides whose keys a config has."""
    known = keys(config)
    return {name: value for name, value in values.items() if name in known}


def _change_task_and_block(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
    """A config with the task and block that some overrides name. The keys of the overrides are
    checked, but not set yet."""
    task = str(values.get(TASK, config.task))
    block = str(values.get(BLOCK, config.model.block))
    new = config
    if (task, block) != (config.task, config.model.block):
        new = changed(config, task, block)
    for name, value in values.items():
        check_name(name, f"--config.{name}={value}", new)
    known = keys(new)
    lost = []
    for name, option in keys(config).items():
        if name not in known and config[name] != option.default:
            lost.append(f"{name}={config[name]!r}")
    if lost:
        logs.to_stderr(
            f"note: {task} with {block} has no such keys, which the config sets: {', '.join(lost)}"
        )
    return new


def apply_overrides(config: ConfigDict, words: Sequence[str]) -> tuple[ConfigDict, list[str]]:
    """A copy with the overrides of a command line applied, and the other words of the command line.

    Args:
        config: the config.
        words: the command line; the first word is the program's name.

    Raises ConfigError: there is no such key, or a value has another type than its key.
    """
    words = [re.sub("^--?config.mesh=auto$", "--config.mesh.auto=True", word) for word in words]
    named = named_overrides(words)
    start = mutable_copy(_change_task_and_block(config, named))
    parser = flags.FlagValues()
    parser.set_gnu_getopt(True)
    config_flags.DEFINE_config_dict("config", start, flag_values=parser, sys_argv=list(words))
    try:
        left = parser(words, known_only=True)
    except flags.Error as error:
        raise ConfigError(_in_words(str(error))) from None
    # ml_collections raises these for a value
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise explain(error, "the command line") from None
    new: ConfigDict = parser["config"].value  # type: ignore[assignment] - parsed, so not None
    if "optimizer.warmup" in named:
        problem = warmup_problem(new)
        if problem:
            raise ConfigError(problem)
    return new, left


# What absl and Python say of a value of another type, and what they mean.
_OTHER_TYPES = {
    r"invalid literal for int\(\).*": "expected a whole number",
    r"could not convert string to float.*": "expected a number",
    r"\('Non-boolean argument to boolean flag', .*\)": "expected True or False",
}


def _in_words(message: str) -> str:
    """The message about a wrong flag, in words for people."""
    for pattern, meaning in _OTHER_TYPES.items():
        message = re.sub(f": {pattern}", f": {meaning}", message)
    return message


def overridden(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
    """A copy with some keys set, whose values may be text.

    Raises ConfigError: there is no such key, or a value has another type than its key or is
        invalid.
    """
    words = ["config"]  # in place of the program's name
    for name, value in values.items():
        words.append(f"--config.{name}={value}")
    new, _ = apply_overrides(config, words)
    validate(new)
    return new
