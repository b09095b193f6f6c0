"""The three mistakes that a user can mend. Each message is one line: what was given, what was expected, what to do."""


class ConfigError(ValueError):
    """A config or a command line that cannot be run."""


class DataError(ValueError):
    """A user's data is missing or wrong."""


class RunError(RuntimeError):
    """A run cannot start, go on or be read."""


def install(extra: str) -> str:
    """How a user installs an extra, for messages: right for a wheel and for a checkout."""
    return f"pip install 'gmlp_flax[{extra}]'"
