"""The three mistakes that a user can mend. Each message is one line: what was given, what was expected, what to do.

And the error of storage, which may pass.
"""


class ConfigError(ValueError):
    """A config or a command line that cannot be run."""


class DataError(ValueError):
    """A user's data is missing or wrong."""


class RunError(RuntimeError):
    """A run cannot start, go on or be read."""


class StorageError(RunError):
    """Files cannot be read or written just now. A restart may help, so commands end with exit code 1."""


def install(extra: str) -> str:
    """How a user installs an extra, for messages: right for a wheel and for a checkout."""
    return f"pip install 'gmlp_flax[{extra}]'"
