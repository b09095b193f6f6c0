"""Softmax attention as one kernel on TPUs: a head's logits and weights stay on the chip, forwards
and backwards.

`attention.MultiHeadAttention` calls it if it `serves`; elsewhere XLA's own programs run, or cuDNN's
kernel on GPUs.

The kernel reads queries, keys and values where the projection has written them, [batch, tokens, 3
heads d], and a bias that all examples share, [heads, tokens, tokens]. The backward pass computes
the weights again from these, as the
forward pass does: nothing of [batch, heads, tokens, tokens] is ever in memory. Queries of long
examples run in up to MOST_BLOCKS blocks, whose gradients of keys and values are added up
afterwards. It has no forward mode: `jax.jvp` and `jax.hessian` need model.attention=xla.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmlp_flax.models import sharding

# of a TPU's registers, and the columns that a program reads at once: of one head or of several
LANES = 128
# of a block of queries, float32: they fit into the memory of every TPU's core several times
MOST_LOGITS = 512 * 512
MOST_BLOCKS = 5
TILE = 16  # rows of a block are a multiple of it, as registers hold them in bfloat16

Array = jax.Array


def serves(tokens: int, width: int, heads: int) -> bool:
    """Whether the kernel has these shapes: `width` is that of all heads together."""
    d = width // heads
    return width % LANES == 0 and (d % LANES == 0 or LANES % d == 0) and _blocks(tokens)[0] > 0


def _blocks(tokens: int) -> tuple[int, int]:
    """The number of blocks of queries, 0 if the kernel does not have this length, and the rows of a
    block: those of the last one may reach beyond the queries."""
    for blocks in range(1, MOST_BLOCKS + 1):
        rows = tokens if blocks == 1 else -(-tokens // (blocks * TILE)) * TILE
        if rows * tokens <= MOST_LOGITS:
            return blocks, rows
    return 0, 0


def attention(
    qkv: Array,
    bias: Array | None,
    padding_mask: Array | None,
    *,
    heads: int,
    causal: bool = False,
    interpret: bool = False,
) -> Array:
    """softmax(q k^T / sqrt(d) + bias) v of each head, the softmax in float32.

    Args:
        qkv: [batch, tokens, 3 heads d]: queries, keys and values of all heads in this order.
        bias: [heads, tokens, tokens], the same for all examples; None for none.
        padding_mask: bool [batch, tokens], False for padding, which gets no weight; None if there
            is none.
        heads: their number.
        causal: whether a token attends to those before it and itself alone.
        interpret: run it without a TPU, slowly.

    Returns:
        [batch, tokens, heads d] in the type of `qkv`.
    """
    mask = None if padding_mask is None else padding_mask.astype(jnp.float32)[:, None]

    def on_shard(batched: tuple[Array, Array | None], bias: Array | None) -> Array:
        return _attention(*batched, bias, heads, causal, interpret)

    return sharding.map_shards(on_shard, (qkv, mask), bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _attention(
    qkv: Array, mask: Array | None, bias: Array | None, heads: int, causal: bool, interpret: bool
) -> Array:
    return _call(_forward, qkv, mask, bias, None, heads, causal, interpret)[0]


def _attention_fwd(
    qkv: Array, mask: Array | None, bias: Array | None, *options: Any
) -> tuple[Array, Any]:
    return _attention(qkv, mask, bias, *options), (qkv, mask, bias)


def _attention_bwd(
    heads: int, causal: bool, interpret: bool, saved: Any, d_mixed: Array
) -> tuple[Any, ...]:
    qkv, mask, bias = saved
    d_q, d_k, d_v, d_bias = _call(_backward, qkv, mask, bias, d_mixed, heads, causal, interpret)
    batch, tokens, width = d_q.shape
    by_block = (part.reshape(batch, _blocks(tokens)[0], -1, width) for part in (d_k, d_v))
    d_qkv = jnp.concatenate([d_q, *(part[:, :, :tokens].sum(axis=1) for part in by_block)], axis=-1)
    d_mask = None if mask is None else jnp.zeros_like(mask)
    return d_qkv, d_mask, None if bias is None else d_bias.astype(bias.dtype)


_attention.defvjp(_attention_fwd, _attention_bwd)


def _call(
    kernel: Callable,
    qkv: Array,
    mask: Array | None,
    bias: Array | None,
    d_mixed: Array | None,
    heads: int,
    causal: bool,
    interpret: bool,
) -> list[Any]:
    """Runs a kernel for each group of heads and, inside, each block of queries and each example.

    Returns:
        Forwards, without `d_mixed`: the mixed values. Backwards: the gradients of queries, [batch,
        tokens, heads d]; of keys and of values by each block, [batch, blocks rows, heads d], where
        the rows are the tokens, or the next multiple of TILE if there are several blocks; and of
        the bias, None without one.
    """
    batch = qkv.shape[0]
    tokens = qkv.shape[1]
    width = qkv.shape[2] // 3
    columns, (blocks, rows) = max(LANES, width // heads), _blocks(tokens)
    groups = width // columns
    per_group = columns * heads // width
    keys, values = (
        pl.BlockSpec(
            (None, tokens, columns),
            lambda group, block, example, part=part: (example, 0, part + group),
        )
        for part in (groups, 2 * groups)
    )
    queries = pl.BlockSpec(
        (None, rows, columns), lambda group, block, example: (example, block, group)
    )
    bias_shape = per_group, rows, tokens
    of_bias = (
        None
        if bias is None
        else pl.BlockSpec(bias_shape, lambda group, block, _: (group, block, 0))
    )
    of_mask = (
        None
        if mask is None
        else pl.BlockSpec((None, 1, tokens), lambda group, block, example: (example, 0, 0))
    )
    shape = jax.ShapeDtypeStruct((batch, tokens, width), qkv.dtype)
    outputs = [shape]
    specs = [queries]
    if d_mixed is not None:
        tall = tokens if blocks == 1 else -(-tokens // TILE) * TILE
        by_block = pl.BlockSpec(
            (None, tall, columns), lambda group, block, example: (example, block, group)
        )
        outputs += [shape.update(shape=(batch, blocks * tall, width))] * 2
        outputs += [
            None if bias is None else jax.ShapeDtypeStruct((heads, tokens, tokens), jnp.float32)
        ]
        specs += [by_block, by_block, of_bias]

    def body(q: Any, k: Any, v: Any, mask: Any, bias: Any, d_mixed: Any, *outputs: Any) -> None:
        """The blocks that the specs above and below read and write; each head of the group has its
        own lanes."""
        first = pl.program_id(1) * rows
        for head in range(per_group):
            lanes = slice(head * (width // heads), (head + 1) * (width // heads))
            own = _within(q[:, lanes], first, tokens), k[:, lanes], v[:, lanes]
            own_bias = None if bias is None else _within(bias[head], first, tokens)
            weights = _weights(own[0], own[1], mask, own_bias, first if causal else None)
            given = None if d_mixed is None else _within(d_mixed[:, lanes], first, tokens)
            kernel(head, lanes, weights, mask, *own, given, *outputs)

    return pl.pallas_call(
        body,
        grid=(groups, blocks, batch),
        in_specs=[queries, keys, values, of_mask, of_bias, None if d_mixed is None else queries],
        out_specs=specs,
        out_shape=outputs,
        # Examples run in turn, as their gradients of the bias add up.
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=interpret,
    )(qkv, qkv, qkv, mask, bias, d_mixed)


def _within(x: Array, first: Array, tokens: int) -> Array:
    """A block of queries [rows, ...] that begins at `first`, 0 in rows beyond the tokens: memory
    there may hold NaN."""
    if tokens % x.shape[0] == 0:
        return x
    return jnp.where(first + jax.lax.broadcasted_iota(jnp.int32, (x.shape[0], 1), 0) < tokens, x, 0)


def _weights(q: Array, k: Array, mask: Any, bias: Array | None, first: Array | None) -> Array:
    """A head's weights, float32 [rows, tokens], of queries [rows, d] and keys [tokens, d]; the
    first query's position is given if attention is causal."""
    logits = _dot(q, k, ((1,), (1,))) * q.shape[-1] ** -0.5
    if bias is not None:
        logits += bias.astype(jnp.float32)
    if mask is not None:
        logits = jnp.where(mask[...] > 0, logits, jnp.finfo(jnp.float32).min)
    if first is not None:
        rows, columns = (jax.lax.broadcasted_iota(jnp.int32, logits.shape, axis) for axis in (0, 1))
        logits = jnp.where(columns <= first + rows, logits, -jnp.inf)
    powers = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _forward(
    head: int,
    lanes: slice,
    weights: Array,
    mask: Any,
    q: Array,
    k: Array,
    v: Array,
    _: None,
    mixed: Any,
) -> None:
    mixed[:, lanes] = _dot(weights.astype(v.dtype), v, ((1,), (0,))).astype(mixed.dtype)


def _backward(
    head: int,
    lanes: slice,
    weights: Array,
    mask: Any,
    q: Array,
    k: Array,
    v: Array,
    d_mixed: Array,
    *outputs: Any,
) -> None:
    d_q, d_k, d_v, d_bias = outputs
    tokens = k.shape[0]
    d_v[:tokens, lanes] = _dot(weights.astype(v.dtype), d_mixed, ((0,), (0,))).astype(d_v.dtype)
    d_weights = _dot(d_mixed, v, ((1,), (1,)))
    d_logits = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    if mask is not None:
        # Where all keys are padding the weights are equal, but no logit has been read.
        d_logits = jnp.where(mask[...] > 0, d_logits, 0.0)
    if d_bias is not None:
        first = pl.program_id(2) == 0
        d_bias[head] = jnp.where(first, 0.0, d_bias[head]) + d_logits
    scaled = (d_logits * q.shape[-1] ** -0.5).astype(q.dtype)
    d_q[:, lanes] = _dot(scaled, k, ((1,), (0,))).astype(d_q.dtype)
    d_k[:tokens, lanes] = _dot(scaled, q, ((0,), (0,))).astype(d_k.dtype)


def _dot(x: Array, y: Array, axes: Any) -> Array:
    return jax.lax.dot_general(x, y, (axes, ((), ())), preferred_element_type=jnp.float32)
