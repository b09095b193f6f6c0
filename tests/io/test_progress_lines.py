"""What a user reads while waiting."""

import time

import pytest

from gmlp_flax.io import progress_lines


def test_says_what_is_done_and_how_long_it_has_taken(monkeypatch):
    monkeypatch.setattr(progress_lines, "EVERY", 0.01)
    told = []
    with progress_lines.waiting("compiling", told.append):
        while len(told) < 3:
            time.sleep(0.001)
    assert told[0] == "compiling" and set(told[1:]) == {"compiling: 0 s so far"}
    after = len(told)
    time.sleep(0.05)
    assert len(told) == after, "it ends with the work"


def test_an_error_passes_through(capsys):
    with pytest.raises(ZeroDivisionError), progress_lines.waiting("dividing"):
        1 / 0  # noqa: B018
    assert capsys.readouterr().err == "dividing\n"
