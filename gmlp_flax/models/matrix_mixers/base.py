"""What the matrices of all structures have in common: options, the rows that are computed, and how a
matrix is made and applied."""

import abc
import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import depthwise
from gmlp_flax.models.attention import dot_product
from gmlp_flax.models.attention.spec import HeadsSpec
from gmlp_flax.models.layers import Linear, activation
from gmlp_flax.models.matmul import NAME, add_bias, over_tokens
from gmlp_flax.models.padding import documents_of
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.sharding import FSDP
from gmlp_flax.options import SIZE, option

BUILT_UP_TO = 512  # tokens: with more, a matrix that a scan can apply is not built


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixSpec(HeadsSpec):
    """Options of the matrix mixers of any structure."""

    input_dependent: bool = option(
        True,
        "whether the matrix is computed from the input; False: learned (dense is always learned)",
        architecture=True,
    )
    form: str = option(
        "auto",
        "how the matrix is applied: built (direct), by its structure (fast), or by what suits n: "
        "a quasiseparable one is built up to 512 tokens",
        ("auto", "direct", "fast"),
        may_change=True,
    )
    heads: int = option(
        4, "heads, each with a matrix and expand d_model / heads channels", SIZE, architecture=True
    )
    expand: int = option(
        2, "channels that are mixed, as a multiple of d_model", SIZE, architecture=True
    )
    d_state: int = option(
        64,
        "size of a token's B and C, or of its query and key in a head (low_rank, attention)",
        SIZE,
        architecture=True,
    )
    groups: int = option(
        1, "groups of heads, each of which shares B and C (quasiseparable)", SIZE, architecture=True
    )
    kernel_width: int = option(
        7, "tokens that the short convolution reads", SIZE, architecture=True
    )

    def check(self) -> None:
        """Raises ValueError for groups that do not divide the heads."""
        super().check()
        if self.heads % self.groups:
            raise ValueError(
                f"model.heads is {self.heads}: model.groups, {self.groups}, must divide it"
            )

    def supports_length(self, tokens: int) -> bool:
        """See `BlockSpec`: at most n tokens; any number if the matrix is computed from the input and
        there are no learned positions."""
        if tokens <= self.length:
            return True
        return self.input_dependent and self.positions == "none"

    @property
    def d_inner(self) -> int:
        """Channels that are mixed."""
        return self.expand * self.d_model

    @property
    def directions(self) -> int:
        """1 if the tokens see only earlier ones, else 2."""
        return 1 if self.causal else 2


class View(NamedTuple):
    """Which rows of a matrix are computed, and which keys each of them may see.

    Attributes:
        first: the first row.
        count: the number of rows.
        keys: the number of columns.
        padding_mask: as in `Block`; None if nothing is hidden.
    """

    first: Array | int
    count: int
    keys: int
    padding_mask: Array | None = None

    @property
    def documents(self) -> Array | None:
        """int [batch, keys], from 1, and 0 for padding; None if there is one document."""
        return documents_of(self.padding_mask)

    def hide(self, x: Array, axis: int = 1) -> Array:
        """x [batch or 1, ...] with zeros for padding, [batch, ...] if there is a mask; `axis` is that
        of the keys."""
        if self.padding_mask is None:
            return x
        shape = [1] * x.ndim
        shape[0] = self.padding_mask.shape[0]
        shape[axis] = self.keys
        is_text = self.padding_mask.astype(bool)
        is_text = is_text.reshape(shape)
        zeros = jnp.zeros_like(x)
        return jnp.where(is_text, x, zeros)

    def hide_documents(self, weights: Array) -> Array:
        """Weights [batch or 1, heads, count, keys] with zeros between different documents."""
        documents = self.documents
        if documents is None:
            return weights
        visible = dot_product.visible_keys(documents, self.first, self.count)
        return jnp.where(visible[:, None], weights, 0)

    def hide_future(self, weights: Array) -> Array:
        """Weights [..., count, keys] with zeros for later keys."""
        rows = jnp.arange(self.count)[:, None]
        row_positions = self.first + rows
        key_positions = jnp.arange(self.keys)
        is_past = key_positions <= row_positions
        return jnp.where(is_past, weights, 0)


def by_head(x: Array, heads: int) -> Array:
    """[batch, tokens, heads d] to [batch, heads, tokens, d]."""
    batch, tokens, channels = x.shape
    d = channels // heads
    by_token = x.reshape(batch, tokens, heads, d)
    return by_token.swapaxes(1, 2)


def apply(weights: Array, v: Array) -> Array:
    """A matrix for each head times v [batch, heads, keys, channels], in the type of v.

    Args:
        weights: [batch, heads, rows, keys], or with a batch of 1 if it is the same for all inputs.
    """
    weights = weights.astype(v.dtype)
    if weights.shape[0] == 1:  # len would refuse the symbolic batch of an export
        over_tokens_of_heads = jax.vmap(over_tokens, in_axes=(0, 1), out_axes=1)
        weights_of_heads = weights[0]
        return over_tokens_of_heads(weights_of_heads, v)
    mixed = jnp.matmul(weights, v)
    return checkpoint_name(mixed, NAME)


class ShortConvolution(nnx.Module):
    """A depthwise convolution over the tokens around each token, or up to it in a causal model:
    `kernel` [width, channels], whose first entry is that of the earliest token, and `bias`
    [channels], which starts at 0."""

    def __init__(self, spec: MatrixSpec, channels: int, rngs: nnx.Rngs):
        width = spec.kernel_width
        dtype = spec.param_dtype
        kernel = depthwise.uniform_kernel(rngs.params(), width, channels, dtype)
        self.kernel = parameter(kernel, sharding=(None, FSDP))
        zeros = jnp.zeros((channels,), dtype)
        self.bias = parameter(zeros, decayed=False)
        others = width - 1  # tokens that a token reads besides itself
        self.tokens_before = others if spec.causal else others // 2

    def __call__(self, x: Array, documents: Array | None = None) -> Array:
        """[batch, tokens, channels] to the same, in the type of x; `documents` as in
        `depthwise.convolve`."""
        kernel = self.kernel[...]
        mixed = depthwise.convolve(x, kernel, self.tokens_before, documents)
        bias = self.bias[...]
        return add_bias(mixed, bias)


class Features(nnx.Module):
    """What a matrix is computed from: a linear layer of each token, followed by a short convolution.
    As in the released code, the linear layer has no bias, and there is no activation between
    them.

    They are applied one by one, because a cache stores what lies between them: `proj` in
    `MatrixMixer.project`, and `convolve`, which reads neighbouring tokens, in its other methods.
    """

    def __init__(self, spec: MatrixSpec, channels: int, rngs: nnx.Rngs):
        self.proj = Linear(spec, spec.d_model, channels, rngs, bias=False)
        self.convolution = ShortConvolution(spec, channels, rngs)

    def convolve(self, projected: Array, view: View, activation_name: str | None = "silu") -> Array:
        """The features of all keys, 0 at padding, from what `proj` gave: [batch, keys, channels] to
        the same."""
        features = self.convolution(projected, view.documents)
        if activation_name is not None:
            features = activation(activation_name, features)
        return view.hide(features)


class MatrixMixer(nnx.Module):
    """A structure of matrices over the tokens, one matrix for each head, without the diagonal that
    `diagonal` gives."""

    # whether the structure gives a faster product for any number of tokens
    is_fast: ClassVar[bool] = False
    # whether the matrix has a factor that depends on the length of the spec
    divides_by_length: ClassVar[bool] = False

    @abc.abstractmethod
    def __init__(self, spec: MatrixSpec, rngs: nnx.Rngs):
        """Makes the parameters."""

    @classmethod
    def check(cls, spec: MatrixSpec) -> None:
        """Raises ValueError for options that the structure does not have."""

    @classmethod
    def fastest_form(cls, spec: MatrixSpec, tokens: int) -> str:
        """The form that "auto" stands for, "direct" or "fast"."""
        return "fast" if cls.is_fast else "direct"

    def project(self, x: Array) -> dict[str, Array]:
        """What each token gives to the matrix, [batch, tokens, ...] by name, from [batch, tokens,
        d_model]. It depends on no other token, so that a text can be continued from it."""
        return {}

    @abc.abstractmethod
    def rows(self, inputs: dict[str, Array], view: View) -> Array:
        """Rows of the matrix from what `project` gave for all keys: [batch or 1, heads, count,
        keys]."""

    def apply_fast(self, inputs: dict[str, Array], v: Array, view: View) -> Array:
        """All rows times v [batch, heads, keys, channels], of the shape of v, in its type or the
        precise one."""
        rows = self.rows(inputs, view)
        return apply(rows, v)

    def scores(self, inputs: dict[str, Array], view: View) -> Array | None:
        """The logits of attention before the softmax, [batch or 1, heads, count, keys]; None for a
        matrix that is not a softmax."""
        return None

    def diagonal(self, v: Array) -> Array:
        """What is added to the diagonal, [batch or 1, heads, keys or 1], from v [batch, heads,
        keys, channels]: ones, because in the released code the structures have a residual
        connection."""
        heads = v.shape[1]
        shape = (1, heads, 1)
        return jnp.ones(shape, v.dtype)
