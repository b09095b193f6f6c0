"""Whether blocks read later tokens: no causal block does, and every other block does."""

import dataclasses

import pytest

from gmlp_flax.models.blocks import BLOCKS, find
from gmlp_flax.models.blocks.causality import looks_ahead
from tests.custom_blocks import PEEKING, SHIFTING
from tests.selection import marked_unless

SIZES = {"layers": 2, "d_model": 16}
QUICK = ("transformer", "bigs")
CAUSAL_BLOCKS = [name for name, block in BLOCKS.items() if block.can_be_causal]


@pytest.mark.parametrize(
    "length",
    [
        7,
        pytest.param(200, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("name", marked_unless(QUICK, CAUSAL_BLOCKS, pytest.mark.slow))
def test_causal_blocks_do_not_read_later_tokens(name, length):
    spec = BLOCKS[name].spec(length=length, causal=True, **SIZES)
    assert not looks_ahead(spec)


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSAL_BLOCKS)
def test_bidirectional_blocks_read_later_tokens(name):
    spec = BLOCKS[name].spec(length=40, causal=False, **SIZES)
    assert looks_ahead(spec)


@pytest.mark.slow
def test_low_precision_hides_no_later_tokens():
    spec = BLOCKS["gmlp"].spec(length=16, causal=False, **SIZES)
    low_precision = dataclasses.replace(spec, dtype="bfloat16")
    assert looks_ahead(low_precision)


@pytest.mark.slow
def test_user_defined_blocks_are_checked():
    """One reads the token before, the other inside chunks of four all tokens of its chunk."""
    shifting = find(SHIFTING).spec(length=16, causal=True, **SIZES)
    peeking = find(PEEKING).spec(length=16, causal=True, **SIZES)
    assert not looks_ahead(shifting)
    assert looks_ahead(peeking)
