"""Messages of errors that a user may cause."""

import pytest

from gmlp_flax.errors import DataError


def raised(error: type[Exception] | tuple[type[Exception], ...], function, *args, **options) -> str:
    """The message of the error of this class, or one of several, that a call raises, which must be
    one line."""
    with pytest.raises(error) as caught:
        function(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def failure(function, *args, **options) -> str:
    """The message of the DataError that a call raises, which must be one line."""
    return raised(DataError, function, *args, **options)
