"""`mesh.auto`: the planner chooses along which axes devices share a run."""

import sys
from collections.abc import Iterator
from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from gmlp_flax.config import overrides
from gmlp_flax.errors import RunError
from gmlp_flax.planning import chips, plan
from gmlp_flax.planning.plan import Plan
from gmlp_flax.processes import distributed
from gmlp_flax.training import warm_start

Sizes = tuple[int, int, int]  # devices along data, fsdp and tensor


class Choice(NamedTuple):
    """A mesh for a config.

    Attributes:
        sizes: devices along data, fsdp and tensor.
        reason: in a line.
        plan: with it; None if nothing is known of the devices.
    """

    sizes: Sizes
    reason: str
    plan: Plan | None = None


def candidates(devices: int, slices: int = 1) -> Iterator[Sizes]:
    """The meshes that make sense, in the order in which they exchange more: copies of the state; the state in parts
    that eight devices, or all of them, hold; and products in halves."""
    yield devices, 1, 1
    within = devices // slices
    for parts in sorted({8, within}):
        if 1 < parts <= within and within % parts == 0:
            yield devices // parts, parts, 1
    if within % 2 == 0:
        yield slices, within // 2, 2


def choose(config: ConfigDict, topology: str, devices: list | None = None) -> Choice:
    """The mesh with the fastest step of those that fit, by the planner's bounds.

    Args:
        config: of the run, whose own mesh does not count.
        topology: as `plan.make` takes it.
        devices: of this machine, if they are what the topology says.

    Raises:
        RunError: no mesh fits; or none suits the batch and the model.
    """
    count, plans, refused = chips.parse(topology).count, {}, ""
    for sizes in candidates(count, config.mesh.slices):
        print(f"planning mesh {named(sizes)}", file=sys.stderr, flush=True)
        try:
            found = plans[sizes] = plan.make(with_mesh(config, sizes), topology, devices=devices)
        except RunError as error:
            refused = refused or str(error)
            continue
        products, memory, links = (found.seconds[part] or 0.0 for part in ("products", "memory", "links"))
        if found.fits and links < max(products, memory):
            break  # links do not hold this one up, and those that follow use them more
    fitting = {sizes: each for sizes, each in plans.items() if each.fits}
    if not plans:
        raise RunError(f"config.mesh=auto: no mesh of {topology} suits the run: {refused}")
    if not fitting:
        sizes, least = min(plans.items(), key=lambda pair: pair[1].per_chip_bytes["peak"])
        peak, most = least.per_chip_bytes["peak"] / 1e9, least.hbm_bytes / 1e9
        raise RunError(
            f"config.mesh=auto: no mesh of {topology} fits; {named(sizes)} needs least, {peak:.1f} of {most:.1f} GB a "
            f"chip{_what_fits(with_mesh(config, sizes), topology, devices)}"
        )
    sizes = min(fitting, key=lambda sizes: fitting[sizes].step_seconds)
    others = [f"{named(each)} {_time(plans[each])}" for each in plans if each != sizes]
    beside = f"the fastest that fits ({'; '.join(others)})" if others else "it fits, and links do not hold it up"
    return Choice(sizes, f"{_time(plans[sizes])}; {beside}", plans[sizes])


def settle(config: ConfigDict, workdir: str) -> ConfigDict:
    """The config with the mesh that suits this machine's devices, if its own is to be chosen; says why.

    Args:
        config: of a run.
        workdir: its folder.

    Raises:
        RunError: as in `choose`.
    """
    if not config.mesh.auto:
        return config
    devices, alone = jax.devices(), (jax.device_count(), 1, 1)
    kind = chips.of_device(devices[0].device_kind)
    topology = chips.usual(kind, len(devices)) if kind else None
    if len(devices) == 1:
        choice = Choice(alone, "one device")
    elif topology is None:
        choice = Choice(alone, f"no figures of {len(devices)} devices {devices[0].device_kind!r} are known")
    else:
        choice = choose(warm_start.inherit(config, workdir)[0], topology, devices)
    distributed.say(f"mesh {named(choice.sizes)}: {choice.reason}")
    return with_mesh(config, choice.sizes)


def _what_fits(config: ConfigDict, topology: str, devices: list | None) -> str:
    """The first change that makes a plan fit, for a message."""
    for other in plan.alternatives(config, topology):
        try:
            there = devices if other.topology == topology else None
            if plan.make(overrides.overridden(config, other.overrides), other.topology, devices=there).fits:
                return f": {other.name} would fit"
        except RunError:
            continue
    return ": nor would gradient accumulation, model.remat=full or the next larger topologies; take a smaller model"


def with_mesh(config: ConfigDict, sizes: Sizes) -> ConfigDict:
    """A config with this mesh."""
    config = config.copy_and_resolve_references()
    config.mesh.auto, (config.mesh.data, config.mesh.fsdp, config.mesh.tensor) = False, sizes
    return config


def named(sizes: Sizes) -> str:
    """A mesh for reading."""
    return " x ".join(f"{axis} {size}" for axis, size in zip(("data", "fsdp", "tensor"), sizes, strict=True))


def _time(found: Plan) -> str:
    return f"{1e3 * found.step_seconds:.4g} ms at least" if found.fits else "does not fit"
