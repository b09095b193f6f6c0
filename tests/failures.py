"""Messages of errors that a user may cause."""

import pytest

from gmlp_flax.errors import DataError


def failure(function, *args, **options) -> str:
    """The message of the DataError that a call raises, which must be one line."""
    with pytest.raises(DataError) as caught:
        function(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
