"""An encoder of any block, whose layers' parameters are stacked: a `jax.lax.scan` over them, or
each in turn."""

import dataclasses
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

    Layers that differ in shapes or program lie in several stacks (`Block.stack_specs`), which run
    in turn. The paper does not mention the final norm; a stack of pre-norm blocks needs one before
    its head.
    """

    def __init__(self, spec: BlockSpec, rngs: nnx.Rngs):
        self.stack_specs = spec.block.stack_specs(spec)
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
                survival_of_part = survival[start:stop]
                keys_of_part = None if keys is None else keys[start:stop]
                inputs = _LayerInputs(params, survival_of_part, keys_of_part)
                x, _ = _run_stack(part_spec, definition, x, inputs, padding_mask)
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
        for spec, stack, cache in zip(self.stack_specs, self.stacks, caches, strict=True):
            definition, params = nnx.split(stack)
            survival = spec.survival_by_layer()
            inputs = _LayerInputs(params, survival, cache=cache)
            x, updated = _run_stack(spec, definition, x, inputs, first=first, text=text)
            updated_caches.append(updated)
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


def _run_stack(
    spec: BlockSpec,
    definition: Any,
    x: jax.Array,
    inputs: _LayerInputs,
    padding_mask: jax.Array | None = None,
    first: jax.Array | None = None,
    text: jax.Array | None = None,
) -> tuple[jax.Array, Any]:
    """Runs the layers of one stack, which `nnx.split` has split into its definition and
    `inputs.params`. `first` and `text` as in `Encoder.extend`; `first` is None unless a text is
    extended.

    Returns:
        The residual stream, [batch, tokens, d_model], and the updated cache, None without a cache.
    """
    scanned = spec.scan_layers or first is not None
    gathers_by_hand = sharding.FSDP in jax.sharding.get_abstract_mesh().manual_axes
    # `full` keeps no kernels for the backward pass, but gathers them again
    gathers_ahead = gathers_by_hand and scanned and spec.remat != "full"

    def layer(x: jax.Array, inputs: _LayerInputs) -> tuple[jax.Array, CacheArrays | None]:
        """One layer: [batch, tokens, d_model] to the same, and the layer's updated cache."""
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

    if spec.remat != "none":
        # Inside a scan the compiler cannot undo the recomputation, so no barrier is needed against
        # it.
        policy = REMAT_POLICIES[spec.remat]
        layer = jax.checkpoint(layer, policy=policy, prevent_cse=not scanned)
    if gathers_ahead:
        return _scan_ahead(layer, x, inputs, spec), None
    if scanned:
        return jax.lax.scan(layer, x, inputs)
    for layer_inputs in _unstack(inputs, spec.layers):
        x, _ = layer(x, layer_inputs)
    return x, None


def _scan_ahead(
    layer: Callable[[jax.Array, _LayerInputs], Any],
    x: jax.Array,
    inputs: _LayerInputs,
    spec: BlockSpec,
) -> jax.Array:
    """A scan over groups of layers that gathers the kernels of a group while the group before it
    runs, and scatters their gradients while those of the group before are computed. The last turn
    gathers the first group, for nothing.

    The gathered kernels are kept for the backward pass.
    """
    count = _layers_of_group(inputs.params, spec)

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
        for params, others in zip(gathered, by_layer, strict=True):
            layer_inputs = others._replace(params=params)
            x, _ = layer(x, layer_inputs)
        return (x, gathered_next), None

    groups = jax.tree.map(group_leaf, inputs)
    params_of_next = jax.tree.map(lambda leaf: jnp.roll(leaf, -1, axis=0), groups.params)
    params_of_first = jax.tree.map(lambda leaf: leaf[0], groups.params)
    first_carry = (x, gather(params_of_first))
    next_groups = groups._replace(params=params_of_next)
    last_carry, _ = jax.lax.scan(run_group, first_carry, next_groups)
    x, _ = last_carry
    return x


def _layers_of_group(params: Any, spec: BlockSpec) -> int:
    """How many layers are gathered at once: the fewest that are GATHERED bytes, at most
    MOST_LAYERS_OF_GROUP, as each layer of a group is compiled."""
    size_of_layer = 0
    for leaf in jax.tree.leaves(params):
        is_kernel = leaf.ndim > 2
        if is_kernel:
            size_of_layer += leaf.size // spec.layers
    bytes_of_layer = size_of_layer * spec.compute_dtype.itemsize
    largest = 1
    for count in range(1, MOST_LAYERS_OF_GROUP + 1):
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
