"""Topologies, parsed and refused."""

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.planning import chips
from tests.failures import raised


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ("v5e:16x16", ("v5e", "16x16", 256)),
        ("v4:2x2x2", ("v4", "2x2x2", 8)),
        ("gpu:h100x8", ("gpu:h100", "", 8)),
        ("gpu:a100-40gbx1", ("gpu:a100-40gb", "", 1)),
    ],
)
def test_topologies_have_a_kind_a_shape_and_a_number_of_chips(topology, expected):
    assert chips.parse(topology) == expected
    assert chips.parse(topology).chip is chips.CHIPS[expected[0]]


@pytest.mark.parametrize(
    ("topology", "meant"),
    [
        ("v5e-64", "v5e:8x8"),
        ("v5litepod-64", "v5e:8x8"),
        ("V6E-8", "v6e:2x4"),
        ("v4-8", "v4:2x2x1"),  # cores
        ("v5p-128", "v5p:4x4x4"),
        ("v9:2x2", "v6e:2x2"),
        ("v5e", "v5e:"),
        ("v5e:2xtwo", "v5e:2x2"),
        ("gpu:h100", "gpu:h100x8"),
        ("h100x8", "gpu:h100x8"),
        ("v5e:0x2", "v5e:2x2"),
        ("v5e-63", "v5e:"),
        ("", "v"),
    ],
)
def test_unknown_topologies_are_refused_with_the_nearest_ones(topology, meant):
    message = raised(RunError, chips.parse, topology)
    assert repr(topology) in message
    assert meant in message
    assert "\n" not in message
    assert len(message) < 120


def test_larger_slices_of_the_same_kind():
    assert chips.parse("v5e:4x8").larger() == ["v5e:8x8", "v5e:8x16"]
    assert chips.parse("v5p:16x16x16").larger() == []


@pytest.mark.parametrize("kind", chips.CHIPS)
def test_slices_are_sorted_by_size_and_numbers_are_per_chip(kind):
    chip = chips.CHIPS[kind]
    counts = [chips.parse(f"{kind}:{shape}").count for shape in chip.slices]
    assert counts == sorted(counts)
    assert bool(counts) != bool(chip.node)
    assert 1e10 < chip.hbm_bytes < 1e12
    assert 1e11 < chip.hbm_bandwidth < 1e13
    assert 1e13 < chip.flops < 1e16
    assert chip.link < chip.hbm_bandwidth
