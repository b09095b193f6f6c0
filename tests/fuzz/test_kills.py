"""`MODES=all pytest tests/fuzz/test_kills.py` also kills within saves and evaluations alone, not only at any moment."""

import os

import pytest

from tests.fuzz import kills


@pytest.mark.slow
@pytest.mark.parametrize("mode", kills.MODES if os.environ.get("MODES") == "all" else ("any", "processes"))
def test_killed_runs_end_as_if_never_killed(mode):
    assert kills.campaign(mode, seed=0, minutes=5, kills=1).counts["kills"] >= 1
