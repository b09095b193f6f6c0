"""Which device holds what: the mesh, and the sharding of the state and of batches. The only file
that decides it.

The mesh has three axes. Along `data`, each device holds a copy of the state and computes a part of
the batch. Along `fsdp`, the batch is split as well, and so is the state: the parameters of a layer
are gathered when that layer runs. Along `tensor`, d_ffn and the vocabulary are split: each device
computes a part of a layer's products. The Spatial Gating Unit mixes tokens within one channel, so
`tensor` needs no communication there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from gmlp_flax.checkpoints.pytree import leaves_by_path, path_name
from gmlp_flax.config import validation
from gmlp_flax.config.validation import AXES, Axes, Rule
from gmlp_flax.errors import RunError
from gmlp_flax.models.encoder import STACKED
from gmlp_flax.models.parameters import ParamMetadata
from gmlp_flax.models.sharding import BATCH, DATA, FSDP, TENSOR

Devices = Sequence[Any]  # of jax.Device, which type checkers take for a variable


@dataclasses.dataclass(frozen=True)
class Partition:
    """A mesh and the rules by which the state is split over it.

    Attributes:
        mesh: the devices along AXES. Without real devices, an abstract mesh only gives sizes.
        rules: parsed from config.mesh.rules. They take precedence over the model's own.
        model: the path of a parameter -> for each of its last axes, the mesh axis along which it is
            split, or None. The axes before them, such as the layers, stay whole.
    """

    mesh: Mesh | AbstractMesh
    rules: tuple[Rule, ...] = ()
    model: Mapping[str, Axes] = dataclasses.field(default_factory=dict)

    @classmethod
    def make(
        cls, options: Mapping[str, Any] | None = None, devices: Devices | int | None = None
    ) -> Partition:
        """The partition that a config asks for.

        Args:
            options: config.mesh: the devices along each axis, one of them -1 for the rest;
                `slices`, the number of TPU slices, which are connected only by a network and split
                the `data` axis; and `rules`. Without it, all devices are on `data`.
            devices: all devices of all hosts by default. JAX orders them by their connections. A
                number stands for devices that do not exist here.

        Raises:
            RunError: the sizes do not multiply to the number of devices.
            ConfigError: a rule cannot be read.
        """
        options, devices = options or {}, jax.devices() if devices is None else devices
        shape = axis_sizes(options, devices if isinstance(devices, int) else len(devices))
        slices, axis_types = options.get("slices", 1), (AxisType.Auto,) * len(AXES)
        if isinstance(devices, int):
            mesh = AbstractMesh(shape, AXES)
        elif slices > 1:
            within_slice = (shape[0] // slices, *shape[1:])
            devices_by_axis = mesh_utils.create_hybrid_device_mesh(
                within_slice, (slices, 1, 1), devices
            )
            mesh = Mesh(devices_by_axis, AXES, axis_types=axis_types)
        else:
            mesh = jax.make_mesh(shape, AXES, axis_types=axis_types, devices=devices)
        return cls(mesh, validation.mesh_rules(options.get("rules", ())))

    def for_model(self, metadata: Mapping[str, ParamMetadata]) -> Partition:
        """The same, with what a model says of its parameters (`Task.param_metadata`)."""
        return dataclasses.replace(
            self, model={path: parameter.sharding for path, parameter in metadata.items()}
        )

    @property
    def batch_shares(self) -> int:
        """The number of parts into which a batch is split."""
        return self.mesh.shape[DATA] * self.mesh.shape[FSDP]

    @property
    def replicated(self) -> NamedSharding:
        """Every device holds the whole array."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def over_batch(self) -> NamedSharding:
        """The leading axis, the example, is split over the devices."""
        return NamedSharding(self.mesh, PartitionSpec(BATCH))

    def check_batch(self, batch_size: int, microbatches: int, name: str) -> None:
        """Raises RunError, with the nearest sizes that the devices can share, if they cannot share
        a batch evenly."""
        share = self.batch_shares * microbatches
        if batch_size % share:
            lower, upper = batch_size // share * share, -(-batch_size // share) * share
            wanted = f"{lower} or {upper}" if lower else str(upper)
            by = f"{self.batch_shares} devices" + (
                f" x {microbatches} microbatches" if microbatches > 1 else ""
            )
            raise RunError(
                f"{name} is {batch_size}, which {by} cannot share evenly: set it to {wanted}"
            )

    def check_parameters(self, params: Any) -> None:
        """Refuses parameters that the rules do not split evenly.

        Args:
            params: arrays or their shapes.

        Raises:
            RunError: lists the axes that do not divide, the rules with more axes than their
                parameter, and the rules of config.mesh.rules that match no parameter.
        """
        problems, used = [], set()
        for name, leaf in leaves_by_path(params).items():
            rule, axes = self._rule(name)
            used.add(rule)
            if len(axes) > len(leaf.shape):
                problems.append(
                    f"{rule!r} names {len(axes)} axes of {name}, which has {len(leaf.shape)}"
                )
                continue
            for size, axis in zip(leaf.shape[len(leaf.shape) - len(axes) :], axes, strict=True):
                if axis and size % self.mesh.shape[axis]:
                    problems.append(
                        f"{name} has {size}, not a multiple of config.mesh.{axis}={self.mesh.shape[axis]}"
                    )
        problems += [
            f"config.mesh.rules: {rule!r} matches no parameter"
            for rule, _ in self.rules
            if rule not in used
        ]
        if problems:
            raise RunError(
                "; ".join(problems)
                + ": change config.mesh, or config.mesh.rules ('-' keeps an axis whole)"
            )

    def _rule(self, name: str) -> Rule:
        """The rule for a leaf: the first of config.mesh.rules whose pattern its path matches, else
        the model's.

        Adam's moments and the running mean have the paths of their parameters at the end of their
        own.
        """
        parts = name.split("/")
        ends = ("/".join(parts[start:]) for start in range(len(parts)))
        own = next(((end, self.model[end]) for end in ends if end in self.model), (name, ()))
        return next((rule for rule in self.rules if re.search(rule[0], name)), own)

    def shardings(self, tree: Any) -> Any:
        """The sharding of each leaf of a state or of parameters, by its path.

        A leaf without a rule stays whole. So does an axis whose size is not a multiple of its
        devices: another run's parameters may have such axes, and are read nonetheless.
            `check_parameters` refuses them in a run's own model.
        """

        def sharding(path: tuple, leaf: Any) -> NamedSharding:
            """Of one leaf."""
            axes = self._rule(path_name(path))[1]
            axes = axes if len(axes) <= len(leaf.shape) else ()
            sizes = leaf.shape[len(leaf.shape) - len(axes) :]
            even = [
                None if axis is None or size % self.mesh.shape[axis] else axis
                for size, axis in zip(sizes, axes, strict=True)
            ]
            return NamedSharding(
                self.mesh, PartitionSpec(*(len(leaf.shape) - len(axes)) * (None,), *even)
            )

        return jax.tree_util.tree_map_with_path(sharding, tree)

    def describe(self, tree: Any) -> Any:
        """Shapes with their shardings: the template for making a state and for restoring it."""
        shardings = self.shardings(tree)
        return jax.tree.map(
            lambda x, by: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=by), tree, shardings
        )

    def around(self) -> contextlib.AbstractContextManager:
        """In this context functions are traced with this mesh, to which sharding constraints of the
        layers apply."""
        return jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh)

    def on_each_shard(
        self, function: Callable[[Any, Any], tuple[Any, Any]]
    ) -> Callable[[Any, Any], tuple[Any, Any]]:
        """Runs a function of (parameters, batch) on each shard of the batch separately.

        It must return gradients, like the parameters, and sums over the examples. Both are added up
        once, at the end. The compiler by itself would add up gradients where they arise: in every
        layer and every microbatch.

        What is split along `fsdp` is gathered before, and its gradient scattered after; layers
        gather their parameters when they run. Beside `tensor`, and with config.mesh.rules, all that
        is left to the compiler.
        """
        by_hand = self.mesh.shape[FSDP] > 1 and self.mesh.shape[TENSOR] == 1 and not self.rules
        manual = AXES if by_hand else (DATA,)
        axes = tuple(axis for axis in manual if self.mesh.shape[axis] > 1)

        def gather(path: tuple, part: jax.Array, spec: PartitionSpec) -> jax.Array:
            if FSDP not in spec or path_name(path).startswith(STACKED):
                return part
            return jax.lax.all_gather(part, FSDP, axis=spec.index(FSDP), tiled=True)

        def add_up(part: jax.Array, spec: PartitionSpec) -> jax.Array:
            return jax.lax.psum(part, tuple(axis for axis in axes if axis not in spec))

        def on_shards(params: Any, batch: Any) -> tuple[Any, Any]:
            if not axes:  # the compiler fails on a sum over one device if other axes are in use
                with self.around():
                    return function(params, batch)
            specs = jax.tree.map(
                lambda by: PartitionSpec(*(axis if axis in axes else None for axis in by.spec)),
                self.shardings(params),
            )

            def shard(parts: Any, batch: Any) -> tuple[Any, Any]:
                whole, scatter = jax.vjp(
                    lambda parts: jax.tree_util.tree_map_with_path(gather, parts, specs), parts
                )
                gradients, sums = function(whole, batch)
                return jax.tree.map(add_up, *scatter(gradients), specs), jax.lax.psum(sums, axes)

            split, results = (specs, PartitionSpec(axes)), (specs, PartitionSpec())
            shares = jax.shard_map(
                shard,
                mesh=self.mesh,
                in_specs=split,
                out_specs=results,
                axis_names={*manual},
                check_vma=False,
            )
            return shares(params, batch)

        return on_shards

    def host_share(self) -> tuple[int, int]:
        """Which part of each batch this host reads, and the number of parts that the hosts read.
        Hosts whose devices differ only along `tensor` read the same part. Raises RunError if a
        host's devices hold no part of their own."""
        devices = np.asarray(self.mesh.devices)
        rows = np.arange(self.batch_shares).reshape(devices.shape[:2])
        held: dict[int, set[int]] = {}
        for position, device in np.ndenumerate(devices):
            held.setdefault(device.process_index, set()).add(int(rows[position[:2]]))
        parts = sorted({tuple(sorted(part)) for part in held.values()})
        if sum(map(len, parts)) != rows.size or len(set(map(len, parts))) != 1:
            raise RunError(
                "config.mesh gives hosts overlapping parts of the batch: change fsdp x tensor"
            )
        return parts.index(tuple(sorted(held[jax.process_index()]))), len(parts)

    def put_batch(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Puts this host's share of a batch, arrays [examples of this host, ...], on the devices,
        as a part of the global batch, arrays [examples of all hosts, ...]. Does not wait for the
        copy."""
        return jax.make_array_from_process_local_data(self.over_batch, dict(batch))


def axis_sizes(options: Mapping[str, Any], devices: int) -> tuple[int, int, int]:
    """The number of devices along each of AXES, as config.mesh says. Raises RunError if they do not
    multiply to that number."""
    given = [options.get(axis, default) for axis, default in ((DATA, -1), (FSDP, 1), (TENSOR, 1))]
    words = " x ".join(f"{axis} {size}" for axis, size in zip(AXES, given, strict=True))
    known = math.prod(size for size in given if size != -1)
    valid = given.count(-1) <= 1 and all(size >= 1 or size == -1 for size in given)
    if not valid or devices % known or (-1 not in given and known != devices):
        expected = "expected sizes of at least 1, and -1, for the rest, at most once"
        raise RunError(f"config.mesh is {words}, which does not make {devices} devices: {expected}")
    data, fsdp, tensor = (devices // known if size == -1 else size for size in given)
    if data % (slices := options.get("slices", 1)):
        raise RunError(f"config.mesh.slices={slices} does not divide its data axis of {data}")
    return data, fsdp, tensor
