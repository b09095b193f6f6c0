"""A stack of any block: one program for all layers, scanned over stacked parameters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import chex
import jax
from flax import nnx

from gmlp_flax.models import matmul, sharding
from gmlp_flax.models.decode_cache import DecodeCache
from gmlp_flax.models.layers import dropout, split_keys
from gmlp_flax.models.spec import BlockSpec

STACKED = "encoder/blocks/"  # beginning of the paths of parameters whose leading axis is the layer
STACK = "stack_"  # then comes its number, if a block makes several stacks

Kept = dict[
    str, jax.Array
]  # what the layers of a stack keep of the tokens read, by `DecodeCache`; the leading axis the layer

REMAT_POLICIES = {
    "matmuls": jax.checkpoint_policies.save_only_these_names(matmul.NAME),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class Residual:
    """Adds a block's branches to their shortcuts: dropout, then stochastic depth, each branch with keys of its own.

    Stochastic depth drops a whole branch for a sample and scales the kept ones by 1 / survival, so that the expected
    value is the one in evaluation, which keeps all.
    """

    def __init__(self, spec: BlockSpec, survival: jax.Array, keys: jax.Array | None):
        """`keys` [two per branch, batch], or None for evaluation."""
        self.spec, self.survival, self.keys = spec, survival, None if keys is None else iter(keys)
        self.number = itertools.count()

    def __call__(self, shortcut: jax.Array, branch: jax.Array) -> jax.Array:
        """Both [batch, tokens, d_model]."""
        if self.keys is not None:
            drop_keys, depth_keys = next(self.keys, None), next(self.keys, None)
            if drop_keys is None or depth_keys is None:
                block = self.spec.block
                raise ValueError(f"{block.__name__} adds more branches than its `branches`, {block.branches}: raise it")
            if next(self.number) not in self.spec.block.without_dropout:
                branch = dropout(branch, self.spec.dropout, drop_keys)
            if self.spec.survival < 1:
                kept = jax.vmap(lambda key: jax.random.bernoulli(key, self.survival))(depth_keys)
                branch = branch * (kept / self.survival).astype(branch.dtype)[:, None, None]
        return sharding.constrain(shortcut + branch, sharding.BATCH)


class Stacks(nnx.Module):
    """Several stacks, the first layers first, as `stack_0`, `stack_1`, ..."""

    def __init__(self, stacks: list[nnx.Module]):
        for number, stack in enumerate(stacks):
            setattr(self, f"{STACK}{number}", stack)


def depths(layers: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Where stacked parameters stand in the depth of an encoder.

    Args:
        layers: the path of each parameter below STACKED -> the size of its leading axis.

    Returns:
        For each path the number of its first layer in the whole encoder, and the number of all layers.
    """
    of_stack = {_stack(name): count for name, count in layers.items()}
    total = sum(of_stack.values())
    return {name: (sum(of_stack[each] for each in range(_stack(name))), total) for name in layers}


def _stack(name: str) -> int:
    """The number of the stack that a parameter belongs to."""
    first = name.removeprefix(STACKED).partition("/")[0]
    return int(first.removeprefix(STACK)) if first.startswith(STACK) else 0


class Encoder(nnx.Module):
    """`spec.layers` blocks, their parameters stacked along a leading axis, and the block's final norm.

    Layers that differ in more than their numbers, by `Block.stacks`, lie in several stacks, each scanned in turn. The
    paper does not name the final norm; a stack of pre-norm blocks needs one before its head.
    """

    def __init__(self, spec: BlockSpec, rngs: nnx.Rngs):
        self.stack_specs = spec.block.stacks(spec)
        stacks = [_stacked(each, rngs) for each in self.stack_specs]
        self.blocks = stacks[0] if len(stacks) == 1 else Stacks(stacks)
        self.norm = spec.block.final_norm(spec, spec.d_model)
        self.spec = spec

    def stacks(self) -> list[tuple[BlockSpec, Any]]:
        """The stacked blocks, first layers first, each with its spec: its `layers` is the leading axis."""
        if len(self.stack_specs) == 1:
            return [(self.stack_specs[0], self.blocks)]
        return [(spec, getattr(self.blocks, f"{STACK}{number}")) for number, spec in enumerate(self.stack_specs)]

    def __call__(self, x: jax.Array, key: jax.Array | None = None, padding_mask: jax.Array | None = None) -> jax.Array:
        """Runs the layers.

        Args:
            x: [batch, tokens, d_model] in the compute type.
            key: a random key per example, [batch], for training (stochastic depth, dropout); None for evaluation.
            padding_mask: bool [batch, tokens], False for padding, which attention then ignores; None if there is none.

        Returns:
            [batch, tokens, d_model], normalised.
        """
        spec = self.spec
        chex.assert_shape(x, (None, None, spec.d_model))
        if padding_mask is not None:
            chex.assert_equal_shape_prefix([x, padding_mask], 2)
        if not spec.draws:
            key = None
        keys = None if key is None else split_keys(key, spec.layers + 1)
        if keys is not None:
            x = dropout(x, spec.dropout, keys[-1])
        x = sharding.constrain(x, sharding.BATCH)
        for (own, stack), layers in zip(self.stacks(), _slices(self.stack_specs), strict=True):
            of_layer = spec.survival_by_layer()[layers], None if keys is None else keys[:-1][layers]
            x, _ = _scan(own, stack, x, padding_mask, *of_layer)
        return self.norm(x)

    def extend(self, x: jax.Array, kept: list[Kept] | None, first: jax.Array) -> tuple[jax.Array, list[Kept]]:
        """Runs the layers of a causal encoder on further tokens of a text, without reading the earlier ones again.

        Args:
            x: [batch, tokens, d_model], the tokens at the places [first, first + tokens), which must lie within n.
            kept: what the call for the tokens before returned, of each stack; None if there are none.
            first: int.

        Returns:
            [batch, tokens, d_model], normalised, as `__call__` gives for these places; and what to keep.
        """
        stacks, after = self.stacks(), []
        for (own, stack), before in zip(stacks, kept or [{} for _ in stacks], strict=True):
            x, whole = _scan(own, stack, x, None, own.survival_by_layer(), None, before, first)
            after.append(whole)
        return self.norm(x), after


def _stacked(spec: BlockSpec, rngs: nnx.Rngs) -> nnx.Module:
    """Blocks of one kind, the leading axis of each parameter the layer."""
    return nnx.vmap(lambda rngs: spec.block(spec, rngs), in_axes=0, out_axes=0)(rngs.split(spec.layers))


def _slices(specs: tuple[BlockSpec, ...]) -> Iterator[slice]:
    """The layers of each stack in the whole encoder."""
    ends = itertools.accumulate((spec.layers for spec in specs), initial=0)
    return itertools.starmap(slice, itertools.pairwise(ends))


def _scan(
    spec: BlockSpec,
    stack: Any,
    x: jax.Array,
    padding_mask: jax.Array | None,
    survival: jax.Array,
    keys: jax.Array | None,
    kept: Kept | None = None,
    first: jax.Array | None = None,
) -> tuple[jax.Array, Any]:
    """Runs one stack; survival [layers], keys [layers, batch]. With `kept`, after the tokens that it stands for."""
    definition, stacked = nnx.split(stack)

    def layer(x, inputs):
        """One layer: [batch, tokens, d_model] to the same, and what it keeps of the tokens for those that follow."""
        params, survival, key, kept = inputs
        layer_keys = None if key is None else split_keys(key, 1 + 2 * spec.block.branches)
        attention_key = None if layer_keys is None else layer_keys[0]
        residual = Residual(spec, survival, None if layer_keys is None else layer_keys[1:])
        block = nnx.merge(definition, params)
        if first is None:
            return block(x, residual, padding_mask, attention_key), None
        cache = DecodeCache(kept, first, spec.length)
        return block(x, residual, padding_mask, attention_key, cache), cache.kept

    if spec.remat != "none":
        # Inside a scan the compiler cannot undo the recomputation, so no barrier is needed against it.
        layer = jax.checkpoint(layer, policy=REMAT_POLICIES[spec.remat], prevent_cse=False)
    return jax.lax.scan(layer, x, (stacked, survival, keys, kept))
