import pytest

from tests.fuzz import frozen


@pytest.mark.slow
def test_a_run_that_is_frozen_at_any_moment_can_go_on():
    assert frozen.campaign(seed=0, moments=12).total() == 12
