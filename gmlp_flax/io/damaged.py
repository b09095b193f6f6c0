"""Files that libraries decode: whatever they raise becomes one error that names the file."""

from collections.abc import Iterator
from contextlib import contextmanager

from gmlp_flax.errors import ConfigError, DataError, RunError


@contextmanager
def explained(what: str, advice: str, error: type[Exception] = DataError) -> Iterator[None]:
    """Turns every error in the block into one line, `{what} ({reason}); {advice}`.

    Libraries do not say which errors a damaged file leads to: those that decode images raise a dozen kinds. Hold nothing
    but their calls in the block, as mistakes of our own would read as damage.

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
        reason = " ".join(str(raised).partition("\n")[0].partition(";")[0].split())[:200] or type(raised).__name__
        raise error(f"{what} ({reason}); {advice}") from raised
