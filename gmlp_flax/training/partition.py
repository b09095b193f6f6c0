"""Which device holds what: the mesh, and the sharding of the state and of batches. The only file
that decides it.

The mesh has three axes. Along `data`, each device holds a copy of the state and computes a part of
the batch. Along `fsdp`, the batch is split as well, and so is the state: the parameters of a layer
are gathered when that layer runs. Along `tensor`, d_ffn and the vocabulary are split: each device
computes a part of a layer's products. The Spatial Gating Unit mixes tokens within one channel, so
`tensor` needs no communication there.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from gmlp_flax.checkpoints.pytree import leaves_by_path, path_name
from gmlp_flax.config import validation
from gmlp_flax.config.validation import AXES, Axes, Rule
from gmlp_flax.errors import RunError
from gmlp_flax.models.parameters import PLAIN, ParamMetadata
from gmlp_flax.models.sharding import BATCH, DATA, FSDP, TENSOR

Devices = Sequence[Any]  # of jax.Device, which type checkers take for a variable
Shape = tuple[int, ...]
Metadata = Mapping[str, ParamMetadata]  # of the parameters, by path
OnBatch = Callable[[Any, Any], tuple[Any, Any]]  # (parameters, batch) -> (gradients, sums)


@dataclasses.dataclass(frozen=True)
class Partition:
    """A mesh and the rules by which the state is split over it.

    Attributes:
        mesh: the devices along AXES. Without real devices, it is abstract and only gives sizes.
        rules: parsed from config.mesh.rules. They take precedence over the model's own.
        metadata: what the model says of its parameters, by path. Its `sharding` names, for each of
            the last axes of a parameter, the mesh axis along which it is split, or None. The axes
            before them, such as the layers, stay whole.
    """

    mesh: Mesh | AbstractMesh
    rules: tuple[Rule, ...] = ()
    metadata: Metadata = dataclasses.field(default_factory=dict)

    @classmethod
    def make(
        cls, options: Mapping[str, Any] | None = None, devices: Devices | int | None = None
    ) -> Partition:
        """The partition that a config asks for.

        Args:
            options: config.mesh: the devices along each axis, one of them -1 for the rest;
                `slices`, the number of TPU slices, which are connected only by a network and split
                the `data` axis; and `rules`. If None, all devices are on `data`.
            devices: all devices of all hosts if None. JAX orders them by their connections. A
                number stands for devices that do not exist here.

        Raises:
            RunError: the sizes do not multiply to the number of devices.
            ConfigError: a rule cannot be read.
        """
        options = options or {}
        lines = options.get("rules", ())
        rules = validation.mesh_rules(lines)
        if isinstance(devices, int):
            sizes = axis_sizes(options, devices)
            abstract_mesh = AbstractMesh(sizes, AXES)
            return cls(abstract_mesh, rules)
        if devices is None:
            devices = jax.devices()
        sizes = axis_sizes(options, len(devices))
        slices = options.get("slices", 1)
        mesh = _make_mesh(sizes, slices, devices)
        return cls(mesh, rules)

    def for_model(self, metadata: Metadata) -> Partition:
        """This partition with what a model says of its parameters (`Task.param_metadata`)."""
        return dataclasses.replace(self, metadata=metadata)

    @property
    def batch_shares(self) -> int:
        """The number of parts into which a batch is split."""
        sizes = self.mesh.shape
        return sizes[DATA] * sizes[FSDP]

    @property
    def replicated(self) -> NamedSharding:
        """Every device holds the whole array."""
        whole = PartitionSpec()
        return NamedSharding(self.mesh, whole)

    @property
    def over_batch(self) -> NamedSharding:
        """The leading axis, the example, is split over the devices."""
        split_batch = PartitionSpec(BATCH)
        return NamedSharding(self.mesh, split_batch)

    def check_batch(self, batch_size: int, microbatches: int, name: str) -> None:
        """Raises RunError if the devices cannot share a batch evenly. The message has the nearest
        sizes that they can share."""
        shares = self.batch_shares * microbatches
        if batch_size % shares == 0:
            return
        lower = batch_size // shares * shares
        upper = lower + shares
        nearest = f"{lower} or {upper}" if lower else str(upper)
        devices = f"{self.batch_shares} devices"
        if microbatches > 1:
            devices += f" x {microbatches} microbatches"
        raise RunError(
            f"{name} is {batch_size}, which {devices} cannot share evenly: set it to {nearest}"
        )

    def check_parameters(self, params: Any) -> None:
        """Refuses parameters that the rules do not split evenly.

        Args:
            params: arrays or their shapes.

        Raises:
            RunError: lists the axes that do not divide, the rules with more axes than their
                parameter, and the rules of config.mesh.rules that match no parameter.
        """
        problems = []
        used = set()
        for path, leaf in leaves_by_path(params).items():
            rule = self._rule(path)
            used.add(rule.pattern)
            problems += self._problems(path, leaf.shape, rule)
        for rule in self.rules:
            if rule.pattern not in used:
                problems.append(f"config.mesh.rules: {rule.pattern!r} matches no parameter")
        if problems:
            found = "; ".join(problems)
            advice = "change config.mesh, or config.mesh.rules ('-' keeps an axis whole)"
            raise RunError(f"{found}: {advice}")

    def _problems(self, path: str, shape: Shape, rule: Rule) -> list[str]:
        """For messages, why a rule cannot split a parameter."""
        rank = len(shape)
        count = len(rule.axes)
        if count > rank:
            return [f"{rule.pattern!r} names {count} axes of {path}, which has {rank}"]
        return self._uneven_axes(path, shape, rule.axes)

    def _uneven_axes(self, path: str, shape: Shape, axes: Axes) -> list[str]:
        """For messages, the axes of a parameter that its devices do not divide."""
        problems = []
        for size, axis in _last_axes(shape, axes):
            count = self._device_count(axis)
            is_even = size % count == 0
            if not is_even:
                problems.append(f"{path} has {size}, not a multiple of config.mesh.{axis}={count}")
        return problems

    def _device_count(self, axis: str | None) -> int:
        """The number of devices along a mesh axis; 1 for an axis that stays whole."""
        if axis is None:
            return 1
        return self.mesh.shape[axis]

    def _rule(self, path: str) -> Rule:
        """The rule for a parameter: the first of config.mesh.rules whose pattern matches its path,
        or else the model's."""
        for rule in self.rules:
            if re.search(rule.pattern, path):
                return rule
        metadata = self.metadata.get(path, PLAIN)
        return Rule(path, metadata.sharding)

    def sharding(self, path: str, shape: Shape) -> NamedSharding:
        """The sharding of an array that belongs to a parameter: itself, its running mean, a moment.

        An array of fewer axes than the rule names stays whole. So does an axis whose size is not a
        multiple of its devices: another run's parameters may have such axes and can still be read.
        `check_parameters` refuses them in a run's own model.

        Args:
            path: of the parameter; "" for an array that belongs to none, which stays whole.
            shape: of the array.
        """
        if not path:
            return self.replicated
        rule = self._rule(path)
        axes = rule.axes
        whole_axes = len(shape) - len(axes)
        if whole_axes < 0:
            return self.replicated
        names: list[str | None] = [None] * whole_axes
        for size, axis in _last_axes(shape, axes):
            count = self._device_count(axis)
            is_even = size % count == 0
            names.append(axis if is_even else None)
        spec = PartitionSpec(*names)
        return NamedSharding(self.mesh, spec)

    def shardings(self, params: Any) -> Any:
        """The sharding of each parameter, or of the running mean of one, by its path."""

        def sharding(path: tuple, leaf: Any) -> NamedSharding:
            name = path_name(path)
            return self.sharding(name, leaf.shape)

        return jax.tree_util.tree_map_with_path(sharding, params)

    def describe(self, params: Any) -> Any:
        """Shapes of parameters with their shardings: the template for making and restoring them."""
        shardings = self.shardings(params)
        return jax.tree.map(_described, params, shardings)

    def describe_state(self, state: Any, paths: Any) -> Any:
        """Shapes of a whole state with their shardings. `paths` is a tree like the state: the path
        of the parameter that each leaf belongs to, "" for a leaf that belongs to none."""

        def describe(leaf: Any, path: str) -> jax.ShapeDtypeStruct:
            sharding = self.sharding(path, leaf.shape)
            return _described(leaf, sharding)

        return jax.tree.map(describe, state, paths)

    def around(self) -> contextlib.AbstractContextManager:
        """In this context functions are traced with this mesh, to which sharding constraints of the
        layers apply."""
        mesh = self.mesh.abstract_mesh
        return jax.sharding.use_abstract_mesh(mesh)

    def on_each_shard(self, function: OnBatch) -> OnBatch:
        """Runs a function of (parameters, batch) on each shard of the batch separately.

        It must return gradients, like the parameters, and sums over the examples. Both are added up
        once, at the end. The compiler by itself would add up gradients where they arise: in every
        layer and every microbatch.

        Parameters that are split along `fsdp` are gathered before, and their gradients scattered
        after; layers gather their parameters when they run. With `tensor`, or with
        config.mesh.rules, the compiler does all that.
        """
        manual = self._manual_axes()
        axes = tuple(axis for axis in manual if self.mesh.shape[axis] > 1)

        def on_one_device(params: Any, batch: Any) -> tuple[Any, Any]:
            with self.around():
                return function(params, batch)

        def manual_spec(sharding: NamedSharding) -> PartitionSpec:
            names = [axis if axis in axes else None for axis in sharding.spec]
            return PartitionSpec(*names)

        def on_shards(params: Any, batch: Any) -> tuple[Any, Any]:
            """The function on each device's share, and the sums over all devices."""
            shardings = self.shardings(params)
            specs = jax.tree.map(manual_spec, shardings)
            on_shard = _OnShard(function, specs, axes, self.metadata)
            split_batch = PartitionSpec(axes)
            whole = PartitionSpec()
            mapped = jax.shard_map(
                on_shard,
                mesh=self.mesh,
                in_specs=(specs, split_batch),
                out_specs=(specs, whole),
                axis_names=set(manual),
                check_vma=False,
            )
            return mapped(params, batch)

        # The compiler fails on a sum over one device if other axes are in use.
        return on_shards if axes else on_one_device

    def _manual_axes(self) -> tuple[str, ...]:
        """The mesh axes that `on_each_shard` handles; the others are left to the compiler."""
        sizes = self.mesh.shape
        has_fsdp = sizes[FSDP] > 1
        has_tensor = sizes[TENSOR] > 1
        if not has_fsdp or has_tensor or self.rules:
            return (DATA,)
        return AXES

    def host_share(self) -> tuple[int, int]:
        """Which part of each batch this host reads, and the number of parts that the hosts read.
        Hosts whose devices differ only along `tensor` read the same part. Raises RunError if parts
        overlap otherwise, or differ in size."""
        part_by_host = self._part_by_host()
        different_parts = set(part_by_host.values())
        parts = sorted(different_parts)
        sizes = [len(part) for part in parts]
        total = sum(sizes)
        has_overlap = total != self.batch_shares
        has_one_size = min(sizes) == max(sizes)
        if has_overlap or not has_one_size:
            raise RunError(
                "config.mesh gives hosts overlapping parts of the batch: change fsdp x tensor"
            )
        host = jax.process_index()
        part = part_by_host[host]
        number = parts.index(part)
        return number, len(parts)

    def _part_by_host(self) -> dict[int, tuple[int, ...]]:
        """The numbers of the batch shares that the devices of each host compute, ascending."""
        devices = np.asarray(self.mesh.devices)
        _, _, tensor = devices.shape
        by_share = devices.reshape(-1, tensor)
        shares_by_host: dict[int, set[int]] = collections.defaultdict(set)
        for share, devices_of_share in enumerate(by_share):
            for device in devices_of_share:
                host = device.process_index
                shares_by_host[host].add(share)
        part_by_host = {}
        for host, shares in shares_by_host.items():
            in_order = sorted(shares)
            part_by_host[host] = tuple(in_order)
        return part_by_host

    def put_batch(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Puts this host's share of a batch, arrays [examples of this host, ...], on the devices,
        as a part of the global batch, arrays [examples of all hosts, ...]. Does not wait for the
        copy."""
        arrays = dict(batch)
        return jax.make_array_from_process_local_data(self.over_batch, arrays)


@dataclasses.dataclass(frozen=True, eq=False)  # JAX hashes functions by identity
class _OnShard:
    """What runs on one device: gathers the parameters, calls a function, scatters the gradients,
    and adds up gradients and sums over the devices.

    Attributes:
        function: as `Partition.on_each_shard` takes it.
        specs: a tree like the parameters: how each is split along the mesh axes.
        axes: the mesh axes that have more than one device.
        metadata: of the parameters, by path.
    """

    function: OnBatch
    specs: Any
    axes: tuple[str, ...]
    metadata: Metadata

    def __call__(self, parts: Any, batch: Any) -> tuple[Any, Any]:
        """The gradients and the sums of all devices, by the device's parts of the parameters and
        its share of the batch."""
        # The transpose of gathering the parameters adds up their gradients and scatters the sums.
        params, scatter = jax.vjp(self._gather, parts)
        gradients, sums = self.function(params, batch)
        [scattered] = scatter(gradients)
        total_gradients = jax.tree.map(self._add_up, scattered, self.specs)
        total_sums = jax.lax.psum(sums, self.axes)
        return total_gradients, total_sums

    def _gather(self, parts: Any) -> Any:
        """The parameters, except those of layers, which layers gather themselves."""
        return jax.tree_util.tree_map_with_path(self._gather_parameter, parts, self.specs)

    def _gather_parameter(self, path: tuple, part: jax.Array, spec: PartitionSpec) -> jax.Array:
        name = path_name(path)
        metadata = self.metadata.get(name, PLAIN)
        is_of_layers = metadata.layers is not None
        if is_of_layers or FSDP not in spec:
            return part
        axis = spec.index(FSDP)
        return jax.lax.all_gather(part, FSDP, axis=axis, tiled=True)

    def _add_up(self, part: jax.Array, spec: PartitionSpec) -> jax.Array:
        other_axes = tuple(axis for axis in self.axes if axis not in spec)
        return jax.lax.psum(part, other_axes)


def _described(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _last_axes(shape: Shape, axes: Axes) -> Iterable[tuple[int, str | None]]:
    """The sizes of the last axes of a shape, each with its mesh axis."""
    axes_before = len(shape) - len(axes)
    sizes = shape[axes_before:]
    return zip(sizes, axes, strict=True)


def _make_mesh(sizes: tuple[int, int, int], slices: int, devices: Devices) -> Mesh:
    axis_types = (AxisType.Auto,) * len(AXES)
    if slices == 1:
        return jax.make_mesh(sizes, AXES, axis_types=axis_types, devices=devices)
    data, fsdp, tensor = sizes
    data_of_slice = data // slices
    within_slice = (data_of_slice, fsdp, tensor)
    over_slices = (slices, 1, 1)
    devices_by_axis = mesh_utils.create_hybrid_device_mesh(within_slice, over_slices, devices)
    return Mesh(devices_by_axis, AXES, axis_types=axis_types)


def axis_sizes(options: Mapping[str, Any], devices: int) -> tuple[int, int, int]:
    """The number of devices along each of AXES, as config.mesh says. Raises RunError if they do not
    multiply to `devices`."""
    data = options.get(DATA, -1)
    fsdp = options.get(FSDP, 1)
    tensor = options.get(TENSOR, 1)
    sizes = _fill_in([data, fsdp, tensor], devices)
    if sizes is None:
        raise RunError(
            f"config.mesh is data {data} x fsdp {fsdp} x tensor {tensor}, which does not make "
            f"{devices} devices: expected sizes of at least 1, and -1, for the rest, at most once"
        )
    data, fsdp, tensor = sizes
    slices = options.get("slices", 1)
    if data % slices:
        raise RunError(f"config.mesh.slices={slices} does not divide its data axis of {data}")
    return data, fsdp, tensor


def _fill_in(sizes: list[int], devices: int) -> list[int] | None:
    """The sizes, with -1 replaced by the size that is left; None if they do not make `devices`."""
    fixed = [size for size in sizes if size != -1]
    open_axes = len(sizes) - len(fixed)
    smallest = min(fixed, default=0)
    if open_axes > 1 or smallest < 1:
        return None
    product = math.prod(fixed)
    rest, remainder = divmod(devices, product)
    if remainder:
        return None
    if open_axes == 0:
        return sizes if rest == 1 else None
    return [rest if size == -1 else size for size in sizes]
