"""The interface of every block, and what a block says about itself."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

from flax import nnx
from jax import Array

from gmlp_flax.models.layers import (
    EVALUATION,
    ChannelMLP,
    DecodeCache,
    LayerNorm,
    LayerRng,
    add_branch,
)
from gmlp_flax.models.spec import BlockSpec


def final_norm(spec: Any, d_model: int) -> Callable[[Array], Array]:
    """`Block.final_norm` for specs with an option `norm`: post-norm blocks already end with a
    norm."""
    if spec.norm == "pre":
        return LayerNorm(spec, d_model)
    return nnx.identity


class Block(nnx.Module):
    """One layer of an encoder, built as `MyBlock(spec, rngs)` with a spec of its class `Spec`.

    A block of your own extends this class; docs/extending.md has an example. `parameters.parameter`
    states how each parameter is sharded, decayed and resized for other lengths.

    Attributes:
        Spec: options of the block, a frozen dataclass that extends `BlockSpec`.
        final_norm: norm after the last layer, built as `final_norm(spec, d_model)`.
        mixes_at_start: whether fresh blocks mix tokens. If so, embeddings are best scaled up
            (`scale_embeddings`).
        can_be_causal: whether the block obeys the option `causal`, so that no output depends on a
            later token.
        hides_padding: whether no output depends on the tokens that `padding_mask` marks as padding,
            nor on their number.
        masks_documents: whether the block accepts a `padding_mask` of documents, with which no
            output depends on another document of the window.
        torch_reader: the file of interop/templates that reads the block's weights in PyTorch; "" if
            there is none.
    """

    Spec: ClassVar[type[BlockSpec]] = BlockSpec
    final_norm: ClassVar[Callable[[Any, int], Any]] = LayerNorm
    mixes_at_start: ClassVar[bool] = True
    can_be_causal: ClassVar[bool] = False
    hides_padding: ClassVar[bool] = False
    masks_documents: ClassVar[bool] = False
    torch_reader: ClassVar[str] = ""

    @abc.abstractmethod
    def __init__(self, spec: Any, rngs: nnx.Rngs):
        """Makes the parameters."""

    @abc.abstractmethod
    def __call__(
        self, x: Array, rng: LayerRng = EVALUATION, padding_mask: Array | None = None
    ) -> Array:
        """[batch, tokens, d_model] to the same.

        Args:
            x: the residual stream. Each branch is added to it by `layers.add_branch(x, branch, rng,
                number)`.
            rng: random keys and rates of training.
            padding_mask: bool [batch, tokens], False for padding; None if there is none. Linear
                layers over tokens ignore it. For blocks with `masks_documents` it may be int
                [batch, tokens]: the document of each token, from 1, and 0 for padding.

        A block that can be causal has a fourth argument, `cache: DecodeCache | None = None`. If it
        is not None, the tokens follow earlier ones, and the block gets their keys, values or gate
        inputs from `cache.update(name, values)`.
        """

    @classmethod
    def spec(cls, *, length: int, **options: Any) -> Any:
        """A spec of this block for `length` tokens.

        Raises:
            ValueError: an option is out of its range, or options contradict each other.
        """
        return cls.Spec(block=cls, length=length, **options)

    @classmethod
    def stack_specs(cls, spec: Any) -> tuple[Any, ...]:
        """The specs of the stacks of an encoder, first layers first; their `layers` add up to those
        of `spec`.

        The layers of a stack have parameters of the same shapes and the same program (but see
        `layer_specs`), so that one scan runs them. Most blocks have one stack. A block whose layers
        differ returns `dataclasses.replace(spec, layers=..., ...)` for each run of equal layers.
        """
        return (spec,)

    @classmethod
    def layer_specs(cls, spec: Any) -> tuple[Any, ...]:
        """The spec of each layer of an encoder, first layer first.

        The layers of a stack share its spec, unless a block overrides this. They may then differ in
        their programs, such as in the tokens that their attention sees, but not in the shapes of
        their parameters. The encoder scans over the shortest period of such layers. It makes
        `spec.block(layer_spec, rngs)` to get the program of a layer.
        """
        layers = []
        for stack_spec in cls.stack_specs(spec):
            layers += [stack_spec] * stack_spec.layers
        return tuple(layers)

    @classmethod
    def has_spatial_matrix(cls, options: Any) -> bool:
        """Whether `spatial_matrix` returns a matrix. A block that overrides it returns one with any
        options, unless it overrides this too. `options` is a spec or a `config.model`."""
        return cls.spatial_matrix is not Block.spatial_matrix

    @classmethod
    def notes(cls, spec: Any, platform: str) -> list[str]:
        """Lines that a plan prints about an encoder besides its figures. `platform` is "tpu", "gpu"
        or "cpu"."""
        return []

    def spatial_matrix(self) -> Array | None:
        """The matrix [n, n] that mixes tokens, if it is the same for all inputs, with outputs as
        rows; otherwise None."""
        return None

    def attention_scores(self, x: Array) -> Array | None:
        """Logits of attention before the softmax, [batch or 1, heads, tokens, tokens], from the
        residual stream [batch, tokens, d_model]; None if the block has no attention."""
        return None


class PreNormBlock(Block):
    """x + mix(norm(x)), then x + mlp(norm(x)): the frame of most mixers.

    A subclass makes its mixer before it calls `super().__init__`, and applies it in `mix`. Its spec
    extends `layers.ChannelMLPSpec`.
    """

    @abc.abstractmethod
    def __init__(self, spec: Any, rngs: nnx.Rngs):
        """Makes the parameters of the norms and of the MLP."""
        self.mixing_norm = LayerNorm(spec, spec.d_model)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    @abc.abstractmethod
    def mix(
        self, x: Array, rng: LayerRng, padding_mask: Array | None, cache: DecodeCache | None
    ) -> Array:
        """The branch that mixes tokens, behind the norm: [batch, tokens, d_model] to the same;
        arguments as in `Block`. The cache is None unless the block can be causal."""

    def __call__(
        self,
        x: Array,
        rng: LayerRng = EVALUATION,
        padding_mask: Array | None = None,
        cache: DecodeCache | None = None,
    ) -> Array:
        """See `Block`."""
        mixed = self.mix(self.mixing_norm(x), rng, padding_mask, cache)
        x = add_branch(x, mixed, rng, 0)
        hidden = self.mlp(self.mlp_norm(x))
        return add_branch(x, hidden, rng, 1)
