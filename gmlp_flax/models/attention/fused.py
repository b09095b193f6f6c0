"""Softmax attention as one kernel on TPUs: a head's logits and weights stay on the chip, forwards
and backwards.

`kernels.attend_fused` calls it for the shapes that it `serves`. Otherwise XLA's programs run, or
cuDNN's kernel on GPUs.

The kernel reads queries, keys and values where the projection has written them, [batch, tokens, 3
heads d], and a bias that all examples share, [heads, tokens, tokens]. The backward pass computes
the weights again from these, as the forward pass does, so no array [batch, heads, tokens, tokens] is
ever in memory. Queries of long examples run in up to MOST_BLOCKS blocks, whose gradients of keys
and values are added up afterwards. There is no forward mode: `jax.jvp` and `jax.hessian` need
model.attention=xla.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmlp_flax.models import sharding

# The width of a TPU's registers. A program reads so many columns at once, those of one head or of
# several heads, or all columns of a wider head.
LANES = 128
# The most logits of a block of queries: in float32 they fit several times into the memory of every
# TPU's core.
MOST_LOGITS = 512 * 512
MOST_BLOCKS = 5
TILE = 16  # rows of a block are a multiple of this, the rows of a register in bfloat16

Ref = Any  # what a kernel reads and writes: a part of an array, in the chip's memory


def serves(tokens: int, width: int, heads: int) -> bool:
    """Whether the kernel has these shapes: `width` is that of all heads together."""
    d = width // heads
    has_whole_heads = d % LANES == 0 or LANES % d == 0
    has_whole_groups = width % LANES == 0
    has_length = _query_blocks(tokens) is not None
    return has_whole_heads and has_whole_groups and has_length


class _QueryBlocks(NamedTuple):
    """The blocks of an example's queries.

    Attributes:
        count: number of blocks.
        rows: queries of a block. Those of the last one may extend beyond the tokens.
    """

    count: int
    rows: int


def _query_blocks(tokens: int) -> _QueryBlocks | None:
    """The fewest blocks whose logits are at most MOST_LOGITS; None if the kernel does not support
    this length."""
    if tokens * tokens <= MOST_LOGITS:
        return _QueryBlocks(1, tokens)
    for count in range(2, MOST_BLOCKS + 1):
        rows = _round_up(-(-tokens // count), TILE)
        if rows * tokens <= MOST_LOGITS:
            return _QueryBlocks(count, rows)
    return None


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of `attention` by their names there."""

    heads: int
    causal: bool
    window: int
    interpret: bool


def attention(
    qkv: Array,
    bias: Array | None,
    padding_mask: Array | None,
    *,
    heads: int,
    causal: bool = False,
    window: int = 0,
    interpret: bool = False,
) -> Array:
    """softmax(q k^T / sqrt(d) + bias) v of each head, the softmax in float32.

    Args:
        qkv: [batch, tokens, 3 heads d]: queries, keys and values of all heads in this order.
        bias: [heads, tokens, tokens], the same for all examples; None for none.
        padding_mask: bool [batch, tokens], False for padding, which gets no weight; None if there
            is none.
        heads: number of heads.
        causal: whether a token attends only to itself and to those before it.
        window: an even number, half of which a token sees on each side; 0 for all tokens.
        interpret: run it without a TPU, slowly.

    Returns:
        [batch, tokens, heads d] in the type of `qkv`.
    """
    options = _Options(heads, causal, window, interpret)
    mask = None
    if padding_mask is not None:
        mask = padding_mask.astype(jnp.float32)[:, None]  # [batch, 1, tokens]

    def on_shard(batched: tuple[Array, Array | None], bias: Array | None) -> Array:
        qkv, mask = batched
        return _attention(qkv, mask, bias, options)

    return sharding.map_shards(on_shard, (qkv, mask), bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attention(qkv: Array, mask: Array | None, bias: Array | None, options: _Options) -> Array:
    inputs = _Inputs(qkv, qkv, qkv, mask, bias)
    return _forward(inputs, options)


def _attention_fwd(
    qkv: Array, mask: Array | None, bias: Array | None, options: _Options
) -> tuple[Array, Any]:
    saved = (qkv, mask, bias)
    return _attention(qkv, mask, bias, options), saved


def _attention_bwd(
    options: _Options, saved: Any, d_mixed: Array
) -> tuple[Array, Array | None, Array | None]:
    qkv, mask, bias = saved
    inputs = _Inputs(qkv, qkv, qkv, mask, bias)
    gradients = _backward(inputs, d_mixed, options)
    tiling = _tiling(qkv, options.heads)
    d_k = _sum_of_blocks(gradients.k, tiling)
    d_v = _sum_of_blocks(gradients.v, tiling)
    d_qkv = jnp.concatenate([gradients.q, d_k, d_v], axis=-1)
    d_mask = None
    if mask is not None:
        d_mask = jnp.zeros_like(mask)
    d_bias = None
    if bias is not None:
        d_bias = gradients.bias.astype(bias.dtype)
    return d_qkv, d_mask, d_bias


_attention.defvjp(_attention_fwd, _attention_bwd)


class _Inputs(NamedTuple):
    """What both kernels read: as arrays, as specs of the parts that a program reads, or as refs to
    these parts.

    Attributes:
        q: the whole array [batch, tokens, 3 heads d]; its part [rows, columns].
        k: the same array; its part [tokens, columns].
        v: the same array; its part [tokens, columns].
        mask: [batch, 1, tokens], 0 for padding; its part [1, tokens]. None if there is none.
        bias: [heads, tokens, tokens]; its part [heads of a group, rows, tokens]. None for none.
    """

    q: Any
    k: Any
    v: Any
    mask: Any
    bias: Any


class _Gradients(NamedTuple):
    """What the backward kernel writes: shapes, specs, refs or arrays, as in `_Inputs`.

    Attributes:
        q: [batch, tokens, heads d]; its part [rows, columns].
        k: of each block of queries, [batch, blocks key_rows, heads d]; its part [key_rows,
            columns].
        v: like k.
        bias: float32 [heads, tokens, tokens], summed over the batch; None without a bias.
    """

    q: Any
    k: Any
    v: Any
    bias: Any


@dataclasses.dataclass(frozen=True)
class _Tiling:
    """How the work is divided: a program has one group of heads, one block of queries and one
    example.

    Attributes:
        batch: number of examples.
        tokens: number of tokens of an example.
        width: d of all heads together.
        d: size of a head.
        columns: columns of a group of heads: those of one head, or LANES of several heads.
        blocks: number of blocks of queries.
        rows: queries of a block.
    """

    batch: int
    tokens: int
    width: int
    d: int
    columns: int
    blocks: int
    rows: int

    @property
    def groups(self) -> int:
        """Number of groups of heads."""
        return self.width // self.columns

    @property
    def heads_per_group(self) -> int:
        """Number of heads whose columns a program reads."""
        return self.columns // self.d

    @property
    def key_rows(self) -> int:
        """Rows that a block of queries has for the gradients of the keys: the tokens, or the next
        multiple of TILE if there are several blocks."""
        if self.blocks == 1:
            return self.tokens
        return _round_up(self.tokens, TILE)

    def lanes(self, head: int) -> slice:
        """The columns of a head, numbered within its group, among those of the group."""
        start = head * self.d
        stop = start + self.d
        return slice(start, stop)


def _tiling(qkv: Array, heads: int) -> _Tiling:
    """The tiling of queries, keys and values [batch, tokens, 3 heads d]. Raises ValueError for a
    number of tokens that the kernel does not serve."""
    batch, tokens, width_of_three = qkv.shape
    width = width_of_three // 3
    d = width // heads
    blocks = _query_blocks(tokens)
    if blocks is None:
        raise ValueError(f"the kernel does not support {tokens} tokens")
    return _Tiling(
        batch=batch,
        tokens=tokens,
        width=width,
        d=d,
        columns=max(LANES, d),
        blocks=blocks.count,
        rows=blocks.rows,
    )


def _input_specs(inputs: _Inputs, tiling: _Tiling) -> _Inputs:
    """Which part of each input a program reads. The three parts of qkv lie side by side, each of
    `tiling.groups` groups of columns."""
    groups = tiling.groups
    part_of_queries = (None, tiling.rows, tiling.columns)
    part_of_keys = (None, tiling.tokens, tiling.columns)
    part_of_mask = (None, 1, tiling.tokens)
    mask_spec = None
    if inputs.mask is not None:
        mask_spec = pl.BlockSpec(part_of_mask, lambda group, block, example: (example, 0, 0))
    return _Inputs(
        q=pl.BlockSpec(part_of_queries, lambda group, block, example: (example, block, group)),
        k=pl.BlockSpec(part_of_keys, lambda group, block, example: (example, 0, groups + group)),
        v=pl.BlockSpec(
            part_of_keys, lambda group, block, example: (example, 0, 2 * groups + group)
        ),
        mask=mask_spec,
        bias=_bias_spec(inputs, tiling),
    )


def _bias_spec(inputs: _Inputs, tiling: _Tiling) -> pl.BlockSpec | None:
    """Which part of the bias, and of its gradient, a program reads and writes."""
    if inputs.bias is None:
        return None
    part = (tiling.heads_per_group, tiling.rows, tiling.tokens)
    return pl.BlockSpec(part, lambda group, block, example: (group, block, 0))


def _output_spec(rows: int, tiling: _Tiling) -> pl.BlockSpec:
    """Which part of an output [batch, blocks rows, heads d] a program writes."""
    part = (None, rows, tiling.columns)
    return pl.BlockSpec(part, lambda group, block, example: (example, block, group))


def _forward(inputs: _Inputs, options: _Options) -> Array:
    """The mixed values, [batch, tokens, heads d]."""
    tiling = _tiling(inputs.q, options.heads)

    def kernel(refs: _Inputs, mixed_ref: Ref) -> None:
        first = _first_query(tiling)
        for number in range(tiling.heads_per_group):
            head = _read_head(refs, number, first, tiling, options)
            v = head.v
            weights = head.weights.astype(v.dtype)
            mixed = _dot(weights, v, 1, 0)  # [rows, d]
            lanes = tiling.lanes(number)
            mixed_ref[:, lanes] = mixed.astype(mixed_ref.dtype)

    call = pl.pallas_call(
        kernel,
        grid=(tiling.groups, tiling.blocks, tiling.batch),
        in_specs=[_input_specs(inputs, tiling)],
        out_specs=_output_spec(tiling.rows, tiling),
        out_shape=_shape_of_queries(inputs, tiling),
        compiler_params=_compiler_params(),
        interpret=options.interpret,
    )
    return call(inputs)


def _backward(inputs: _Inputs, d_mixed: Array, options: _Options) -> _Gradients:
    """The gradients of the inputs from that of the mixed values, [batch, tokens, heads d]."""
    tiling = _tiling(inputs.q, options.heads)

    def kernel(refs: _Inputs, d_mixed_ref: Ref, *outputs: Ref) -> None:
        gradients = _Gradients(*outputs)
        first = _first_query(tiling)
        for number in range(tiling.heads_per_group):
            head = _read_head(refs, number, first, tiling, options)
            lanes = tiling.lanes(number)
            d_mixed = d_mixed_ref[:, lanes]
            d_mixed = _zero_beyond(d_mixed, first, tiling.tokens)
            _write_gradients(gradients, number, head, d_mixed, refs.mask, tiling)

    queries_shape = _shape_of_queries(inputs, tiling)
    key_rows_of_blocks = tiling.blocks * tiling.key_rows
    shape_of_keys = (tiling.batch, key_rows_of_blocks, tiling.width)
    keys_shape = queries_shape.update(shape=shape_of_keys)
    bias_shape = None
    if inputs.bias is not None:
        bias_shape = jax.ShapeDtypeStruct(inputs.bias.shape, jnp.float32)
    queries_spec = _output_spec(tiling.rows, tiling)
    keys_spec = _output_spec(tiling.key_rows, tiling)
    bias_spec = _bias_spec(inputs, tiling)
    call = pl.pallas_call(
        kernel,
        grid=(tiling.groups, tiling.blocks, tiling.batch),
        in_specs=[_input_specs(inputs, tiling), queries_spec],
        out_specs=_Gradients(queries_spec, keys_spec, keys_spec, bias_spec),
        out_shape=_Gradients(queries_shape, keys_shape, keys_shape, bias_shape),
        compiler_params=_compiler_params(),
        interpret=options.interpret,
    )
    return call(inputs, d_mixed)


def _sum_of_blocks(gradient: Array, tiling: _Tiling) -> Array:
    """The gradient of keys or values, [batch, tokens, heads d], from those of the blocks of
    queries, [batch, blocks key_rows, heads d]."""
    by_block = gradient.reshape(tiling.batch, tiling.blocks, -1, tiling.width)
    of_tokens = by_block[:, :, : tiling.tokens]
    return of_tokens.sum(axis=1)


def _shape_of_queries(inputs: _Inputs, tiling: _Tiling) -> jax.ShapeDtypeStruct:
    shape = (tiling.batch, tiling.tokens, tiling.width)
    return jax.ShapeDtypeStruct(shape, inputs.q.dtype)


def _compiler_params() -> pltpu.CompilerParams:
    # Examples run in turn, as their gradients of the bias add up.
    return pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary"))


class _Head(NamedTuple):
    """One head of a program's block of queries and of its example.

    Attributes:
        q: queries [rows, d], 0 in rows beyond the tokens.
        k: keys [tokens, d].
        v: values [tokens, d].
        weights: float32 [rows, tokens].
    """

    q: Array
    k: Array
    v: Array
    weights: Array


def _read_head(
    refs: _Inputs, number: int, first: Array, tiling: _Tiling, options: _Options
) -> _Head:
    """Reads a head, numbered within its group, and computes its weights; `first` is the position of
    the first query."""
    lanes = tiling.lanes(number)
    tokens = tiling.tokens
    q = refs.q[:, lanes]
    q = _zero_beyond(q, first, tokens)
    k = refs.k[:, lanes]
    v = refs.v[:, lanes]
    bias = None
    if refs.bias is not None:
        bias = refs.bias[number]
        bias = _zero_beyond(bias, first, tokens)
    logits = _logits(q, k, bias, refs.mask)
    if options.causal or options.window:
        logits = _hide_out_of_reach(logits, first, options)
    weights = _softmax(logits)
    return _Head(q, k, v, weights)


def _first_query(tiling: _Tiling) -> Array:
    """The position of the first query of a program's block."""
    block = pl.program_id(1)
    return block * tiling.rows


def _zero_beyond(x: Array, first: Array, tokens: int) -> Array:
    """A block of queries [rows, ...] that begins at `first`, with 0 in rows beyond the tokens, where
    the memory may hold NaN."""
    rows = x.shape[0]
    if tokens % rows == 0:
        return x
    numbers = jax.lax.broadcasted_iota(jnp.int32, (rows, 1), 0)
    positions = first + numbers
    is_token = positions < tokens
    return jnp.where(is_token, x, 0)


def _logits(q: Array, k: Array, bias: Array | None, mask_ref: Ref | None) -> Array:
    """q k^T / sqrt(d) + bias of a head, float32 [rows, tokens]; the least finite number where the
    key is padding."""
    _, d = q.shape
    products = _dot(q, k, 1, 1)
    scale = d**-0.5
    logits = products * scale
    if bias is not None:
        precise_bias = bias.astype(jnp.float32)
        logits = logits + precise_bias
    if mask_ref is not None:
        is_text = mask_ref[...] > 0
        least = jnp.finfo(jnp.float32).min
        logits = jnp.where(is_text, logits, least)
    return logits


def _hide_out_of_reach(logits: Array, first: Array, options: _Options) -> Array:
    """Logits [rows, tokens] of the queries from `first` on, -inf for later keys if attention is
    causal, and for those farther than half the window."""
    rows = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 0)
    keys = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    # Queries beyond the tokens see what the last one sees: a row without any key would be NaN.
    _, tokens = logits.shape
    positions = first + rows
    queries = jnp.minimum(positions, tokens - 1)
    if options.causal:
        is_past = keys <= queries
        logits = jnp.where(is_past, logits, -jnp.inf)
    if options.window:
        half = options.window // 2
        offsets = keys - queries
        distances = jnp.abs(offsets)
        is_near = distances <= half
        logits = jnp.where(is_near, logits, -jnp.inf)
    return logits


def _softmax(logits: Array) -> Array:
    largest = logits.max(axis=-1, keepdims=True)
    shifted = logits - largest
    powers = jnp.exp(shifted)
    total = powers.sum(axis=-1, keepdims=True)
    return powers / total


def _write_gradients(
    gradients: _Gradients,
    number: int,
    head: _Head,
    d_mixed: Array,
    mask_ref: Ref | None,
    tiling: _Tiling,
) -> None:
    """Writes the gradients of a head, numbered within its group, from that of its mixed values,
    [rows, d]. The gradient of the bias is added to that of the examples before.

    With weights P = softmax(S), S = q k^T / sqrt(d) + bias and O = P v: d_v = P^T d_O, d_P = d_O v^T,
    and d_S = P (d_P - sum(P d_P)), summed over the keys of each query.
    """
    q, k, v, weights = head
    lanes = tiling.lanes(number)
    tokens = tiling.tokens
    rounded_weights = weights.astype(v.dtype)
    d_v = _dot(rounded_weights, d_mixed, 0, 0)  # [tokens, d]
    gradients.v[:tokens, lanes] = d_v.astype(gradients.v.dtype)
    d_weights = _dot(d_mixed, v, 1, 1)  # [rows, tokens]
    products = weights * d_weights
    mean_d_weight = products.sum(axis=-1, keepdims=True)  # over the keys, by their weights
    deviations = d_weights - mean_d_weight
    d_logits = weights * deviations
    if mask_ref is not None:
        # Where all keys are padding the weights are equal, but no logit has been read.
        is_text = mask_ref[...] > 0
        d_logits = jnp.where(is_text, d_logits, 0.0)
    if gradients.bias is not None:
        example = pl.program_id(2)
        is_first_example = example == 0
        sum_before = jnp.where(is_first_example, 0.0, gradients.bias[number])
        gradients.bias[number] = sum_before + d_logits
    scale = tiling.d**-0.5
    d_products = d_logits * scale  # of q k^T, [rows, tokens]
    d_products = d_products.astype(q.dtype)
    d_q = _dot(d_products, k, 1, 0)  # [rows, d]
    gradients.q[:, lanes] = d_q.astype(gradients.q.dtype)
    d_k = _dot(d_products, q, 0, 0)  # [tokens, d]
    gradients.k[:tokens, lanes] = d_k.astype(gradients.k.dtype)


def _dot(x: Array, y: Array, x_axis: int, y_axis: int) -> Array:
    """The product of two matrices in float32, summed over axis `x_axis` of x and `y_axis` of y."""
    contracted = ((x_axis,), (y_axis,))
    batched = ((), ())
    axes = (contracted, batched)
    return jax.lax.dot_general(x, y, axes, preferred_element_type=jnp.float32)
