"""The gated delta rule as pure functions (arXiv 2412.06464, equation 10).

A head has a state S, a linear map from keys to values. A token makes S decay, and replaces a share
of what S holds for the token's key by the token's value:

    S_t = a_t S_(t-1) (I - b_t k_t k_t^T) + b_t v_t k_t^T,    o_t = S_t q_t

Tokens are read chunk by chunk (section 3.3). Within a chunk, S_t = A_t S_0 + sum_(j <= t) A_t / A_j
u_j k_j^T, where A_t is the product of a up to t. The u_j solve a system of linear equations with a
triangular matrix (the WY representation): (I + L) U = b V - b A K S_0^T, with
L_ij = b_i A_i / A_j k_i^T k_j for j < i. All but S itself is therefore computed for all chunks at
once, by matrix products.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from gmlp_flax.models import sharding
from gmlp_flax.models.recurrences import chunks as chunks_lib
from gmlp_flax.models.recurrences.chunks import Visibility


class Inputs(NamedTuple):
    """What the rule reads. A token with `beta` and `log_decay` of 0 leaves the state unchanged.

    Attributes:
        queries: q, [batch, tokens, heads, c].
        keys: k, of the same shape. If k has unit length, b is the share of its old value that is
            replaced.
        values: v, [batch, tokens, heads, d].
        log_decay: log a, at most 0, [batch, tokens, heads].
        beta: b, the strength of a write, from 0 to 1, [batch, tokens, heads].
    """

    queries: Array
    keys: Array
    values: Array
    log_decay: Array
    beta: Array


def first_state(inputs: Inputs) -> Array:
    """S^T before the first token: zeros [batch, heads, c, d]."""
    batch, _, heads, keys = inputs.keys.shape
    values = inputs.values.shape[-1]
    shape = (batch, heads, keys, values)
    zeros = jnp.zeros(shape, inputs.values.dtype)
    return sharding.shard_as(zeros, inputs.keys, 1)


def delta_rule(
    inputs: Inputs,
    chunk: int,
    state: Array | None = None,
    documents: Array | None = None,
) -> tuple[Array, Array]:
    """The outputs o, and the state after the last token, in O(tokens) memory.

    Args:
        inputs: in the type in which everything is computed.
        chunk: the most tokens that are read at once, a power of two.
        state: S^T before these tokens, [batch, heads, c, d]; None for zeros.
        documents: int [batch, tokens], the document of each token. The tokens of a document are
            consecutive, and each document begins with a state of zeros. None if there is one.

    Returns:
        o [batch, tokens, heads, d], and S^T [batch, heads, c, d].
    """
    tokens = inputs.keys.shape[1]
    size = _chunk_size(tokens, chunk)
    chunks = _in_chunks(inputs, size)
    visible = _chunks_first(chunks_lib.visibility(size, documents))
    steps = _steps(chunks, visible)
    if state is None:
        state = first_state(inputs)
    outputs, state = _run(steps, state)  # [chunks, batch, heads, size, d]
    by_token = jnp.moveaxis(outputs, (0, 3), (1, 2))  # [batch, chunks, size, heads, d]
    return chunks_lib.join(by_token, tokens, axis=1), state


def _chunk_size(tokens: int, most: int) -> int:
    """Tokens of a chunk, a power of two: at most `most`, and no more than hold all tokens."""
    bits = (tokens - 1).bit_length()
    least = 1 << bits  # the least power of two that is not below the tokens
    return min(most, least)


class _Chunks(NamedTuple):
    """`Inputs` chunk by chunk: [chunks, batch, heads, size, ...]."""

    queries: Array
    keys: Array
    values: Array
    log_decay: Array
    beta: Array


def _in_chunks(inputs: Inputs, size: int) -> _Chunks:
    return _Chunks(
        queries=_chunked(inputs.queries, size),
        keys=_chunked(inputs.keys, size),
        values=_chunked(inputs.values, size),
        log_decay=_chunked(inputs.log_decay, size),
        beta=_chunked(inputs.beta, size),
    )


def _chunked(x: Array, size: int) -> Array:
    """[batch, tokens, heads, ...] to [chunks, batch, heads, size, ...]; zeros follow the tokens."""
    by_chunk = chunks_lib.split(x, size, axis=1)  # [batch, chunks, size, heads, ...]
    return jnp.moveaxis(by_chunk, (1, 3), (0, 2))


def _chunks_first(visible: Visibility) -> Visibility:
    """Masks [batch, 1, chunks, ...] to [chunks, batch, 1, ...], as in `_Chunks`."""

    def move(mask: Array) -> Array:
        return jnp.moveaxis(mask, 2, 0)

    return jax.tree.map(move, visible)


class _Steps(NamedTuple):
    """What a chunk does with the state S_0^T before it: [chunks, batch, heads, ...].

    U = values - keys S_0^T, O = queries S_0^T + scores U, S^T = decay S_0^T + writes^T U. With the
    names of the module's docstring, and t the last token of the chunk:

    Attributes:
        queries: A Q, [..., size, c].
        keys: (I + L)^-1 b A K, [..., size, c].
        values: (I + L)^-1 b V, [..., size, d].
        scores: A_i / A_j q_i^T k_j for j <= i, else 0, [..., size, size].
        writes: A_t / A_j k_j, [..., size, c].
        decay: A_t, [..., 1, 1].
    """

    queries: Array
    keys: Array
    values: Array
    scores: Array
    writes: Array
    decay: Array


def _steps(chunks: _Chunks, visible: Visibility) -> _Steps:
    decays = chunks_lib.decays(chunks.log_decay, visible)
    from_state = decays.from_state[..., None]  # A, [..., size, 1]
    to_end = decays.to_end[..., None]
    beta = chunks.beta[..., None]
    lower = _overlaps(chunks, decays.ratios)  # L
    inverse = inverted(lower)  # (I + L)^-1
    weighted_values = beta * chunks.values  # b V
    decayed_beta = beta * from_state
    weighted_keys = decayed_beta * chunks.keys  # b A K
    products = _products_of_tokens(chunks.queries, chunks.keys)  # q_i^T k_j
    return _Steps(
        queries=from_state * chunks.queries,
        keys=inverse @ weighted_keys,
        values=inverse @ weighted_values,
        scores=decays.ratios * products,
        writes=to_end * chunks.keys,
        decay=from_state[..., -1:, :],
    )


def _overlaps(chunks: _Chunks, ratios: Array) -> Array:
    """L: b_i A_i / A_j k_i^T k_j for j < i, else 0, [chunks, batch, heads, size, size]."""
    size = ratios.shape[-1]
    products = _products_of_tokens(chunks.keys, chunks.keys)  # k_i^T k_j
    all_pairs = jnp.ones((size, size), bool)
    is_before = jnp.tril(all_pairs, -1)
    beta_of_rows = chunks.beta[..., None]  # [chunks, batch, heads, size, 1]
    weights = beta_of_rows * ratios
    overlaps = weights * products
    zeros = jnp.zeros_like(overlaps)
    return jnp.where(is_before, overlaps, zeros)


def _products_of_tokens(left: Array, right: Array) -> Array:
    """[..., size, c] each, to [..., size, size]."""
    return jnp.einsum("...ic,...jc->...ij", left, right)


def inverted(lower: Array) -> Array:
    """(I + L)^-1 of L [..., size, size], which is 0 on and above its diagonal; size is a power of
    two.

    A lower triangular matrix of blocks [[P, 0], [R, Q]] has the inverse [[P^-1, 0],
    [-Q^-1 R P^-1, Q^-1]]. P and Q are inverted together, by this function. The inverse is also a sum
    of powers of -L, but these are huge where keys repeat.
    """
    size = lower.shape[-1]
    if size == 1:
        return 1 - lower
    half = size // 2
    upper_left = lower[..., :half, :half]
    upper_right = lower[..., :half, half:]  # zeros
    lower_right = lower[..., half:, half:]
    diagonal = jnp.stack([upper_left, lower_right])
    inverses = inverted(diagonal)
    first = inverses[0]  # P^-1
    second = inverses[1]  # Q^-1
    lower_left = lower[..., half:, :half]  # R
    product = _matmul(lower_left, first)
    corner = -_matmul(second, product)  # -Q^-1 R P^-1
    upper_rows = jnp.concatenate([first, upper_right], axis=-1)
    lower_rows = jnp.concatenate([corner, second], axis=-1)
    return jnp.concatenate([upper_rows, lower_rows], axis=-2)


def _matmul(left: Array, right: Array) -> Array:
    """left right, in the highest precision."""
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)


def _run(steps: _Steps, state: Array) -> tuple[Array, Array]:
    """The outputs of all chunks, [chunks, batch, heads, size, d], and the last state."""
    chunks = len(steps.queries)
    # an exported program has no loop: not all formats have one
    if chunks > 1 and sharding.platform() != "any":
        state, outputs = jax.lax.scan(_read_chunk, state, steps)
        return outputs, state
    outputs = []
    for number in range(chunks):
        step = _step_of(steps, number)
        state, output = _read_chunk(state, step)
        outputs.append(output)
    return jnp.stack(outputs), state


def _step_of(steps: _Steps, number: int) -> _Steps:
    """What the chunk of a number does: [batch, heads, ...]."""

    def select(leaf: Array) -> Array:
        return leaf[number]

    return jax.tree.map(select, steps)


def _read_chunk(state: Array, step: _Steps) -> tuple[Array, Array]:
    """S^T after a chunk, [batch, heads, c, d], and the outputs of its tokens, [batch, heads, size,
    d], from S^T before it."""
    recalled = step.keys @ state
    written = step.values - recalled  # U
    from_state = step.queries @ state
    from_chunk = step.scores @ written
    output = from_state + from_chunk
    kept = step.decay * state
    writes = step.writes.swapaxes(-1, -2)
    added = writes @ written
    new_state = kept + added
    return new_state, output
