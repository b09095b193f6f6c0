from tests.fuzz import checkpoints


def test_damaged_checkpoints_never_give_another_state():
    found = checkpoints.campaign(seed=0, minutes=5, count=12)
    assert sum(found.values()) == 12 and found["put aside"] > 3, found
