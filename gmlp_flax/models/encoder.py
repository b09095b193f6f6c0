"""An encoder of any block, whose layers' parameters are stacked."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import chex
import jax.numpy as jnp
from flax import nnx
from jax import Array

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


class _Stack(NamedTuple):
    """One stack of an encoder.

    Attributes:
        blocks: the stacked blocks.
        spec: their spec; `spec.layers` is their number.
        first: the number of the first layer in the encoder, from 0.
        stop: the number after that of the last layer.
    """

    blocks: Any
    spec: BlockSpec
    first: int
    stop: int


class Encoder(nnx.Module):
    """`spec.layers` blocks, their parameters stacked along a leading axis, and the block's final
    norm.

    Layers whose shapes differ are in several stacks (`Block.stack_specs`), which run in turn. The
    layers of a stack may alternate between several programs (`Block.layer_specs`). The paper does
    not mention the final norm, but a stack of pre-norm blocks needs one before its head.
    """

    def __init__(self, spec: BlockSpec, rngs: nnx.Rngs):
        self.stack_specs = spec.block.stack_specs(spec)
        self.layer_specs = spec.block.layer_specs(spec)
        stacks = []
        first = 0  # number of the stack's first layer
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
        for stack in self._numbered_stacks():
            layer_specs = self.layer_specs[stack.first : stack.stop]
            for start, stop in _runs_of_equal(layer_specs):
                part = select_layers(stack.blocks, start, stop, stack.spec.layers)
                definition, params = nnx.split(part)
                first_spec = layer_specs[start]
                [program] = definitions_of(definition, stack.spec, [first_spec])
                run = nnx.merge(program, params)
                runs.append(run)
        return runs

    def _numbered_stacks(self) -> list[_Stack]:
        """The stacks with the numbers of their layers, first layers first."""
        numbered = []
        first = 0
        for spec, blocks in zip(self.stack_specs, self.stacks, strict=True):
            stop = first + spec.layers
            numbered.append(_Stack(blocks, spec, first, stop))
            first = stop
        return numbered

    def __call__(
        self, x: Array, key: Array | None = None, padding_mask: Array | None = None
    ) -> Array:
        """Runs the layers: [batch, tokens, d_model] in the compute type to the same, normalized.
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
            keys = split_keys(key, spec.layers + 1)
            keys_of_embeddings = keys[-1]
            x = dropout(x, spec.dropout, keys_of_embeddings)
        last = spec.layers - 1
        streams = self._run(x, [last], padding_mask, keys)
        return self._output(streams[last])

    def states(
        self, x: Array, layers: Sequence[int], padding_mask: Array | None = None
    ) -> list[Array]:
        """The states after some layers in evaluation, each [batch, tokens, d_model] in the compute
        type, through the final norm.

        Args:
            x: as in `__call__`.
            layers: numbers of layers, from 0, or negative from the end: -1 gives what `__call__`
                returns. Layers after the last of these are not run.
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
        x: Array,
        kept: Sequence[int],
        padding_mask: Array | None,
        keys: Array | None = None,
    ) -> dict[int, Array]:
        """Number of a layer -> the residual stream after it, for the layers in `kept`.

        Args:
            x: as in `__call__`.
            kept: numbers of layers, from 0 and in ascending order. Layers after the last of these
                are not run.
            padding_mask: as in `__call__`.
            keys: of each layer and example, [layers, batch], or [layers + 1, batch]; None for
                evaluation.
        """
        if padding_mask is not None:
            padding_mask = jnp.asarray(padding_mask)
            _check_mask(padding_mask, x)
        stream = x.astype(self.spec.stream_dtype)
        stream = sharding.constrain(stream, sharding.BATCH)
        survival = self.spec.survival_by_layer()
        streams = {}
        for stack in self._numbered_stacks():
            start = stack.first
            for stop in _stops(stack, kept):
                program, params = self._part(stack, start, stop, padding_mask)
                part_keys = None if keys is None else keys[start:stop]
                inputs = LayerInputs(params, survival[start:stop], part_keys)
                stream, _ = program.run(stream, inputs)
                streams[stop - 1] = stream
                start = stop
        return streams

    def _part(
        self, stack: _Stack, start: int, stop: int, padding_mask: Array | None
    ) -> tuple[StackProgram, Any]:
        """The program and the stacked parameters of the encoder's layers [start, stop), which are in
        this stack."""
        start_in_stack = start - stack.first
        stop_in_stack = stop - stack.first
        part = select_layers(stack.blocks, start_in_stack, stop_in_stack, stack.spec.layers)
        definition, params = nnx.split(part)
        layer_specs = self.layer_specs[start:stop]
        program = StackProgram.make(definition, stack.spec, layer_specs, padding_mask)
        return program, params

    def _output(self, x: Array) -> Array:
        """The final norm, [batch, tokens, d_model] to the same in the compute type."""
        normed = self.norm(x)
        return normed.astype(self.spec.compute_dtype)

    def extend(
        self,
        x: Array,
        caches: list[CacheArrays] | None,
        first: Array,
        text: Array | None = None,
    ) -> tuple[Array, list[CacheArrays]]:
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
        for stack, cache in zip(self._numbered_stacks(), caches, strict=True):
            definition, params = nnx.split(stack.blocks)
            layer_specs = self.layer_specs[stack.first : stack.stop]
            program = StackProgram.make(definition, stack.spec, layer_specs, extension=extension)
            survival = stack.spec.survival_by_layer()
            inputs = LayerInputs(params, survival, cache=cache)
            x, updated = program.run(x, inputs)
            updated_caches.append(updated)
        return self._output(x), updated_caches


def _check_mask(padding_mask: Array, x: Array) -> None:
    """Raises ValueError unless a mask has an entry for each token of x [batch, tokens, d_model]."""
    batch, tokens, _ = x.shape
    if padding_mask.shape != (batch, tokens):
        raise ValueError(
            f"padding_mask has the shape {padding_mask.shape}: expected [batch, tokens], "
            f"({batch}, {tokens})"
        )


def pooled_states(states: Array, pool: str, padding_mask: Array | None) -> Array:
    """[batch, tokens, d_model] to [batch, d_model]: the state of the first token of each example
    (`pool="cls"`), or the mean over all tokens that are not padding (`pool="mean"`), which is 0 for
    an example of nothing but padding. `padding_mask` is bool [batch, tokens], False for padding; None
    if there is none."""
    if pool == "cls":
        return states[:, 0]
    if padding_mask is None:
        return states.mean(axis=1)
    is_text = padding_mask[..., None]  # [batch, tokens, 1]
    has_text = is_text.any(axis=1)  # [batch, 1]
    has_text_of_tokens = has_text[:, None]  # [batch, 1, 1]
    # a mean over no tokens, and its gradient, would be NaN
    is_counted = is_text | ~has_text_of_tokens
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
    count = len(layer_specs)
    for stop in range(1, count + 1):
        is_end = stop == count
        if is_end or layer_specs[stop] != layer_specs[start]:
            runs.append((start, stop))
            start = stop
    return runs


def _stops(stack: _Stack, kept: Sequence[int]) -> list[int]:
    """The parts in which a stack runs, by the number after that of their last layer: each ends with
    a layer that is kept, and if a later stack has one, the last part ends with the stack."""
    layers = range(stack.first, stack.stop)
    stops = [number + 1 for number in kept if number in layers]
    later_stack_runs = max(kept) >= stack.stop
    if later_stack_runs and stack.stop not in stops:
        stops.append(stack.stop)
    return stops
