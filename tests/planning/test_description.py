"""A plan in lines: its numbers in the units that the words say."""

import dataclasses

import pytest

from gmlp_flax.planning.description import WHAT_ELSE, describe
from gmlp_flax.planning.plan import Plan

PLAN = Plan(
    topology="v5e:4x4",
    chips=16,
    method="compiled",
    params=19_422_656,
    flops_per_step=1.2345e15,
    per_chip_bytes={"arguments": 200_000_000, "temporaries": 8_000_000_000, "peak": 8_200_000_000},
    hbm_bytes=16_000_000_000,
    fits=True,
    collectives={"all-reduce": {"count": 3, "bytes": 78_000_000}},
    seconds={"products": 0.25, "memory": None, "links": 0.0125},
    step_seconds=0.25,
    run_days=0.5,
    chip_hours=192,
    cost=230.4,
    utilization=0.42,
    per_price=1_500_000,
    products_bound=512,
    notes=("evaluations are left out",),
)


def rows(plan: Plan) -> dict[str, str]:
    """Name of a row -> its text."""
    found = {}
    for line in describe(plan, "images").splitlines()[1:]:
        found[line[2:18].strip()] = line[19:]
    return found


def test_numbers_have_units():
    found = rows(PLAN)
    assert describe(PLAN, "images").splitlines()[0] == "v5e:4x4: 16 chips, compiled"
    assert found["parameters"] == "19,422,656"
    assert found["memory per chip"] == ("8.20 of 16.00 GB: fits (0.20 arguments, 8.00 temporaries)")
    assert found["all-reduce"] == "3 per step, 78.0 MB"
    assert found["step"] == "250 ms at least (products 250, memory unknown, links 12.5)"
    assert found["utilization"].startswith("at most 42% of peak")
    assert found["utilization"].endswith("compute-bound from a batch of 512")
    assert found["run"] == (
        "12.0 hours, 192 chip-hours, 230 at the price given, 1,500,000 images for 1"
    )
    assert "note: evaluations are left out" in describe(PLAN, "images")


def test_chips_that_cost_nothing():
    plan = dataclasses.replace(PLAN, cost=0.0, per_price=None)
    assert rows(plan)["run"] == "12.0 hours, 192 chip-hours, 0 at the price given"


def test_plans_without_a_price_that_exceed_the_memory():
    plan = dataclasses.replace(PLAN, cost=None, per_price=None, fits=False, products_bound=None)
    found = rows(plan)
    assert found["run"] == "12.0 hours, 192 chip-hours"
    assert "DOES NOT FIT" in found["memory per chip"]
    assert "optimizer.grad_accum_steps" in found["utilization"]
    assert describe(plan, "images").splitlines()[-1] == f"  {WHAT_ELSE}"
    gpu = dataclasses.replace(plan, topology="gpu:h100x8")
    assert "grad_accum_steps" not in describe(gpu, "images")


@pytest.mark.parametrize(
    ("days", "chip_hours", "expected"),
    [
        (1e-4, 2.4e-3, "8.6 seconds, less than 0.01 chip-hours"),
        (0.01, 0.24, "14.4 minutes, 0.24 chip-hours"),
        (1 / 24, 16.0, "1.0 hours, 16 chip-hours"),
        (2.9, 1113.6, "69.6 hours, 1,114 chip-hours"),
        (3.0, 1152.0, "3.0 days, 1,152 chip-hours"),
        (1234.0, 473_856.0, "1,234.0 days, 473,856 chip-hours"),
    ],
)
def test_runs_shorter_than_three_days_are_in_hours(days, chip_hours, expected):
    plan = dataclasses.replace(PLAN, cost=None, run_days=days, chip_hours=chip_hours)
    assert rows(plan)["run"] == expected


def test_operations_that_move_most_bytes_are_listed():
    moved = {"bytes": 60_000_000, "runs": 12, "results": "f32[8,8]", "source": "mlp/dot"}
    plan = dataclasses.replace(PLAN, moved=(moved,))
    text = describe(plan, "images")
    [line] = [line for line in text.splitlines() if line.endswith("f32[8,8] <- mlp/dot")]
    megabytes, runs, megabytes_of_a_run, *_ = line.split()
    assert megabytes == "60.0"
    assert runs == "12"
    assert megabytes_of_a_run == "5.0"
