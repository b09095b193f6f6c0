"""Topologies in the words of clouds."""

from __future__ import annotations

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.launching import hardware, skypilot
from gmlp_flax.planning.chips import CHIPS

ALL = (*hardware.TPUS, *hardware.GPUS)


@pytest.mark.parametrize(
    ("topology", "named", "shaped"),
    [
        ("v5e:2x4", "v5litepod-8", "v5litepod-2x4"),
        ("v4:2x2x1", "v4-8", "v4-2x2x1"),
        ("v5p:2x2x2", "v5p-16", "v5p-2x2x2"),
        ("tpu7x:2x2x1", "tpu7x-8", "tpu7x-2x2x1"),
    ],
)
def test_types_of_slices(topology, named, shaped):
    """v2 to v4, v5p and tpu7x count cores, two of them in a chip."""
    found = hardware.find(topology, ALL, "x")
    assert (found.tpu_type, found.shaped_type) == (named, shaped)


def test_nodes_of_gpus():
    found = hardware.find("gpu:h100x32", ALL, "x")
    assert (found.nodes(), found.nodes(4)) == ((4, 8), (8, 4))
    assert hardware.find("gpu:a100-40gbx2", ALL, "x").nodes() == (1, 2)
    with pytest.raises(RunError, match="32 GPUs are no whole number of nodes of 5"):
        found.nodes(5)


def test_every_kind_that_is_planned_has_a_name():
    assert set(ALL) == set(CHIPS) and set(skypilot.GPUS) == set(hardware.GPUS)
