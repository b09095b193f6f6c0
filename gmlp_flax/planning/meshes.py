"""The mesh that suits a run on some devices (`mesh.auto`), by the plans of those that make sense."""

import sys
from collections.abc import Iterator

import jax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.config import Sizes
from gmlp_flax.errors import RunError
from gmlp_flax.planning import chips
from gmlp_flax.planning import plan as planner
from gmlp_flax.planning.plan import Plan


def candidates(devices: int, slices: int = 1) -> Iterator[Sizes]:
    """The meshes that make sense, those that exchange less first: copies of the state; the state in
    parts that eight devices, or all of them, hold; and products in halves."""
    yield devices, 1, 1
    per_slice = devices // slices
    for parts in sorted({8, per_slice}):
        if 1 < parts <= per_slice and per_slice % parts == 0:
            copies = devices // parts
            yield copies, parts, 1
    if per_slice % 2 == 0:
        halves = per_slice // 2
        yield slices, halves, 2


def choose(config: ConfigDict, topology: str, devices: list | None = None) -> tuple[Sizes, str]:
    """The mesh with the fastest step of those that fit, by the planner's bounds.

    Args:
        config: of the run. Its own mesh is ignored.
        topology: as `plan.make` takes it.
        devices: of this machine, if they are what the topology says.

    Returns:
        The devices along data, fsdp and tensor, and the reason in a line.

    Raises:
        RunError: no mesh fits; or none suits the batch and the model.
    """
    plans = _plans(config, topology, devices)
    fitting = [sizes for sizes, plan in plans.items() if plan.fits]
    if not fitting:
        smallest = min(plans, key=lambda sizes: plans[sizes].per_chip_bytes["peak"])
        with_smallest = config_lib.with_mesh(config, smallest)
        advice = _what_fits(with_smallest, topology, devices)
        raise _no_mesh_fits(smallest, plans[smallest], advice)
    fastest = min(fitting, key=lambda sizes: plans[sizes].step_seconds)
    time = _time(plans.pop(fastest))
    others = []
    for sizes, plan in plans.items():
        name = config_lib.mesh_name(sizes)
        others.append(f"{name} {_time(plan)}")
    reason = "it fits, and links do not hold it up"
    if others:
        reason = f"the fastest that fits ({'; '.join(others)})"
    return fastest, f"{time}; {reason}"


def _no_mesh_fits(smallest: Sizes, plan: Plan, advice: str) -> RunError:
    """The error if even the mesh that needs the least memory does not fit."""
    name = config_lib.mesh_name(smallest)
    peak = plan.per_chip_bytes["peak"] / 1e9
    available = plan.hbm_bytes / 1e9
    return RunError(
        f"config.mesh=auto: no mesh of {plan.topology} fits; {name} needs least, {peak:.1f} of "
        f"{available:.1f} GB a chip{advice}"
    )


def _plans(config: ConfigDict, topology: str, devices: list | None) -> dict[Sizes, Plan]:
    """The plans of candidate meshes, up to the first one that links do not hold up. Raises RunError
    if none suits the run."""
    count = chips.parse(topology).count
    plans: dict[Sizes, Plan] = {}
    first_error = ""
    for sizes in candidates(count, config.mesh.slices):
        print(f"planning mesh {config_lib.mesh_name(sizes)}", file=sys.stderr, flush=True)
        try:
            plan = planner.make(config_lib.with_mesh(config, sizes), topology, devices=devices)
        except RunError as error:
            first_error = first_error or str(error)
            continue
        plans[sizes] = plan
        if plan.fits and not _is_held_up_by_links(plan):
            break  # the meshes that follow use links more
    if not plans:
        raise RunError(f"config.mesh=auto: no mesh of {topology} suits the run: {first_error}")
    return plans


def _is_held_up_by_links(plan: Plan) -> bool:
    links = plan.seconds["links"] or 0.0
    products = plan.seconds["products"] or 0.0
    memory = plan.seconds["memory"] or 0.0
    return links >= max(products, memory)


def choose_here(config: ConfigDict) -> tuple[Sizes, str]:
    """The mesh that suits a run on this machine's devices, and the reason, for `config.resolve`.

    Raises:
        RunError: as in `choose`.
    """
    devices = jax.devices()
    along_data = (len(devices), 1, 1)
    if len(devices) == 1:
        return along_data, "one device"
    name = devices[0].device_kind
    kind = chips.of_device(name)
    topology = chips.usual(kind, len(devices)) if kind else None
    if topology is None:
        return along_data, f"no figures of {len(devices)} devices {name!r} are known"
    return choose(config, topology, devices)


def _what_fits(config: ConfigDict, topology: str, devices: list | None) -> str:
    """The first change that makes a plan fit, for a message."""
    for other in planner.alternatives(config, topology):
        other_devices = devices if other.topology == topology else None
        try:
            changed = config_lib.overridden(config, other.changes)
            plan = planner.make(changed, other.topology, devices=other_devices)
        except RunError:
            continue
        if plan.fits:
            return f": {other.name} would fit"
    return (
        ": gradient accumulation, model.remat=full or the next larger topologies do not help; take "
        "a smaller model"
    )


def _time(plan: Plan) -> str:
    if not plan.fits:
        return "does not fit"
    milliseconds = 1e3 * plan.step_seconds
    return f"{milliseconds:.4g} ms at least"
