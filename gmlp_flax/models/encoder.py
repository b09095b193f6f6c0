"""An encoder of any block, whose layers' parameters are stacked."""

from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models import parameters, sharding
from gmlp_flax.models.layers import CacheArrays, dropout, split_keys
from gmlp_flax.models.parameters import Layers
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.models.stack import (
    Extension,
    LayerInputs,
    StackProgram,
    definitions_of,
    select_layers,
)

STACK = "stack_"  # followed by the number of the stack, if an encoder has several


class Encoder(nnx.Module):
    """`spec.layers` blocks, their parameters stacked along a leading axis, and the block's final
    norm.

    Layers that differ in shapes lie in several stacks (`Block.stack_specs`), which run in turn. Those
    of a stack may have several programs in turn (`Block.layer_specs`). The paper does not mention
    the final norm; a stack of pre-norm blocks needs one before its head.
    """

    def __init__(self, spec: BlockSpec, rngs: nnx.Rngs):
        self.stack_specs = spec.block.stack_specs(spec)
        self.layer_specs = spec.block.layer_specs(spec)
        stacks = []
        first = 0
        for stack_spec in self.stack_specs:
            layers = Layers(first, spec.layers)
            stack = _make_stack(stack_spec, rngs, layers)
            stacks.append(stack)
            first += stack_spec.layers
        self.blocks: Any = stacks[0] if len(stacks) == 1 else _named(stacks)
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
            stack_layers = self.layer_specs[first : first + stack_spec.layers]
            for start, stop in _runs_of_equal(stack_layers):
                part = select_layers(stack, start, stop, stack_spec.layers)
                definition, params = nnx.split(part)
                [program] = definitions_of(definition, stack_spec, stack_layers[start : start + 1])
                run = nnx.merge(program, params)
                runs.append(run)
            first += stack_spec.layers
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
        stream = x.astype(spec.stream_dtype)
        stream = sharding.constrain(stream, sharding.BATCH)
        survival = spec.survival_by_layer()
        streams = {}
        first = 0  # number of the stack's first layer
        for stack_spec, stack in zip(self.stack_specs, self.stacks, strict=True):
            last = first + stack_spec.layers - 1
            start = first  # of the part of the stack that runs next
            for end in _ends(first, last, kept):
                stop = end + 1
                part = select_layers(stack, start - first, stop - first, stack_spec.layers)
                definition, params = nnx.split(part)
                layer_specs = self.layer_specs[start:stop]
                program = StackProgram.make(definition, stack_spec, layer_specs, padding_mask)
                keys_of_part = None if keys is None else keys[start:stop]
                inputs = LayerInputs(params, survival[start:stop], keys_of_part)
                stream, _ = program.run(stream, inputs)
                streams[end] = stream
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
        extension = Extension(first, text)
        x = x.astype(self.spec.stream_dtype)
        layer = 0
        for spec, stack, cache in zip(self.stack_specs, self.stacks, caches, strict=True):
            definition, params = nnx.split(stack)
            layer_specs = self.layer_specs[layer : layer + spec.layers]
            program = StackProgram.make(definition, spec, layer_specs, extension=extension)
            survival = spec.survival_by_layer()
            inputs = LayerInputs(params, survival, cache=cache)
            x, updated = program.run(x, inputs)
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


def _make_stack(spec: BlockSpec, rngs: nnx.Rngs, layers: Layers) -> nnx.Module:
    """`spec.layers` blocks; the leading axis of each parameter is the layer."""

    def make_block(rngs: nnx.Rngs) -> nnx.Module:
        return spec.block(spec, rngs)

    make_blocks = nnx.vmap(make_block, in_axes=0, out_axes=0)
    rngs_of_layers = rngs.split(spec.layers)
    stack = make_blocks(rngs_of_layers)
    parameters.set_layers(stack, layers)
    return stack


def _named(stacks: Sequence[nnx.Module]) -> nnx.Dict:
    """Several stacks by the names under which an encoder stores them."""
    by_name = {}
    for number, stack in enumerate(stacks):
        by_name[f"{STACK}{number}"] = stack
    return nnx.Dict(by_name)


def _runs_of_equal(layer_specs: Sequence[BlockSpec]) -> list[tuple[int, int]]:
    """The first layer, and the one after the last, of each run of layers with equal specs."""
    runs = []
    start = 0
    for stop in range(1, len(layer_specs) + 1):
        is_end = stop == len(layer_specs)
        if is_end or layer_specs[stop] != layer_specs[start]:
            runs.append((start, stop))
            start = stop
    return runs


def _ends(first: int, last: int, kept: Sequence[int]) -> list[int]:
    """The last layers of the parts in which a stack, from layer `first` to `last`, is run: those
    that are kept, and its last one if a later layer is kept."""
    ends = [number for number in kept if first <= number <= last]
    later_runs = max(kept) > last
    if later_runs and last not in ends:
        ends.append(last)
    return ends
