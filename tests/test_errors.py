"""Errors of libraries as one line."""

import importlib.util
import sys
from pathlib import Path

import pytest

from gmlp_flax.errors import (
    SETUP_STAMP,
    ConfigError,
    DataError,
    RunError,
    StorageError,
    UserError,
    decode_errors,
    did_you_mean,
    install,
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
    "raised", [DataError("a line"), StorageError("later"), KeyboardInterrupt(), SystemExit(3)]
)
def test_user_errors_and_exits_pass_unchanged(raised):
    with pytest.raises(type(raised)) as caught, decode_errors("a", "b", RunError):
        raise raised
    assert caught.value is raised


@pytest.mark.parametrize(
    ("stamp", "pip", "expected"),
    [
        (True, True, "./scripts/setup.sh onnx"),
        (True, False, "./scripts/setup.sh onnx"),
        (False, True, "pip install 'gmlp_flax[onnx]'"),
        (False, False, "uv pip install 'gmlp_flax[onnx]'"),
    ],
)
def test_an_extra_is_installed_by_what_made_the_environment(
    tmp_path, monkeypatch, stamp, pip, expected
):
    if stamp:
        (tmp_path / "gmlp_flax.stamp").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if pip else None)
    assert install("onnx") == expected


def test_the_stamp_of_an_environment_is_that_of_setup():
    assert f"stamp=$venv/{SETUP_STAMP} " in Path("scripts/setup.sh").read_text()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("SGU", "did you mean 'sgu'?"),
        ("bertrel", "did you mean 'bert_rel'?"),
        ("lenght", "did you mean 'model.length'?"),
        ("xyz", "expected one of sgu, bert_rel, model.length"),
    ],
)
def test_the_most_similar_name(name, advice):
    assert did_you_mean(name, ["sgu", "bert_rel", "model.length"]) == advice
