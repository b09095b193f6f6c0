"""Hydra (arXiv 2407.09941): a matrix over the tokens of one of five structures, between a short
convolution and a gate. By default it is quasiseparable, a state space model in both directions.

Read from the top: the options, what the block computes, and one class for each structure. Where the
paper leaves a constant open, it is that of its code, goombalab/hydra.
"""

import abc
import dataclasses
import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import attention, semiseparable, toeplitz
from gmlp_flax.models.attention import HeadsSpec
from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.layers import (
    EVALUATION,
    ChannelMLP,
    DecodeCache,
    LayerNorm,
    LayerRng,
    Linear,
    activation,
    add_branch,
    rms_norm,
)
from gmlp_flax.models.matmul import NAME, over_tokens
from gmlp_flax.models.parameters import (
    PAST_TAPS,
    TAPS,
    OverPatches,
    parameter,
    token_logits,
)
from gmlp_flax.models.semiseparable import Direction
from gmlp_flax.models.sharding import FSDP
from gmlp_flax.options import SIZE, option

WHOLE = 512  # up to so many tokens a quasiseparable matrix is built
NORM_EPS = 1e-5  # of the norm before the gate
STEPS = (1e-3, 0.1)  # the range of dt at the start


@dataclasses.dataclass(frozen=True, kw_only=True)
class HydraSpec(HeadsSpec):
    """Options of the matrix mixers."""

    matrix: str = option(
        "quasiseparable",
        "the structure of the matrix over the tokens",
        ("quasiseparable", "dense", "toeplitz", "low_rank", "attention"),
        architecture=True,
    )
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
        """Raises ValueError for a dense matrix that would depend on the input, for groups that do
        not divide the heads, and for a form that the matrix does not have."""
        super().check()
        if self.matrix == "dense" and self.input_dependent:
            raise ValueError(
                "model.input_dependent is True: a dense matrix is learned; set it to False"
            )
        if self.heads % self.groups:
            raise ValueError(
                f"model.heads is {self.heads}: model.groups, {self.groups}, must divide it"
            )
        if self.form == "fast" and self.matrix == "dense":
            raise ValueError("model.form is 'fast': a dense matrix has no faster form; use 'auto'")
        if self.form == "fast" and self.matrix == "toeplitz" and self.causal:
            raise ValueError(
                "model.form is 'fast', whose rounding depends on later tokens for a Toeplitz "
                "matrix: use 'auto'"
            )

    def applied_form(self, tokens: int) -> str:
        """How the matrix of so many tokens is applied, "direct" or "fast"."""
        if self.form != "auto":
            return self.form
        return MATRICES[self.matrix].fastest_form(self, tokens)

    def supports_length(self, tokens: int) -> bool:
        """At most n tokens; any number if the matrix is computed from the input and there are no
        learned positions."""
        return tokens <= self.length or (self.input_dependent and self.positions == "none")

    @property
    def d_inner(self) -> int:
        """Channels that are mixed."""
        return self.expand * self.d_model

    @property
    def directions(self) -> int:
        """1 if the tokens see only earlier ones, else 2."""
        return 1 if self.causal else 2


class ShortConvolution(nnx.Module):
    """A filter for each channel over the tokens around one, or up to one in a causal model:
    `kernel` [width, channels] and `bias`."""

    def __init__(self, spec: HydraSpec, channels: int, rngs: nnx.Rngs):
        width = spec.kernel_width
        bound = width**-0.5  # torch's
        shape = (width, channels)
        kernel = jax.random.uniform(rngs.params(), shape, spec.param_dtype, -bound, bound)
        self.kernel = parameter(kernel, sharding=(None, FSDP))
        bias = jnp.zeros((channels,), spec.param_dtype)
        self.bias = parameter(bias, decayed=False)
        self.tokens_before = width - 1 if spec.causal else (width - 1) // 2

    def __call__(self, x: jax.Array, documents: jax.Array | None = None) -> jax.Array:
        """[batch, tokens, channels] to the same. Beyond the ends it reads zeros; so does a token
        beyond its document, if there are `documents`, int [batch, tokens]."""
        kernel = self.kernel[...]
        tokens = x.shape[1]
        width = len(kernel)
        before = self.tokens_before
        after = width - 1 - before
        padded = jnp.pad(x, ((0, 0), (before, after), (0, 0)))
        padded_documents = None
        if documents is not None:
            padded_documents = jnp.pad(documents, ((0, 0), (before, after)))
        total = self.bias[...]
        for entry in range(width):
            neighbours = padded[:, entry : entry + tokens]
            if padded_documents is not None:
                is_own = padded_documents[:, entry : entry + tokens] == documents
                neighbours = jnp.where(is_own[..., None], neighbours, jnp.zeros_like(neighbours))
            total = total + kernel[entry] * neighbours
        return total.astype(x.dtype)


class Features(nnx.Module):
    """What a matrix is computed from: a linear layer of each token, and a short convolution. The
    released code has neither a bias in the first nor an activation between them."""

    def __init__(self, spec: HydraSpec, channels: int, rngs: nnx.Rngs):
        self.proj = Linear(spec, spec.d_model, channels, rngs, bias=False)
        self.convolution = ShortConvolution(spec, channels, rngs)


class View(NamedTuple):
    """Which rows of a matrix are wanted, and what each of them may see.

    Attributes:
        first: the first row.
        count: the number of rows.
        keys: the number of columns.
        padding_mask: as in `Block`; None if nothing is hidden.
    """

    first: jax.Array | int
    count: int
    keys: int
    padding_mask: jax.Array | None = None

    @property
    def documents(self) -> jax.Array | None:
        """int [batch, keys], from 1, and 0 for padding; None if there is one document."""
        mask = self.padding_mask
        if mask is None or mask.dtype == jnp.bool_:
            return None
        return mask

    def hide(self, x: jax.Array, axis: int = 1) -> jax.Array:
        """x with zeros for padding; `axis` is that of the keys, after the batch."""
        if self.padding_mask is None:
            return x
        shape = [1] * x.ndim
        shape[0] = self.padding_mask.shape[0]
        shape[axis] = self.keys
        is_text = (self.padding_mask > 0).reshape(shape)
        return jnp.where(is_text, x, jnp.zeros_like(x))

    def hide_documents(self, weights: jax.Array) -> jax.Array:
        """Weights [batch or 1, heads, count, keys] with zeros between different documents."""
        documents = self.documents
        if documents is None:
            return weights
        visible = attention.visible_keys(documents, self.first, self.count)
        return jnp.where(visible[:, None], weights, 0)

    def hide_future(self, weights: jax.Array) -> jax.Array:
        """Weights [..., count, keys] with zeros for later keys."""
        positions = self.first + jnp.arange(self.count)[:, None]
        is_past = jnp.arange(self.keys) <= positions
        return jnp.where(is_past, weights, 0)


def by_head(x: jax.Array, heads: int) -> jax.Array:
    """[batch, tokens, heads d] to [batch, heads, tokens, d]."""
    batch, tokens, _ = x.shape
    return x.reshape(batch, tokens, heads, -1).swapaxes(1, 2)


def apply(weights: jax.Array, v: jax.Array) -> jax.Array:
    """A matrix for each head times v [batch, heads, keys, channels], in the type of v.

    Args:
        weights: [batch, heads, rows, keys], or with a batch of 1 if it is the same for all inputs.
    """
    weights = weights.astype(v.dtype)
    if weights.shape[0] == 1:
        over_tokens_of_heads = jax.vmap(over_tokens, in_axes=(0, 1), out_axes=1)
        return over_tokens_of_heads(weights[0], v)
    return checkpoint_name(jnp.matmul(weights, v), NAME)


class MatrixMixer(nnx.Module):
    """A structure of matrices over the tokens, one matrix for each head, without the diagonal that
    `diagonal` gives."""

    # whether the structure gives a faster product for any number of tokens
    is_fast: ClassVar[bool] = False

    @abc.abstractmethod
    def __init__(self, spec: HydraSpec, rngs: nnx.Rngs):
        """Makes the parameters."""

    @classmethod
    def fastest_form(cls, spec: HydraSpec, tokens: int) -> str:
        """The form that "auto" stands for, "direct" or "fast"."""
        return "fast" if cls.is_fast else "direct"

    def project(self, x: jax.Array) -> dict[str, jax.Array]:
        """What each token gives to the matrix, [batch, tokens, ...] by name, from [batch, tokens,
        d_model]. It depends on no other token, so that a text can be continued from it."""
        return {}

    @abc.abstractmethod
    def rows(self, inputs: dict[str, jax.Array], view: View) -> jax.Array:
        """Rows of the matrix from what `project` gave for all keys: [batch or 1, heads, count,
        keys]."""

    def apply_fast(self, inputs: dict[str, jax.Array], v: jax.Array, view: View) -> jax.Array:
        """All rows times v [batch, heads, keys, channels], of the shape of v, in its type or the
        precise one."""
        return apply(self.rows(inputs, view), v)

    def diagonal(self, v: jax.Array) -> jax.Array:
        """What is added to the diagonal, [batch or 1, heads, keys or 1], from v [batch, heads,
        keys, channels]: the identity, as the structures have a residual connection in the released
        code."""
        return jnp.ones((1, v.shape[1], 1), v.dtype)


class Dense(MatrixMixer):
    """`weight` [heads, n, n] / sqrt(n): n tokens have n^2 parameters in each head. Fewer tokens
    have the upper left corner."""

    def __init__(self, spec: HydraSpec, rngs: nnx.Rngs):
        n = spec.length
        init = nnx.initializers.glorot_normal(batch_axis=0)
        weight = init(rngs.params(), (spec.heads, n, n), spec.param_dtype)
        self.weight = parameter(weight, resize=OverPatches(outputs=-2, inputs=-1))
        self.spec = spec

    def rows(self, inputs: dict[str, jax.Array], view: View) -> jax.Array:
        """See `MatrixMixer`."""
        weight = self.weight[:, :, : view.keys] * self.spec.length**-0.5
        rows = jax.lax.dynamic_slice_in_dim(weight, view.first, view.count, axis=1)
        if self.spec.causal:
            rows = view.hide_future(rows)
        return view.hide_documents(rows[None])


class Toeplitz(MatrixMixer):
    """The same weight at all pairs of tokens of a distance, over 2 sqrt(n): `taps` [heads, 2n - 1]
    as in `models.toeplitz` (causal: [heads, n]), or computed from the tokens.

    Token k then gives the weights of distance k: in rows from the k-th on, and in rows before, which
    a causal matrix lacks. The released code reads the weight of distance k + 1 below the diagonal,
    and that of k - 1 above it. In a window of documents, tokens are counted from the start of their
    document.
    """

    def __init__(self, spec: HydraSpec, rngs: nnx.Rngs):
        if spec.input_dependent:
            self.features = Features(spec, spec.directions * spec.heads, rngs)
        else:
            count = spec.length if spec.causal else 2 * spec.length - 1
            init = nnx.initializers.glorot_uniform()
            taps = init(rngs.params(), (spec.heads, count), spec.param_dtype)
            self.taps = parameter(taps, resize=PAST_TAPS if spec.causal else TAPS)
        self.spec = spec

    @classmethod
    def fastest_form(cls, spec: HydraSpec, tokens: int) -> str:
        """See `MatrixMixer`. The rounding of the faster form depends on later tokens."""
        if spec.causal or toeplitz.fastest_form(tokens) == "direct":
            return "direct"
        return "fast"

    def project(self, x: jax.Array) -> dict[str, jax.Array]:
        """See `MatrixMixer`."""
        return {"weights": self.features.proj(x)} if self.spec.input_dependent else {}

    def rows(self, inputs: dict[str, jax.Array], view: View) -> jax.Array:
        """See `MatrixMixer`."""
        if self.spec.input_dependent and view.documents is not None:
            return self._rows_of_documents(inputs, view)

        def rows_of_head(taps: jax.Array) -> jax.Array:
            return toeplitz.rows(taps, view.first, view.count)

        rows_of_heads = jax.vmap(rows_of_head)
        rows = jax.vmap(rows_of_heads)(self._all_taps(inputs, view))
        return view.hide_documents(rows)

    def apply_fast(self, inputs: dict[str, jax.Array], v: jax.Array, view: View) -> jax.Array:
        """See `MatrixMixer`: by the platform's form for many tokens, except between documents."""
        if view.documents is not None:
            return apply(self.rows(inputs, view), v)
        taps = self._all_taps(inputs, view)
        taps = jnp.broadcast_to(taps, (v.shape[0], *taps.shape[1:]))
        form = toeplitz.fastest_form(view.keys)
        if form == "direct":
            form = "fft"
        apply_to_heads = jax.vmap(toeplitz.FORMS[form])
        return jax.vmap(apply_to_heads)(taps, v)

    def _all_taps(self, inputs: dict[str, jax.Array], view: View) -> jax.Array:
        """[batch or 1, heads, 2 keys - 1]."""
        scale = 0.5 * self.spec.length**-0.5
        if not self.spec.input_dependent:
            taps = self.taps[...] * scale
            if self.spec.causal:
                taps = toeplitz.pad_future(taps)
            return toeplitz.crop(taps, view.keys)[None]
        below, above = self._by_distance(inputs, view)
        past = jnp.flip(below, axis=-1)  # the largest distance first
        if above is None:
            return toeplitz.pad_future(past)
        return jnp.concatenate([past, above[..., 1:]], axis=-1)

    def _by_distance(
        self, inputs: dict[str, jax.Array], view: View
    ) -> tuple[jax.Array, jax.Array | None]:
        """The weights that each token gives, [batch, heads, keys]: of earlier tokens, and of later
        ones (None in a causal model)."""
        spec = self.spec
        convolved = self.features.convolution(inputs["weights"], view.documents)
        weights = view.hide(activation("silu", convolved))
        weights = weights.astype(spec.precise_dtype) * (0.5 * spec.length**-0.5)
        weights = weights.swapaxes(1, 2)  # [batch, directions heads, keys]
        if spec.causal:
            return weights, None
        below, above = jnp.split(weights, 2, axis=1)
        return below, above

    def _rows_of_documents(self, inputs: dict[str, jax.Array], view: View) -> jax.Array:
        """`rows` in a window of documents: an entry of a distance k comes from the k-th token of
        the document."""
        documents = view.documents
        assert documents is not None
        positions = jnp.arange(view.keys)
        padded = jnp.pad(documents, ((0, 0), (1, 0)))
        is_start = documents != padded[:, :-1]
        starts = jax.lax.cummax(jnp.where(is_start, positions, 0), axis=1)  # [batch, keys]
        distances = jnp.abs(positions[:, None] - positions)
        chosen = starts[:, :, None] + distances  # [batch, keys, keys]
        last = view.keys - 1  # beyond it there are other documents alone
        chosen = jnp.minimum(chosen, last)[:, None]
        below, above = self._by_distance(inputs, view)
        rows = jnp.take_along_axis(below[:, :, None], chosen, axis=-1)
        if above is None:
            rows = view.hide_future(rows)
        else:
            is_past = positions <= positions[:, None]
            rows_above = jnp.take_along_axis(above[:, :, None], chosen, axis=-1)
            rows = jnp.where(is_past, rows, rows_above)
        return view.hide_documents(rows)


class QueriesAndKeys(MatrixMixer):
    """The part that low rank and attention share: a query and a key of each token and head, of
    `d_state` numbers, computed from the input, or the parameters `queries` and `keys` [heads, n,
    d_state]."""

    is_fast = True
    activation: ClassVar[str] = ""  # of queries and keys that are computed

    def __init__(self, spec: HydraSpec, rngs: nnx.Rngs):
        if spec.input_dependent:
            self.features = Features(spec, 2 * spec.heads * spec.d_state, rngs)
        else:
            init = nnx.initializers.glorot_normal(batch_axis=0)
            shape = (spec.heads, spec.length, spec.d_state)
            resize = token_logits(-2)
            queries = init(rngs.params(), shape, spec.param_dtype)
            self.queries = parameter(queries, decayed=False, resize=resize)
            keys = init(rngs.params(), shape, spec.param_dtype)
            self.keys = parameter(keys, decayed=False, resize=resize)
        self.spec = spec

    def project(self, x: jax.Array) -> dict[str, jax.Array]:
        """See `MatrixMixer`."""
        return {"queries_keys": self.features.proj(x)} if self.spec.input_dependent else {}

    def _queries_and_keys(
        self, inputs: dict[str, jax.Array], view: View
    ) -> tuple[jax.Array, jax.Array]:
        """Of all keys, each [batch or 1, heads, keys, d_state] in the compute type."""
        spec = self.spec
        if not spec.input_dependent:
            queries = self.queries[:, : view.keys].astype(spec.compute_dtype)
            keys = self.keys[:, : view.keys].astype(spec.compute_dtype)
            return queries[None], keys[None]
        convolved = self.features.convolution(inputs["queries_keys"], view.documents)
        if self.activation:
            convolved = activation(self.activation, convolved)
        both = by_head(view.hide(convolved), 2 * spec.heads)
        queries, keys = jnp.split(both, 2, axis=1)
        return queries, keys

    def _rows_of(self, queries: jax.Array, view: View) -> jax.Array:
        """The queries of the rows, [batch or 1, heads, count, d_state]."""
        if view.count == view.keys:
            return queries
        return jax.lax.dynamic_slice_in_dim(queries, view.first, view.count, axis=2)


class LowRank(QueriesAndKeys):
    """q k^T / sqrt(n d_state), which is linear attention if it is computed from the input."""

    activation = "silu"

    @classmethod
    def fastest_form(cls, spec: HydraSpec, tokens: int) -> str:
        """See `MatrixMixer`. A causal matrix is scanned, as a quasiseparable one."""
        return "direct" if spec.causal and tokens <= WHOLE else "fast"

    def rows(self, inputs: dict[str, jax.Array], view: View) -> jax.Array:
        """See `MatrixMixer`."""
        queries, keys = self._queries_and_keys(inputs, view)
        queries = self._rows_of(queries, view)
        products = jnp.einsum(
            "bhns,bhms->bhnm", queries, keys, preferred_element_type=self.spec.precise_dtype
        )
        weights = products * self._scale
        if self.spec.causal:
            weights = view.hide_future(weights)
        return view.hide_documents(weights)

    def apply_fast(self, inputs: dict[str, jax.Array], v: jax.Array, view: View) -> jax.Array:
        """See `MatrixMixer`: keys and values first; scanned in a causal model and in a window of
        documents."""
        queries, keys = self._queries_and_keys(inputs, view)
        shape = (v.shape[0], *queries.shape[1:])
        queries = jnp.broadcast_to(queries, shape)
        keys = jnp.broadcast_to(keys, shape)
        if self.spec.causal or view.documents is not None:
            scanned = self._scan(queries, keys, v, view.documents)
            return self._scale * scanned
        recalled = jnp.einsum(
            "bhms,bhmp->bhsp", keys, v, preferred_element_type=self.spec.precise_dtype
        )
        recalled = (self._scale * recalled).astype(v.dtype)
        return checkpoint_name(jnp.matmul(queries, recalled), NAME)

    @property
    def _scale(self) -> float:
        return (self.spec.length * self.spec.d_state) ** -0.5

    def _scan(
        self, queries: jax.Array, keys: jax.Array, v: jax.Array, documents: jax.Array | None
    ) -> jax.Array:
        """q k^T v, as a state space model without decay."""
        precise_dtype = self.spec.precise_dtype
        steps = jnp.ones(queries.shape[:3], precise_dtype)
        no_decay = jnp.zeros_like(steps)
        direction = Direction(steps, no_decay, keys, queries)
        mixed = semiseparable.scan(direction, v, documents)
        if self.spec.causal:
            return mixed
        reversed_direction = Direction(*(jnp.flip(array, 2) for array in direction))
        reversed_documents = None if documents is None else jnp.flip(documents, 1)
        scanned = semiseparable.scan(reversed_direction, jnp.flip(v, 2), reversed_documents)
        mixed = mixed + jnp.flip(scanned, 2)
        products = jnp.einsum("bhns,bhns->bhn", queries, keys, preferred_element_type=precise_dtype)
        return mixed - products[..., None] * v  # both scans have the diagonal


class Attention(QueriesAndKeys):
    """softmax(q k^T / sqrt(d_state)); without the input, the same for all texts."""

    def rows(self, inputs: dict[str, jax.Array], view: View) -> jax.Array:
        """See `MatrixMixer`."""
        return jax.nn.softmax(self.scores(inputs, view), axis=-1)

    def scores(self, inputs: dict[str, jax.Array], view: View) -> jax.Array:
        """The logits before the softmax, [batch or 1, heads, count, keys]."""
        queries, keys = self._queries_and_keys(inputs, view)
        queries = self._rows_of(queries, view)
        logits = attention.dot_products(queries, keys, self.spec, view.first)
        scores = logits(0, view.count)
        return attention.hide_padding(scores, view.padding_mask, True, view.first)

    def apply_fast(self, inputs: dict[str, jax.Array], v: jax.Array, view: View) -> jax.Array:
        """See `MatrixMixer`: many tokens in blocks of queries."""
        queries, keys = self._queries_and_keys(inputs, view)
        logits = attention.dot_products(queries, keys, self.spec)
        return attention.attend(logits, v, view.keys, view.padding_mask)


class Quasiseparable(MatrixMixer):
    """The state space models of `models.semiseparable`, one in each direction, with a_i = -exp(A) s_i
    and s_i = softplus(d_i + dt), d_i a linear layer of the token.

    Parameters: `log_rates` [heads], which are A, `step_bias` [heads], which is dt, and `skip`
    [heads], the diagonal, to which a linear layer of the mixed channels is added. Without the
    input, s_i and the diagonal are the same for all tokens, and `b` and `c` are [directions, groups,
    n, d_state]. A causal matrix has the first direction alone.
    """

    def __init__(self, spec: HydraSpec, rngs: nnx.Rngs):
        heads = spec.heads
        shape = (spec.directions, spec.groups, spec.length, spec.d_state)
        if spec.input_dependent:
            channels = 2 * spec.directions * spec.groups * spec.d_state
            self.features = Features(spec, channels, rngs)
            self.steps = Linear(spec, spec.d_model, spec.directions * heads, rngs, bias=False)
            self.skip_proj = Linear(spec, spec.d_inner, heads, rngs, bias=False)
        else:
            init = nnx.initializers.glorot_normal(batch_axis=(0, 1))
            resize = token_logits(-2)
            b = init(rngs.params(), shape, spec.param_dtype)
            self.b = parameter(b, decayed=False, resize=resize)
            c = init(rngs.params(), shape, spec.param_dtype)
            self.c = parameter(c, decayed=False, resize=resize)
        least, most = STEPS
        exponents = jax.random.uniform(
            rngs.params(), (heads,), spec.param_dtype, math.log(least), math.log(most)
        )
        steps = jnp.exp(exponents)
        step_bias = steps + jnp.log(-jnp.expm1(-steps))  # the inverse of softplus
        self.step_bias = parameter(step_bias, decayed=False)
        log_rates = jnp.zeros((heads,), spec.param_dtype)
        self.log_rates = parameter(log_rates, decayed=False)
        skip = jnp.ones((heads,), spec.param_dtype)
        self.skip = parameter(skip, decayed=False)
        self.spec = spec

    @classmethod
    def fastest_form(cls, spec: HydraSpec, tokens: int) -> str:
        """See `MatrixMixer`."""
        return "direct" if tokens <= WHOLE else "fast"

    def project(self, x: jax.Array) -> dict[str, jax.Array]:
        """See `MatrixMixer`."""
        if not self.spec.input_dependent:
            return {}
        return {"states": self.features.proj(x), "steps": self.steps(x)}

    def rows(self, inputs: dict[str, jax.Array], view: View) -> jax.Array:
        """See `MatrixMixer`."""
        forward, backward = self._directions(inputs, view)
        rows = semiseparable.rows(forward, backward, view.first, view.count)
        return view.hide_documents(rows)

    def apply_fast(self, inputs: dict[str, jax.Array], v: jax.Array, view: View) -> jax.Array:
        """See `MatrixMixer`: a scan in each direction."""
        forward, backward = self._directions(inputs, view)
        batch = v.shape[0]
        forward = _for_batch(forward, batch)
        if backward is not None:
            backward = _for_batch(backward, batch)
        return semiseparable.mix(forward, backward, v, view.documents)

    def diagonal(self, v: jax.Array) -> jax.Array:
        """See `MatrixMixer`: free, instead of the identity."""
        skip = self.skip[...]
        if not self.spec.input_dependent:
            return skip[None, :, None]
        batch, _, tokens, _ = v.shape
        channels = v.swapaxes(1, 2).reshape(batch, tokens, -1)
        diagonal = self.skip_proj(channels).astype(skip.dtype) + skip  # [batch, tokens, heads]
        return diagonal.swapaxes(1, 2)

    def _directions(
        self, inputs: dict[str, jax.Array], view: View
    ) -> tuple[Direction, Direction | None]:
        """The models of all keys. Padding adds nothing to their states, nor do these decay at
        it."""
        spec = self.spec
        if spec.input_dependent:
            found = self._computed_directions(inputs, view)
        else:
            found = self._learned_directions(view)
        if spec.causal:
            return found[0], None
        forward, backward = found
        return forward, backward

    def _computed_directions(self, inputs: dict[str, jax.Array], view: View) -> list[Direction]:
        spec = self.spec
        convolved = self.features.convolution(inputs["states"], view.documents)
        states = view.hide(activation("silu", convolved))
        steps = inputs["steps"].astype(spec.precise_dtype)
        directions = []
        for of_states, of_steps in zip(
            jnp.split(states, spec.directions, axis=-1),
            jnp.split(steps, spec.directions, axis=-1),
            strict=True,
        ):
            b, c = jnp.split(by_head(of_states, 2 * spec.groups), 2, axis=1)
            positive = jax.nn.softplus(of_steps + self.step_bias[...])
            positive = view.hide(positive).swapaxes(1, 2)  # [batch, heads, keys]
            directions.append(self._direction(positive, b, c))
        return directions

    def _learned_directions(self, view: View) -> list[Direction]:
        spec = self.spec
        step = jax.nn.softplus(self.step_bias[...])
        steps = jnp.broadcast_to(step[:, None], (1, spec.heads, view.keys))
        steps = view.hide(steps, axis=2)
        directions = []
        for number in range(spec.directions):
            b = self.b[number, None, :, : view.keys]  # [1, groups, keys, d_state]
            c = self.c[number, None, :, : view.keys]
            b = b.astype(spec.compute_dtype)
            c = c.astype(spec.compute_dtype)
            directions.append(self._direction(steps, b, c))
        return directions

    def _direction(self, steps: jax.Array, b: jax.Array, c: jax.Array) -> Direction:
        rates = jnp.exp(self.log_rates[...])
        return Direction(steps, -rates[:, None] * steps, b, c)


def _for_batch(direction: Direction, batch: int) -> Direction:
    """A direction with an example for each of the batch."""
    whole = []
    for array in direction:
        whole.append(jnp.broadcast_to(array, (batch, *array.shape[1:])))
    return Direction(*whole)


MATRICES: dict[str, type[MatrixMixer]] = {
    "quasiseparable": Quasiseparable,
    "dense": Dense,
    "toeplitz": Toeplitz,
    "low_rank": LowRank,
    "attention": Attention,
}


class HydraMixer(nnx.Module):
    """out(norm(M v) * silu(z)) with v = silu(convolution(values(x))), and M a matrix over the
    tokens for each head; z is a linear layer of x, and the norm divides by the root of the mean
    square. No linear layer has a bias."""

    def __init__(self, spec: HydraSpec, rngs: nnx.Rngs):
        d_model = spec.d_model
        d_inner = spec.d_inner
        self.gate = Linear(spec, d_model, d_inner, rngs, bias=False, activation="silu")
        self.values = Linear(spec, d_model, d_inner, rngs, bias=False)
        self.convolution = ShortConvolution(spec, d_inner, rngs)
        make_matrix = MATRICES[spec.matrix]
        self.matrix = make_matrix(spec, rngs)
        ones = jnp.ones((d_inner,), spec.param_dtype)
        self.norm_scale = parameter(ones, decayed=False)
        self.out = Linear(spec, d_inner, d_model, rngs, sharding=(None, FSDP), bias=False)
        self.spec = spec

    def __call__(
        self,
        x: jax.Array,
        padding_mask: jax.Array | None = None,
        cache: DecodeCache | None = None,
    ) -> jax.Array:
        """[batch, tokens, d_model] to the same; arguments as in `Block`. Raises ValueError for a
        number of tokens that `spec.supports_length` refuses."""
        tokens = x.shape[1]
        self._check_length(tokens)
        v, inputs, view = self._inputs(x, padding_mask, cache)
        if cache is None and self.spec.applied_form(tokens) == "fast":
            mixed = self.matrix.apply_fast(inputs, v, view)
        else:
            mixed = apply(self.matrix.rows(inputs, view), v)
        diagonal = self.matrix.diagonal(v)[..., None]
        kept = diagonal * v  # [batch, heads, keys, channels]
        if cache is not None:
            kept = jax.lax.dynamic_slice_in_dim(kept, view.first, tokens, axis=2)
        mixed = mixed + kept
        channels = mixed.swapaxes(1, 2).reshape(x.shape[0], tokens, -1)
        normed = rms_norm(channels, self.norm_scale[...], NORM_EPS, x.dtype)
        return self.out(normed * self.gate(x))

    def matrices(self, x: jax.Array, padding_mask: jax.Array | None = None) -> jax.Array:
        """M, diagonal included, [batch or 1, heads, tokens, tokens] in the precise type."""
        v, inputs, view = self._inputs(x, padding_mask, None)
        weights = self.matrix.rows(inputs, view).astype(self.spec.precise_dtype)
        diagonal = self.matrix.diagonal(v).astype(weights.dtype)
        return weights + diagonal[..., None] * jnp.eye(view.keys, dtype=weights.dtype)

    def scores(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to [batch or 1, heads, tokens, tokens], whose softmax is the
        share that each token has in another: the logits of attention, or log |M|."""
        if isinstance(self.matrix, Attention):
            _, inputs, view = self._inputs(x, None, None)
            return self.matrix.scores(inputs, view)
        return jnp.log(jnp.abs(self.matrices(x)))

    def _inputs(
        self, x: jax.Array, padding_mask: jax.Array | None, cache: DecodeCache | None
    ) -> tuple[jax.Array, dict[str, jax.Array], View]:
        """v [batch, heads, keys, channels], what the matrix is made from, and its rows."""
        tokens = x.shape[1]
        view = View(0, tokens, tokens, padding_mask)
        x = view.hide(x)
        inputs = {"values": self.values(x)} | self.matrix.project(x)
        if cache is not None:
            for name, array in inputs.items():
                inputs[name] = cache.update(name, array)
            view = View(cache.first, tokens, cache.length)
        convolved = self.convolution(inputs["values"], view.documents)
        channels = view.hide(activation("silu", convolved))
        return by_head(channels, self.spec.heads), inputs, view

    def _check_length(self, tokens: int) -> None:
        if not self.spec.supports_length(tokens):
            kind = self.spec.matrix
            raise ValueError(
                f"the matrix ({kind}) was made for at most {self.spec.length} tokens and was given "
                f"{tokens}"
            )


class HydraBlock(Block):
    """x + hydra(norm(x)), then x + mlp(norm(x))."""

    Spec = HydraSpec
    can_be_causal = True
    hides_padding = True
    masks_documents = True

    def __init__(self, spec: HydraSpec, rngs: nnx.Rngs):
        self.mixing_norm = LayerNorm(spec, spec.d_model)
        self.hydra = HydraMixer(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(
        self,
        x: jax.Array,
        rng: LayerRng = EVALUATION,
        padding_mask: jax.Array | None = None,
        cache: DecodeCache | None = None,
    ) -> jax.Array:
        """See `Block`."""
        mixed = self.hydra(self.mixing_norm(x), padding_mask, cache)
        x = add_branch(x, mixed, rng, 0)
        hidden = self.mlp(self.mlp_norm(x))
        return add_branch(x, hidden, rng, 1)

    @classmethod
    def has_spatial_matrix(cls, options: HydraSpec) -> bool:
        """See `Block`."""
        return not options.input_dependent

    def spatial_matrix(self) -> jax.Array | None:
        """See `Block`: the mean of the heads' learned matrices."""
        spec = self.hydra.spec
        if spec.input_dependent:
            return None
        any_input = jnp.zeros((1, spec.length, spec.d_model), spec.compute_dtype)
        matrices = self.hydra.matrices(any_input)
        return matrices[0].mean(axis=0)

    def attention_scores(self, x: jax.Array) -> jax.Array:
        """See `Block`; for other matrices than attention, the logarithm of the absolute weights."""
        return self.hydra.scores(self.mixing_norm(x))
