"""The messages of user errors."""

import pytest

from gmlp_flax.errors import DataError


def raised(error: type[Exception] | tuple[type[Exception], ...], function, *args, **options) -> str:
    """Calls a function that must raise an error of this class, or of one of several, and returns the
    message. It must be one line."""
    with pytest.raises(error) as caught:
        function(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def failure(function, *args, **options) -> str:
    """Calls a function that must raise a DataError, and returns the message."""
    return raised(DataError, function, *args, **options)
