"""How the layers of one stack run: by a `jax.lax.scan`, or each in turn. Their parameters have a
leading axis for the layers."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models import matmul, parameters, sharding
from gmlp_flax.models.layers import CacheArrays, DecodeCache, LayerRng
from gmlp_flax.models.spec import BlockSpec

# bytes of a device's part; for fewer, libtpu makes an all-reduce of a gather over 64 chips
GATHERED = 384 * 1024
MOST_LAYERS_OF_GROUP = 4

REMAT_POLICIES = {
    "matmuls": jax.checkpoint_policies.save_only_these_names(matmul.NAME),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class LayerInputs(NamedTuple):
    """What a layer gets besides the residual stream. For a stack, each array has a leading axis for
    the layers.

    Attributes:
        params: the parameters of its block.
        survival: float32 [].
        keys: a random key per example, [batch]; None for evaluation.
        cache: see `DecodeCache`; None unless a text is extended.
    """

    params: Any
    survival: Array
    keys: Array | None = None
    cache: CacheArrays | None = None


class Extension(NamedTuple):
    """Which tokens a causal encoder adds to a text.

    Attributes:
        first: int, the position of the first of them.
        text: int, how many of them are not padding, which follows them; None if all are.
    """

    first: Array
    text: Array | None = None


# One layer: [batch, tokens, d_model] to the same, and the layer's updated cache, None without one.
Layer = Callable[[Array, LayerInputs], tuple[Array, CacheArrays | None]]


@dataclasses.dataclass(frozen=True, eq=False)
class StackProgram:
    """The layers of a stack, or of a part of it, without their parameters.

    Attributes:
        spec: that of the layers; `spec.layers` is their number.
        definitions: graph definitions of the layers of one period, which repeats.
        padding_mask: as in `Encoder.__call__`.
        extension: None unless a text is extended.
    """

    spec: BlockSpec
    definitions: Sequence[Any]
    padding_mask: Array | None
    extension: Extension | None

    @classmethod
    def make(
        cls,
        stack_definition: Any,
        stack_spec: BlockSpec,
        layer_specs: Sequence[BlockSpec],
        padding_mask: Array | None = None,
        extension: Extension | None = None,
    ) -> Self:
        """The program of layers with these specs; see `definitions_of` for the stack's definition
        and spec."""
        spec = dataclasses.replace(stack_spec, layers=len(layer_specs))
        definitions = definitions_of(stack_definition, stack_spec, layer_specs)
        return cls(spec, definitions, padding_mask, extension)

    @property
    def period(self) -> int:
        """The number of layers after which their definitions repeat."""
        return len(self.definitions)

    @property
    def is_scanned(self) -> bool:
        """Whether the layers of whole periods run in a scan. The others run in turn."""
        return self.spec.scan_layers or self.extension is not None

    @property
    def gathers_ahead(self) -> bool:
        """Whether the kernels of some layers are gathered while the layers before them run."""
        mesh = jax.sharding.get_abstract_mesh()
        gathers_by_hand = sharding.FSDP in mesh.manual_axes
        # `full` keeps no kernels for the backward pass, but gathers them again
        keeps_kernels = self.spec.remat != "full"
        has_whole_periods = self.spec.layers % self.period == 0
        return gathers_by_hand and self.is_scanned and keeps_kernels and has_whole_periods

    def run(self, x: Array, inputs: LayerInputs) -> tuple[Array, Any]:
        """Runs the layers on the residual stream, [batch, tokens, d_model].

        Returns:
            The residual stream, and the updated cache, None without a cache.
        """
        count = self.spec.layers
        if self.gathers_ahead:
            layers = self._layers_of_period(scanned=True)
            return _scan_ahead(layers, x, inputs, self.spec), None
        if not self.is_scanned:
            return self._run_each(x, inputs, count)
        scanned = count // self.period * self.period
        scanned_inputs, other_inputs = _split_layers(inputs, scanned, count)
        layers = self._layers_of_period(scanned=True)
        x, caches = _scan_periods(layers, x, scanned_inputs, scanned)
        if scanned == count:
            return x, caches
        x, other_caches = self._run_each(x, other_inputs, count - scanned)
        all_caches = _concatenated(caches, other_caches)
        return x, all_caches

    def _run_each(self, x: Array, inputs: LayerInputs, count: int) -> tuple[Array, Any]:
        """Runs `count` layers in turn, without a scan."""
        by_layer = _unstack(inputs, count)
        layers = self._layers_of_period(scanned=False)
        return _run_in_turn(layers, x, by_layer)

    def _layers_of_period(self, scanned: bool) -> list[Layer]:
        """The layers of one period, each of which recomputes what `spec.remat` says."""
        # Inside a scan of single layers the compiler cannot undo the recomputation, so no barrier
        # is needed against it. Of several layers it could run all at once.
        needs_barrier = not scanned or self.period > 1
        layers: list[Layer] = []
        for definition in self.definitions:
            layer = functools.partial(self._run_layer, definition)
            if self.spec.remat != "none":
                policy = REMAT_POLICIES[self.spec.remat]
                layer = jax.checkpoint(layer, policy=policy, prevent_cse=needs_barrier)
            layers.append(layer)
        return layers

    def _run_layer(
        self, definition: Any, x: Array, inputs: LayerInputs
    ) -> tuple[Array, CacheArrays | None]:
        """A `Layer`, except for its definition."""
        spec = self.spec
        params = inputs.params
        if not self.gathers_ahead:
            params = parameters.gather(params, spec.compute_dtype)
        survival = inputs.survival if spec.survival < 1 else None
        rng = LayerRng(inputs.keys, spec.dropout, survival)
        block = nnx.merge(definition, params)
        if self.extension is None or inputs.cache is None:
            y = block(x, rng, self.padding_mask)
            return y, None
        first, text = self.extension
        cache = DecodeCache(inputs.cache, first, spec.length, text)
        y = block(x, rng, self.padding_mask, cache)
        return y, cache.arrays


def definitions_of(
    stack_definition: Any, stack_spec: BlockSpec, layer_specs: Sequence[BlockSpec]
) -> list[Any]:
    """The definitions of the layers of the shortest period of a part of a stack.

    Args:
        stack_definition: as `nnx.split` gives it for the stack.
        stack_spec: of the stack.
        layer_specs: of the layers of the part.
    """
    period = _period(layer_specs)
    definitions = []
    for spec in layer_specs[:period]:
        definition = stack_definition if spec == stack_spec else _definition(spec)
        definitions.append(definition)
    return definitions


def _period(layer_specs: Sequence[BlockSpec]) -> int:
    """The least number of layers after which their specs repeat."""
    for count in range(1, len(layer_specs)):
        later = layer_specs[count:]
        earlier = layer_specs[:-count]
        if later == earlier:
            return count
    return len(layer_specs)


def _definition(spec: BlockSpec) -> Any:
    """That of a block of this spec, without its parameters."""

    def make_block() -> nnx.Module:
        rngs = nnx.Rngs(0)
        return spec.block(spec, rngs)

    block = nnx.eval_shape(make_block)
    return nnx.graphdef(block)


def select_layers(stack: Any, start: int, stop: int, count: int) -> Any:
    """The layers [start, stop) of a stack of `count` layers, as a stack."""
    is_whole = start == 0 and stop == count
    if is_whole:
        return stack

    def select(leaf: Array) -> Array:
        return leaf[start:stop]

    definition, params = nnx.split(stack)
    part = jax.tree.map(select, params)
    return nnx.merge(definition, part)


def _run_in_turn(
    layers: Sequence[Layer], x: Array, by_layer: Sequence[LayerInputs]
) -> tuple[Array, Any]:
    """Runs layers whose programs repeat `layers`, each compiled alone: the residual stream, and the
    stacked caches."""
    period = len(layers)
    caches = []
    for number, inputs in enumerate(by_layer):
        layer = layers[number % period]
        x, cache = layer(x, inputs)
        caches.append(cache)
    return x, _stacked(caches)


def _scan_periods(
    layers: Sequence[Layer], x: Array, inputs: LayerInputs, count: int
) -> tuple[Array, Any]:
    """A scan over `count` layers, a multiple of `len(layers)`, whose programs repeat `layers`: the
    residual stream, and the stacked caches."""
    period = len(layers)
    if period == 1:
        return jax.lax.scan(layers[0], x, inputs)

    def run_period(x: Array, inputs: LayerInputs) -> tuple[Array, Any]:
        by_layer = _unstack(inputs, period)
        return _run_in_turn(layers, x, by_layer)

    def by_layer(leaf: Array) -> Array:
        """[periods, period, ...] to [count, ...]."""
        shape_of_layer = leaf.shape[2:]
        return leaf.reshape(count, *shape_of_layer)

    inputs_by_period = _grouped(inputs, period)
    x, caches_by_period = jax.lax.scan(run_period, x, inputs_by_period)
    caches = jax.tree.map(by_layer, caches_by_period)
    return x, caches


class _GatheredGroup(NamedTuple):
    """What one turn of `_scan_ahead` hands to the next.

    Attributes:
        x: the residual stream before the group.
        params: the gathered parameters of each layer of the group.
    """

    x: Array
    params: list[Any]


def _scan_ahead(
    layers: Sequence[Layer],
    x: Array,
    inputs: LayerInputs,
    spec: BlockSpec,
) -> Array:
    """A scan over groups of layers that gathers the kernels of a group while the group before it
    runs, and scatters their gradients while those of the group before are computed.

        before the scan   gathers group 0
        turn 0            gathers group 1, runs group 0
        turn 1            gathers group 2, runs group 1
        last turn         gathers group 0, which nothing uses, and runs the last group

    The gathered kernels are kept for the backward pass.
    """
    period = len(layers)
    count = _layers_of_group(inputs.params, spec, period)

    def gather(params: Any) -> list[Any]:
        """A group's parameters, [count, ...], whole: a tree for each of its layers."""
        by_layer = _unstack(params, count)
        return parameters.gather(by_layer, spec.compute_dtype)

    def run_group(carry: _GatheredGroup, inputs: LayerInputs) -> tuple[_GatheredGroup, None]:
        """Runs the group in the carry; `inputs` are its own, except for the parameters, which are
        those of the next group."""
        next_params = gather(inputs.params)
        by_layer = _with_params(inputs, carry.params)
        x = carry.x
        for number, layer_inputs in enumerate(by_layer):
            layer = layers[number % period]
            x, _ = layer(x, layer_inputs)
        return _GatheredGroup(x, next_params), None

    groups = _grouped(inputs, count)
    params_of_next = jax.tree.map(_roll_back, groups.params)
    first_params = jax.tree.map(_first, groups.params)
    first_group = _GatheredGroup(x, gather(first_params))
    turns = groups._replace(params=params_of_next)
    last, _ = jax.lax.scan(run_group, first_group, turns)
    return last.x


def _with_params(inputs: LayerInputs, params: list[Any]) -> list[LayerInputs]:
    """The inputs of each layer of a group, with these parameters in place of those in `inputs`."""
    without_params = inputs._replace(params=None)
    by_layer = _unstack(without_params, len(params))
    inputs_of_layers = []
    for layer_inputs, layer_params in zip(by_layer, params, strict=True):
        with_params = layer_inputs._replace(params=layer_params)
        inputs_of_layers.append(with_params)
    return inputs_of_layers


def _layers_of_group(params: Any, spec: BlockSpec, period: int) -> int:
    """How many layers are gathered at once, in whole periods that divide the layers: the fewest of
    which a device has GATHERED bytes. Each layer of a group is compiled, so if no such group has at
    most MOST_LAYERS_OF_GROUP layers, it is the largest that has; or else one period."""
    bytes_of_layer = _kernel_bytes_of_layer(params, spec)
    largest = period
    for count in range(period, MOST_LAYERS_OF_GROUP + 1, period):
        divides = spec.layers % count == 0
        if divides:
            largest = count
        if divides and count * bytes_of_layer >= GATHERED:
            break
    return largest


def _kernel_bytes_of_layer(params: Any, spec: BlockSpec) -> int:
    """Bytes of a layer's kernels in the compute type, from stacked parameters [layers, ...]."""
    size_of_layer = 0
    for leaf in jax.tree.leaves(params):
        is_kernel = leaf.ndim > 2
        if is_kernel:
            size_of_layer += leaf.size // spec.layers
    return size_of_layer * spec.compute_dtype.itemsize


def _roll_back(leaf: Array) -> Array:
    """Moves each entry of the leading axis one place to the front, and the first one to the end."""
    return jnp.roll(leaf, -1, axis=0)


def _first(leaf: Array) -> Array:
    return leaf[0]


def _grouped(inputs: LayerInputs, count: int) -> LayerInputs:
    """[layers, ...] to [groups, layers of a group, ...], `count` layers in each."""

    def grouped(leaf: Array) -> Array:
        shape_of_layer = leaf.shape[1:]
        return leaf.reshape(-1, count, *shape_of_layer)

    return jax.tree.map(grouped, inputs)


def _stacked(trees: Sequence[Any]) -> Any:
    """Trees of the same structure as one, with a leading axis for them."""

    def stack(*leaves: Array) -> Array:
        return jnp.stack(leaves)

    return jax.tree.map(stack, *trees)


def _concatenated(*trees: Any) -> Any:
    """Trees of the same structure as one, whose leading axis has the entries of all."""

    def concatenate(*leaves: Array) -> Array:
        return jnp.concatenate(leaves)

    return jax.tree.map(concatenate, *trees)


def _split_layers(inputs: LayerInputs, count: int, layers: int) -> tuple[Any, Any]:
    """The inputs of the first `count` layers of a stack, and those of the others."""
    if count == layers:
        return inputs, None
    sizes = [count, layers - count]
    first, others = _split(inputs, sizes)
    return first, others


def _unstack(tree: Any, count: int) -> list[Any]:
    """Arrays [count, ...] to a tree for each of their entries."""
    sizes = [1] * count
    parts = _split(tree, sizes)
    return [jax.tree.map(_first, part) for part in parts]


def _split(tree: Any, sizes: Sequence[int]) -> list[Any]:
    """A tree for each of the sizes, with that many entries of the leading axis of every array."""
    leaves, structure = jax.tree.flatten(tree)
    # The gradient of a split is a concatenation. That of slices would be a sum of whole arrays.
    parts_of_leaves = [jax.lax.split(leaf, sizes) for leaf in leaves]
    trees = []
    for parts in zip(*parts_of_leaves, strict=True):
        tree_of_parts = jax.tree.unflatten(structure, parts)
        trees.append(tree_of_parts)
    return trees
