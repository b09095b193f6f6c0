"""Which device holds what: a mesh, and the sharding of state and batches. The only file that decides it.

The mesh has three axes. `data` holds copies of the state, each with its share of the batch. `fsdp` shares the batch as
well, and cuts the state: a layer's parameters are gathered when it runs. `tensor` cuts d_ffn, heads and vocabulary: a
layer's products are made in parts. Channels do not meet in the Spatial Gating Unit's token mixing, so `tensor` leaves
it local.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from gmlp_flax.models.layout import BATCH, DATA, FSDP, TENSOR
from gmlp_flax.training.errors import RunError
from gmlp_flax.training.state import path_name

AXES = (DATA, FSDP, TENSOR)
Rule = tuple[str, tuple[str | None, ...]]

# A path's end -> the mesh axis of each of its last axes; those before, the layers', are not cut. The first that fits
# counts. Adam's moments and the running mean have the paths of their parameters.
RULES: tuple[Rule, ...] = (
    (r"(^|/)embedding$", (TENSOR, FSDP)),  # [vocabulary, d_model]
    (r"(blocks|mlp)/proj_in/kernel$", (FSDP, TENSOR)),  # [d_model, d_ffn]
    (r"(blocks|mlp)/proj_out/kernel$", (TENSOR, FSDP)),  # [d_ffn or half of it, d_model]
    (r"attention/out/kernel$", (None, FSDP)),  # [channels of all heads, d_model or half of d_ffn]
    (r"(attention/proj_in|qkv|stem|pre_logits|transform|pooler|head|spans)/kernel$", (FSDP, None)),  # [d_model, any]
    (r"token_mlp/proj_in/weight$", (FSDP, None)),  # [d_spatial, n]
    (r"token_mlp/proj_out/weight$", (None, FSDP)),  # [n, d_spatial]
    (r"/weight$", ()),  # [n, n]: n is seldom a multiple of anything
    (r"((blocks|mlp)/proj_in/bias|gate/norm/(scale|bias))$", (TENSOR,)),  # as the products they belong to
    (r"(^|params/|ema/|mu/|nu/)bias$", (TENSOR,)),  # of the logits
    (r"(^|/)(bias|scale|taps|table|cls)$", ()),  # small: vectors, and tables of positions
)


def make_mesh(sizes: Mapping[str, int] | None = None, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of the given devices, or of all of all hosts.

    Args:
        sizes: config.mesh: devices along each axis, one of them -1 for the rest; `slices`, TPU slices that are joined
            by a network alone, over which `data` goes. None: all in `data`.
        devices: their order is chosen for their connections.

    Raises:
        RunError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = {DATA: -1, FSDP: 1, TENSOR: 1, "slices": 1} | dict(sizes or {})
    shape, slices = axis_sizes(sizes, len(devices)), sizes["slices"]
    if slices > 1:
        inside = (shape[0] // slices, *shape[1:])
        devices = mesh_utils.create_hybrid_device_mesh(inside, (slices, 1, 1), devices)
        return Mesh(devices, AXES, axis_types=(AxisType.Auto,) * 3)
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def axis_sizes(sizes: Mapping[str, int], devices: int) -> tuple[int, int, int]:
    """Devices along each of AXES.

    Raises:
        RunError: as `make_mesh`.
    """
    given = [sizes[axis] for axis in AXES]
    words = " x ".join(f"{axis} {size}" for axis, size in zip(AXES, given, strict=True))
    known = math.prod(size for size in given if size != -1)
    if given.count(-1) > 1 or any(size < 1 and size != -1 for size in given) or known < 1:
        raise RunError(f"config.mesh is {words}: expected sizes of at least 1, and -1 for the rest at most once")
    if devices % known or -1 not in given and known != devices:
        raise RunError(f"config.mesh is {words}, which does not make {devices} devices: set one to -1, for the rest")
    shape = tuple(devices // known if size == -1 else size for size in given)
    if shape[0] % sizes["slices"]:
        raise RunError(f"config.mesh.slices={sizes['slices']} does not divide its data axis of {shape[0]}")
    return shape


def batch_shares(mesh: Mesh) -> int:
    """Into how many parts a batch is cut."""
    return mesh.shape[DATA] * mesh.shape[FSDP]


def check_batch(batch_size: int, microbatches: int, name: str, mesh: Mesh) -> None:
    """Refuses a batch that the devices cannot share evenly.

    Raises:
        RunError: saying which sizes would do.
    """
    share = batch_shares(mesh) * microbatches
    if batch_size % share:
        lower, upper = batch_size // share * share, -(-batch_size // share) * share
        wanted = f"{lower} or {upper}" if lower else str(upper)
        by = f"{batch_shares(mesh)} devices" + (f" x {microbatches} microbatches" if microbatches > 1 else "")
        raise RunError(f"{name} is {batch_size}, which does not divide by {by}: set it to {wanted}")


def parse_rules(lines: Iterable[str]) -> tuple[Rule, ...]:
    """config.mesh.rules, each `PATTERN=AXIS,AXIS,...` with `-` for an axis that is not cut.

    Raises:
        RunError: a line has another form.
    """
    rules = []
    for line in lines:
        pattern, equals, names = line.rpartition("=")
        axes = tuple(None if name == "-" else name for name in names.split(",") if name)
        try:
            re.compile(pattern)
        except re.error as error:
            raise RunError(f"config.mesh.rules: {pattern!r} is no regular expression ({error})") from None
        if not (pattern and equals) or not {*axes} <= {*AXES, None}:
            axes = ", ".join(AXES)
            raise RunError(f"config.mesh.rules: {line!r} is not PATTERN=AXIS,..., each axis one of {axes}, -")
        rules.append((pattern, axes))
    return tuple(rules)


def check_parameters(params: Any, mesh: Mesh, rules: Sequence[Rule] = ()) -> None:
    """Refuses parameters that the rules do not cut evenly. Vectors and scalars need no rule of their own.

    Args:
        params: their shapes.
        mesh: the devices.
        rules: those that go before RULES.

    Raises:
        RunError: naming each parameter that no rule fits, each axis that does not divide, or a rule that fits nothing.
    """
    problems, used = [], set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = path_name(path)
        rule = _rule(name, rules)
        used.add(rule)
        if rule is None:
            problems.append(f"no rule says how to cut {name} {list(leaf.shape)}")
            continue
        if len(rule[1]) > len(leaf.shape):
            problems.append(f"{rule[0]!r} names {len(rule[1])} axes of {name}, which has {len(leaf.shape)}")
            continue
        for size, axis in zip(leaf.shape[len(leaf.shape) - len(rule[1]) :], rule[1], strict=True):
            if axis and size % mesh.shape[axis]:
                problems.append(f"{name} has {size}, not a multiple of config.mesh.{axis}={mesh.shape[axis]}")
    problems += [f"config.mesh.rules: {rule[0]!r} matches no parameter" for rule in rules if rule not in used]
    if problems:
        raise RunError("; ".join(problems))


def _rule(name: str, rules: Sequence[Rule]) -> Rule | None:
    return next((rule for rule in (*rules, *RULES) if re.search(rule[0], name)), None)


def shardings(tree: Any, mesh: Mesh, rules: Sequence[Rule] = ()) -> Any:
    """How the leaves of a state or of parameters lie on the devices, by their paths; the rest whole on each."""
    def of(path: tuple, leaf: Any) -> NamedSharding:
        rule = _rule(path_name(path), rules)
        axes = rule[1] if rule and len(rule[1]) <= len(leaf.shape) else ()
        return NamedSharding(mesh, PartitionSpec(*(len(leaf.shape) - len(axes)) * (None,), *axes))

    return jax.tree_util.tree_map_with_path(of, tree)


def describe(tree: Any, mesh: Mesh, rules: Sequence[Rule] = ()) -> Any:
    """Shapes with their shardings: the template for making a state and for restoring it."""
    def of(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(of, tree, shardings(tree, mesh, rules))


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds all of it."""
    return NamedSharding(mesh, PartitionSpec())


def over_batch(mesh: Mesh) -> NamedSharding:
    """The leading axis, the example, is split over the devices."""
    return NamedSharding(mesh, PartitionSpec(BATCH))


def on_each_share(function: Callable, mesh: Mesh) -> Callable:
    """A function of (parameters, batch) that runs on each slice of the `data` axis by itself, and whose results, sums
    over the examples, are added up at the end, once.

    Left to itself the compiler adds up gradients where they arise: in every layer and every microbatch.
    """
    def alone(params: Any, batch: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(params, batch)

    def share(params: Any, batch: Any) -> Any:
        return jax.lax.psum(function(params, batch), DATA)

    if mesh.shape[DATA] == 1:
        return alone  # the compiler fails on a sum over one device while other axes cut
    whole, split = PartitionSpec(), PartitionSpec(DATA)
    return jax.shard_map(
        share, mesh=mesh, in_specs=(whole, split), out_specs=whole, axis_names={DATA}, check_vma=False
    )


def host_share(mesh: Mesh) -> tuple[int, int]:
    """Which part of each batch this host reads, and into how many parts hosts cut it.

    Hosts whose devices differ in `tensor` alone read the same part.

    Raises:
        RunError: the devices of a host do not hold a part of their own.
    """
    rows = np.arange(batch_shares(mesh)).reshape(mesh.devices.shape[:2])
    held = {}
    for place, device in np.ndenumerate(mesh.devices):
        held.setdefault(device.process_index, set()).add(int(rows[place[:2]]))
    parts = sorted({tuple(sorted(part)) for part in held.values()})
    if sum(map(len, parts)) != rows.size or len(set(map(len, parts))) != 1:
        raise RunError(
            "config.mesh gives hosts overlapping parts of the batch: let fsdp x tensor divide, or be a multiple of, a "
            "host's devices"
        )
    return parts.index(tuple(sorted(held[jax.process_index()]))), len(parts)


def put_batch(mesh: Mesh, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """This host's share of a batch, as the global batch on the devices. Returns before the copy is done."""
    sharding = over_batch(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, value) for name, value in batch.items()}


def gather(tree: Any) -> Any:
    """Arrays split over the batch as whole numpy arrays, on every host."""
    return multihost_utils.process_allgather(tree, tiled=True)
