"""Models are compared with their references as they are compiled for users."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def as_users_have_them(optimized):
    """See `optimized`."""
