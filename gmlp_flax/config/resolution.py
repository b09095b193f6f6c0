"""The final config of a run: the keys that its user sets, those that it inherits from the run that
starts it, and the mesh that the planner chooses.

A config goes one way: `open_config`, `apply_overrides`, `resolve`, the task, `Training`. Nothing
changes a key after `resolve`: its config is a `FrozenConfigDict`, so an assignment to a key raises
at once. (A locked `ConfigDict` refuses only keys that it does not have.)
"""

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import FrozenConfigDict

from gmlp_flax import tasks
from gmlp_flax.config.schema import changed, flat, keys, mutable_copy
from gmlp_flax.config.validation import AXES, check_values, validate
from gmlp_flax.options import Option

Sizes = tuple[int, int, int]  # devices along AXES


@dataclasses.dataclass(frozen=True)
class Start:
    """The run that starts another one, from which the other can inherit.

    Attributes:
        name: its name, for messages.
        config: its config.
        files: the files that both runs share, such as the tokenizer, by name.
    """

    name: str
    config: ConfigDict
    files: Mapping[str, bytes]


@dataclasses.dataclass(frozen=True)
class Resolved:
    """The final config of a run, with the files and notes from resolving it.

    Attributes:
        config: a FrozenConfigDict with every key, checked.
        files: the files that the run takes from the run that starts it, by name.
        notes: lines for the user: what was inherited, what was overruled, which mesh was chosen.
    """

    config: ConfigDict
    files: Mapping[str, bytes]
    notes: tuple[str, ...]


def no_start(config: ConfigDict) -> None:
    """The `read_start` of a config that inherits nothing, or has inherited already."""


def resolve(
    config: ConfigDict,
    read_start: Callable[[ConfigDict], Start | None] = no_start,
    choose_mesh: Callable[[ConfigDict], tuple[Sizes, str]] | None = None,
    explicit: Collection[str] = (),
) -> Resolved:
    """The final config of a run.

    Args:
        config: as the user set it, with all overrides. It is not changed.
        read_start: returns what a config inherits, or None. It is called once, after all values
            have been checked.
        choose_mesh: returns the mesh, and the reason in words, for a config with mesh.auto. None
            leaves such a config as it is: only training needs a mesh.
        explicit: the keys that the user set, even to their defaults. They are not inherited.

    Raises:
        ConfigError: a key is missing or unknown, a value is invalid, or two values contradict each
            other.
        UserError: raised by `read_start` or `choose_mesh`.
    """
    config = _with_home(config)
    check_values(config)
    start = read_start(config)
    notes: list[str] = []
    if start is not None:
        config, notes = inherit(config, start, explicit)
    validate(config)
    if config.mesh.auto and choose_mesh is not None:
        sizes, reason = choose_mesh(config)
        config = with_mesh(config, sizes)
        notes.append(f"mesh {mesh_name(sizes)}: {reason}")
    frozen: Any = FrozenConfigDict(mutable_copy(config))
    files = {} if start is None else start.files
    return Resolved(frozen, files, tuple(notes))


def _with_home(config: ConfigDict) -> ConfigDict:
    """A config with the home folder in place of ~ or ~USER at the start of a text."""
    new = mutable_copy(config)
    expanded = {}
    for name, value in flat(config).items():
        if isinstance(value, str) and value.startswith("~"):
            expanded[name] = os.path.expanduser(value)
    new.update_from_flattened_dict(expanded)
    return new


def inherit(
    config: ConfigDict, start: Start, explicit: Collection[str] = ()
) -> tuple[ConfigDict, list[str]]:
    """A config with the keys that its task inherits from the run that starts it.

    Finetuning inherits the architecture of the model, whatever the config says. An option that is
    `inherited` is taken over unless the config sets it: its value is not the default, or its key is
    among the `explicit` ones.

    Returns:
        A new config, and notes on what was inherited and what differs.
    """
    notes = []
    new = mutable_copy(config)
    if tasks.find(config.task).inheritance.model:
        new = _take(config, start.config, lambda name, option: option.architecture)
        overruled = _overruled(config, new)
        if overruled:
            model = f"the model is that of {start.name}"
            notes.append(f"note: {model}: config.model's {', '.join(overruled)}")
    notes += _inherit_options(new, start, explicit)
    return new, notes


def _inherit_options(config: ConfigDict, start: Start, explicit: Collection[str]) -> list[str]:
    """Sets the options of a config that are `inherited` and that it does not set itself; returns
    notes on them, and on those that differ."""
    start_values = flat(start.config)
    inherited: dict[str, Any] = {}
    different = []
    for name, option in keys(config).items():
        if not option.inherited or name not in start_values:
            continue
        value = config[name]
        start_value = start_values[name]
        if value == start_value:
            continue
        if name in explicit or value != option.default:
            different.append(f"{name} {start_value!r} (here {value!r})")
        else:
            inherited[name] = start_value
    config.update_from_flattened_dict(inherited)
    notes = []
    if different:
        notes.append(f"note: {start.name} was trained with another {', '.join(different)}")
    if inherited:
        shown = ", ".join(f"{name} {value!r}" for name, value in inherited.items())
        notes.append(f"note: as in {start.name}: {shown}")
    return notes


def with_model_of(config: ConfigDict, source: ConfigDict) -> ConfigDict:
    """A config that trains a model which a program passes, described by the config `source`.

    It takes over all keys of the model if the task is the same, else those of the architecture; and
    the options that are `inherited`. The tokenizer is the model's.
    """
    same_task = config.task == source.task

    def is_taken(name: str, option: Option) -> bool:
        of_model = option.architecture or (same_task and name.startswith("model."))
        return of_model or option.inherited

    new = _take(config, source, is_taken)
    if "tokenizer" in new.data:
        new.data.tokenizer = ""
    return new


def _take(
    config: ConfigDict, source: ConfigDict, is_taken: Callable[[str, Option], bool]
) -> ConfigDict:
    """A copy with the block of another config, and with that config's values of some keys."""
    new = changed(config, block=source.model.block)
    values = flat(source)
    taken = {}
    for name, option in keys(new).items():
        if name in values and is_taken(name, option):
            taken[name] = values[name]
    new.update_from_flattened_dict(taken)
    return new


def _overruled(config: ConfigDict, new: ConfigDict) -> list[str]:
    """The keys of the architecture that a config sets and that have other values in the new one, in
    words."""
    new_values = flat(new)
    overruled = []
    for name, option in keys(config).items():
        value = config[name]
        if not option.architecture or value in (option.default, new_values.get(name)):
            continue
        new_value = repr(new_values[name]) if name in new_values else "absent"
        short_name = name.removeprefix("model.")
        overruled.append(f"{short_name} {new_value} (not {value!r})")
    return overruled


def with_mesh(config: ConfigDict, sizes: Sizes) -> ConfigDict:
    """A copy with this mesh."""
    new = mutable_copy(config)
    new.mesh.auto = False
    for axis, size in zip(AXES, sizes, strict=True):
        new.mesh[axis] = size
    return new


def mesh_name(sizes: Sizes) -> str:
    """A mesh for reading, such as "data 2 x fsdp 4 x tensor 1"."""
    data, fsdp, tensor = sizes
    return f"data {data} x fsdp {fsdp} x tensor {tensor}"
