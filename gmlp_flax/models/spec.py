"""Sizes and options of an encoder: one frozen dataclass, read by every layer."""

import dataclasses
from typing import Any, ClassVar, Self

import jax.numpy as jnp
from jax import Array

from gmlp_flax.options import (
    AT_LEAST_0,
    FINETUNED_RUNS,
    PROBABILITY,
    RATE,
    SIZE,
    option,
    options_of,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """Options that all blocks have, for activations [batch, length, d_model].

    A block adds options of its own in a subclass; `Block.spec(length=..., ...)` makes a spec.
    Parameters, norms, softmax and logits are in float32 whatever `dtype` is.

    Attributes:
        block: class of the blocks, a subclass of `blocks.base.Block`.
        length: number of tokens that the model is made for (the paper's n).

    Raises:
        ValueError: an option has a value that makes no sense.
    """

    # Blocks with other norms, without biases or with windows have options of these names.
    norm_type: ClassVar[str] = "layer"
    biases: ClassVar[bool] = True
    window: ClassVar[int] = 0

    block: type[Any]
    length: int
    layers: int = option(
        6,
        "number of blocks (the paper's L)",
        SIZE,
        architecture=True,
        scaled=True,
        aliases=("depth", "num_layers"),
    )
    d_model: int = option(
        128,
        "width of the residual stream",
        SIZE,
        architecture=True,
        scaled=True,
        aliases=("hidden_size", "dim", "width"),
    )
    positions: str = option(
        "none", "a learned table of positions, or none", ("none", "absolute"), architecture=True
    )
    activation: str = option(
        "gelu", "the exact GELU, or its tanh form", ("gelu", "gelu_tanh"), architecture=True
    )
    norm_eps: float = option(1e-6, "epsilon of the layer norms", AT_LEAST_0, architecture=True)
    survival: float = option(
        1.0, "probability that stochastic depth keeps a residual branch of an example", PROBABILITY
    )
    survival_schedule: str = option(
        "constant",
        "the same for all layers, or linear in depth: "
        "from 1 at the first to survival at the last (DeiT)",
        ("constant", "linear"),
    )
    causal: bool = option(
        False, "tokens see themselves and those before them (task causal_lm)", architecture=True
    )
    dropout: float = option(
        0.0, "rate of dropout on embeddings and residual branches", RATE, compared=FINETUNED_RUNS
    )
    dtype: str = option(
        "float32", "type of activations and matrix products", ("float32", "bfloat16", "float64")
    )
    residual_dtype: str = option(
        "",
        "type of the residual stream: float32 keeps its sums exact where branches are in bfloat16; "
        "empty: that of dtype",
        ("", "float32"),
    )
    remat: str = option(
        "matmuls",
        "what backward recomputes: nothing, all but matrix products, or all",
        ("none", "matmuls", "full"),
        may_change=True,
    )

    scan_layers: bool = option(
        True,
        "a loop over the layers; False: a program for each, "
        "1.2 times as fast on an H100 but slow to compile",
        may_change=True,
    )

    def __post_init__(self):
        for name, declared in options_of(type(self)).items():
            value = getattr(self, name)
            problem = declared.problem(value)
            if problem:
                raise ValueError(f"model.{name} is {value!r}: {problem}")
        if not SIZE.least <= self.length <= SIZE.most:
            raise ValueError(f"model.length is {self.length}: expected {SIZE.words}")
        if self.causal and not self.block.can_be_causal:
            raise ValueError(
                f"model.causal is True: {self.block.__name__} mixes all tokens; set it to False"
            )
        self.check()

    def check(self) -> None:
        """Raises ValueError if options contradict each other; a subclass with such options extends
        it."""

    def supports_length(self, tokens: int) -> bool:
        """Whether a stack of these blocks accepts this number of tokens: only n, unless a subclass
        overrides this."""
        return tokens == self.length

    @property
    def mixes_by_length(self) -> bool:
        """Whether `length` changes the weights that the same parameters give the same tokens, as a
        factor or as the unit of distances: not unless a subclass overrides this."""
        return False

    def hiding_padding(self) -> Self | None:
        """The spec of the same blocks in which a `padding_mask` hides padding completely, so that the
        outputs of a text are the same as without padding; None if the blocks cannot do that."""
        return self if self.block.hides_padding else None

    @property
    def compute_dtype(self) -> jnp.dtype:
        """Type of activations and matrix products."""
        return jnp.dtype(self.dtype)

    @property
    def stream_dtype(self) -> jnp.dtype:
        """Type of the residual stream between blocks: `compute_dtype`, or float32 at least if
        `residual_dtype` is."""
        residual_dtype = self.residual_dtype or self.compute_dtype
        return jnp.promote_types(self.compute_dtype, residual_dtype)

    @property
    def precise_dtype(self) -> jnp.dtype:
        """Type of norms, softmax and logits: float32, or float64 if `dtype` is."""
        return jnp.promote_types(self.compute_dtype, jnp.float32)

    @property
    def param_dtype(self) -> jnp.dtype:
        """Type of the parameters: `precise_dtype`."""
        return self.precise_dtype

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers; a subclass with a dropout of its own extends
        it."""
        return self.survival < 1 or self.dropout > 0

    def survival_by_layer(self) -> Array:
        """Survival probability of each layer, float32 [layers]. A single layer with the linear
        schedule has 1."""
        first = self.survival if self.survival_schedule == "constant" else 1.0
        return jnp.linspace(first, self.survival, self.layers, dtype=jnp.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnyLengthSpec(BlockSpec):
    """Options of blocks that have no parameters for single tokens, except for learned absolute
    positions."""

    def supports_length(self, tokens: int) -> bool:
        """Any number of tokens, or at most n with learned positions."""
        return tokens <= self.length or self.positions == "none"
