import pytest

from tests.fuzz import kills


@pytest.mark.slow
@pytest.mark.parametrize("mode", kills.MODES)
def test_killed_runs_end_as_if_never_killed(mode):
    assert kills.campaign(mode, seed=0, minutes=5, kills=1).counts["kills"] >= 1
