"""Which examples are held out, compared with a slow version of the rule in the module's docstring."""

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
def test_the_crc_of_a_key_decides_its_role(share, role):
    assert holdout.is_member(role, CHECK, share)
    other = TRAIN if role == HELDOUT else HELDOUT
    assert not holdout.is_member(other, CHECK, share)


def test_negative_shares_omit_what_the_positive_share_holds_out():
    keys = [str(number) for number in range(100)]
    held_out = []
    for key in keys:
        if holdout.is_member(HELDOUT, key, 0.1):
            held_out.append(key)
    assert held_out
    for key in held_out:
        assert not holdout.is_member(TRAIN, key, -0.1)
        assert not holdout.is_member(HELDOUT, key, -0.1)
    assert holdout.is_member(HELDOUT, CHECK, PLACE + 0.01)
    share = -0.1 - PLACE
    assert not holdout.is_member(TRAIN, CHECK, share)


def test_members_are_positions_in_order():
    keys = [str(number) for number in range(40)]
    expected = []
    for index, key in enumerate(keys):
        place = zlib.crc32(key.encode()) / 2**32
        if place < 0.3:
            expected.append(index)
    members = holdout.members(keys, HELDOUT, 0.3)
    assert members.tolist() == expected
    assert members.dtype == np.int64


def test_no_keys_have_no_members():
    members = holdout.members([], TRAIN, 0.3)
    assert members.tolist() == []


def held_out_keys(keys: list[str]) -> set[str]:
    return {keys[index] for index in holdout.members(keys, HELDOUT, 0.2)}


def test_roles_do_not_depend_on_other_examples_and_the_order():
    keys = [f"image {number}" for number in range(100)]
    held_out = held_out_keys(keys)
    others = [f"other {number}" for number in range(50)]
    reversed_keys = keys[::-1]
    all_held_out = held_out_keys(others + reversed_keys)
    assert all_held_out & set(keys) == held_out
    assert 10 < len(held_out) < 30


@pytest.mark.parametrize("key", ["\ud800", "été", "", "a\0b", "x" * 10_000])
def test_keys_may_be_any_text(key):
    assert holdout.is_member(HELDOUT, key, 1.0)
    assert holdout.is_member(TRAIN, key, 0.0)


def reference(keys, group, share):
    """The positions to train on and the held-out positions of a group.

    A positive share holds out the keys with the lowest checksums, and a negative one those with the
    highest of the rest. Each part has an example if there are enough.
    """
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


SIZES = st.lists(st.integers(2, 9), min_size=1, max_size=5)


@given(SIZES, SHARES, st.sampled_from([1, -1]))
def test_stratified_members_are_those_of_the_slow_reference(sizes, share, sign):
    share = sign * share
    count = sum(sizes)
    keys = []
    for number in range(count):
        keys.append(f"{number}.png")
    ends = np.cumsum(sizes)
    positions = np.arange(count)
    groups = np.split(positions, ends[:-1])
    train = holdout.stratified_members(keys, groups, TRAIN, share)
    heldout = holdout.stratified_members(keys, groups, HELDOUT, share)
    expected_train = []
    expected_heldout = []
    for group in groups:
        group_list = group.tolist()
        group_train, group_heldout = reference(keys, group_list, share)
        assert group_train
        assert group_heldout or len(group_train) == 1
        expected_train += group_train
        expected_heldout += group_heldout
    assert train.tolist() == sorted(expected_train)
    assert heldout.tolist() == sorted(expected_heldout)


def test_searches_never_use_reported_examples():
    keys = [f"{number}.png" for number in range(200)]
    first = np.arange(0, 100)
    groups = [first, np.arange(100, 200)]

    def members(role, share):
        found = holdout.stratified_members(keys, groups, role, share)
        return set(found.tolist())

    reported = members(HELDOUT, 0.2)
    searched = members(HELDOUT, -0.2)
    train = members(TRAIN, -0.2)
    assert not reported & searched
    assert not train & reported
    assert not train & searched
    everything = train | reported | searched
    assert everything == set(range(200))
    assert len(reported) > 20
    assert len(searched) > 20


def test_equal_keys_have_one_role_each():
    """The records of a damaged table may all have one name."""
    groups = [np.arange(5)]
    positions = []
    cases = ((TRAIN, -0.3), (HELDOUT, -0.3), (HELDOUT, 0.3))
    for role, share in cases:
        keys = ["x"] * 5
        members = holdout.stratified_members(keys, groups, role, share)
        positions += members.tolist()
    assert sorted(positions) == [0, 1, 2, 3, 4]


def test_empty_parts_are_reported_with_the_share():
    def raise_it():
        raise holdout.nothing_left("the articles of 'x'", TRAIN, 0.25)

    message = failure(raise_it)
    assert "the articles of 'x'" in message
    assert "heldout_share=0.25" in message
