"""An encoder of any block, whose layers' parameters are stacked: a `jax.lax.scan` over them, or
each in turn."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models import matmul, parameters, sharding
from gmlp_flax.models.layers import CacheArrays, DecodeCache, LayerRng, dropout, split_keys
from gmlp_flax.models.parameters import Layers
from gmlp_flax.models.spec import BlockSpec

STACK = "stack_"  # followed by the number of the stack, if an encoder has several

# bytes of a device's part; below, libtpu makes an all-reduce of a gather over 64 chips
GATHERED = 384 * 1024

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
        # the last for embeddings
        keys = split_keys(key, spec.layers + 1) if key is not None and spec.draws else None
        if keys is not None:
            x = dropout(x, spec.dropout, keys[-1])
        last = spec.layers - 1
        return self._output(self._run(x, [last], padding_mask, keys)[last])

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
        streams = self._run(x, sorted(set(numbers)), padding_mask)
        return [self._output(streams[number]) for number in numbers]

    def _run(
        self,
        x: jax.Array,
        kept: Sequence[int],
        padding_mask: jax.Array | None,
        keys: jax.Array | None = None,
    ) -> dict[int, jax.Array]:
        """The residual stream after some layers, by their numbers.

        Args:
            x: as in `__call__`.
            kept: the numbers of the layers, from 0 in order; no layer after the last one is run.
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
        start = 0
        for stack_spec, stack in zip(self.stack_specs, self.stacks, strict=True):
            first = start
            last = first + stack_spec.layers - 1
            for end in _ends(first, last, kept):
                part = _layers_of(stack, start - first, end + 1 - first, stack_spec.layers)
                part_spec = dataclasses.replace(stack_spec, layers=end + 1 - start)
                layers = slice(start, end + 1)
                layer_keys = None if keys is None else keys[layers]
                x, _ = _scan(part_spec, part, x, padding_mask, survival[layers], layer_keys)
                streams[end] = x
                start = end + 1
            start = last + 1
        return streams

    def _output(self, x: jax.Array) -> jax.Array:
        """The final norm, [batch, tokens, d_model] to the same in the compute type."""
        return self.norm(x).astype(self.spec.compute_dtype)

    def extend(
        self, x: jax.Array, caches: list[CacheArrays] | None, first: jax.Array
    ) -> tuple[jax.Array, list[CacheArrays]]:
        """Runs the layers of a causal encoder on further tokens of a text, without reading the
        earlier ones again.

        Args:
            x: [batch, tokens, d_model], the tokens at the positions [first, first + tokens), all
                below n.
            caches: of each stack, as the call for the tokens before returned them; None if there
                are none.
            first: int.

        Returns:
            [batch, tokens, d_model], as `__call__` gives for these positions; and the updated
            caches.
        """
        updated = []
        caches = caches or [{} for _ in self.stack_specs]
        x = x.astype(self.spec.stream_dtype)
        for spec, stack, cache in zip(self.stack_specs, self.stacks, caches, strict=True):
            x, cache = _scan(spec, stack, x, None, spec.survival_by_layer(), None, cache, first)
            updated.append(cache)
        return self._output(x), updated


def pooled_states(states: jax.Array, pool: str, padding_mask: jax.Array | None) -> jax.Array:
    """[batch, tokens, d_model] to [batch, d_model]: the state of the first token of each example
    (`pool="cls"`), or the mean over all tokens that are not padding (`pool="mean"`)."""
    if pool == "cls":
        return states[:, 0]
    return states.mean(axis=1, where=None if padding_mask is None else padding_mask[..., None])


def find_encoder(model: nnx.Module) -> Encoder:
    """The encoder of a model, the first that is found: its attribute may have any name. Raises
    ValueError if there is none."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, Encoder):
            return module
    raise ValueError(f"{type(model).__name__} has no Encoder")


def _stack(spec: BlockSpec, rngs: nnx.Rngs, layers: Layers) -> nnx.Module:
    """`spec.layers` blocks; the leading axis of each parameter is the layer."""
    make = nnx.vmap(lambda rngs: spec.block(spec, rngs), in_axes=0, out_axes=0)
    stack = make(rngs.split(spec.layers))
    parameters.set_layers(stack, layers)
    return stack


def _ends(first: int, last: int, kept: Sequence[int]) -> list[int]:
    """The layers of a stack, from `first` to `last`, up to which its parts are run: those that are
    kept, and its last one if a later layer is."""
    ends = [number for number in kept if first <= number <= last]
    if max(kept) > last and last not in ends:
        ends.append(last)
    return ends


def _layers_of(stack: Any, start: int, stop: int, count: int) -> Any:
    """The layers of a stack of `count` from `start` to before `stop`, as a stack."""
    if (start, stop) == (0, count):
        return stack
    definition, params = nnx.split(stack)
    part = jax.tree.map(lambda leaf: leaf[start:stop], params)
    return nnx.merge(definition, part)


def _scan(
    spec: BlockSpec,
    stack: Any,
    x: jax.Array,
    padding_mask: jax.Array | None,
    survival: jax.Array,
    keys: jax.Array | None,
    cache: CacheArrays | None = None,
    first: jax.Array | None = None,
) -> tuple[jax.Array, Any]:
    """Runs one stack; survival [layers], keys [layers, batch]. `cache` and `first` as in
    `Encoder.extend`."""
    definition, stacked = nnx.split(stack)

    def layer(x, inputs):
        """One layer: [batch, tokens, d_model] to the same, and the layer's updated cache."""
        params, survival, key, cache = inputs
        params = params if ahead else parameters.gather(params, spec.compute_dtype)
        rng = LayerRng(key, spec.dropout, survival if spec.survival < 1 else None)
        block = nnx.merge(definition, params)
        if first is None:
            return block(x, rng, padding_mask), None
        decode_cache = DecodeCache(cache, first, spec.length)
        return block(x, rng, padding_mask, decode_cache), decode_cache.arrays

    scanned = spec.scan_layers or first is not None
    by_hand = sharding.FSDP in jax.sharding.get_abstract_mesh().manual_axes
    # which keeps no kernels but gathers them again
    ahead = by_hand and scanned and spec.remat != "full"
    if spec.remat != "none":
        # Inside a scan the compiler cannot undo the recomputation, so no barrier is needed against
        # it.
        layer = jax.checkpoint(layer, policy=REMAT_POLICIES[spec.remat], prevent_cse=not scanned)
    inputs = stacked, survival, keys, cache
    if ahead:
        return _scan_ahead(layer, x, inputs, spec), None
    if scanned:
        return jax.lax.scan(layer, x, inputs)
    for part in _unstack(inputs, spec.layers):
        x, _ = layer(x, part)
    return x, None


def _scan_ahead(
    layer: Callable[[jax.Array, Any], Any], x: jax.Array, inputs: Any, spec: BlockSpec
) -> jax.Array:
    """A scan over groups of layers that gathers the kernels of a group while the group before it
    runs, and scatters their gradients while those of the group before are computed. The last turn
    gathers the first group, for nothing.

    The gathered kernels are kept for the backward pass.
    """
    count = _layers_of_group(inputs[0], spec)

    def grouped(leaf: jax.Array) -> jax.Array:
        return leaf.reshape(-1, count, *leaf.shape[1:])

    groups, *others = jax.tree.map(grouped, inputs)

    def gather(group: Any) -> list[Any]:
        return parameters.gather(_unstack(group, count), spec.compute_dtype)

    def run_group(carry: Any, inputs: Any) -> tuple[Any, None]:
        x, group = carry
        following, *others = inputs
        gathered = gather(following)
        for params, rest in zip(group, _unstack(others, count), strict=True):
            x, _ = layer(x, (params, *rest))
        return (x, gathered), None

    following = jax.tree.map(lambda leaf: jnp.roll(leaf, -1, axis=0), groups)
    first = gather(jax.tree.map(lambda leaf: leaf[0], groups))
    (x, _), _ = jax.lax.scan(run_group, (x, first), (following, *others))
    return x


def _layers_of_group(params: Any, spec: BlockSpec) -> int:
    """How many layers are gathered at once: the fewest that are GATHERED bytes, at most four, as
    each layer of a group is compiled."""
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 2]
    size_of_layer = sum(leaf.size // spec.layers for leaf in kernels)
    bytes_of_layer = size_of_layer * jnp.dtype(spec.compute_dtype).itemsize
    counts = [count for count in range(1, 5) if spec.layers % count == 0]
    for count in counts:
        if count * bytes_of_layer >= GATHERED:
            return count
    return counts[-1]


def _unstack(tree: Any, count: int) -> list[Any]:
    """Arrays [count, ...] to a tree for each of their entries."""
    leaves, structure = jax.tree.flatten(tree)
    # The gradient of a split is a concatenation; that of slices would be a sum of whole arrays.
    split = [jax.lax.split(leaf, [1] * count) for leaf in leaves]
    trees = []
    for number in range(count):
        entries = [parts[number][0] for parts in split]
        trees.append(jax.tree.unflatten(structure, entries))
    return trees
