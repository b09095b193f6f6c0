"""What every block is, and what it says about itself."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import jax
from flax import nnx

from gmlp_flax.models.layers import LayerNorm
from gmlp_flax.models.spec import BlockSpec

# Adds a branch [batch, tokens, d_model] to its shortcut: stochastic depth and dropout live there, see `encoder`.
Residual = Callable[[jax.Array, jax.Array], jax.Array]


class Block(nnx.Module):
    """One layer of a stack, built as `MyBlock(spec, rngs)` with a spec of its class `Spec`.

    A block of your own extends this class; the documentation has an example, under "extending". `parameters.parameter`
    states how each parameter is sharded, decayed and fitted to other lengths; the layers of this package use it.

    Attributes:
        Spec: the block's options, a frozen dataclass that extends `BlockSpec`.
        final_norm: the norm that ends a stack, built as `final_norm(spec, d_model)`.
        branches: how often a call adds a branch to its shortcut, at most.
        without_dropout: the branches, counted from 0, whose output `dropout` leaves as it is.
        mixes_at_start: whether fresh blocks mix tokens. If so, embeddings are best scaled up (`scale_embeddings`).
        can_be_causal: whether the option `causal` is obeyed: no output depends on a later token. Calls then get `cache`.
    """

    Spec: ClassVar[type[BlockSpec]] = BlockSpec
    final_norm: ClassVar[Callable[[Any, int], nnx.Module]] = LayerNorm
    branches: ClassVar[int] = 2
    without_dropout: ClassVar[tuple[int, ...]] = ()
    mixes_at_start: ClassVar[bool] = True
    can_be_causal: ClassVar[bool] = False

    @abc.abstractmethod
    def __init__(self, spec: Any, rngs: nnx.Rngs):
        """Makes the parameters."""

    @abc.abstractmethod
    def __call__(
        self, x: jax.Array, residual: Residual, padding_mask: jax.Array | None = None, key: jax.Array | None = None
    ) -> jax.Array:
        """[batch, tokens, d_model] to the same.

        Args:
            x: the residual stream.
            residual: adds a branch to its shortcut.
            padding_mask: bool [batch, tokens], False for padding; None if there is none. Linear layers over tokens ignore it.
            key: a random key per example, [batch], for dropout on the weights of attention; None for evaluation.

        A block that can be causal has a fifth argument, `cache: DecodeCache | None = None`: the tokens before these, when a text
        is continued. What its mixing reads of earlier tokens it then takes from `cache.update(name, values)`.
        """

    @classmethod
    def spec(cls, *, length: int, **options: Any) -> Any:
        """A spec of this block for `length` tokens.

        Raises:
            ValueError: an option has a value that makes no sense.
        """
        return cls.Spec(block=cls, length=length, **options)

    @classmethod
    def supports_length(cls, spec: Any, tokens: int) -> bool:
        """Whether a stack can be called with this number of tokens: with n alone, unless a block says more."""
        return tokens == spec.length

    @classmethod
    def stacks(cls, spec: Any) -> tuple[Any, ...]:
        """The specs of the stacks that the layers of `spec` lie in, first layers first; their `layers` add up to its.

        One scan runs a stack, so its layers are alike but for their numbers. Most blocks have one stack. One whose
        layers differ in their parameters' shapes or in their program gives `dataclasses.replace(spec, layers=..., ...)`
        for each run of equal ones.
        """
        return (spec,)

    def spatial_matrix(self) -> jax.Array | None:
        """The matrix [n, n] that mixes tokens, the same for all inputs (rows are outputs); None if there is none."""
        return None

    def attention_scores(self, x: jax.Array) -> jax.Array | None:
        """Scores of attention before the softmax, [batch or 1, heads, tokens, tokens], from the residual stream;
        None if the block has no attention."""
        return None


def up_to_length(spec: BlockSpec, tokens: int) -> bool:
    """`Block.supports_length` of a block that works on any number of tokens: its table of positions, if it has one, has n rows."""
    return tokens <= spec.length or spec.positions == "none"
