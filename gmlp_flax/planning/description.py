"""A plan for reading."""

from collections.abc import Mapping
from typing import Any

from gmlp_flax.planning.plan import Plan

HOURS_BELOW = 3  # days: shorter runs are given in hours
WHAT_ELSE = (
    "--config.mesh=auto says whether mesh.fsdp, remat=full, accumulation or more chips would make "
    "it fit"
)


def describe(plan: Plan, unit: str) -> str:
    """A plan in lines.

    Args:
        plan: made by `plan.make`.
        unit: what throughput counts, such as "tokens".
    """
    lines = [f"{plan.topology}: {plan.chips} chips, {plan.method}"]
    for name, words in _rows(plan, unit).items():
        lines.append(f"  {name:<16} {words}")
    if plan.moved:
        lines.append("")
        lines += _table_of_moved(plan.moved)
    for note in plan.notes:
        lines.append(f"  note: {note}")
    if not plan.fits:
        lines.append(f"  {WHAT_ELSE}")
    return "\n".join(lines)


def _rows(plan: Plan, unit: str) -> dict[str, str]:
    rows = {
        "parameters": f"{plan.params:,}",
        "FLOPs per step": f"{plan.flops_per_step:.4g}",
        "memory per chip": _memory(plan),
    }
    for kind, collective in plan.collectives.items():
        count = collective["count"]
        megabytes = collective["bytes"] / 1e6
        rows[kind] = f"{count} per step, {megabytes:,.1f} MB"
    step_ms = 1e3 * plan.step_seconds
    rows["step"] = f"{step_ms:.4g} ms at least ({_parts(plan)})"
    rows["utilization"] = f"at most {plan.utilization:.0%} of peak (model FLOPs); {_bound(plan)}"
    rows["run"] = f"{_duration(plan.run_days)}, {_chip_hours(plan.chip_hours)}"
    if plan.cost is not None:
        rows["run"] += f", {plan.cost:,.0f} at the price given"
        if plan.per_price is not None:  # at a price of 0
            rows["run"] += f", {plan.per_price:,.0f} {unit} for 1"
    return rows


def _duration(days: float) -> str:
    """A time in days; in hours below three days, in minutes below one hour, and in seconds below one
    minute."""
    hours = 24 * days
    minutes = 60 * hours
    if minutes < 1:
        return f"{60 * minutes:.2g} seconds"
    if hours < 1:
        return f"{minutes:.1f} minutes"
    if days < HOURS_BELOW:
        return f"{hours:.1f} hours"
    return f"{days:,.1f} days"


def _chip_hours(hours: float) -> str:
    if hours < 0.01:
        return "less than 0.01 chip-hours"
    if hours < 10:
        return f"{hours:.2g} chip-hours"
    return f"{hours:,.0f} chip-hours"


def _memory(plan: Plan) -> str:
    peak = plan.per_chip_bytes["peak"] / 1e9
    available = plan.hbm_bytes / 1e9
    fits = "fits" if plan.fits else "DOES NOT FIT"
    arguments = plan.per_chip_bytes["arguments"] / 1e9
    temporaries = plan.per_chip_bytes["temporaries"] / 1e9
    return (
        f"{peak:.2f} of {available:.2f} GB: {fits} "
        f"({arguments:.2f} arguments, {temporaries:.2f} temporaries)"
    )


def _parts(plan: Plan) -> str:
    """The time of a step if only one part took time, in milliseconds."""
    parts = []
    for name, seconds in plan.seconds.items():
        milliseconds = "unknown"
        if seconds is not None:
            milliseconds = f"{1e3 * seconds:.3g}"
        parts.append(f"{name} {milliseconds}")
    return ", ".join(parts)


def _bound(plan: Plan) -> str:
    """The slowest part of a step, and at which batch."""
    if plan.products_bound:
        return f"compute-bound from a batch of {plan.products_bound:,}"
    bound = "memory-bound at any batch size"
    if not plan.topology.startswith("gpu:"):
        bound += "; microbatches (optimizer.grad_accum_steps) may reduce the traffic"
    return bound


def _table_of_moved(moved: tuple[Mapping[str, Any], ...]) -> list[str]:
    """The instructions that move most bytes."""
    header = f"{'MB per step':>11}{'runs':>7}{'MB a run':>10}"
    lines = [f"{header}  arrays written (*: kept on the chip) <- operation"]
    for instruction in moved:
        megabytes = instruction["bytes"] / 1e6
        runs = instruction["runs"]
        per_run = megabytes / runs
        results = instruction["results"]
        source = instruction["source"]
        numbers = f"{megabytes:>11.1f}{runs:>7.0f}{per_run:>10.1f}"
        lines.append(f"{numbers}  {results} <- {source}")
    return lines
