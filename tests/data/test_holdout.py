"""Which examples are held out; `reference` is the rule as the module's docstring has it, written
plainly."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data import holdout
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from tests.failures import failure

SHARES = st.floats(0.001, 0.49)
CHECK = "123456789"  # the check value of CRC-32 is that of these digits: 0xCBF43926
PLACE = 0xCBF43926 / 2**32  # 0.7966


@pytest.mark.parametrize(
    ("share", "role"),
    [
        (0.79, TRAIN),
        (0.8, HELDOUT),
        (0.0, TRAIN),
        (1.0, HELDOUT),
        (-0.2, TRAIN),
        (-0.21, HELDOUT),
    ],
)
def test_the_crc_of_a_key_decides(share, role):
    assert holdout.is_member(role, CHECK, share)
    other = TRAIN if role == HELDOUT else HELDOUT
    assert not holdout.is_member(other, CHECK, share)


def test_a_negative_share_leaves_out_what_the_positive_share_holds_out():
    share = PLACE + 0.01
    assert holdout.is_member(HELDOUT, CHECK, share)
    assert not holdout.is_member(TRAIN, CHECK, -0.1 - PLACE)
    low = next(key for key in map(str, range(1000)) if holdout.is_member(HELDOUT, key, 0.1))
    assert not holdout.is_member(TRAIN, low, -0.1)
    assert not holdout.is_member(HELDOUT, low, -0.1)


def test_members_are_positions_in_order():
    keys = [str(number) for number in range(40)]
    places = [zlib.crc32(key.encode()) / 2**32 for key in keys]
    expected = [index for index, place in enumerate(places) if place < 0.3]
    found = holdout.members(keys, HELDOUT, 0.3)
    assert found.tolist() == expected
    assert found.dtype == np.int64
    assert holdout.members([], TRAIN, 0.3).tolist() == []


def test_additions_and_the_order_change_nothing():
    keys = [f"image {number}" for number in range(100)]
    held_out = {keys[index] for index in holdout.members(keys, HELDOUT, 0.2)}
    more = [f"other {number}" for number in range(50)] + keys[::-1]
    again = {more[index] for index in holdout.members(more, HELDOUT, 0.2)}
    assert again & set(keys) == held_out
    assert 10 < len(held_out) < 30


@pytest.mark.parametrize("key", ["\ud800", "été", "", "a\0b", "x" * 10_000])
def test_keys_of_any_text(key):
    assert holdout.is_member(HELDOUT, key, 1.0)
    assert holdout.is_member(TRAIN, key, 0.0)


def reference(keys, group, share):
    """(train, held out) of a group, by the rule: what the positive share holds out, then what a
    negative one does, then the rest; each has an example if there is one to spare."""
    waiting = sorted(group, key=lambda index: zlib.crc32(keys[index].encode()))
    reported = []
    while waiting and holdout.is_member(HELDOUT, keys[waiting[0]], abs(share)):
        reported.append(waiting.pop(0))
    if not reported:
        reported.append(waiting.pop(0))
    if not waiting:
        waiting.append(reported.pop())
    if share > 0:
        return waiting, reported
    searched = []
    while waiting and holdout.is_member(HELDOUT, keys[waiting[-1]], share):
        searched.append(waiting.pop())
    if not searched and len(waiting) > 1:
        searched.append(waiting.pop())
    if not waiting:
        waiting.append(searched.pop())
    return waiting, searched


@given(st.lists(st.integers(2, 9), min_size=1, max_size=5), SHARES, st.sampled_from([1, -1]))
def test_each_class_has_an_example_of_each_role(sizes, share, sign):
    share = sign * share
    keys = [f"{number}.png" for number in range(sum(sizes))]
    ends = np.cumsum(sizes)
    groups = np.split(np.arange(len(keys)), ends[:-1])
    train = holdout.stratified_members(keys, groups, TRAIN, share)
    heldout = holdout.stratified_members(keys, groups, HELDOUT, share)
    expected_train = []
    expected_heldout = []
    for group in groups:
        group_train, group_heldout = reference(keys, group.tolist(), share)
        assert group_train
        assert group_heldout or len(group_train) == 1
        expected_train += group_train
        expected_heldout += group_heldout
    assert train.tolist() == sorted(expected_train)
    assert heldout.tolist() == sorted(expected_heldout)


def test_a_search_never_trains_on_what_is_reported():
    keys = [f"{number}.png" for number in range(200)]
    groups = [np.arange(0, 100), np.arange(100, 200)]
    reported = set(holdout.stratified_members(keys, groups, HELDOUT, 0.2).tolist())
    searched = set(holdout.stratified_members(keys, groups, HELDOUT, -0.2).tolist())
    train = set(holdout.stratified_members(keys, groups, TRAIN, -0.2).tolist())
    assert not reported & searched
    assert not train & (reported | searched)
    assert train | reported | searched == set(range(200))
    assert min(len(reported), len(searched)) > 20


def test_equal_keys_have_one_role_each():
    """The records of a damaged table may all have one name."""
    groups = [np.arange(5)]
    parts = []
    for role, share in ((TRAIN, -0.3), (HELDOUT, -0.3), (HELDOUT, 0.3)):
        parts += holdout.stratified_members(["x"] * 5, groups, role, share).tolist()
    assert sorted(parts) == [0, 1, 2, 3, 4]


def test_nothing_left_names_the_share():
    def raise_it():
        raise holdout.nothing_left("the articles of 'x'", TRAIN, 0.25)

    message = failure(raise_it)
    assert "the articles of 'x'" in message
    assert "heldout_share=0.25" in message
