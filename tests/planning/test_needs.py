"""What a step needs of a device: read from the compiler's errors, and counted by hand."""

import pytest

from gmlp_flax.planning import needs
from gmlp_flax.planning.needs import Step
from tests.planning.test_plan import small


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "RESOURCE_EXHAUSTED: E1000: needed for HLO temporaries (19.50G) exceeds available HBM (15.75G).",
            19.5 * 2**30,
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 512.00M of 256.00M hbm.",
            2**29,
        ),
        ("INTERNAL: something else (3.00G) exceeds everything", None),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 18.00M of 16.00M vmem.",
            None,
        ),
        ("RESOURCE_EXHAUSTED: in other words", None),
    ],
)
def test_required_memory_is_read_from_the_compilers_error(message, expected):
    assert needs.needed_bytes(message) == expected


def test_bytes_that_data_and_fsdp_parallelism_exchange():
    """Four copies in two parts, two microbatches. Of a ring of n, n - 1 of n parts of a result pass
    each device, twice in a reduction."""
    options = small(**{"mesh.data": 4, "mesh.fsdp": 2, "optimizer.grad_accum_steps": 2})
    step = Step.make(options, 8)
    found = needs.exchange(step)
    assert set(found) == {"all-reduce", "all-gather", "reduce-scatter"}
    reduced = found["all-reduce"]
    assert reduced.count == 1
    assert reduced.bytes == step.share.params
    passed_share = 2 * 3 / 4
    assert reduced.wire_bytes == pytest.approx(passed_share * step.share.params)
    gathered = found["all-gather"]
    assert gathered.count == 2
    assert gathered.bytes == 2 * 2 * step.work.params
    assert gathered.wire_bytes == pytest.approx(gathered.bytes / 2)
    assert found["reduce-scatter"].count == 2
    for kind in found.values():
        assert kind.waiting_bytes == kind.wire_bytes


def test_an_estimate_counts_the_gradients_twice_if_they_are_accumulated():
    once = Step.make(small(), 1)
    twice = Step.make(small(**{"optimizer.grad_accum_steps": 2}), 1)
    saved = once.work.saved_bytes * 64
    memory = needs.estimate(once).memory
    assert memory.arguments == once.argument_bytes
    assert memory.temporaries == saved + once.share.params
    assert memory.peak == memory.arguments + memory.temporaries
    accumulated = needs.estimate(twice).memory
    assert accumulated.temporaries == saved / 2 + 2 * twice.share.params
