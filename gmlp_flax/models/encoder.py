"""An encoder of any block, whose layers' parameters are stacked: a `jax.lax.scan` over them, or
each in turn."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models import matmul, parameters, sharding
from gmlp_flax.models.layers import CacheArrays, DecodeCache, LayerRng, dropout, split_keys
from gmlp_flax.models.parameters import Layers
from gmlp_flax.models.spec import BlockSpec

STACK = "stack_"  # followed by the number of the stack, if an encoder has several

# bytes of a device's part; for fewer, libtpu makes an all-reduce of a gather over 64 chips
GATHERED = 384 * 1024
MOST_LAYERS_OF_GROUP = 4

REMAT_POLICIES = {
    "matmuls": jax.checkpoint_policies.save_only_these_names(matmul.NAME),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class Encoder(nnx.Module):
    """`spec.layers` blocks, their parameters stacked along a leading axis, and the block's final
    norm.

    Layers that differ in shapes lie in several stacks (`Block.stack_specs`), which run in turn. Those
    of a stack may have several programs in turn (`Block.layer_specs`). The paper does not mention the final norm; a stack of pre-norm blocks needs one before
    its head.
    """

    def __init__(self, spec: BlockSpec, rngs: nnx.Rngs):
        self.stack_specs = spec.block.stack_specs(spec)
        self.layer_specs = spec.block.layer_specs(spec)
        stacks = []
        first = 0
        for stack_spec in self.stack_specs:
            stacks.append(_stack(stack_spec, rngs, Layers(first, spec.layers)))
            first += stack_spec.layers
        if len(stacks) == 1:
            self.blocks: Any = stacks[0]
        else:
            names = [f"{STACK}{number}" for number in range(len(stacks))]
            self.blocks = nnx.Dict(zip(names, stacks, strict=True))
        self.norm = spec.block.final_norm(spec, spec.d_model)
        self.spec = spec

    @property
    def stacks(self) -> list[Any]:
        """The stacked blocks, first layers first; `stack_specs` are their specs."""
        count = len(self.stack_specs)
        if count == 1:
            return [self.blocks]
        return [self.blocks[f"{STACK}{number}"] for number in range(count)]

    @property
    def runs(self) -> list[Any]:
        """The stacked blocks in parts of consecutive layers with one program, first layers
        first."""
        runs = []
        first = 0  # number of the stack's first layer
        for stack_spec, stack in zip(self.stack_specs, self.stacks, strict=True):
            last = first + stack_spec.layers
            start = first
            for stop in range(first + 1, last + 1):
                if stop < last and self.layer_specs[stop] == self.layer_specs[start]:
                    continue
                part = _layers_of(stack, start - first, stop - first, stack_spec.layers)
                definition, params = nnx.split(part)
                [program, *_] = _definitions(definition, stack_spec, self.layer_specs[start:stop])
                runs.append(nnx.merge(program, params))
                start = stop
            first = last
        return runs

    def __call__(
        self, x: jax.Array, key: jax.Array | None = None, padding_mask: jax.Array | None = None
    ) -> jax.Array:
        """Runs the layers: [batch, tokens, d_model] in the compute type to the same, normalised.
        Between the layers the type is `spec.stream_dtype`.

        Args:
            x: the embeddings.
            key: a random key per example, [batch], for training (dropout, stochastic depth); None
                for evaluation.
            padding_mask: bool [batch, tokens], False for padding, which attention ignores; None if
                there is none.
        """
        spec = self.spec
        chex.assert_shape(x, (None, None, spec.d_model))
        keys = None
        if key is not None and spec.draws:
            keys = split_keys(key, spec.layers + 1)  # the last for embeddings
            x = dropout(x, spec.dropout, keys[-1])
        last = spec.layers - 1
        streams = self._run(x, [last], padding_mask, keys)
        return self._output(streams[last])

    def states(
        self, x: jax.Array, layers: Sequence[int], padding_mask: jax.Array | None = None
    ) -> list[jax.Array]:
        """What some layers give in evaluation, each [batch, tokens, d_model] in the compute type,
        through the final norm.

        Args:
            x: as in `__call__`.
            layers: from 0, or from the end: -1 gives what `__call__` returns. No layer after the
                last one is run.
            padding_mask: as in `__call__`.

        Raises:
            ValueError: there is no such layer.
        """
        count = self.spec.layers
        numbers = []
        for layer in layers:
            if not -count <= layer < count:
                raise ValueError(
                    f"there is no layer {layer}: the encoder has {count}, from 0 to {count - 1}"
                )
            numbers.append(layer % count)
        kept = sorted(set(numbers))
        streams = self._run(x, kept, padding_mask)
        return [self._output(streams[number]) for number in numbers]

    def _run(
        self,
        x: jax.Array,
        kept: Sequence[int],
        padding_mask: jax.Array | None,
        keys: jax.Array | None = None,
    ) -> dict[int, jax.Array]:
        """Number of a layer -> the residual stream after it, for the layers in `kept`.

        Args:
            x: as in `__call__`.
            kept: the numbers of the layers, from 0 in order. No layer after the last one is run.
            padding_mask: as in `__call__`.
            keys: of each layer and example, [layers, batch], or [layers + 1, batch]; None for
                evaluation.
        """
        spec = self.spec
        if padding_mask is not None:
            chex.assert_equal_shape_prefix([x, padding_mask], 2)
        x = sharding.constrain(x.astype(spec.stream_dtype), sharding.BATCH)
        survival = spec.survival_by_layer()
        streams = {}
        first = 0  # number of the stack's first layer
        for stack_spec, stack in zip(self.stack_specs, self.stacks, strict=True):
            start = first  # of the part of the stack that runs next
            last = first + stack_spec.layers - 1
            for end in _ends(first, last, kept):
                stop = end + 1
                part = _layers_of(stack, start - first, stop - first, stack_spec.layers)
                part_spec = dataclasses.replace(stack_spec, layers=stop - start)
                definition, params = nnx.split(part)
                definitions = _definitions(definition, stack_spec, self.layer_specs[start:stop])
                survival_of_part = survival[start:stop]
                keys_of_part = None if keys is None else keys[start:stop]
                inputs = _LayerInputs(params, survival_of_part, keys_of_part)
                x, _ = _run_stack(part_spec, definitions, x, inputs, padding_mask)
                streams[end] = x
                start = stop
            first = last + 1
        return streams

    def _output(self, x: jax.Array) -> jax.Array:
        """The final norm, [batch, tokens, d_model] to the same in the compute type."""
        normed = self.norm(x)
        return normed.astype(self.spec.compute_dtype)

    def extend(
        self,
        x: jax.Array,
        caches: list[CacheArrays] | None,
        first: jax.Array,
        text: jax.Array | None = None,
    ) -> tuple[jax.Array, list[CacheArrays]]:
        """Runs the layers of a causal encoder on further tokens of a text, without reading the
        earlier ones again.

        Args:
            x: [batch, tokens, d_model], the tokens at the positions [first, first + tokens), all
                below n.
            caches: of each stack, as the call for the tokens before returned them; None if there
                are none.
            first: int.
            text: int, how many of these tokens are not padding, which follows them; None if all
                are.

        Returns:
            [batch, tokens, d_model], as `__call__` gives for these positions; and the updated
            caches.
        """
        updated_caches = []
        caches = caches or [{} for _ in self.stack_specs]
        x = x.astype(self.spec.stream_dtype)
        layer = 0
        for spec, stack, cache in zip(self.stack_specs, self.stacks, caches, strict=True):
            definition, params = nnx.split(stack)
            layer_specs = self.layer_specs[layer : layer + spec.layers]
            definitions = _definitions(definition, spec, layer_specs)
            survival = spec.survival_by_layer()
            inputs = _LayerInputs(params, survival, cache=cache)
            x, updated = _run_stack(spec, definitions, x, inputs, first=first, text=text)
            updated_caches.append(updated)
            layer += spec.layers
        return self._output(x), updated_caches


def pooled_states(states: jax.Array, pool: str, padding_mask: jax.Array | None) -> jax.Array:
    """[batch, tokens, d_model] to [batch, d_model]: the state of the first token of each example
    (`pool="cls"`), or the mean over all tokens that are not padding (`pool="mean"`), which is 0 for
    an example of padding alone. `padding_mask` is bool [batch, tokens], False for padding."""
    if pool == "cls":
        return states[:, 0]
    if padding_mask is None:
        return states.mean(axis=1)
    is_text = padding_mask[..., None]  # [batch, tokens, 1]
    has_text = is_text.any(axis=1)  # [batch, 1]
    # a mean over no tokens, and its gradient, would be NaN
    is_counted = is_text | ~has_text[:, None]
    mean = states.mean(axis=1, where=is_counted)
    return jnp.where(has_text, mean, 0)


def find_encoder(model: nnx.Module) -> Encoder:
    """The first encoder in a model, whatever the name of its attribute. Raises ValueError if there
    is none."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, Encoder):
            return module
    raise ValueError(f"{type(model).__name__} has no Encoder")


def _stack(spec: BlockSpec, rngs: nnx.Rngs, layers: Layers) -> nnx.Module:
    """`spec.layers` blocks; the leading axis of each parameter is the layer."""

    def make_block(rngs: nnx.Rngs) -> nnx.Module:
        return spec.block(spec, rngs)

    make_blocks = nnx.vmap(make_block, in_axes=0, out_axes=0)
    stack = make_blocks(rngs.split(spec.layers))
    parameters.set_layers(stack, layers)
    return stack


def _ends(first: int, last: int, kept: Sequence[int]) -> list[int]:
    """The last layers of the parts in which a stack, from layer `first` to `last`, is run: those
    that are kept, and its last one if a later layer is kept."""
    ends = [number for number in kept if first <= number <= last]
    later_runs = max(kept) > last
    if later_runs and last not in ends:
        ends.append(last)
    return ends


def _layers_of(stack: Any, start: int, stop: int, count: int) -> Any:
    """The layers of a stack of `count` from `start` to before `stop`, as a stack."""
    is_whole = start == 0 and stop == count
    if is_whole:
        return stack
    definition, params = nnx.split(stack)

    def select(leaf: jax.Array) -> jax.Array:
        return leaf[start:stop]

    part = jax.tree.map(select, params)
    return nnx.merge(definition, part)


class _LayerInputs(NamedTuple):
    """What a layer gets besides the residual stream; for a stack, each array has a leading axis,
    the layer.

    Attributes:
        params: the parameters of its block.
        survival: float32 [].
        keys: a random key per example, [batch]; None for evaluation.
        cache: see `DecodeCache`; None unless a text is extended.
    """

    params: Any
    survival: jax.Array
    keys: jax.Array | None = None
    cache: CacheArrays | None = None


def _definitions(
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
        if spec == stack_spec:
            definitions.append(stack_definition)
        else:
            definitions.append(_definition(spec))
    return definitions


def _period(layer_specs: Sequence[BlockSpec]) -> int:
    """The least number of layers after which their specs repeat."""
    for count in range(1, len(layer_specs)):
        if layer_specs[count:] == layer_specs[:-count]:
            return count
    return len(layer_specs)


def _definition(spec: BlockSpec) -> Any:
    """That of a block of this spec, without its parameters."""

    def make_block() -> nnx.Module:
        return spec.block(spec, nnx.Rngs(0))

    return nnx.graphdef(nnx.eval_shape(make_block))


# One layer: [batch, tokens, d_model] to the same, and the layer's updated cache, None without one.
Layer = Callable[[jax.Array, _LayerInputs], tuple[jax.Array, CacheArrays | None]]


def _run_stack(
    spec: BlockSpec,
    definitions: Sequence[Any],
    x: jax.Array,
    inputs: _LayerInputs,
    padding_mask: jax.Array | None = None,
    first: jax.Array | None = None,
    text: jax.Array | None = None,
) -> tuple[jax.Array, Any]:
    """Runs the layers of one stack, whose parameters are `inputs.params`; their definitions repeat
    the given ones. `first` and `text` as in `Encoder.extend`; `first` is None unless a text is
    extended.

    Returns:
        The residual stream, [batch, tokens, d_model], and the updated cache, None without a cache.
    """
    period = len(definitions)
    scanned = spec.scan_layers or first is not None
    gathers_by_hand = sharding.FSDP in jax.sharding.get_abstract_mesh().manual_axes
    # `full` keeps no kernels for the backward pass, but gathers them again
    gathers_ahead = (
        gathers_by_hand and scanned and spec.remat != "full" and spec.layers % period == 0
    )

    def run_layer(
        definition: Any, x: jax.Array, inputs: _LayerInputs
    ) -> tuple[jax.Array, CacheArrays | None]:
        """A `Layer`, but for its definition."""
        params = inputs.params
        if not gathers_ahead:
            params = parameters.gather(params, spec.compute_dtype)
        survival = inputs.survival if spec.survival < 1 else None
        rng = LayerRng(inputs.keys, spec.dropout, survival)
        block = nnx.merge(definition, params)
        if first is None or inputs.cache is None:
            return block(x, rng, padding_mask), None
        decode_cache = DecodeCache(inputs.cache, first, spec.length, text)
        return block(x, rng, padding_mask, decode_cache), decode_cache.arrays

    def period_of_layers(scanned: bool) -> list[Layer]:
        """The layers of one period, each of which recomputes what `spec.remat` says."""
        layers: list[Layer] = []
        for definition in definitions:
            layer = functools.partial(run_layer, definition)
            if spec.remat != "none":
                # Inside a scan of single layers the compiler cannot undo the recomputation, so no
                # barrier is needed against it. Of several layers it could run all at once.
                policy = REMAT_POLICIES[spec.remat]
                needs_barrier = not scanned or period > 1
                layer = jax.checkpoint(layer, policy=policy, prevent_cse=needs_barrier)
            layers.append(layer)
        return layers

    if gathers_ahead:
        return _scan_ahead(period_of_layers(scanned=True), x, inputs, spec), None
    whole = 0  # layers of the periods that are scanned
    caches = None
    if scanned:
        whole = spec.layers // period * period
        scanned_inputs, inputs = _split_layers(inputs, whole, spec.layers)
        x, caches = _scan_periods(period_of_layers(scanned=True), x, scanned_inputs, whole)
    if whole == spec.layers:
        return x, caches
    by_layer = _unstack(inputs, spec.layers - whole)
    x, last_caches = _run_in_turn(period_of_layers(scanned=False), x, by_layer)
    if not whole:
        return x, last_caches
    caches = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), caches, last_caches)
    return x, caches


def _run_in_turn(
    layers: Sequence[Layer], x: jax.Array, by_layer: Sequence[_LayerInputs]
) -> tuple[jax.Array, Any]:
    """Runs layers whose programs repeat the given ones, each compiled alone; the caches are
    stacked."""
    caches = []
    for number, inputs in enumerate(by_layer):
        x, cache = layers[number % len(layers)](x, inputs)
        caches.append(cache)
    return x, _stacked(caches)


def _stacked(trees: Sequence[Any]) -> Any:
    """Trees of the same structure as one, with a leading axis for them."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _scan_periods(
    layers: Sequence[Layer], x: jax.Array, inputs: _LayerInputs, count: int
) -> tuple[jax.Array, Any]:
    """A scan over `count` layers, a multiple of the period of programs that are given."""
    period = len(layers)
    if period == 1:
        return jax.lax.scan(layers[0], x, inputs)
    by_period = jax.tree.map(lambda leaf: leaf.reshape(-1, period, *leaf.shape[1:]), inputs)

    def run_period(x: jax.Array, inputs: _LayerInputs) -> tuple[jax.Array, Any]:
        return _run_in_turn(layers, x, _unstack(inputs, period))

    x, caches = jax.lax.scan(run_period, x, by_period)
    return x, jax.tree.map(lambda leaf: leaf.reshape(count, *leaf.shape[2:]), caches)


def _split_layers(inputs: _LayerInputs, count: int, layers: int) -> tuple[Any, Any]:
    """The inputs of the first `count` layers of a stack, and those of the others."""
    if count == layers:
        return inputs, None
    leaves, structure = jax.tree.flatten(inputs)
    # The gradient of a split is a concatenation; that of slices would be a sum of whole arrays.
    split_leaves = [jax.lax.split(leaf, [count, layers - count]) for leaf in leaves]
    first = [parts[0] for parts in split_leaves]
    others = [parts[1] for parts in split_leaves]
    return jax.tree.unflatten(structure, first), jax.tree.unflatten(structure, others)


def _scan_ahead(
    layers: Sequence[Layer],
    x: jax.Array,
    inputs: _LayerInputs,
    spec: BlockSpec,
) -> jax.Array:
    """A scan over groups of layers that gathers the kernels of a group while the group before it
    runs, and scatters their gradients while those of the group before are computed. The last turn
    gathers the first group, for nothing.

    The gathered kernels are kept for the backward pass.
    """
    period = len(layers)
    count = _layers_of_group(inputs.params, spec, period)

    def group_leaf(leaf: jax.Array) -> jax.Array:
        """[layers, ...] to [groups, layers of a group, ...]."""
        shape_of_layer = leaf.shape[1:]
        return leaf.reshape(-1, count, *shape_of_layer)

    def gather(params: Any) -> list[Any]:
        """The parameters of a group, whole, for each of its layers."""
        by_layer = _unstack(params, count)
        return parameters.gather(by_layer, spec.compute_dtype)

    def run_group(carry: Any, inputs: _LayerInputs) -> tuple[Any, None]:
        """Runs a group whose parameters are in the carry; `inputs` has those of the next group."""
        x, gathered = carry
        gathered_next = gather(inputs.params)
        without_params = inputs._replace(params=None)
        by_layer = _unstack(without_params, count)
        for number, (params, others) in enumerate(zip(gathered, by_layer, strict=True)):
            layer_inputs = others._replace(params=params)
            x, _ = layers[number % period](x, layer_inputs)
        return (x, gathered_next), None

    groups = jax.tree.map(group_leaf, inputs)
    params_of_next = jax.tree.map(lambda leaf: jnp.roll(leaf, -1, axis=0), groups.params)
    params_of_first = jax.tree.map(lambda leaf: leaf[0], groups.params)
    first_carry = (x, gather(params_of_first))
    next_groups = groups._replace(params=params_of_next)
    last_carry, _ = jax.lax.scan(run_group, first_carry, next_groups)
    x, _ = last_carry
    return x


def _layers_of_group(params: Any, spec: BlockSpec, period: int) -> int:
    """How many layers are gathered at once: the fewest that are GATHERED bytes, at most
    MOST_LAYERS_OF_GROUP, as each layer of a group is compiled; and in any case whole periods."""
    size_of_layer = 0
    for leaf in jax.tree.leaves(params):
        is_kernel = leaf.ndim > 2
        if is_kernel:
            size_of_layer += leaf.size // spec.layers
    bytes_of_layer = size_of_layer * spec.compute_dtype.itemsize
    largest = period
    for count in range(period, MOST_LAYERS_OF_GROUP + 1, period):
        if spec.layers % count == 0:
            largest = count
            if count * bytes_of_layer >= GATHERED:
                break
    return largest


def _unstack(tree: Any, count: int) -> list[Any]:
    """Arrays [count, ...] to a tree for each of their entries."""
    leaves, structure = jax.tree.flatten(tree)
    # The gradient of a split is a concatenation; that of slices would be a sum of whole arrays.
    sizes = [1] * count
    split_leaves = [jax.lax.split(leaf, sizes) for leaf in leaves]
    trees = []
    for number in range(count):
        entries = [parts[number][0] for parts in split_leaves]
        entry = jax.tree.unflatten(structure, entries)
        trees.append(entry)
    return trees
