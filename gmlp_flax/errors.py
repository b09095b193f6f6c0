"""The errors that a user can fix. Each message is one line: what was given, what was expected, what
to do.
"""

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

# The file that scripts/setup.sh writes into an environment.
SETUP_STAMP = "gmlp_flax.stamp"


class UserError(Exception):
    """What a user can fix. Commands show the message without a traceback and end with exit code
    2."""


class ConfigError(UserError, ValueError):
    """A config or a command line that cannot be run."""


class DataError(UserError, ValueError):
    """A user's data is missing or wrong."""


class RunError(UserError, RuntimeError):
    """A run cannot start, resume or be read."""


class FileError(DataError, RunError):
    """A file of data or of a run cannot be read or written: no path, permission, credentials or
    space."""


class StorageError(FileError):
    """A file cannot be read or written at the moment. A restart may help, so commands end with exit
    code 1."""


@contextmanager
def decode_errors(what: str, advice: str, error: type[Exception] = DataError) -> Iterator[None]:
    """Turns every error in the block into one line, `{what} ({reason}); {advice}`.

    Libraries do not document which errors a damaged file raises: image decoders raise a dozen
    kinds. Keep only their calls in the block, since bugs of our own would be reported as damage.

    Args:
        what: names the file, and says that it is damaged.
        advice: what to do.
        error: what is raised, with a single message.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as raised:
        first_line = str(raised).partition("\n")[0]
        # The errors of libraries quote source code after a semicolon.
        words = first_line.partition(";")[0].split()
        reason = " ".join(words)[:200] or type(raised).__name__
        raise error(f"{what} ({reason}); {advice}") from raised


def install(extra: str) -> str:
    """How a user installs an extra into the environment that is running, for messages: with
    scripts/setup.sh if that made it, and otherwise with pip, or with uv if there is no pip."""
    if os.path.exists(os.path.join(sys.prefix, SETUP_STAMP)):
        return f"./scripts/setup.sh {extra}"
    uv = "" if importlib.util.find_spec("pip") else "uv "
    return f"{uv}pip install 'gmlp_flax[{extra}]'"


def require(package: str, what: str, extra: str) -> Any:
    """Imports a package of an extra. Raises RunError if the package, which `what` needs, is
    missing."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise RunError(f"{what} needs {package} ({error}): {install(extra)}") from None


def listed(names: Iterable[str], most: int = 8, between: str = ", ") -> str:
    """The first names, for messages, and how many more there are."""
    names = [*names]
    shown = names[:most]
    unlisted = len(names) - most
    if unlisted > 0:
        shown.append(f"and {unlisted:,} more")
    return between.join(shown)


def counted(number: int, noun: str) -> str:
    """A number of things, for messages: "1 file", "1,200 files"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """For messages about an unknown name: the most similar known one, by the whole name, upper or
    lower case, or by its last part after a dot.

    If none of the `known` names is similar, it says `otherwise`, or lists them.
    """
    known = list(known)
    by_lower_case = {known_name.lower(): known_name for known_name in known}
    found = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.7)
    similar = [by_lower_case[lower] for lower in found]
    if not similar:
        similar = _similar_by_last_part(name, known)
    if similar:
        return f"did you mean {similar[0]!r}?"
    if otherwise:
        return otherwise
    names = ", ".join(known)
    return f"expected one of {names}"


def _similar_by_last_part(name: str, known: list[str]) -> list[str]:
    """The first known name whose last part after a dot is most similar to that of a name; [] if
    none is similar."""
    first_with_part: dict[str, str] = {}
    for full_name in known:
        _, _, part = full_name.rpartition(".")
        first_with_part.setdefault(part, full_name)
    parts = list(first_with_part)
    _, _, last_part = name.rpartition(".")
    similar_parts = difflib.get_close_matches(last_part, parts, n=1)
    return [first_with_part[part] for part in similar_parts]
