"""Errors of libraries as one line."""

import pytest

from gmlp_flax.errors import (
    ConfigError,
    DataError,
    RunError,
    StorageError,
    UserError,
    decode_errors,
)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [(ConfigError, ValueError), (DataError, ValueError), (RunError, RuntimeError)],
)
def test_a_user_error_can_be_caught_as_the_builtin_one(error, builtin):
    for caught in (UserError, builtin):
        with pytest.raises(caught, match="^told$"):
            raise error("told")


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (KeyError("a"), "'a'"),
        (ValueError("first\nsecond"), "first"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("broken; source code"), "broken"),
    ],
)
def test_any_error_becomes_one_line(raised, reason):
    with pytest.raises(DataError) as caught, decode_errors("a.png: damaged", "replace it"):
        raise raised
    assert str(caught.value) == f"a.png: damaged ({reason}); replace it"


@pytest.mark.parametrize(
    "raised", [DataError("told"), StorageError("later"), KeyboardInterrupt(), SystemExit(3)]
)
def test_what_is_told_already_stays(raised):
    with pytest.raises(type(raised)) as caught, decode_errors("a", "b", RunError):
        raise raised
    assert caught.value is raised
