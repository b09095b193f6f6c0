"""Softmax attention as one kernel on TPUs: a head's logits and weights stay on the chip, forwards and backwards.

`attention.MultiHeadAttention` calls it if it `serves`; elsewhere XLA's own programs run, or cuDNN's kernel on GPUs.

The kernel reads queries, keys and values where the projection has written them, [batch, tokens, 3 heads d], and a bias
that all examples share, [heads, tokens, tokens]. The backward pass computes the weights again from these, as the
forward pass does: nothing of [batch, heads, tokens, tokens] is ever in memory. It has no forward mode: `jax.jvp` and
`jax.hessian` need model.attention=xla.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmlp_flax.models import sharding

LANES = 128  # of a TPU's registers, and the columns that a program reads at once: of one head or of several
MOST_TOKENS = 512  # whose logits, float32 [tokens, tokens], fit into the memory of every TPU's core several times

Array = jax.Array


def serves(tokens: int, width: int, heads: int) -> bool:
    """Whether the kernel has these shapes: `width` is that of all heads together."""
    d = width // heads
    return tokens <= MOST_TOKENS and tokens % 8 == 0 and width % LANES == 0 and (d % LANES == 0 or LANES % d == 0)


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
        padding_mask: bool [batch, tokens], False for padding, which gets no weight; None if there is none.
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
def _attention(qkv: Array, mask: Array | None, bias: Array | None, heads: int, causal: bool, interpret: bool) -> Array:
    kernel = functools.partial(_forward, causal=causal)
    return _call(kernel, qkv, mask, bias, (), [qkv.dtype], heads, interpret)[0]


def _attention_fwd(qkv: Array, mask: Array | None, bias: Array | None, *options: Any) -> tuple[Array, Any]:
    return _attention(qkv, mask, bias, *options), (qkv, mask, bias)


def _attention_bwd(heads: int, causal: bool, interpret: bool, saved: Any, d_mixed: Array) -> tuple[Any, ...]:
    qkv, mask, bias = saved
    kernel = functools.partial(_backward, causal=causal)
    *d_qkv, d_bias = _call(kernel, qkv, mask, bias, (d_mixed,), [qkv.dtype] * 3, heads, interpret, bias is not None)
    d_mask = None if mask is None else jnp.zeros_like(mask)
    return jnp.concatenate(d_qkv, axis=-1), d_mask, None if bias is None else d_bias.astype(bias.dtype)


_attention.defvjp(_attention_fwd, _attention_bwd)


def _call(
    kernel: Callable,
    qkv: Array,
    mask: Array | None,
    bias: Array | None,
    more: tuple[Array, ...],
    outputs: list[Any],
    heads: int,
    interpret: bool,
    bias_gradient: bool = False,
) -> list[Any]:
    """Runs a kernel for each group of heads and, inside, each example; `more` are arrays like the output."""
    batch, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    columns = max(LANES, width // heads)
    groups, each = width // columns, columns * heads // width

    def of_columns(first: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, tokens, columns), lambda group, example: (example, 0, first + group))

    of_bias = pl.BlockSpec((each, tokens, tokens), lambda group, example: (group, 0, 0))
    of_mask = pl.BlockSpec((None, 1, tokens), lambda group, example: (example, 0, 0))
    inputs = [(qkv, of_columns(part * groups)) for part in range(3)]
    inputs += [(array, spec) for array, spec in ((mask, of_mask), (bias, of_bias)) if array is not None]
    inputs += [(array, of_columns(0)) for array in more]
    shapes = [jax.ShapeDtypeStruct((batch, tokens, width), dtype) for dtype in outputs]
    specs = [of_columns(0) for _ in outputs]
    if bias_gradient:
        shapes, specs = [*shapes, jax.ShapeDtypeStruct((heads, tokens, tokens), jnp.float32)], [*specs, of_bias]

    def body(*refs: Any) -> None:
        given, rest = list(refs[: len(inputs)]), refs[len(inputs) :]
        qkv_refs, given = given[:3], given[3:]
        mask_ref = given.pop(0) if mask is not None else None
        bias_ref = given.pop(0) if bias is not None else None
        for head in range(each):
            lanes = slice(head * (width // heads), (head + 1) * (width // heads))
            kernel(head, lanes, qkv_refs, mask_ref, bias_ref, given, rest)

    made = pl.pallas_call(
        body,
        grid=(groups, batch),
        in_specs=[spec for _, spec in inputs],
        out_specs=specs,
        out_shape=shapes,
        # Examples run in turn, as their gradients of the bias add up.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
    )(*(array for array, _ in inputs))
    return [*made] if bias_gradient else [*made, None]


def _weights(
    head: int, lanes: slice, qkv: Any, mask: Any, bias: Any, causal: bool
) -> tuple[Array, Array, Array, Array]:
    """A head's weights, float32 [tokens, tokens], and its queries, keys and values, [tokens, d]."""
    q, k, v = (ref[:, lanes] for ref in qkv)
    logits = _dot(q, k, ((1,), (1,))) * q.shape[-1] ** -0.5
    if bias is not None:
        logits += bias[head].astype(jnp.float32)
    if mask is not None:
        logits = jnp.where(mask[...] > 0, logits, jnp.finfo(jnp.float32).min)
    if causal:
        rows, columns = (jax.lax.broadcasted_iota(jnp.int32, logits.shape, axis) for axis in (0, 1))
        logits = jnp.where(columns <= rows, logits, -jnp.inf)
    powers = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True), q, k, v


def _forward(head: int, lanes: slice, qkv: Any, mask: Any, bias: Any, _: Any, outputs: Any, *, causal: bool) -> None:
    weights, _, _, v = _weights(head, lanes, qkv, mask, bias, causal)
    (mixed,) = outputs
    mixed[:, lanes] = _dot(weights.astype(v.dtype), v, ((1,), (0,))).astype(mixed.dtype)


def _backward(
    head: int, lanes: slice, qkv: Any, mask: Any, bias: Any, more: Any, outputs: Any, *, causal: bool
) -> None:
    weights, q, k, v = _weights(head, lanes, qkv, mask, bias, causal)
    d_mixed, (d_q, d_k, d_v, *d_bias) = more[0][:, lanes], outputs
    d_v[:, lanes] = _dot(weights.astype(v.dtype), d_mixed, ((0,), (0,))).astype(d_v.dtype)
    d_weights = _dot(d_mixed, v, ((1,), (1,)))
    d_logits = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    for ref in d_bias:
        first = pl.program_id(1) == 0
        ref[head] = jnp.where(first, 0.0, ref[head]) + d_logits
    scaled = (d_logits * q.shape[-1] ** -0.5).astype(q.dtype)
    d_q[:, lanes] = _dot(scaled, k, ((1,), (0,))).astype(d_q.dtype)
    d_k[:, lanes] = _dot(scaled, q, ((0,), (0,))).astype(d_k.dtype)


def _dot(x: Array, y: Array, axes: Any) -> Array:
    return jax.lax.dot_general(x, y, (axes, ((), ())), preferred_element_type=jnp.float32)
