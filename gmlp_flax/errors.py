"""The three mistakes that a user can mend. Each message is one line: what was given, what was
expected, what to do.

A file that cannot be read or written is a mistake of the data and of the run alike.
"""

import difflib
import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class ConfigError(ValueError):
    """A config or a command line that cannot be run."""


class DataError(ValueError):
    """A user's data is missing or wrong."""


class RunError(RuntimeError):
    """A run cannot start, go on or be read."""


class FileError(DataError, RunError):
    """A file of data or of a run cannot be read or written: no path, permission, credentials or
    space."""


class StorageError(FileError):
    """A file cannot be read or written just now. A restart may help, so commands end with exit code
    1."""


@contextmanager
def decode_errors(what: str, advice: str, error: type[Exception] = DataError) -> Iterator[None]:
    """Turns every error in the block into one line, `{what} ({reason}); {advice}`.

    Libraries do not say which errors a damaged file leads to: image decoders raise a dozen kinds.
    Hold nothing but their calls in the block, as mistakes of our own would read as damage.

    Args:
        what: names the file, and says that it is damaged.
        advice: what to do.
        error: what is raised, with a single message.
    """
    try:
        yield
    except (ConfigError, DataError, RunError):
        raise
    except Exception as raised:
        # The errors of libraries quote source code after a semicolon.
        reason = (
            " ".join(str(raised).partition("\n")[0].partition(";")[0].split())[:200]
            or type(raised).__name__
        )
        raise error(f"{what} ({reason}); {advice}") from raised


def install(extra: str) -> str:
    """How a user installs an extra, for messages: right for a wheel and for a checkout."""
    return f"pip install 'gmlp_flax[{extra}]'"


def require(package: str, what: str, extra: str) -> Any:
    """A package of an extra, imported; raises RunError if it is missing: `what` needs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise RunError(f"{what} needs {package} ({error}): {install(extra)}") from None


def listed(names: Iterable[str], most: int = 8, between: str = ", ") -> str:
    """The first names, for messages, and how many more there are."""
    names = [*names]
    return between.join(
        [*names[:most], *([f"and {len(names) - most:,} more"] if len(names) > most else [])]
    )


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """For messages about a name that is not known: the most similar one, by the whole or by its
    last part after a dot.

    If none of the `known` names is similar, it says `otherwise`, or lists them.
    """
    known = list(known)
    last = {one.rpartition(".")[2]: one for one in reversed(known)}
    close = difflib.get_close_matches(name, known, 1, 0.7)
    close = close or [
        last[part] for part in difflib.get_close_matches(name.rpartition(".")[2], list(last), 1)
    ]
    return (
        f"did you mean {close[0]!r}?"
        if close
        else otherwise or f"expected one of {', '.join(known)}"
    )
