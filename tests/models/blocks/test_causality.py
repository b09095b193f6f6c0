"""Which blocks look ahead: none of ours that can be causal, and all that are not."""

import dataclasses

import pytest

from gmlp_flax.models.blocks import BLOCKS, find
from gmlp_flax.models.blocks.causality import looks_ahead
from tests.custom_blocks import PEEKING, SHIFTING

SIZES = {"layers": 2, "d_model": 16}
ABLE = [name for name, block in BLOCKS.items() if block.can_be_causal]


@pytest.mark.parametrize("length", [7, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ABLE)
def test_our_causal_blocks_do_not(name, length):
    spec = BLOCKS[name].spec(length=length, causal=True, **SIZES)
    assert not looks_ahead(spec)


@pytest.mark.slow
@pytest.mark.parametrize("name", ABLE)
def test_the_same_blocks_do_in_both_directions(name):
    """So the test would see it."""
    spec = BLOCKS[name].spec(length=40, causal=False, **SIZES)
    assert looks_ahead(spec)


def test_a_low_precision_hides_nothing():
    spec = BLOCKS["gmlp"].spec(length=16, causal=False, **SIZES)
    assert looks_ahead(dataclasses.replace(spec, dtype="bfloat16"))


def test_blocks_of_a_users_own():
    """One reads the token before, the other inside chunks of four all tokens of its chunk."""
    shifting = find(SHIFTING).spec(length=16, causal=True, **SIZES)
    peeking = find(PEEKING).spec(length=16, causal=True, **SIZES)
    assert not looks_ahead(shifting)
    assert looks_ahead(peeking)
