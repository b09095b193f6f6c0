"""Finds what a name stands for in a table, or by its place in a package of the user's own."""

import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Mapping
from typing import Any, TypeVar

from gmlp_flax.errors import ConfigError, did_you_mean, listed

OWN = __name__.partition(".")[0]
T = TypeVar("T")


def find(name: str, table: Mapping[str, type[T] | str], kind: type[T], key: str) -> type[T]:
    """The class of a name.

    Args:
        name: a row of the table, or `my_package.my_module:MyClass`.
        table: classes, or their places, by name.
        kind: the class that it must extend.
        key: the config key that names it, for messages.

    Raises:
        ConfigError: there is no such class, it cannot be imported, or it does not extend `kind`.
    """
    loaded = lookup(name, table, key, "a class of your own is named my_package.my_module:MyClass")
    is_own_row = name in table and not isinstance(table[name], str)
    if is_own_row:
        return loaded
    problem = f"config.{key} is {name!r}"
    if not (isinstance(loaded, type) and issubclass(loaded, kind)):
        expected = f"{kind.__module__}.{kind.__name__}"
        raise ConfigError(f"{problem}: expected a class that extends {expected}")
    missing = sorted(getattr(loaded, "__abstractmethods__", ()))
    if missing:
        methods = ", ".join(missing)
        raise ConfigError(f"{problem}: the class does not define {methods}")
    return loaded


def lookup(name: str, table: Mapping[str, Any], key: str, advice: str) -> Any:
    """A row of a table, or what `my_package.my_module:NAME` names. If there is neither,
    the error, raised as by `find`, ends with `advice`."""
    loaded = table.get(name, name)
    if not isinstance(loaded, str):
        return loaded
    problem = f"config.{key} is {name!r}"
    if ":" not in loaded:
        nearest = did_you_mean(name, table)
        raise ConfigError(f"{problem}; {nearest} ({advice})")
    return load(loaded, f"{problem}, which")


def load(place: str, what: str) -> Any:
    """Imports `my_package.my_module`, or `my_package.my_module:NAME` from it.

    Args:
        place: what to import.
        what: says in messages who named it.

    Raises:
        ConfigError: it cannot be imported.
    """
    module, _, attribute = place.partition(":")
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a script without a main guard may exit
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        advice = _advice_on_import(module, error)
        raise ConfigError(f"{what} cannot be imported ({reason}): {advice}") from None
    if not attribute:
        return imported
    if not hasattr(imported, attribute):
        nearest = _nearest_in(imported, attribute)
        raise ConfigError(f"{what} cannot be imported: {module} has no {attribute!r}; {nearest}")
    return getattr(imported, attribute)


def _advice_on_import(module: str, error: BaseException) -> str:
    """What to do about an exception that importing a module raised."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{module}.".startswith(f"{missing}."):
        parent, _, name = missing.rpartition(".")
        if parent:  # has been imported
            return _nearest_module(parent, name)
        package, _, _ = module.partition(".")
        here = os.getcwd()
        return f"install {package}, or change to the folder that contains it (this one is {here})"
    install = f"install {missing}, or " if missing else ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        is_of_import = frame.filename in (__file__, importlib.__file__)
        if not is_of_import and not frame.filename.startswith("<frozen"):
            return f"{install}fix line {frame.lineno} of {frame.filename}"
    return f"{install}fix {module}"


def _nearest_module(package: str, name: str) -> str:
    """The module of an imported package that is most similar to a name, or else its modules."""
    folders = getattr(sys.modules[package], "__path__", ())
    modules = [found.name for found in pkgutil.iter_modules(folders)]
    advice = did_you_mean(name, modules, f"it has {listed(modules) or 'none'}")
    return f"{package} has no module {name!r}; {advice}"


def _nearest_in(module: Any, name: str) -> str:
    """The public name in a module that is most similar to a name, or else what it defines."""
    public = [known for known in vars(module) if not known.startswith("_")]
    defined = []
    for known in public:
        if getattr(vars(module)[known], "__module__", "") == module.__name__:
            defined.append(known)
    return did_you_mean(name, public, f"it defines {listed(defined) or 'nothing'}")


def refuse_foreign(name: str, key: str) -> None:
    """Refuses a name that somebody else wrote, as in a run's config, if to find its class would
    import foreign code.

    What the user's own config or --trust has imported already is found without another import.

    Args:
        name: see `find`.
        key: the config key that names it, for messages.

    Raises:
        ConfigError: in one line, which says how to trust the module.
    """
    module, colon, _ = name.partition(":")
    if not colon or module in sys.modules or module.partition(".")[0] == OWN:
        return
    raise ConfigError(
        f"{key} is {name!r}, which is code from outside {OWN} and is not run because a run's config names it: if you "
        f"trust {module}, add --trust={module} (in Python: import it first)"
    )
